"""Measure serve_app beside other servers on this machine: ``python -m benchmarks.peers``.

Writes ``performance.json``, ``performance.md`` and pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import wrk
from benchmarks.failure import BenchmarkError
from benchmarks.peers.cases import CASES, OURS, RAW, Case
from benchmarks.peers.measure import CaseMeasurement, Plan
from benchmarks.peers.plots import draw
from benchmarks.peers.report import render
from benchmarks.peers.results import Report, failures_of_ours, findings
from benchmarks.peers.systems import versions
from benchmarks.publishing import folders, write_report
from benchmarks.session import ending_in_order, measuring, steps

_QUICK = Plan(seconds=3.0, warm_up_s=2.0, repetitions=1)
_WARM_UP_S = 2.0


def choose(cases: str, systems: str, connections: str = "") -> list[Case]:
    """The cases to measure.

    Args:
        cases: Names with commas between them; empty for all.
        systems: Likewise; serve_app is always among them.
        connections: Numbers of connections, likewise; those that a case does not have are passed over.

    Raises:
        BenchmarkError: There is no such case, system or number of connections.
    """
    chosen = _named(cases, [case.name for case in CASES], "case")
    among = _named(systems, list(dict.fromkeys(name for case in CASES for name in case.systems)), "system")
    kept = {OURS, *among} if systems else set(among)
    known = sorted({number for case in CASES for number in case.connections})
    numbers = set(_named(connections, [str(number) for number in known], "number of connections"))
    narrowed = [
        replace(
            case,
            systems=tuple(name for name in case.systems if name in kept),
            connections=tuple(number for number in case.connections if str(number) in numbers),
        )
        for case in CASES
        if case.name in chosen
    ]
    return [case for case in narrowed if case.connections]


def _named(text: str, known: Sequence[str], what: str) -> list[str]:
    by_lower = {name.lower(): name for name in known}
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name.lower() not in by_lower:
            raise BenchmarkError(f"there is no {what} {name!r}; there are: {', '.join(known)}")
    return [by_lower[name.lower()] for name in wanted] or list(known)


def main(
    cases: Annotated[str, typer.Option(help="Cases to measure, with commas between them.")] = "",
    systems: Annotated[str, typer.Option(help="Systems to measure beside serve_app, likewise.")] = "",
    connections: Annotated[str, typer.Option(help="Numbers of connections to measure at, likewise.")] = "",
    seconds: Annotated[float, typer.Option(min=1, help="Length of each run.")] = 10.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs per system and number of connections.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One run of 3 s each; published nowhere.")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Measure serve_app beside other servers of the same models on this machine."""
    console = Console()
    plan = _QUICK if quick else Plan(seconds, _WARM_UP_S, repetitions)
    with ending_in_order(console), measuring(console, {"wrk": wrk.version()}) as machine:
        chosen = choose(cases, systems, connections)
        results, left_out, found = [], [], []
        with steps(console) as progress:
            for case in chosen:
                console.rule(f"{case.name}: {case.title}")
                measurement = CaseMeasurement(case, plan, progress, progress.add_task(case.name, total=None))
                results.append(measurement.run())
                left_out += measurement.left_out
                found += findings(case, results[-1].runs)
        report = Report(
            date=datetime.now(UTC).date().isoformat(),
            machine=machine,
            versions=versions({name for case in chosen for name in case.systems if name != RAW}),
            seconds=plan.seconds,
            warm_up_s=plan.warm_up_s,
            repetitions=plan.repetitions,
            findings=found,
            cases=results,
            left_out=left_out,
        )
        for folder in folders(publish=publish and not quick):
            write_report(folder, "performance", report, render(report, chosen, draw(report.cases, folder)))
        for each in found:
            ratio = f"{each.system} / {each.against} = {each.median:.2f}, aim {each.at_least:g}"
            console.print(f"{each.case}, {each.connections} connections: {ratio}", highlight=False)
        failures = failures_of_ours(results)
        if failures:
            raise BenchmarkError(f"{failures} requests to serve_app failed")
        if any(each.system.startswith(OURS) for each in left_out):
            raise BenchmarkError("serve_app could not be measured everywhere; see above")


if __name__ == "__main__":
    typer.run(main)
