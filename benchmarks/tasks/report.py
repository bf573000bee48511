"""The report: tables in Markdown, and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from benchmarks.publishing import measured_on, picture_style, save_svg, table
from benchmarks.tasks.cases import MIXED, TASKS
from benchmarks.tasks.load import CLASSES
from benchmarks.tasks.results import CLOSED, OVERLOAD, PACED, Report, Run, best_rival, geometric_mean, is_ours
from benchmarks.tasks.systems import NOT_COMPARED

_INTRO = """# Whole tasks beside other servers

This page is for readers who choose a server. It shows how many whole tasks per second serve_app and other servers do on
this machine: HTTP requests with texts, images and audio, which each server decodes, runs through the same ONNX models
and answers. `make bench-tasks` measures it.

Every server runs the same ONNX Runtime, tokenizer and decoders. Every answer was compared with the model's alone before
the measurement: the same labels, and numbers within 1e-5 of the largest. One server runs at a time; the load generator
shares its cores. Every rival runs in the setting, of those tried, with the most answers per second for the task;
serve_app runs as its files say, without tuning.
"""


def render(report: Report) -> str:
    """The report as Markdown."""
    parts = [
        _INTRO,
        measured_on(report.date, report.machine, tuple(report.versions.values())),
        (
            f"{report.rounds} rounds in turns ({report.open_rounds} at given rates); each run takes"
            f" {report.seconds:g} s, after {report.warm_up_s:g} s of the same load. Figures are medians over the"
            " rounds.\n"
        ),
    ]
    parts += [_closed(report, task) for task in report.medians]
    parts += [_classes(report), _paced(report), _tried(report)]
    missing = {**report.left_out, **NOT_COMPARED}
    parts += [f"{name} is left out: {reason.splitlines()[0]}" for name, reason in missing.items()]
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


def _closed(report: Report, task: str) -> str:
    rates = report.medians[task]
    rival = best_rival(rates)
    title = "all tasks at once" if task == MIXED else f"{TASKS[task].title}, {TASKS[task].connections} connections"
    rows = []
    for name in rates:
        runs = _of(report.runs, task, CLOSED, name)
        each = sorted(run.score for run in runs)
        ratio = f"{rates[name] / rival[1]:.2f}" if rival and rival[1] else "-"
        latency = [median(geometric_mean(_latency(run, tail)) for run in runs) for tail in (False, True)]
        rows.append(
            [
                name,
                f"**{rates[name]:,.1f}**" if is_ours(name) else f"{rates[name]:,.1f}",
                f"{each[0]:,.1f} to {each[-1]:,.1f}",
                ratio,
                *(f"{value:,.1f}" for value in latency),
                f"{median(run.cores for run in runs):.2f}",
                f"{median(next(iter(run.seen.values())).cpu for run in runs):.2f}",
                str(sum(seen.failures for run in runs for seen in run.seen.values())),
                "; ".join(dict.fromkeys(run.setting for run in runs)) if not is_ours(name) else "as the file says",
            ]
        )
    header = [
        "system",
        "answers/s",
        "rounds",
        "to the best rival",
        "p50 ms",
        "p99 ms",
        "cores",
        "load generator",
        "failures",
    ]
    text = f"## {task}: {title}\n\n{table([*header, 'setting'], rows)}"
    return f"{text}\n\n{_by_task(report)}" if task == MIXED else text


def _by_task(report: Report) -> str:
    """Answers per second of each task, where all of them run at once."""
    rows = []
    for name in report.medians[MIXED]:
        runs = _of(report.runs, MIXED, CLOSED, name)
        rows.append([name, *(f"{median(run.seen[task].per_second for run in runs):,.1f}" for task in TASKS)])
    return f"These are geometric means over the tasks. Answers per second of each:\n\n{table(['system', *TASKS], rows)}"


def _classes(report: Report) -> str:
    runs = [run for run in report.runs if run.kind == OVERLOAD]
    if not runs:
        return ""
    rows = []
    for task, name in dict.fromkeys((run.task, run.contender) for run in runs):
        own = _of(runs, task, OVERLOAD, name)
        seen = [run.seen[task] for run in own]
        shares = [f"{median(each.in_time.get(label, 0.0) for each in seen):.1%}" for label in CLASSES]
        fallbacks = sum(each.fallbacks for each in seen) / max(1, sum(each.answers for each in seen))
        rows.append([task, name, f"{own[0].rate:,.0f}", str(TASKS[task].deadline_ms), *shares, f"{fallbacks:.0%}"])
    header = [
        "task",
        "system",
        "requests/s",
        "deadline ms",
        *(f"{label} in time" for label in CLASSES),
        "by a fallback",
    ]
    mix = ", ".join(f"{share:.0%} {label}" for label, share in CLASSES.items())
    return (
        "## Overload\n\nRequests at 1.5 times the answers per second of serve_app's fastest port above, at random times"
        f" whatever the server does: {mix}. Each tells its class and its deadline (`X-Priority`, `X-Timeout-Ms`), which"
        f" only serve_app reads. Shares that were answered in time:\n\n{table(header, rows)}"
    )


def _paced(report: Report) -> str:
    runs = [run for run in report.runs if run.kind == PACED]
    if not runs:
        return ""
    rows = []
    for task, name in dict.fromkeys((run.task, run.contender) for run in runs):
        own = _of(runs, task, PACED, name)
        seen = [run.seen[task] for run in own]
        latencies = (median(each.p50_ms for each in seen), median(each.p99_ms for each in seen))
        late = max(each.late_p99_ms for each in seen)
        failures = str(sum(each.failures for each in seen))
        rows.append(
            [task, name, f"{own[0].rate:,.0f}", *(f"{each:,.1f}" for each in latencies), f"{late:.1f}", failures]
        )
    header = ["task", "system", "requests/s", "p50 ms", "p99 ms", "sent late, p99 ms", "failures"]
    return (
        "## At a rate that all can do\n\nRequests at 0.6 times the answers per second of the slowest rival, at random"
        f" times; latencies count from these times.\n\n{table(header, rows)}"
    )


def _tried(report: Report) -> str:
    if not report.tried:
        return ""
    rows = []
    for name in dict.fromkeys(run.contender for run in report.tried):
        own = [run for run in report.tried if run.contender == name]
        tasks = list(dict.fromkeys(run.task for run in own))
        for setting in dict.fromkeys(run.setting for run in own):
            by_task = {run.task: run.score for run in own if run.setting == setting}
            rows.append([name, setting, *(f"{by_task[task]:,.1f}" if task in by_task else "-" for task in tasks)])
    tasks = list(dict.fromkeys(run.task for run in report.tried))
    return f"## Settings that were tried\n\nAnswers per second.\n\n{table(['system', 'setting', *tasks], rows)}"


def _of(runs: Iterable[Run], task: str, kind: str, contender: str) -> list[Run]:
    return [run for run in runs if (run.task, run.kind, run.contender) == (task, kind, contender)]


def _latency(run: Run, tail: bool) -> Sequence[float]:
    return [each.p99_ms if tail else each.p50_ms for each in run.seen.values()]
