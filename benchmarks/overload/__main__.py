"""Measure which requests are in time when more come than the server can do: ``python -m benchmarks.overload``.

An open loop by a generator in C (``load.c``, which the system's C compiler builds): a fifth of the requests are `high`,
three fifths `normal`, a fifth `low`; beyond three times the closed loop `high` stays at 0.6 of it. Loads are multiples
of what a closed loop gets just before, so that a machine that is slower for a while slows both. With ``--against``
another working tree is measured in turns, and with ``--rivals`` other servers: FastAPI in one process, and Triton with
levels of priority and queue timeouts. Writes ``overload.json``, ``overload.md`` and ``overload.svg``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import httpx
import msgspec
import typer
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.overload.generator import CLASSES, OWN, SHARED, Answers, Asked, Generator, Tells
from benchmarks.peers.cases import FASTAPI, TRITON
from benchmarks.peers.systems import PeerServer, Subject, wire_of
from benchmarks.peers.traffic import make_samples
from benchmarks.process import ServerProcess
from benchmarks.publishing import measured_on, now, picture_style, publish_report, save_svg, table
from benchmarks.server import DIRECT, PROXY, ROOT, SERVE_APP_RUN, Server, demo_document, is_ready
from benchmarks.session import ending_in_order, measuring, steps
from benchmarks.trees import AFTER, BEFORE
from benchmarks.turns import newest_file
from benchmarks.wires import Arrays
from serve_app.config.files import CACHE_VARIABLE

_START_WITHIN_S = 400.0


_RIVALS = {"fastapi": FASTAPI, "triton": TRITON}
_TELLS: Mapping[str, Tells] = {FASTAPI: "nothing", TRITON: "parameters"}
_ALL = 99.95
"""Percent that is shown as 100.0."""
_RECOVERED = 99.0
"""Percent in time, after an overload, of a server that has recovered."""
_ASKED = """\
# Overload by urgency

Which requests are in time when more come than the server can do? `make bench-overload` measures it; latencies, late
answers and the generator's own delay are in `overload.json`.

Load is a multiple of what a closed loop of the same server got just before. Percent in time of {classes}; then answers
in time per second, as a part of the closed loop's (0.5x1,000: half of 1,000). Where all had all in time, there is no
line."""
_RECOVERY = "From 1 s after an overload, at half of the closed loop, less than {least:g}% is in time: {slow}."
_DECIDED = """\
`minilm` and `resnet50` keep `high` at ten times the capacity, `wide` most of it at three times. `tiny`, which costs
next to nothing, is lost at three times: reading requests is the load then, and it needs more routers."""
_QUIET, _CALM_S = 0.5, 2.0
"""What comes right after an overload, as a part of the closed loop, and for how long."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the deadline of its requests, milliseconds, and the connections of its closed loop."""

    model: str
    deadline_ms: float
    closed: int = 64
    wire: str = "json"

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.model}, {self.deadline_ms:g} ms"


CASES = (
    Case("tiny", 100),
    Case("tiny", 1000),
    Case("wide", 200),
    Case("minilm", 200, 32),
    Case("resnet50", 400, 16, "binary"),  # about 5 x L(1)
)


class Run(msgspec.Struct):
    """One run.

    Attributes:
        system: `AFTER` is this tree.
        case: Name of the case.
        way: Port that was asked: of the router, or Serve's.
        factor: Load as a multiple of ``closed``; 0 for the closed loop.
        closed: Good answers per second of a closed loop just before.
        seconds: Length.
        generator_late_ms: How much later than due the generator took a request up at most.
        classes: By class.
        after: Percentage of all that was in time from 1 s after an overload on, at half of the closed loop's rate;
            ``None`` where there was none.
    """

    system: str
    case: str
    way: str
    factor: float
    closed: float
    seconds: float
    generator_late_ms: float
    classes: dict[str, Answers]
    after: float | None = None

    def share(self, name: str) -> float:
        """Percentage of a class that was in time."""
        of = self.classes[name]
        return 100.0 * of.in_time / max(1, of.offered)

    @property
    def in_time(self) -> float:
        """Answers in time per second, as a multiple of the closed loop's."""
        return sum(of.in_time for of in self.classes.values()) / self.seconds / self.closed


@dataclass(frozen=True, slots=True)
class Plan:
    """How servers are loaded.

    Attributes:
        generator: Loads them.
        way: Port that is asked.
        connections: Whether classes share 2,048 connections, or have 512, 1,536 and 512 of their own.
    """

    generator: Generator
    way: str
    connections: str


def _high(factor: float) -> float:
    """The share of `high`: more than 0.6 of what the server can do could not be in time in any order."""
    return min(0.2, 0.6 / factor)


def _asked(server: ServerProcess, case: Case, inputs: Arrays) -> Asked:
    request = wire_of(server.name, case.wire).request(inputs)
    return Asked(f"/v2/models/{case.model}/infer", request, case.deadline_ms, _TELLS.get(server.name, "headers"))


def measure(
    servers: Sequence[ServerProcess], case: Case, factors: Sequence[float], rounds: int, seconds: float, plan: Plan
) -> Iterable[Run]:
    """Load servers in turns, each after a closed loop that measures its capacity.

    Raises:
        BenchmarkError: The generator failed, or a server answered nothing.
    """
    samples = make_samples(newest_file(case.model))
    inputs = sorted((sample.inputs for sample in samples), key=lambda each: sum(a.nbytes for a in each.values()))
    typical = inputs[len(inputs) // 2]
    for number in range(rounds):
        for factor in factors:
            for server in servers if number % 2 == 0 else servers[::-1]:
                url, asked = server.urls.get(plan.way, server.url), _asked(server, case, typical)
                load = partial(plan.generator.run, url, asked, connections=plan.connections, closed=case.closed)
                _, answers = load(rate=0.0, seconds=seconds)
                if not answers["high"].good:
                    raise BenchmarkError(f"{server.name} answers nothing at {asked.path}: {answers}")
                closed, after = answers["high"].good / seconds, None
                late_ms, answers = load(rate=factor * closed, seconds=seconds, high=_high(factor))
                if factor > 1:
                    _, calm = load(rate=_QUIET * closed, seconds=_CALM_S)
                    in_time = sum(of.in_time for of in calm.values())
                    after = 100.0 * in_time / max(1, sum(of.offered for of in calm.values()))
                server.check_alive()
                yield Run(server.name, case.name, plan.way, factor, closed, seconds, late_ms, answers, after)


def report(runs: Sequence[Run]) -> str:
    """A line for each load, and a column for each system: medians of the rounds."""
    systems = list(dict.fromkeys(run.system for run in runs))
    lines: dict[tuple[str, float], dict[str, str]] = {}
    for case, system, factor, own in _groups(runs):
        shares = "/".join(f"{median(run.share(name) for run in own):.1f}" for name in CLASSES)
        cell = f"{shares}; {median(run.in_time for run in own):.2f}x{median(run.closed for run in own):,.0f}"
        lines.setdefault((case, factor), {})[system] = cell
    missed = {(run.case, run.factor) for run in runs if any(run.share(name) < _ALL for name in CLASSES)}
    rows = [
        [case, f"{factor:g}", *(found.get(system, "") for system in systems)]
        for (case, factor), found in lines.items()
        if (case, factor) in missed
    ]
    return table(["model, deadline", "load", *systems], rows)


def page(runs: Sequence[Run], how: str) -> str:
    """The report as Markdown; ``how`` is what was measured on, and how."""
    slow = [
        f"{system} at {factor:g} x {case} ({median(after):.1f}%)"
        for case, system, factor, own in _groups(runs)
        if (after := [run.after for run in own if run.after is not None]) and median(after) < _RECOVERED
    ]
    parts = [
        _ASKED.format(classes="/".join(CLASSES)),
        report(runs),
        "![Percent in time by load](overload.svg)",
        _RECOVERY.format(least=_RECOVERED, slow=", ".join(slow) or "nowhere"),
        _DECIDED,
        how,
    ]
    return "\n\n".join(parts) + "\n"


def _groups(runs: Sequence[Run]) -> Iterable[tuple[str, str, float, list[Run]]]:
    for key in dict.fromkeys((run.case, run.system, run.factor) for run in runs):
        yield *key, [run for run in runs if (run.case, run.system, run.factor) == key]


def draw(runs: Sequence[Run], path: Path) -> None:
    """What part of each class is in time, by the load."""
    cases, systems = (list(dict.fromkeys(getattr(run, of) for run in runs)) for of in ("case", "system"))
    with picture_style():
        figure = Figure(figsize=(4 * len(cases), 3 * len(systems)), layout="constrained")
        axes = figure.subplots(len(systems), len(cases), squeeze=False, sharey=True)
        for row, system in zip(axes, systems, strict=True):
            for axis, case in zip(row, cases, strict=True):
                own = [group for group in _groups(runs) if group[:2] == (case, system)]
                for name in CLASSES:
                    shares = [median(run.share(name) for run in group) for *_, group in own]
                    axis.plot([factor for _, _, factor, _ in own], shares, marker="o", label=name)
                axis.set(
                    title=f"{case}: {system}", xlabel="load, of the closed loop", ylabel="in time, %", ylim=(0, 103)
                )
        axes[0][0].legend()
        save_svg(figure, path)


def main(
    against: Annotated[Path | None, typer.Option(help="Another working tree, with its environment and models.")] = None,
    cases: Annotated[str, typer.Option(help="Beginnings of the names of models, with commas; empty: all.")] = "",
    rivals: Annotated[str, typer.Option(help="Other servers, with commas: fastapi, triton.")] = "",
    factors: Annotated[str, typer.Option(help="Loads, as multiples of the closed loop.")] = "0.25,0.8,1,1.5,3,10",
    way: Annotated[str, typer.Option(help="Port that is asked: direct, or proxy for Serve's.")] = DIRECT,
    connections: Annotated[str, typer.Option(help="Of the classes: shared, or own.")] = SHARED,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each load and system.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each run.")] = 5.0,
    publish: Annotated[bool, typer.Option("--publish", help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Measure overload by urgency."""
    console = Console()
    with ending_in_order(console):
        beginnings = tuple(filter(None, cases.split(","))) or ("",)
        chosen = [case for case in CASES if case.model.startswith(beginnings)]
        loads = [float(each) for each in factors.split(",")]
        others = [each for each in rivals.split(",") if each]
        if set(others) - _RIVALS.keys():
            raise BenchmarkError(f"--rivals of {sorted(_RIVALS)}")
        if not chosen or way not in {DIRECT, PROXY} or connections not in {SHARED, OWN}:
            raise BenchmarkError(f"--cases of {[c.model for c in CASES]}, --way direct|proxy, --connections shared|own")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-app-")))
            plan = Plan(Generator(folder), way, connections)
            machine = stack.enter_context(measuring(console))
            progress = stack.enter_context(steps(console))
            systems = len(others) + (2 if against else 1)
            task = progress.add_task("starting", total=len(chosen) * len(loads) * rounds * systems)
            models = [{"name": model, "path": f"models/{model}"} for model in sorted({c.model for c in chosen})]
            servers: list[ServerProcess] = []
            for system, tree in ((BEFORE, against), (AFTER, ROOT)):
                if tree is not None:
                    servers.append(started(stack, system, tree.resolve(), models, folder))
            runs = []
            for case in chosen:
                with ExitStack() as those:  # a rival serves one model
                    more = [_rival(those, _RIVALS[each], case) for each in others]
                    for run in measure([*servers, *more], case, loads, rounds, seconds, plan):
                        runs.append(run)
                        done = f"{run.case}, {run.system}, {run.factor:g} x: high {run.share('high'):.1f}%"
                        progress.update(task, advance=1, description=done)
        what = f"{rounds} runs of {seconds:g} s each; the port is {way}; connections: {connections}."
        text = page(runs, f"{what} {measured_on(now(), machine)}")
        figures = {"machine": asdict(machine), "runs": msgspec.to_builtins(runs)}
        name = "overload" if (way, connections) == (DIRECT, SHARED) else f"overload_{way}_{connections}"
        publish_report(console, name, figures, text, partial(draw, runs), publish=publish)


def started(stack: ExitStack, system: str, tree: Path, models: Sequence[object], folder: Path) -> Server:
    """Start a server that is ready, until the stack is left.

    Args:
        stack: Ends it.
        system: Its name.
        tree: Its working tree.
        models: As the Serve file names them.
        folder: For what it keeps.
    """
    python = ROOT / ".venv" / "bin" / "python" if tree == ROOT else tree / ".venv" / "bin" / "python"
    command = (str(python), *SERVE_APP_RUN[1:])
    variables = {CACHE_VARIABLE: str(folder / system)}
    server = stack.enter_context(Server(system, demo_document(models=models), command, tree, variables))
    server.wait_until(partial(is_ready, server.urls[DIRECT]), _START_WITHIN_S)
    return server


def _rival(stack: ExitStack, name: str, case: Case) -> ServerProcess:
    program = "triton_classes_app" if name == TRITON else None
    server = stack.enter_context(PeerServer(name, Subject.of(case.model), wire_of(name, case.wire).name, program))
    inputs = make_samples(newest_file(case.model))[0].inputs
    asked = _asked(server, case, inputs)

    def answers() -> bool:
        request = asked.request("high", timed=False)
        try:
            return httpx.post(server.url + asked.path, headers=dict(request.headers), content=request.body).is_success
        except httpx.TransportError:
            return False

    server.wait_until(answers, _START_WITHIN_S)
    return server


if __name__ == "__main__":
    typer.run(main)
