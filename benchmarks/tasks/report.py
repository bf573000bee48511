"""The report: tables in Markdown, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from benchmarks.publishing import measured_on, picture_style, save_svg, table
from benchmarks.tasks.cases import MIXED, TASKS
from benchmarks.tasks.load import CLASSES
from benchmarks.tasks.results import CLOSED, OVERLOAD, PACED, Report, Run, best_rival
from benchmarks.tasks.systems import NOT_COMPARED

_INTRO = """# Whole tasks beside other servers

HTTP requests with texts, images and audio, which each server decodes, runs through the same ONNX models and answers.
`make bench-tasks` measures it; spreads, p99, cores and all settings that were tried are in `tasks.json`.

Every answer was compared with the model's alone before the measurement: the same labels, and numbers within 1e-5 of the
largest. One server runs at a time; the load generator shares its cores. Every rival runs in the setting, of those
tried, with the most answers per second for the task; serve_app runs as its files say, without tuning."""
_DECIDED = """\
Where the model is the work (texts, ResNet-50), all servers are close, and in overload only serve_app keeps `high` in
time. Where decoding and HTTP are the work (digits, speech), a plain FastAPI application answers more, in overload too.
Ask serve_app's own port: Serve's answers nothing in time there."""


def render(report: Report) -> str:
    """The report as Markdown."""
    parts = [
        _INTRO,
        (
            f"{report.rounds} rounds in turns ({report.open_rounds} at given rates) of {report.seconds:g} s, after"
            f" {report.warm_up_s:g} s of the same load. Figures are medians over the rounds."
        ),
        _closed(report),
        "![Answers per second, relative to the best rival](tasks.svg)",
        _classes(report),
        _paced(report),
        _DECIDED,
    ]
    missing = {**report.left_out, **NOT_COMPARED}
    parts += [f"{name} is left out: {reason.splitlines()[0]}" for name, reason in missing.items()]
    failures = sum(seen.failures for run in report.runs if run.kind == CLOSED for seen in run.seen.values())
    parts.append(f"{failures:,} requests failed in the closed loops.")
    parts.append(measured_on(report.date, report.machine, tuple(report.versions.values())))
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def draw(report: Report, file: Path) -> None:
    """Answers per second of every contender, relative to the best rival's."""
    names = list(dict.fromkeys(name for rates in report.medians.values() for name in rates))
    with picture_style():
        figure = Figure(figsize=(9, 0.5 + 0.32 * len(names) * max(1, len(report.medians)) ** 0.5))
        axes = figure.subplots()
        height = 0.8 / max(1, len(names))
        for number, name in enumerate(names):
            at, share = [], []
            for place, rates in enumerate(report.medians.values()):
                rival = best_rival(rates)
                if name in rates and rival and rival[1]:
                    at.append(place + number * height)
                    share.append(rates[name] / rival[1])
            axes.barh(at, share, height, label=name)
        axes.set_yticks([place + 0.4 for place in range(len(report.medians))], list(report.medians))
        axes.invert_yaxis()
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_xlabel("answers per second, relative to the best rival in its best setting")
        axes.legend(fontsize=7)
        save_svg(figure, file, bbox_inches="tight")


def _closed(report: Report) -> str:
    names = list(dict.fromkeys(name for rates in report.medians.values() for name in rates))
    rows = []
    for task, rates in report.medians.items():
        rival = best_rival(rates)
        cells = []
        for name in names:
            ratio = f" ({rates[name] / rival[1]:.2f})" if name in rates and rival and rival[1] else ""
            cells.append(f"{rates[name]:,.1f}{ratio}" if name in rates else "")
        what = "all at once, geometric mean" if task == MIXED else f"{TASKS[task].title}, x {TASKS[task].connections}"
        rows.append([f"{task}: {what}", *cells])
    return (
        "## In a closed loop\n\nAnswers per second, and in brackets the part of the best rival's, by task and"
        f" connections.\n\n{table(['task', *names], rows)}"
    )


def _classes(report: Report) -> str:
    def cell(task: str, runs: Sequence[Run]) -> str:
        seen = [run.seen[task] for run in runs]
        shares = "/".join(f"{100 * median(each.in_time.get(label, 0.0) for each in seen):.1f}" for label in CLASSES)
        fallbacks = sum(each.fallbacks for each in seen) / max(1, sum(each.answers for each in seen))
        return f"{shares} ({fallbacks:.0%} fallback)" if fallbacks else shares

    found = _by_task(report, OVERLOAD, cell, deadline=True)
    mix = ", ".join(f"{share:.0%} {label}" for label, share in CLASSES.items())
    return found and (
        "## Overload\n\nRequests at 1.5 times the answers per second of serve_app's fastest port above, at random times"
        f" whatever the server does: {mix}. Each tells its class and its deadline, which only serve_app reads. Percent"
        f" in time of {'/'.join(CLASSES)}; in brackets, what a fallback answered.\n\n{found}"
    )


def _paced(report: Report) -> str:
    def cell(task: str, runs: Sequence[Run]) -> str:
        seen = [run.seen[task] for run in runs]
        return f"{median(each.p50_ms for each in seen):,.1f}/{median(each.p99_ms for each in seen):,.1f}"

    found = _by_task(report, PACED, cell)
    return found and (
        "## At a rate that all can do\n\nRequests at 0.6 times the answers per second of the slowest rival, at random"
        f" times; p50/p99 from these times, ms.\n\n{found}"
    )


def _by_task(report: Report, kind: str, cell: Callable[[str, Sequence[Run]], str], *, deadline: bool = False) -> str:
    """A line for each task, and a column for each contender; empty without such runs."""
    runs = [run for run in report.runs if run.kind == kind]
    names = list(dict.fromkeys(run.contender for run in runs))
    rows = []
    for task in dict.fromkeys(run.task for run in runs):
        own = {name: _of(runs, task, kind, name) for name in names}
        rate = next(run.rate for run in runs if run.task == task)
        title = f"{task}, {rate:,.0f}/s" + (f", {TASKS[task].deadline_ms} ms" if deadline else "")
        rows.append([title, *(cell(task, own[name]) if own[name] else "" for name in names)])
    return table(["task, rate, deadline" if deadline else "task, rate", *names], rows) if rows else ""


def _of(runs: Iterable[Run], task: str, kind: str, contender: str) -> list[Run]:
    return [run for run in runs if (run.task, run.kind, run.contender) == (task, kind, contender)]
