"""Video streams of 30 frames per second: how many does a server keep up with?"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from benchmarks.scheduling.baselines.triton import Triton
from benchmarks.scheduling.baselines.tuning import tuned
from benchmarks.scheduling.conditions import LIGHT, MODEL, WIDE, one_model, scenario
from benchmarks.scheduling.contenders import OURS, TRITON, Case, Contender, TritonWithoutCancels, ours
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, plain, times
from benchmarks.scheduling.laboratory import Laboratory, Measured
from serve_app_simulator.report import estimate
from serve_app_simulator.run import MakeSystem
from serve_app_simulator.scenario import Curve, Stream

FPS = 30.0
WANTED = 0.99
PLAIN = "without newest frame wins"
SETTINGS: tuple[tuple[str, Curve, int, int, float, tuple[int, ...]], ...] = (
    ("one server, 33 ms", LIGHT, 32, 1, 1 / FPS, tuple(range(4, 21, 2))),
    ("one server, 100 ms", LIGHT, 32, 1, 0.1, tuple(range(14, 31, 2))),
    ("four servers, 33 ms", LIGHT, 32, 4, 1 / FPS, tuple(range(24, 97, 8))),
    ("model `wide` on one core, 33 ms", WIDE, 64, 1, 1 / FPS, tuple(range(5, 61, 5))),
)
"""What it is called, the curve, most rows, replicas, the deadline of a frame, and the numbers of streams to try."""


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    cases = [_case(lab, place, streams) for place, setting in enumerate(SETTINGS) for streams in setting[-1]]
    found = lab.call(tuned_without_cancels, [(case, lab.tuning_seeds) for case in cases], "tuning")
    cases = [_with_triton(case, make) for case, (_, make) in zip(cases, found, strict=True)]
    names = [name for name, _ in found]
    measured = lab.run(cases)
    findings, rows, panels = [], [], []
    data: dict[str, dict[str, object]] = {}
    for place, (title, *_) in enumerate(SETTINGS):
        mine = [each for each in measured if each.case.key == (place,)]
        most = {system: _most(mine, system) for system in mine[0].results}
        bound = most_of([(_streams(each), _bounded(each)) for each in mine])
        pairs = zip(most[OURS], most[TRITON], strict=True)
        ratio = estimate([one / max(1.0, two) for one, two in pairs])
        findings.append(
            Finding(
                f"30 fps streams, {title}",
                "at least 1.3 times the streams of tuned Triton policy at 99% in time",
                f"{times(ratio)} times ({estimate(most[OURS]).mean:.1f} against {estimate(most[TRITON]).mean:.1f}; "
                f"{_allowed(mine, bound)})",
                ratio.mean >= 1.3,
            )
        )
        rows += [[title, system, plain(estimate(values))] for system, values in _all(most, bound, mine)]
        panels.append(
            (
                title,
                "% of frames in time",
                100.0,
                {
                    system: [(_streams(each), each.over(system, lambda result: result.attainment)) for each in mine]
                    for system in mine[0].results
                }
                | ({"bound": [(_streams(each), estimate(_bounded(each))) for each in mine]} if mine[0].bounds else {}),
            )
        )
        data[title] = {system: as_values(estimate(values)) for system, values in _all(most, bound, mine)} | {
            "settings": {
                f"{_streams(each):g}": name for each, name in zip(measured, names, strict=True) if each in mine
            }
        }
    return Experiment(
        "streams",
        "Video streams at 30 frames per second",
        "Cameras with random phases and 20% jitter. A frame that a newer one replaces counts as missed. Clients of "
        "`triton` never cancel a frame, those of `triton, clients cancel` do. The number of streams that have 99% of "
        "their frames in time is interpolated.",
        findings,
        [Table(["streams", "system", "most streams at 99% in time"], rows)],
        {"": lines(panels[:3], "streams")},
        data,
    )


def tuned_without_cancels(case: Case, seeds: tuple[int, ...]) -> tuple[str, MakeSystem]:
    """Triton's best settings where no client calls a frame back."""
    best = tuned(TRITON, case.tuning_scenario(), seeds, make=TritonWithoutCancels)
    return best.name, best.make_system


def _case(lab: Laboratory, place: int, streams: int) -> Case:
    _, curve, max_rows, replicas, timeout_s, _ = SETTINGS[place]
    model = one_model(timeout_s, curve=curve, replicas=replicas, max_rows=max_rows)
    stream = Stream("video", MODEL, streams=streams, fps=FPS, timeout_s=timeout_s, jitter=0.2)
    return Case(
        scenario("streams", model, [stream], lab.seconds(10) / (replicas if curve is LIGHT else 4) ** 0.5),
        {OURS: ours(), PLAIN: ours("newest frame wins")} if timeout_s >= 1 / FPS and replicas == 1 else {OURS: ours()},
        tuned=(),
        bound=replicas == 1,
        value=float(streams),
        key=(place,),
        tune_s=3.0,
    )


def _with_triton(case: Case, make_system: MakeSystem) -> Case:
    contenders = {**case.contenders, TRITON: Contender(make_system)}
    made = make_system
    assert isinstance(made, partial)
    if PLAIN in contenders:
        contenders[f"{TRITON}, clients cancel"] = Contender(partial(Triton, *made.args, **made.keywords))
    return Case(case.scenario, contenders, (), bound=case.bound, value=case.value, key=case.key, tune_s=case.tune_s)


def _all(most: dict[str, list[float]], bound: list[float], mine: list[Measured]) -> list[tuple[str, list[float]]]:
    return [*most.items(), *([("bound", bound)] if mine[0].bounds else [])]


def _allowed(mine: list[Measured], bound: list[float]) -> str:
    if not mine[0].bounds:
        return "no bound calculated"
    return f"the exact bound allows {estimate(bound).mean:.1f}"


def _streams(each: Measured) -> float:
    return each.case.value or 0.0


def _bounded(each: Measured) -> list[float]:
    """The bound's part of the frames, per seed; 1 where there is none."""
    results = each.results[OURS]
    return [each.bounds[result.seed].count / result.total.offered if each.bounds else 1.0 for result in results]


def _most(mine: list[Measured], system: str) -> list[float]:
    return most_of([(_streams(each), [result.attainment for result in each.results[system]]) for each in mine])


def most_of(points: list[tuple[float, list[float]]]) -> list[float]:
    """Per seed, the number of streams where the part in time falls below what is wanted."""
    return [_crossing([(streams, parts[seed]) for streams, parts in points]) for seed in range(len(points[0][1]))]


def _crossing(points: list[tuple[float, float]]) -> float:
    """Where a falling line through the points crosses `WANTED`; the last or the first place where it never does."""
    for (before, high), (after, low) in pairwise(points):
        if high >= WANTED > low:
            return before + (after - before) * (high - WANTED) / (high - low)
    return points[-1][0] if points[-1][1] >= WANTED else points[0][0]
