"""What the steps of the overload ladder do in a scheduler."""

from __future__ import annotations

from collections import Counter

import pytest
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, make_class, make_entry, make_scheduler

from serve_app.scheduling.decisions import Dispatch
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.overload import OverloadSettings, Step
from serve_app.scheduling.relief import DeviceLoad
from serve_app.scheduling.scheduler import Scheduler

_LIGHT = [(rows, bucket, 0.5 * seconds) for rows, bucket, seconds in AFFINE]


class Flood:
    """Drives one scheduler on a virtual clock: arrivals at fixed rates, and answers as predicted.

    Args:
        scheduler: Of the model ``m`` with one replica ``a``.
        prechecks: Whether it asks beforehand, as protocols do.
    """

    def __init__(self, scheduler: Scheduler, *, prechecks: bool = False) -> None:
        self.scheduler = scheduler
        self._prechecks = prechecks
        self.now = 0.0
        self.accepted: Counter[Priority] = Counter()
        self.refused: Counter[tuple[Priority, str]] = Counter()
        self.ran: Counter[tuple[Priority, str]] = Counter()
        self.steps: list[str] = [""]
        self.messages: set[str] = set()
        self.longest_s = 0.0
        self._running: list[tuple[float, Dispatch]] = []

    def run(
        self,
        seconds: float,
        rates: dict[Priority, float],
        timeout_s: float | dict[Priority, float] = 0.5,
        *,
        exact: bool = False,
    ) -> None:
        """Let so many entries of each class come per second."""
        timeouts_s = timeout_s if isinstance(timeout_s, dict) else dict.fromkeys(rates, timeout_s)
        tick = 0.001
        due = dict.fromkeys(rates, 0.0)
        end = self.now + seconds
        while self.now < end:
            self.now += tick
            for priority, rate in rates.items():
                due[priority] += rate * tick
                while due[priority] >= 1.0:
                    due[priority] -= 1.0
                    self._arrive(priority, timeouts_s[priority], exact=exact)
            self._answer()
            for dispatch in self.scheduler.decide(self.now).dispatches:
                begin = max([self.now, *(at for at, _ in self._running)])
                self._running.append((begin + dispatch.predicted_s, dispatch))
                self.longest_s = max(self.longest_s, dispatch.predicted_s)
            step = self.scheduler.overload("m")
            if step != self.steps[-1]:
                self.steps.append(step)

    def _arrive(self, priority: Priority, timeout_s: float, *, exact: bool) -> None:
        if self._prechecks and self.scheduler.precheck("m", priority, 0, self.now) is not None:
            self.refused[priority, "early"] += 1
            return
        entry = make_entry(priority, self.now + timeout_s, arrival=self.now, exact=exact)
        rejection = self.scheduler.on_arrival(entry, self.now)
        if rejection is None:
            self.accepted[priority] += 1
        else:
            self.refused[priority, rejection.code] += 1
            self.messages.add(rejection.message)

    def _answer(self) -> None:
        while self._running and self._running[0][0] <= self.now:
            _, dispatch = self._running.pop(0)
            took = [(dispatch.rows, dispatch.bucket, dispatch.predicted_s, dispatch.variant)]
            for entry in self.scheduler.on_done(dispatch.bundle_id, took, self.now):
                self.ran[entry.priority, entry.variant] += 1


def _scheduler(
    settings: OverloadSettings | None = None,
    *,
    slo_s: float = 0.1,
    light: bool = False,
    profile: list[tuple[int, int, float]] = AFFINE,
) -> Scheduler:
    scheduler = make_scheduler(
        slo_s=slo_s,
        fallbacks=("light",) if light else (),
        high=make_class(),
        normal=make_class(min_share=0.05),
        low=make_class(min_share=0.05),
        overload=settings or OverloadSettings(),
        profile=profile,
    )
    if light:
        scheduler.seed("m", [(*point, "light") for point in _LIGHT])
    return scheduler


def test_a_flood_of_low_sheds_low_and_nobody_else() -> None:
    """Ten times the capacity of `low` beside a little `high`: the ladder stops where `low` is refused."""
    flood = Flood(_scheduler())
    flood.run(1.5, {HIGH: 150.0, LOW: 8000.0})
    assert flood.steps == ["", "batches", "shed-low"]
    assert flood.refused[LOW, "queue_full"] > 4 * flood.accepted[LOW]
    assert [key for key in flood.refused if key[0] is HIGH] == []
    assert any("takes only a ration of class low (step shed-low)" in message for message in flood.messages)


def test_it_comes_back_to_none_by_itself() -> None:
    """Without any request the scheduler asks to be called until the ladder is down."""
    flood = Flood(_scheduler())
    flood.run(1.0, {LOW: 8000.0})
    assert flood.steps[-1] == "shed-low"
    flood.run(1.0, {})
    scheduler, now = flood.scheduler, flood.now
    for _ in range(1000):
        if (wake_at := scheduler.wake_at) is None:
            break
        now = max(now, wake_at)
        scheduler.decide(now)
    assert scheduler.overload("m") == ""
    assert scheduler.wake_at is None


def test_a_shed_class_keeps_its_ration_and_its_share() -> None:
    """While `normal` saturates the model, `low` goes on getting its guaranteed share."""
    flood = Flood(_scheduler())
    flood.run(3.0, {NORMAL: 3000.0, LOW: 1000.0})
    assert flood.steps[-1] == "shed-normal"
    ran = sum(flood.ran.values())
    assert flood.ran[LOW, ""] / ran > 0.03


def test_a_device_does_not_idle_because_of_the_ladder() -> None:
    """A class that is shed still fills the batches: as many answers as without a ladder."""
    with_ladder, without = Flood(_scheduler()), Flood(make_scheduler(profile=AFFINE))
    for flood in (with_ladder, without):
        flood.run(2.5, {LOW: 4000.0})
    assert with_ladder.ran.total() > 0.98 * without.ran.total()


def test_the_variant_answers_the_lower_classes_only() -> None:
    """`high` stays exact; `normal` and `low` run on the fallback, and the answer says so."""
    settings = OverloadSettings(steps=(Step.VARIANT,))
    flood = Flood(_scheduler(settings, light=True))
    flood.run(2.0, {HIGH: 20.0, NORMAL: 1000.0, LOW: 1000.0})
    assert flood.steps[-1] == "variant"
    flood.ran.clear()
    flood.run(1.0, {HIGH: 20.0, NORMAL: 1000.0, LOW: 1000.0})
    assert flood.ran[HIGH, "light"] == 0
    assert flood.ran[HIGH, ""] > 15
    assert flood.ran[NORMAL, "light"] > 10 * flood.ran[NORMAL, ""]


def test_frequent_high_takes_others_along_on_the_exact_model() -> None:
    """Bundles of `high` alone would waste more than the variant saves."""
    flood = Flood(_scheduler(OverloadSettings(steps=(Step.VARIANT,)), light=True))
    flood.run(2.0, {HIGH: 170.0, NORMAL: 2000.0})
    assert flood.steps[-1] == "variant"
    flood.ran.clear()
    flood.run(1.0, {HIGH: 170.0, NORMAL: 2000.0})
    assert flood.ran[NORMAL, ""] > 500


def test_who_forbids_fallbacks_gets_the_exact_model() -> None:
    """`X-Fallback: never` holds under overload, too."""
    flood = Flood(_scheduler(OverloadSettings(steps=(Step.VARIANT,)), light=True))
    flood.run(3.0, {NORMAL: 3000.0}, exact=True)
    assert flood.steps[-1] == "variant"
    assert flood.ran[NORMAL, "light"] == 0


def test_a_fallback_that_is_not_cheaper_is_not_brought() -> None:
    """A variant that takes as long as the exact model would help nobody."""
    scheduler = make_scheduler(fallbacks=("light",), profile=AFFINE, overload=OverloadSettings(steps=(Step.VARIANT,)))
    scheduler.seed("m", [(*point, "light") for point in AFFINE])
    flood = Flood(scheduler)
    flood.run(2.0, {NORMAL: 1200.0}, timeout_s=5.0)
    assert flood.ran[NORMAL, "light"] == 0


def test_batches_grow_past_the_target() -> None:
    """With a target of 15 ms a batch has 10 rows; under overload it has what deadlines allow."""
    flood = Flood(_scheduler(OverloadSettings(steps=(Step.BATCHES,)), slo_s=0.015))
    sizes = []
    for rate in (300.0, 5000.0):
        flood.run(2.0, {NORMAL: rate})
        before = flood.ran.total()
        flood.run(1.0, {NORMAL: rate})
        sizes.append(flood.ran.total() - before)
    assert flood.steps == ["", "batches"]
    assert sizes[1] > 1.1 * 10 / 0.015  # more than batches of 10 rows could do


def test_batches_do_not_grow_where_rows_get_no_cheaper() -> None:
    """A model whose batches cost what their rows cost one by one gains nothing, and would only block others longer."""
    linear = [(rows, 0, 0.001 * rows) for rows, _, _ in AFFINE]
    flood = Flood(_scheduler(OverloadSettings(steps=(Step.BATCHES,)), slo_s=0.015, profile=linear))
    flood.run(2.0, {NORMAL: 5000.0})
    assert flood.steps == ["", "batches"]
    assert flood.longest_s <= 0.015 + 1e-9


def test_batches_grow_only_as_far_as_more_urgent_classes_can_bear() -> None:
    """Requests of `high` with 80 ms keep batches of `low` to a quarter of that; without them they are full ones."""
    longest_s = []
    for high_rate in (0.0, 50.0):
        flood = Flood(_scheduler(OverloadSettings(steps=(Step.BATCHES,)), slo_s=0.010))
        flood.run(1.0, {HIGH: high_rate, LOW: 5000.0}, timeout_s={HIGH: 0.08, LOW: 0.5})
        assert flood.steps == ["", "batches"]
        longest_s.append(flood.longest_s)
    assert longest_s[0] == 0.005 + 0.001 * 32
    assert 0.010 < longest_s[1] < 0.020


def test_a_full_device_gets_one_bundle_at_a_time() -> None:
    """Memory over the limit takes the staged bundle away, and gives it back."""
    scheduler = make_scheduler(policy="eager", max_rows=4, profile=AFFINE, overload=OverloadSettings())
    first, second = _in_flight(scheduler, DeviceLoad(None, 0.95)), _in_flight(scheduler, DeviceLoad(None, 0.5))
    assert (first, second) == (1, 2)


def _in_flight(scheduler: Scheduler, load: DeviceLoad) -> int:
    """Have a replica tell its load, and count the bundles that it then gets. All of them are answered."""
    scheduler.on_arrival(make_entry(), 0.0)
    (told,) = scheduler.decide(0.0).dispatches
    scheduler.on_done(told.bundle_id, [], 0.0, load=load)
    for _ in range(20):
        scheduler.on_arrival(make_entry(), 0.0)
    in_flight = len(dispatches := scheduler.decide(0.0).dispatches)
    while dispatches:
        for dispatch in dispatches:
            scheduler.on_done(dispatch.bundle_id, [], 0.0)
        dispatches = scheduler.decide(0.0).dispatches
    return in_flight


def test_an_idle_device_beside_a_queue_grows_batches() -> None:
    """A device that says it is used for a third of its time while batches wait: the first step, and no more."""
    scheduler = make_scheduler(window=1, max_rows=4, profile=AFFINE, overload=OverloadSettings())
    for _ in range(100):
        scheduler.on_arrival(make_entry(deadline=1000.0), 0.0)
    now = 0.0
    while not scheduler.overload("m") and now < 5.0:
        for dispatch in scheduler.decide(now).dispatches:
            scheduler.on_done(dispatch.bundle_id, [], now, load=DeviceLoad(0.3, None))
            scheduler.on_arrival(make_entry(deadline=1000.0, rows=4), now)
        now += 0.01
    assert scheduler.overload("m") == "batches"


def test_what_replicas_that_have_gone_told_is_forgotten() -> None:
    """They come and go for as long as a router lives."""
    scheduler = make_scheduler(window=1, profile=AFFINE, overload=OverloadSettings())
    for number in range(20):
        now = 10.0 * number
        scheduler.on_replicas("m", [f"r{number}"], now)
        scheduler.on_arrival(make_entry(deadline=now + 5.0, arrival=now), now)
        (dispatch,) = scheduler.decide(now).dispatches
        scheduler.on_done(dispatch.bundle_id, [], now, load=DeviceLoad(0.5, 0.5))
    assert [replica for _, replica in scheduler._reliefs[0]._told] == ["r19"]


def test_early_refusals_count_as_asked_for() -> None:
    """What `precheck` refuses keeps the ladder up as what `on_arrival` refuses does."""
    flood = Flood(_scheduler(), prechecks=True)
    flood.run(2.5, {LOW: 8000.0})
    picture = flood.scheduler.overloads(flood.now)["m"]
    assert flood.steps == ["", "batches", "shed-low"]
    assert picture["shed"]["low"] == flood.refused[LOW, "early"]
    assert picture["demand"]["low"] > 8.0


def test_early_refusals_cost_what_accepted_entries_do() -> None:
    """It does not matter for the demand where requests are refused."""
    early, late = Flood(_scheduler(), prechecks=True), Flood(_scheduler())
    for flood in (early, late):
        flood.run(5.0, {LOW: 8000.0})
    demands = [flood.scheduler.overloads(flood.now)["m"]["demand"]["low"] for flood in (early, late)]
    assert demands[0] == pytest.approx(demands[1], rel=0.1)


def test_early_refusals_are_forgotten() -> None:
    """Also where they were the last that was heard of their class: the ladder comes down."""
    flood = Flood(_scheduler(), prechecks=True)
    flood.run(2.5, {LOW: 8000.0})
    flood.scheduler._reliefs[0].update(flood.now)  # so that nothing else was asked for since
    assert flood.scheduler.precheck("m", LOW, 0, flood.now) is not None
    flood.run(20.0, {})
    assert flood.steps[-1] == ""
    assert flood.scheduler.overloads(flood.now)["m"]["demand"]["low"] == pytest.approx(0.0, abs=1e-3)


def test_without_settings_there_is_no_ladder() -> None:
    """A scheduler that was given none has nothing to tell."""
    flood = Flood(make_scheduler(profile=AFFINE))
    flood.run(1.0, {LOW: 5000.0})
    assert (flood.steps, flood.scheduler.overloads(flood.now)) == ([""], {})
