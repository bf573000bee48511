"""The circuit breaker of one build: what opens and closes it, and what does not."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from scheduling_builders import make_entry

from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.breaker import TRANSITIONS, BundleOutcome, CircuitBreaker, Event, State
from serve_app.scheduling.settings import BreakerSettings

ANSWERED, FAILURE, SUSPECTED, NOT_COUNTED = (
    BundleOutcome.ANSWERED,
    BundleOutcome.FAILURE,
    BundleOutcome.SUSPECTED,
    BundleOutcome.NOT_COUNTED,
)
SETTINGS = BreakerSettings(consecutive_failures=3, window_s=10.0, min_samples=4, reset_s=60.0, probes=2)


def made(*outcomes: BundleOutcome, every_s: float = 0.1, settings: BreakerSettings = SETTINGS) -> CircuitBreaker:
    """A breaker that has seen these, from time 0 on."""
    breaker = CircuitBreaker(settings, 0.0)
    for number, outcome in enumerate(outcomes):
        breaker.observe(outcome, number * every_s)
    return breaker


def half_open() -> CircuitBreaker:
    """A breaker that has opened at 0.2 and lets probes through since 60.2."""
    breaker = made(FAILURE, FAILURE, FAILURE)
    breaker.poll(60.2)
    assert breaker.state is State.HALF_OPEN
    return breaker


def test_faults_in_a_row_open_it() -> None:
    """As many as configured, and it says why."""
    breaker = made(FAILURE, FAILURE)
    assert (breaker.state, breaker.failures) == (State.CLOSED, 2)
    breaker.observe(FAILURE, 0.2)
    assert (breaker.state, breaker.since, breaker.reason) == (State.OPEN, 0.2, "3 failures in a row")
    assert breaker.retry_in_s(10.2) == pytest.approx(50.0)
    assert not breaker.has_room()


def test_an_answer_between_faults_starts_the_count_anew() -> None:
    """The second failure is the first again."""
    assert made(FAILURE, ANSWERED, FAILURE).failures == 1


def test_half_of_the_answers_within_the_window() -> None:
    """Intermittent failures open it once there are enough answers to say so."""
    breaker = made(FAILURE, ANSWERED, FAILURE)
    assert breaker.state is State.CLOSED
    breaker.observe(FAILURE, 0.3)
    assert (breaker.state, breaker.reason) == (State.OPEN, "3 failures in 4 answers")


def test_what_has_left_the_window_does_not_count() -> None:
    """The same failures, further apart than the window is long."""
    breaker = made(*[FAILURE, ANSWERED] * 20, every_s=6.0)
    assert breaker.state is State.CLOSED


def test_suspects_in_a_burst_do_not_open_it() -> None:
    """However many bad inputs one client sends in the time of a window."""
    assert made(*[SUSPECTED] * 90).state is State.CLOSED


def test_nothing_answered_for_a_window_opens_it() -> None:
    """A model that runs its example and nothing that anybody sends."""
    breaker = made(*[SUSPECTED] * 11, every_s=1.0)
    assert (breaker.state, breaker.reason) == (State.OPEN, "11 failures and no answer in 10 s")


@given(st.lists(st.sampled_from([SUSPECTED, NOT_COUNTED]), max_size=30), st.floats(0.01, 5.0))
def test_no_input_opens_it_while_others_are_answered(bad: list[BundleOutcome], every_s: float) -> None:
    """With an answer once per window, no number of bad inputs does."""
    breaker = CircuitBreaker(SETTINGS, 0.0)
    now = answered_at = 0.0
    for outcome in bad:
        now += every_s
        if now - answered_at >= SETTINGS.window_s * 0.5:
            breaker.observe(ANSWERED, now)
            answered_at = now
        breaker.observe(outcome, now)
    assert breaker.state is State.CLOSED


def test_what_is_nobodys_fault_changes_nothing() -> None:
    """Deadlines, cancellations and bad requests neither open it nor count as answers."""
    assert made(FAILURE, FAILURE, *[NOT_COUNTED] * 50).failures == 2


def test_probes_are_limited_and_answers_close_it() -> None:
    """As many at once as configured; a place is free again when its entry has ended, in whatever way."""
    breaker = half_open()
    first, second, third = make_entry(), make_entry(), make_entry()
    assert [breaker.admit(entry) for entry in (first, second, third)] == [True, True, False]
    assert breaker.retry_in_s(61.0) > 0.0
    first.state = EntryState.DONE
    assert breaker.admit(third)
    breaker.observe(ANSWERED, 61.0)
    assert breaker.state is State.HALF_OPEN
    breaker.observe(ANSWERED, 61.1)
    assert (breaker.state, breaker.failures) == (State.CLOSED, 0)
    assert breaker.moves == {State.CLOSED: 1, State.HALF_OPEN: 1, State.OPEN: 1}


def test_a_fault_of_a_probe_opens_it_for_the_whole_time_again() -> None:
    """At once."""
    breaker = half_open()
    breaker.observe(FAILURE, 61.0)
    assert (breaker.state, breaker.retry_in_s(61.0)) == (State.OPEN, 60.0)


def test_one_bad_input_among_the_probes_does_not_open_it() -> None:
    """As many as there are probes do."""
    breaker = half_open()
    breaker.observe(SUSPECTED, 61.0)
    breaker.observe(ANSWERED, 61.1)
    breaker.observe(SUSPECTED, 61.2)
    states = [breaker.state]
    breaker.observe(SUSPECTED, 61.3)
    assert [*states, breaker.state] == [State.HALF_OPEN, State.OPEN]


def test_late_answers_do_not_move_an_open_breaker() -> None:
    """They are of bundles from before."""
    breaker = made(FAILURE, FAILURE, FAILURE)
    breaker.observe(ANSWERED, 1.0)
    breaker.observe(FAILURE, 59.0)
    assert (breaker.state, breaker.since) == (State.OPEN, 0.2)


def test_forgiven_faults_do_not_count() -> None:
    """They came of a replica that is not asked any more."""
    breaker = made(FAILURE, FAILURE)
    breaker.forgive()
    breaker.observe(FAILURE, 1.0)
    assert (breaker.state, breaker.failures) == (State.CLOSED, 1)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_other_move_is_a_bug(state: State, event: Event) -> None:
    """The table names all legal ones."""
    breaker = CircuitBreaker(SETTINGS, 0.0)
    breaker.state = state
    if (state, event) in TRANSITIONS:
        breaker._move(event, 1.0)
        assert breaker.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(KeyError):
            breaker._move(event, 1.0)


class BreakerMachine(RuleBasedStateMachine):
    """Any outcomes, arrivals and ends on a virtual clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = CircuitBreaker(SETTINGS, self.now)
        self.inside: list[Entry] = []
        self.probing: list[Entry] = []
        self.last = (State.CLOSED, 0.0)
        self.faults_in_a_row = 0

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.5, 3.0, 59.0, 60.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.breaker.poll(self.now)

    @rule(outcome=st.sampled_from(BundleOutcome))
    def observe(self, outcome: BundleOutcome) -> None:
        """An answer comes."""
        before = self.breaker.state
        self.breaker.observe(outcome, self.now)
        if before is State.CLOSED:
            self.faults_in_a_row = 0 if outcome is ANSWERED else self.faults_in_a_row + (outcome is FAILURE)
            if self.faults_in_a_row >= SETTINGS.consecutive_failures:
                assert self.breaker.state is State.OPEN
            if outcome in (ANSWERED, NOT_COUNTED):
                assert self.breaker.state is State.CLOSED
        if before is State.OPEN:
            assert self.breaker.state is State.OPEN
        if self.breaker.state is not State.CLOSED:
            self.faults_in_a_row = 0

    @rule()
    def arrive(self) -> None:
        """Somebody asks."""
        entry = make_entry(deadline=inf)
        room = self.breaker.has_room()
        assert self.breaker.admit(entry) == room
        if room:
            entry.state = EntryState.QUEUED
            self.inside.append(entry)
            if self.breaker.state is State.HALF_OPEN:
                self.probing.append(entry)
        else:
            assert self.breaker.retry_in_s(self.now) > 0.0

    @precondition(lambda self: self.inside)
    @rule(at=st.integers(0, 1000))
    def end(self, at: int) -> None:
        """An entry ends without any outcome: its client has left, say."""
        self.inside.pop(at % len(self.inside)).state = EntryState.DONE

    @invariant()
    def moves_are_legal(self) -> None:
        """Only as the table says, and open for no less than its time."""
        state, since = self.last
        if self.breaker.state is not state:
            assert (state, self.breaker.state) in {(before, after) for (before, _), after in TRANSITIONS.items()}
            if state is State.OPEN:
                assert self.now >= since + SETTINGS.reset_s
        self.last = (self.breaker.state, self.breaker.since)
        if self.breaker.state is not State.HALF_OPEN:
            self.probing.clear()

    @invariant()
    def probes_are_few(self) -> None:
        """Never more than configured at once."""
        if self.breaker.state is State.HALF_OPEN:
            assert sum(entry.state is not EntryState.DONE for entry in self.probing) <= SETTINGS.probes


TestBreakerMachine = BreakerMachine.TestCase
