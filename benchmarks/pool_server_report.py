"""The report of a measured pool: Markdown and a plot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.machine import Machine
from benchmarks.pool_server_load import SHARE, TIMEOUTS_S, WARM_UP_S
from benchmarks.pool_server_measure import Costs, Observed, Tails
from benchmarks.pool_server_predict import Predicted, load_spread, mean_load_s, standard_error
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
    counted, costs, curve = report.observed.counted, report.costs, report.observed.counted.curve()
    ways = costs.overheads
    return f"""# A pool on the real server

{report.members:,} models of {report.file_bytes / 2**20:.1f} MiB, and one host with memory for {part:.0%} of them.
`make bench-pool-server` makes this page; how pools work is in [pools](../pools.md), and what the simulator says of
larger ones in [scheduling](scheduling.md).

{table(["", "aim", "measured"], _findings(report))}

![Answers in time, latency of class high, and memory]({plot})

## Beside the simulator

Members are asked by Zipf's law with exponent 1, each in bursts of its own (20 times the rate for 2 s on average, 30 s
between), at {report.rate:.0f} requests per second: {report.load:g} of the {costs.capacity:.0f} per second that the
server answers to clients that ask without a pause. Classes and deadlines: {shares}.
The generator is open-loop. The simulator meets the same arrivals. {report.seconds:g} s count, after {WARM_UP_S:g} s
that do not. It was told what loads and executions took in that very run, and what single requests to the idle server
took around them.

{
        table(
            ["class", "requests", "in time, real", "simulated", "points", "p50, ms: real / simulated", "p99, ms"],
            _classes(report),
        )
    }

{table(["", f"real, with the first {WARM_UP_S:g} s", "simulated, without"], _usage(report))}

Told, in milliseconds: a run takes {curve.alpha_s * 1e3:.2f}, and {curve.beta_s * 1e3:.2f} per row; a load takes
{counted.mean_load_s * 1e3:.1f} (sigma {load_spread(counted):.2f}); the way to the router {ways.request_s * 1e3:.2f},
to the host {ways.send_s * 1e3:.2f}, back {ways.answer_s * 1e3:.2f}; between two runs {ways.between_s * 1e3:.2f}.

## How it was measured

- Every answer is compared with the only right one: each member adds a number of its own to what it was sent.
- The host is tied to one core, on which it loads and runs; router, Ray's own processes and the generator share the
  other. The generator was late by {report.observed.late_p99_s * 1e3:.1f} ms (99th percentile) and used
  {report.observed.generator_cpu:.0%} of its core; the server used
  {", ".join(f"{name}: {part:.0%}" for name, part in sorted(report.observed.cpu.items()))}.
- Class `high` with and without loads: it asks the most popular members, which stay resident; as many requests
  of class `normal` as in times without loads ask members that are not resident in the others. Times take turns, of 2 s
  each; the first half second of each does not count.
- Memory is the proportional set size of the host's process, looked at every second, beyond what it held when it was
  ready and empty ({report.empty_bytes / 2**20:.0f} MiB). *Budget* is `memory` of the pool.
- The server was ready {report.start_s:.0f} s after its start; all of this took {report.took_s / 60:.1f} minutes.

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
            "p50 and p90 of the same, with / without, ms",
            "",
            "; ".join("{:.1f} / {:.1f}".format(*report.tails.quantile_ms(quantile)) for quantile in (0.5, 0.9)),
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


def _usage(report: Report) -> list[list[str]]:
    counted, usage = report.observed.counted, report.predicted.usage
    real_s = report.seconds + WARM_UP_S
    return [
        ["loads per second", f"{counted.loads / real_s:.1f}", f"{usage.loads / report.seconds:.1f}"],
        ["failed loads", str(counted.failed_loads), "0"],
        ["evictions per second", f"{counted.evictions / real_s:.1f}", f"{usage.evictions / report.seconds:.1f}"],
        [
            "requests for resident members",
            f"{counted.hits / max(1, counted.hits + counted.misses):.1%}",
            f"{usage.hits / max(1, usage.hits + usage.misses):.1%}",
        ],
        ["the first load of a member, ms", f"{report.costs.first_load_s * 1e3:.1f}", ""],
        ["a load, ms", f"{counted.mean_load_s * 1e3:.1f}", f"{mean_load_s(usage) * 1e3:.1f}"],
        ["a member holds, MiB", f"{counted.member_bytes / 2**20:.1f}", "the same"],
        [
            "rows of a run",
            f"{sum(rows * count for rows, (count, _) in counted.runs.items()) / max(1, counted.executions):.2f}",
            f"{report.predicted.batch_rows:.2f}",
        ],
    ]


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
