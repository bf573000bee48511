"""The report of a measured pool: Markdown and a plot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.machine import Machine
from benchmarks.pool_server_load import SHARE, TIMEOUTS_S
from benchmarks.pool_server_measure import Costs, Observed, Tails
from benchmarks.pool_server_predict import Predicted, standard_error
from benchmarks.publishing import measured_on, picture_style, save_svg, table

_AIM_POINTS = 5.0
_AIM_RATIO = 1.2
_AIM_MEMORY = 1.1
_EXPECTED = (200, 429, 504)
"""Answers, and refusals of what cannot be in time or of what is too much."""


@dataclass(frozen=True, slots=True)
class Report:
    """A measured pool.

    Attributes:
        date: When.
        machine: On what.
        members: How many models.
        file_bytes: Of one of them.
        memory: Of the host, for what is loaded, bytes.
        load: Part of the capacity that was asked.
        rate: Requests per second.
        seconds: That count.
        start_s: From the start of the server until it was ready.
        empty_bytes: What the host's process held then.
        costs: Measured before.
        observed: What became of the workload.
        predicted: What the simulator says of it.
        tails: Class `high` with and without loads.
        took_s: All of it.
    """

    date: str
    machine: Machine
    members: int
    file_bytes: int
    memory: int
    load: float
    rate: float
    seconds: float
    start_s: float
    empty_bytes: int
    costs: Costs
    observed: Observed
    predicted: Predicted
    tails: Tails
    took_s: float

    @property
    def failed(self) -> int:
        """Requests that were neither answered nor refused for their deadline or their number."""
        statuses = self.observed.statuses
        return sum(count for status, count in statuses.items() if status not in _EXPECTED) + self.tails.failed

    @property
    def most_memory(self) -> int:
        """The most that the host held beyond an empty one, bytes."""
        return max((nbytes for _, nbytes in self.observed.memory), default=0)


def render(report: Report, plot: str) -> str:
    """The report as Markdown.

    Args:
        report: What was measured.
        plot: Path of the picture, relative to the report.
    """
    part = report.memory / report.file_bytes / report.members
    shares = ", ".join(f"{p.label} {part:.0%} ({TIMEOUTS_S[p]:g} s)" for p, part in SHARE.items())
    header = ["class", "requests", "in time, real", "simulated", "points", "p50, ms: real / simulated", "p99, ms"]
    return f"""# A pool on the real server

Does a pool do what the simulator says, with {report.members:,} models of {report.file_bytes / 2**20:.1f} MiB and one
host with memory for {part:.0%} of them? `make bench-pool-server` measures it; how pools work is in
[pools](../pools.md), and larger ones are in [scheduling](scheduling.md).

{table(["", "aim", "measured"], _findings(report))}

![Answers in time, latency of class high, and memory]({plot})

Members are asked by Zipf's law with exponent 1, each in bursts of its own, {report.rate:.0f} times per second:
{report.load:g} of what the server answers to clients that ask without a pause. Classes and deadlines: {shares}. The
generator is open-loop; {report.seconds:g} s count. The simulator meets the same arrivals. It was told what loads and
executions took in that very run, and what single requests to the idle server took around them.

{table(header, _classes(report))}

Size a pool by the simulator; look at `high` apart, which waits for loads. What was told, loads, evictions and processor
time are in `pool_server.json`. Every answer was compared with the only right one.

{measured_on(report.date, report.machine)}
"""


def _findings(report: Report) -> list[list[str]]:
    real, simulated = report.observed.groups["all"], report.predicted.groups["all"]
    loading, without = report.tails.quantile_ms(0.99)
    part = report.most_memory / report.memory
    held = f"{report.most_memory / 2**20:.0f} / {report.memory / 2**20:.0f} MiB"
    answers = report.observed.statuses.get(200, 0) + len(report.tails.loading) + len(report.tails.without)
    points = 100 * (real.attainment - simulated.attainment)
    return [
        [
            "answers in time, real and simulated",
            f"at most {_AIM_POINTS:g} points apart",
            f"{real.attainment:.1%}, {simulated.attainment:.1%}: {points:+.1f} points{_mark(abs(points), _AIM_POINTS)}",
        ],
        [
            "p99 of `high` at resident members, with loads going on / without",
            f"at most {_AIM_RATIO:g}",
            f"{report.tails.ratio:.2f} ({loading:.1f} / {without:.1f} ms){_mark(report.tails.ratio, _AIM_RATIO)}",
        ],
        [
            "memory of the host beyond an empty one / budget",
            f"at most {_AIM_MEMORY:g}",
            f"{part:.2f} ({held}){_mark(part, _AIM_MEMORY)}",
        ],
        [
            "wrong answers",
            "0",
            f"{report.observed.wrong + report.tails.wrong} of {answers:,}",
        ],
        ["failures", "0", str(report.failed)],
    ]


def _mark(value: float, most: float) -> str:
    return "" if value <= most else " (!)"


def _classes(report: Report) -> list[list[str]]:
    rows = []
    for name, real in report.observed.groups.items():
        simulated = report.predicted.groups[name]
        points = 100 * (real.attainment - simulated.attainment)
        error = 100 * 1.96 * standard_error((real, simulated))
        rows.append(
            [
                name,
                f"{real.offered:,}",
                f"{real.attainment:.1%}",
                f"{simulated.attainment:.1%}",
                f"{points:+.1f} +- {error:.1f}",
                f"{_ms(real.p50_s)} / {_ms(simulated.p50_s)}",
                f"{_ms(real.p99_s)} / {_ms(simulated.p99_s)}",
            ]
        )
    return rows


def draw(report: Report, path: Path) -> None:
    """Draw answers in time, latencies of class `high` and memory as SVG."""
    with picture_style():
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        in_time, tails, memory = figure.subplots(1, 3)
        names = list(report.observed.groups)
        places = np.arange(len(names))
        for shift, label, groups, colour in (
            (-0.2, "real", report.observed.groups, "#1f6f8b"),
            (0.2, "simulated", report.predicted.groups, "#c8553d"),
        ):
            in_time.bar(
                places + shift, [100 * groups[name].attainment for name in names], 0.38, label=label, color=colour
            )
        in_time.set_xticks(places, names)
        in_time.set(title="Answers in time, %", ylim=(0, 105))
        in_time.legend(loc="lower right")
        for label, values, colour in (
            ("with loads", report.tails.loading, "#c8553d"),
            ("without", report.tails.without, "#1f6f8b"),
        ):
            tails.plot(1e3 * np.sort(values), 1.0 - np.arange(len(values)) / len(values), label=label, color=colour)
        tails.set(title="Class high at resident members", xlabel="latency, ms", ylabel="part that takes longer")
        tails.set(yscale="log", xlim=(0, None))
        tails.legend()
        memory.plot([at for at, _ in report.observed.memory], [held / 2**20 for _, held in report.observed.memory])
        memory.axhline(report.memory / 2**20, color="#888888", linewidth=0.8)
        memory.set(title="Memory of members; line: budget", xlabel="seconds", ylabel="MiB")
        memory.set_ylim(bottom=0)
        save_svg(figure, path)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"
