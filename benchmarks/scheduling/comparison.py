"""Experiments made of the table of workloads: one per group, and a quick look at some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.scheduling.cases import GROUPS, Setting, settings
from benchmarks.scheduling.contenders import BASELINES, IN_PROCESS, OURS, SLIDING, TRITON, WITHOUT_SHARES, Case, ours
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent
from benchmarks.scheduling.laboratory import Laboratory, Measured
from serve_app.domain.priority import Priority
from serve_app_simulator.report import Estimate
from serve_app_simulator.results import Result

BEST = (SLIDING, TRITON)
HEADER = (
    "workload",
    "system",
    "of bound",
    "in time",
    "per class or tenant",
    "weighted",
    "serve-app's gain",
    "busy",
    "rows",
    "settings",
)
_SECONDS = 30.0
_TUNE_S = 10.0
_TUNE_MANY_S = 4.0
_NOISE = 0.005
_NO_WAY_S = 1e-6
_WITHOUT_WAYS = {"models", "timers"}
"""Groups without the contender `IN_PROCESS`."""


def attainment(result: Result) -> float:
    """In time / offered."""
    return result.attainment


def weighted(result: Result) -> float:
    """Weighted goodput as a part of what was offered."""
    return result.weighted_goodput / result.offered_weight if result.offered_weight else 1.0


def run_group(group: str, lab: Laboratory) -> Experiment:
    """All workloads of one group with serve_app and the best tuned baselines."""
    title, text = GROUPS[group]
    chosen = [setting for setting in settings(lab.trace) if setting.group == group]
    if not chosen:
        finding = Finding(group, "(no aim)", "left out: the recorded hour is not here; name it with --trace", None)
        return Experiment(group, title, text, [finding])
    measured = lab.run([case_of(setting, lab.seconds(_SECONDS)) for setting in chosen])
    return Experiment(
        group,
        title,
        text,
        [
            *[_finding(group, other, chosen, measured) for other in BEST],
            *([_finding(group, SLIDING, chosen, measured, IN_PROCESS)] if group not in _WITHOUT_WAYS else []),
        ],
        [
            Table(
                HEADER, [line for setting, each in zip(chosen, measured, strict=True) for line in _lines(setting, each)]
            )
        ],
        {"": lines(_panels(chosen, measured), "load")} if _panels(chosen, measured) else {},
        {
            setting.name: {
                system: {
                    "in_time": as_values(each.over(system, attainment)),
                    "weighted": as_values(each.over(system, weighted)),
                    "busy_part": as_values(each.over(system, lambda result: result.busy_part)),
                    **({"of_bound": as_values(each.of_bound(system))} if each.bounds else {}),
                }
                for system in each.results
            }
            | {"tuned": each.settings}
            for setting, each in zip(chosen, measured, strict=True)
        },
    )


def look(
    patterns: Sequence[str], systems: Sequence[str], seconds: float, trace: Path | None, lab: Laboratory
) -> tuple[list[Measured], Table]:
    """Some workloads at once.

    Args:
        patterns: Globs of their names.
        systems: `OURS` and baselines.
        seconds: Length of each.
        trace: See `settings`.
        lab: Where they run.

    Raises:
        ValueError: No workload has such a name.
    """
    chosen = [each for each in settings(trace) if any(fnmatchcase(each.name, pattern) for pattern in patterns)]
    if not chosen:
        hint = "" if trace is not None else "; the recorded hour's need --trace"
        raise ValueError(f"no workload is called {' or '.join(patterns)}{hint}")
    tuned = tuple(system for system in systems if system != OURS)
    contenders = {OURS: ours()} if OURS in systems else {}
    cases = [
        Case(each.make(seconds), contenders, tuned, each.bound, each.value, tune_s=min(seconds, _TUNE_S) + 1.0)
        for each in chosen
    ]
    measured = lab.run(cases)
    rows = [line for setting, each in zip(chosen, measured, strict=True) for line in _lines(setting, each)]
    return measured, Table(HEADER, rows)


def case_of(setting: Setting, seconds: float) -> Case:
    """A workload with those who meet it in the report."""
    others = (*BEST, *BASELINES) if setting.everybody else BEST
    tune_s = _TUNE_S if setting.group != "models" else _TUNE_MANY_S
    contenders = {OURS: ours(network_s=_NO_WAY_S) if setting.group == "timers" else ours()}
    if setting.group not in _WITHOUT_WAYS:
        contenders[IN_PROCESS] = ours("ways to replicas")
    if setting.group == "classes":  # no baseline guarantees a share
        contenders[WITHOUT_SHARES] = ours("guaranteed share")
    return Case(setting.make(seconds), contenders, others, setting.bound, setting.value, tune_s=tune_s)


def _lines(setting: Setting, measured: Measured) -> list[list[str]]:
    return [
        [
            setting.name,
            system,
            percent(measured.of_bound(system)) if measured.bounds else "",
            percent(measured.over(system, attainment)),
            _parts(measured, system),
            percent(measured.over(system, weighted)),
            _gain(measured, system),
            f"{100 * measured.over(system, lambda result: result.busy_part).mean:.0f}%",
            f"{measured.over(system, lambda result: result.batch_rows).mean:.1f}",
            measured.settings.get(system, ""),
        ]
        for system in measured.results
    ]


def _gain(measured: Measured, system: str) -> str:
    """How much more weighted goodput serve_app has, in points of what was offered."""
    if system == OURS or OURS not in measured.results:
        return ""
    gain = measured.gain(OURS, system, weighted)
    return f"{100 * gain.mean:+.1f} ±{100 * gain.half_width:.1f}"


def _parts(measured: Measured, system: str) -> str:
    """Attainment of each class or tenant, where there are several."""
    first = measured.results[system][0]
    labels = [priority.label for priority in Priority if priority.label in first.classes]
    found = [f"{label} {_percent_of(measured, system, _of_class(label))}" for label in labels if len(labels) > 1]
    found += [f"{name} {_percent_of(measured, system, _of_tenant(name))}" for name in first.tenants]
    return ", ".join(found)


def _of_class(label: str) -> Callable[[Result], float]:
    return lambda result: result.classes[label].attainment if label in result.classes else 1.0


def _of_tenant(name: str) -> Callable[[Result], float]:
    return lambda result: result.tenants[name].attainment


def _percent_of(measured: Measured, system: str, value: Callable[[Result], float]) -> str:
    return f"{100 * measured.over(system, value).mean:.1f}"


def _finding(
    group: str, other: str, chosen: Sequence[Setting], measured: Sequence[Measured], ours: str = OURS
) -> Finding:
    """Where serve_app loses to a baseline, if anywhere."""
    gains: list[tuple[Estimate, str]] = [
        (each.gain(ours, other, weighted), setting.name) for setting, each in zip(chosen, measured, strict=True)
    ]
    lost = [gain for gain, _ in gains if gain.high < 0.0 and gain.mean < -_NOISE]
    least, where = min(gains, key=lambda pair: pair[0].mean)
    most, there = max(gains, key=lambda pair: pair[0].mean)
    return Finding(
        group,
        f"{'' if ours == OURS else ours + ' '}loses to tuned `{other}` nowhere by more than the noise (weighted"
        " goodput, in points of what was offered)",
        f"from {100 * least.mean:+.2f} ±{100 * least.half_width:.2f} ({where}) to {100 * most.mean:+.2f} "
        f"±{100 * most.half_width:.2f} ({there}); {len(lost)} of {len(gains)} workloads lost",
        not lost,
    )


def _panels(
    chosen: Sequence[Setting], measured: Sequence[Measured]
) -> list[tuple[str, str, float, dict[str, list[tuple[float, Estimate]]]]]:
    """One panel per family of names that differ in their last number only; four at most."""
    families: dict[str, list[Measured]] = {}
    for setting, each in zip(chosen, measured, strict=True):
        if setting.value is not None:
            families.setdefault(setting.name.rpartition("/")[0], []).append(each)
    return [
        (
            name,
            "% of the exact bound" if those[0].bounds else "% of the offered weight",
            100.0,
            {
                system: [
                    (each.case.value or 0.0, each.of_bound(system) if each.bounds else each.over(system, weighted))
                    for each in those
                ]
                for system in those[0].results
                if all(system in each.results for each in those)
            },
        )
        for name, those in list(families.items())[:4]
        if len(those) > 1
    ]
