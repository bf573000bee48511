"""The router's core with a driver that notes what it is told, and a clock that is the tests' own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

import pytest
from scheduling_builders import AFFINE, make_entry, make_scheduler

from serve_app.errors import RETURNED, DeadlineExceeded, InferenceFailed
from serve_app.scheduling.core import RouterCore
from serve_app.scheduling.decisions import Change, Dispatch, Rejection
from serve_app.scheduling.driver import Why
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.settings import BreakerSettings, ModelScheduling, ProcessLimits

_RUN = [(1, 0, 0.006, "")]
_TIMEOUT_S = 1.0


class Noting:
    """A driver, and a table of ties.

    Attributes:
        pumps: How often it was asked for a pump.
        timer: When the timer is to fire.
        sent: Bundles, oldest first.
        wake_ups: Likewise, of models without replicas.
        recalled: Ids of entries that were asked back.
        failed: Entries that ended without an answer, and why.
        late: Bundles that timed out.
        changes: Of circuit breakers.
        held: Places that are given out.
    """

    def __init__(self) -> None:
        self.pumps = 0
        self.timer = inf
        self.sent: list[Dispatch] = []
        self.wake_ups: list[Dispatch] = []
        self.recalled: list[int] = []
        self.failed: list[tuple[Entry, Why]] = []
        self.late: list[Dispatch] = []
        self.changes: list[Change] = []
        self.places: dict[int, Sequence[int]] = {}
        self.held: set[int] = set()

    def pump_soon(self) -> None:
        self.pumps += 1

    def set_timer(self, at: float) -> None:
        self.timer = at

    def send(self, dispatch: Dispatch, now: float, places: Sequence[int]) -> int:
        self.sent.append(dispatch)
        self.places[dispatch.bundle_id] = places
        return dispatch.bundle_id

    def wake_up(self, dispatch: Dispatch) -> None:
        self.wake_ups.append(dispatch)

    def recall(self, sent: int, dispatch: Dispatch, entries: Collection[Entry]) -> None:
        assert sent == dispatch.bundle_id
        self.recalled += [entry.id for entry in entries]

    def fail(self, entry: Entry, why: Why, refusal: Rejection | None = None) -> None:
        assert (refusal is not None) == (why is Why.REFUSED)
        self.failed.append((entry, why))

    def timed_out(self, dispatch: Dispatch) -> None:
        self.late.append(dispatch)

    def changed(self, changes: Sequence[Change]) -> None:
        self.changes += changes

    def place(self) -> int:
        place = max(self.held, default=0) + 1
        self.held.add(place)
        return place

    def free(self, place: int) -> None:
        self.held.remove(place)


def _core(*replicas: str, models: Sequence[ModelScheduling | str] = ("m",)) -> tuple[RouterCore[int], Noting]:
    driver = Noting()
    limits = ProcessLimits(total_bytes=10**12)
    scheduler = make_scheduler(replicas=replicas, models=models, profile=AFFINE, limits=limits)
    core = RouterCore(scheduler, driver, _TIMEOUT_S, driver)
    for replica in replicas:
        core.on_linked("m", replica, linked=True)
    return core, driver


def _pass(core: RouterCore[int], driver: Noting, until: float) -> None:
    """Let time pass, with nothing but the timer."""
    while driver.timer <= until:
        at, driver.timer = driver.timer, inf
        core.fire(at)


def _sent(core: RouterCore[int], driver: Noting, now: float = 0.0, deadline: float = 10.0) -> tuple[Entry, Dispatch]:
    """One more entry, and the bundle that it leaves in."""
    entry = make_entry(deadline=deadline)
    assert core.arrive(entry, now) is None
    core.pump(now)
    return entry, driver.sent[-1]


def test_one_pump_per_turn_however_many_events() -> None:
    """Arrivals of one turn leave together."""
    core, driver = _core("a")
    for _ in range(3):
        assert core.arrive(make_entry(), 0.0) is None
    assert driver.pumps == 1
    core.pump(0.0)
    assert [len(dispatch.entries) for dispatch in driver.sent] == [3]
    assert core.arrive(make_entry(), 0.0) is None
    assert driver.pumps == 2


def test_what_is_refused_asks_for_nothing() -> None:
    """No decision follows from it."""
    core, driver = _core("a")
    assert core.arrive(make_entry(model="none"), 0.0) is not None
    assert driver.pumps == 0


def test_the_timer_moves_to_a_nearer_moment_and_never_back() -> None:
    """A farther one is looked at when the nearer fires."""
    core, driver = _core("a")
    _, first = _sent(core, driver, deadline=300.0)
    timeout = driver.timer
    assert timeout == pytest.approx(_TIMEOUT_S + 4 * first.predicted_s)
    near = make_entry(deadline=0.5)
    assert core.arrive(near, 0.0) is None
    core.pump(0.0)
    assert driver.timer < 0.5
    _pass(core, driver, 0.6)
    assert driver.failed == [(near, Why.EXPIRED)]
    assert 0.6 < driver.timer <= timeout


def test_a_bundle_that_is_not_answered_in_time_goes_elsewhere() -> None:
    """Once, away from that replica; its late answer counts for nothing but the replica's return."""
    core, driver = _core("a", "b")
    entry, first = _sent(core, driver)
    _pass(core, driver, 2.0)
    assert driver.late == [first]
    _, again = driver.sent
    assert (again.entries, again.replica == first.replica) == ([entry], False)
    assert core.answered(again, [None], _RUN, 2.0) == [entry]
    assert core.answered(first, [None], _RUN, 2.1) == []
    assert len(core) == 0


def test_what_two_replicas_failed_on_is_poison() -> None:
    """It is not tried a third time."""
    core, driver = _core("a", "b")
    entry, first = _sent(core, driver)
    core.lost(first, 0.1, replica_lost=True, reached=True)
    core.pump(0.1)
    core.lost(driver.sent[-1], 0.2, replica_lost=True, reached=True)
    assert driver.failed == [(entry, Why.POISONED)]


def test_what_reached_no_replica_is_no_try() -> None:
    """It is queued as if it had never been sent."""
    core, driver = _core("a", "b")
    entry, first = _sent(core, driver)
    core.lost(first, 0.1, replica_lost=True, reached=False)
    assert (entry.state, entry.attempts) == (EntryState.QUEUED, 0)


@pytest.mark.parametrize(
    ("code", "state", "alive"),
    [
        (None, EntryState.DONE, True),
        (InferenceFailed.code, EntryState.DONE, True),
        (DeadlineExceeded.code, EntryState.DONE, True),
        (RETURNED, EntryState.QUEUED, False),
    ],
)
def test_what_a_result_means(code: str | None, state: EntryState, alive: bool) -> None:
    """Only what was not run and comes back is queued again."""
    core, driver = _core("a")
    entry, dispatch = _sent(core, driver)
    answered = core.answered(dispatch, [code], [] if code else _RUN, 0.1)
    assert (entry.state, answered) == (state, [entry] if alive else [])


@pytest.mark.parametrize(
    ("codes", "works", "opens"),
    [
        ([InferenceFailed.code], False, True),
        ([InferenceFailed.code], True, False),
        ([InferenceFailed.code], None, False),
        ([DeadlineExceeded.code], False, False),
        ([RETURNED], False, False),
        ([None], None, False),
    ],
)
def test_only_its_own_failures_open_a_models_breaker(codes: list[str | None], works: bool | None, opens: bool) -> None:
    """Not bad inputs, nor what was not run."""
    model = ModelScheduling("m", 32, 0.1, breaker=BreakerSettings(consecutive_failures=1))
    core, driver = _core("a", models=[model])
    _, dispatch = _sent(core, driver)
    core.answered(dispatch, codes, [], 0.1, model_works=works)
    core.pump(0.1)
    assert [change.state for change in driver.changes] == (["open"] if opens else [])


@pytest.mark.parametrize(
    ("answers", "variant", "misfits"), [(1, "", False), (2, "", True), (1, "light", False), (1, "other", True)]
)
def test_an_answer_that_cannot_be_one(answers: int, variant: str, misfits: bool) -> None:
    """Too many results, or a variant that was not allowed to stand in."""
    model = ModelScheduling("m", 32, 0.1, variants=("light", "other"), fallbacks=("light",))
    core, driver = _core("a", models=[model])
    _, dispatch = _sent(core, driver)
    assert (core.misfit(dispatch, answers, [(1, 0, 0.006, variant)]) is not None) == misfits


def test_a_model_without_replicas_is_woken_up_once() -> None:
    """Its entries leave when there is one; that the call then ends changes nothing."""
    core, driver = _core()
    entry = make_entry()
    assert core.arrive(entry, 0.0) is None
    core.pump(0.0)
    (wake_up,) = driver.wake_ups
    assert (wake_up.entries, driver.sent) == ([entry], [])
    core.on_replicas("m", ["a"], 1.0)
    core.pump(1.0)
    assert [dispatch.entries for dispatch in driver.sent] == [[entry]]
    core.woken(wake_up, 1.1)
    assert (entry.state, entry.attempts) == (EntryState.RUNNING, 1)


def test_who_could_be_reached_by_nobody_is_told_so() -> None:
    """It is the model's fault, not the deadline's."""
    core, driver = _core()
    entry = make_entry(deadline=1.0)
    assert core.arrive(entry, 0.0) is None
    core.pump(0.0)
    core.fire(1.0)
    assert driver.failed == [(entry, Why.EXPIRED)]
    assert core.unreached(entry)


def test_tied_entries_have_a_place_until_the_last_of_their_bundles_has_ended() -> None:
    """One for all of them; bundles of entries that are not tied have none."""
    core, driver = _core("a", "b")
    _, one = _sent(core, driver)
    _, two = _sent(core, driver)
    assert (driver.places[one.bundle_id], driver.places[two.bundle_id]) == ((), ())
    assert core.arrive(make_entry(), 0.001) is None
    core.pump(0.001)
    first, second = driver.sent[2:]
    assert driver.places[first.bundle_id] == driver.places[second.bundle_id] == [1]
    core.answered(first, [None], _RUN, 0.01)
    assert driver.held == {1}
    core.pump(0.01)
    core.answered(second, [RETURNED], [], 0.01)
    assert driver.held == set()


def test_who_has_left_is_recalled() -> None:
    """Once; it has ended then."""
    core, driver = _core("a")
    entry, _ = _sent(core, driver)
    assert core.cancel(entry, 0.1)
    core.pump(0.1)
    assert driver.recalled == [entry.id]
    assert not core.cancel(entry, 0.2)


def test_a_silent_replica_s_work_is_tried_elsewhere_and_the_first_answer_counts() -> None:
    """The other copy is recalled."""
    core, driver = _core("a", "b")
    entry, first = _sent(core, driver)
    assert core.on_unresponsive("m", str(first.replica), 0.5)
    core.pump(0.5)
    hedge = driver.sent[-1]
    assert (hedge.entries[0].id, hedge.replica == first.replica) == (entry.id, False)
    assert core.on_responsive("m", str(first.replica), 0.6)
    assert core.answered(first, [None], _RUN, 0.7) == [entry]
    core.pump(0.7)
    assert driver.recalled == [entry.id]


def test_nothing_is_said_of_models_that_are_gone() -> None:
    """Links may still tell of them."""
    core, driver = _core("a")
    core.remove_model("m", 0.0)
    core.on_linked("m", "a", linked=True)
    assert not core.on_unresponsive("m", "a", 0.1)
    assert not core.on_responsive("m", "a", 0.1)
    assert driver.pumps == 0


def _streamed(core: RouterCore[int], driver: Noting, answer_by: float = 100.0) -> tuple[Entry, Dispatch]:
    """An entry whose answer comes in parts, and the bundle that it leaves in."""
    entry = make_entry(deadline=2.0, answer_by=answer_by)
    assert core.arrive(entry, 0.0) is None
    core.pump(0.0)
    return entry, driver.sent[-1]


def test_the_first_part_is_in_time_and_the_rest_has_longer() -> None:
    """Neither the time-out of bundles nor a hedge comes to it."""
    core, driver = _core("a", "b")
    entry, dispatch = _streamed(core, driver)
    assert core.part(dispatch, 0, 1.9)
    _pass(core, driver, 90.0)
    assert core.part(dispatch, 0, 90.0)
    assert (len(driver.sent), driver.late, driver.failed, driver.recalled) == (1, [], [], [])
    assert core.answered(dispatch, [None], _RUN, 95.0) == [entry]
    assert not core.part(dispatch, 0, 96.0)


def test_an_answer_without_a_first_part_in_time_has_expired() -> None:
    """And is asked back: it runs otherwise for as long as it likes."""
    core, driver = _core("a")
    entry, dispatch = _streamed(core, driver)
    _pass(core, driver, 5.0)
    assert driver.failed == [(entry, Why.EXPIRED)]
    assert driver.recalled == [entry.id]
    assert not core.part(dispatch, 0, 5.0)
    assert core.answered(dispatch, [RETURNED], (), 5.1) == []


def test_an_answer_that_is_not_over_in_time_has_expired() -> None:
    """Likewise."""
    core, driver = _core("a")
    entry, dispatch = _streamed(core, driver, answer_by=3.0)
    assert core.part(dispatch, 0, 1.0)
    _pass(core, driver, 2.9)
    assert driver.failed == []
    _pass(core, driver, 5.0)
    assert driver.failed == [(entry, Why.EXPIRED)]
    assert driver.recalled == [entry.id]


def test_a_replica_that_is_lost_before_the_first_part_is_replaced_by_another() -> None:
    """As for any request; parts of the first are not taken any more."""
    core, driver = _core("a", "b")
    entry, first = _streamed(core, driver)
    core.lost(first, 0.5, replica_lost=True)
    core.pump(0.5)
    second = driver.sent[-1]
    assert (second.entries, second.replica != first.replica) == ([entry], True)
    assert not core.part(first, 0, 0.6)
    assert core.part(second, 0, 0.6)


def test_a_replica_that_is_lost_after_a_part_ends_the_answer() -> None:
    """A second try would begin anew."""
    core, driver = _core("a", "b")
    entry, dispatch = _streamed(core, driver)
    assert core.part(dispatch, 0, 0.5)
    core.lost(dispatch, 0.6, replica_lost=True)
    core.pump(0.6)
    assert driver.failed == [(entry, Why.BROKEN)]
    assert (entry.state, len(driver.sent)) == (EntryState.DONE, 1)


def test_an_answer_that_has_begun_does_not_come_back() -> None:
    """Whatever its replica says: what came of it is its end."""
    core, driver = _core("a", "b")
    entry, dispatch = _streamed(core, driver)
    assert core.part(dispatch, 0, 0.5)
    assert core.answered(dispatch, [RETURNED], (), 0.6) == [entry]
    assert entry.state is EntryState.DONE


def test_an_answer_that_has_begun_is_asked_back_from_other_replicas() -> None:
    """At once, and once: one that runs it as well goes on to the end of an answer that nobody takes."""
    core, driver = _core("a", "b")
    _sent(core, driver)
    _sent(core, driver)
    entry = make_entry(deadline=2.0, answer_by=100.0)
    assert core.arrive(entry, 0.001) is None
    core.pump(0.001)
    first, second = driver.sent[2:]
    pumps = driver.pumps
    assert core.part(second, 0, 0.5)
    assert not core.part(first, 0, 0.5)
    assert core.part(second, 0, 0.6)
    assert driver.pumps == pumps + 1
    core.pump(0.6)
    assert driver.recalled == [entry.id]


def test_a_client_that_leaves_has_its_answer_asked_back() -> None:
    """After a part as before."""
    core, driver = _core("a")
    entry, dispatch = _streamed(core, driver)
    assert core.part(dispatch, 0, 0.5)
    assert core.cancel(entry, 0.6)
    core.pump(0.6)
    assert driver.recalled == [entry.id]
    assert not core.part(dispatch, 0, 0.7)


def test_an_unresponsive_replica_keeps_its_answers_in_parts() -> None:
    """They are not run twice: if it is dead, the link tells."""
    core, driver = _core("a", "b")
    _, dispatch = _streamed(core, driver)
    assert dispatch.replica is not None
    assert core.on_unresponsive("m", dispatch.replica, 0.5)
    _pass(core, driver, 1.5)
    core.pump(1.5)
    assert len(driver.sent) == 1
