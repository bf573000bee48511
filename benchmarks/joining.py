"""What it costs to prove that requests may share runs, and to check it while serving: ``python -m benchmarks.joining``.

Three parts, each of which can be measured by itself (``--parts``): the proof of every build, in a fresh process as a
replica is one; cold starts of the demo; throughput. The last two compare with another working tree (``--against``), in
turns. A part that is not measured keeps the figures of the last time. Writes ``joining.json`` and ``joining.md``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from benchmarks import joining_load, wrk
from benchmarks.failure import BenchmarkError
from benchmarks.joining_load import CASES, Started
from benchmarks.joining_replica import BuildTimes, Work, start_replica
from benchmarks.joining_report import Build, Measured, Report, render
from benchmarks.publishing import folders, write_report
from benchmarks.server import OUT, ROOT
from benchmarks.session import ending_in_order, measuring
from benchmarks.turns import Turn
from serve_app.composition.model import find_files, read_builds
from serve_app.config.file import load_file
from serve_app.config.model import ModelConfig

_CONFIGS = (ROOT / "configs" / "demo.yaml", ROOT / "configs" / "bench.yaml")
_MODELS = ",".join(case.model for case in CASES)
_FEW = 3
_PARTS = ("proof", "starts", "loads")


def prove(rounds: int, say: Callable[[str], None]) -> tuple[float, list[Build]]:
    """Time the proof of every build of the demo and of the benchmarks.

    Returns:
        What importing the analysis takes, seconds, once per start of a server; and all builds.

    Raises:
        BenchmarkError: A model cannot be started.
        ConfigError: A configuration is not valid.
    """
    began = time.perf_counter()
    # Not above: what this takes is one of the figures.
    import onnx.shape_inference  # noqa: PLC0415

    from rowproof.onnx_graph.proof import prove_rows  # noqa: PLC0415

    imports = time.perf_counter() - began
    assert onnx.shape_inference
    models: dict[str, ModelConfig] = {}
    for config in _CONFIGS:
        for model in load_file(config).args.models:
            models.setdefault(model.name, model)
    builds = []
    for model in models.values():
        say(model.name)
        locations = find_files(model)
        analysis: dict[str, list[float]] = {variant: [] for variant in locations}
        replicas: list[list[BuildTimes]] = []
        described = read_builds(model, locations)
        for _ in range(rounds):
            for variant, location in locations.items():
                before = time.perf_counter()
                prove_rows(location.model_file)
                analysis[variant].append(time.perf_counter() - before)
            with tempfile.TemporaryDirectory() as records:
                replicas.append(start_replica(Work(model, described, Path(records))))
        for at, variant in enumerate(locations):
            times = [replica[at] for replica in replicas]
            deviation = max(each.verdict.deviation for each in times)
            builds.append(
                Build(
                    name=f"{model.name}/{variant}" if variant else model.name,
                    model=model.name,
                    verdict=times[-1].verdict._replace(deviation=deviation),
                    analysis_s=median(analysis[variant]),
                    imports_s=median(each.imports for each in times),
                    load_s=median(each.load for each in times),
                    warm_up_s=median(each.warm_up for each in times),
                    key_s=median(each.key for each in times),
                    experiment_s=median(each.experiment for each in times),
                    found_s=median(each.found for each in times),
                )
            )
    return imports, builds


def _last(path: Path) -> Report | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except FileNotFoundError:
        return None


def main(
    against: Annotated[Path | None, typer.Option(help="A working tree to compare with, models and all.")] = None,
    parts: Annotated[str, typer.Option(help="What to measure, separated by commas.")] = ",".join(_PARTS),
    cases: Annotated[str, typer.Option(help="Models that are loaded.")] = _MODELS,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of a load; starts and proofs: three at most.")] = 7,
    seconds: Annotated[float, typer.Option(min=1, help="Length of one load.")] = 5.0,
    publish: Annotated[bool, typer.Option("--publish", help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Measure what the proof costs, and what the server does with and without it."""
    console = Console()
    chosen = {part for part in parts.split(",") if part}
    loaded = [case for case in CASES if case.model in cases.split(",")]
    if unknown := chosen - set(_PARTS):
        raise typer.BadParameter(f"no part is called {', '.join(sorted(unknown))}; there are: {', '.join(_PARTS)}")
    if against is None:
        chosen &= {"proof"}
    with (
        ending_in_order(console),
        measuring(console, {"wrk": wrk.version()} if "loads" in chosen else {}) as machine,
    ):
        OUT.mkdir(parents=True, exist_ok=True)
        last = _last(OUT / "joining.json")
        few = min(rounds, _FEW)
        today = datetime.now(UTC).date().isoformat()
        report = last or Report(machine)
        report.machine = machine
        with console.status("preparing") as status:
            if "proof" in chosen:
                report.onnx_s, report.builds = prove(few, lambda text: status.update(f"proof: {text}"))
                report.measured["proof"] = Measured(today, machine.load_before, few)
            if "starts" in chosen and against is not None:
                started: list[Started] = joining_load.starts(against.resolve(), few, status.update)
                report.starts = started
                report.measured["starts"] = Measured(today, machine.load_before, few)
            if "loads" in chosen and against is not None:
                if not loaded:
                    raise BenchmarkError(
                        f"no case is called {cases}; there are {', '.join(each.model for each in CASES)}"
                    )
                turns, checked = joining_load.loads(against.resolve(), loaded, rounds, seconds, status.update)
                names = {case.model for case in loaded}
                kept: list[Turn] = [turn for turn in report.turns if turn.model not in names]
                report.turns = kept + turns
                report.seconds, report.checked = seconds, {**report.checked, **checked}
                report.measured["loads"] = Measured(today, machine.load_before, rounds)
        text = render(report)
        for folder in folders(publish=publish):
            write_report(folder, "joining", msgspec.to_builtins(report), text)
        console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
