"""Members of a pool at one host: whose bundle is next, and when."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import pytest
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, Policy, accept, make_class, make_entry, make_scheduler

from serve_app.domain.priority import Priority
from serve_app.pools.policy.device import PoolDevice
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Dispatch
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits

_POOL = Pool("g", ("m", "n"), concurrency=1, memory_bytes=9)
_HEAVY = [(1, 0, 0.05), (8, 0, 0.4)]


def _model(name: str, policy: Policy = "auto", **changes: float) -> ModelScheduling:
    return ModelScheduling(name, 32, 1.0, policy=policy, **changes)  # type: ignore[arg-type]


def _shared(*models: ModelScheduling, pool: Pool = _POOL, share: float = 0.0) -> Scheduler:
    """Models ``m`` and ``n`` at one host."""
    return make_scheduler(
        models=models or (_model("m"), _model("n")),
        pool=pool,
        profile=AFFINE,
        normal=make_class(min_share=share),
        low=make_class(min_share=share),
    )


def _models(scheduler: Scheduler, now: float = 0.0) -> list[str]:
    """Decide; the models that bundles went to, in order."""
    return [dispatch.model for dispatch in scheduler.decide(now).dispatches]


def _only(scheduler: Scheduler, now: float = 0.0) -> Dispatch:
    (dispatch,) = scheduler.decide(now).dispatches
    return dispatch


# ------------------------------------------------------------------ one after the other


def test_models_without_a_pool_do_not_wait_for_each_other() -> None:
    """Each has replicas of its own."""
    scheduler = make_scheduler(models=("m", "n"), profile=AFFINE)
    accept(scheduler, make_entry(model="m"), make_entry(model="n"))

    assert _models(scheduler) == ["m", "n"]


def test_one_execution_at_a_time() -> None:
    """The second bundle goes when the first is answered, however long that takes; nobody need wake up for it."""
    scheduler = _shared()
    accept(scheduler, make_entry(deadline=1.0), make_entry(model="n", deadline=2.0))
    first = _only(scheduler)
    assert first.model == "m"
    assert _models(scheduler, 0.5) == []
    assert scheduler.wake_at == 1.0

    scheduler.on_done(first.bundle_id, [(1, 0, 0.002, "")], 0.503)
    assert _models(scheduler, 0.503) == ["n"]


def test_the_policy_of_a_model_makes_no_difference() -> None:
    """A bundle is composed when the device is free, and then it goes."""
    policies: tuple[Policy, Policy] = ("auto", "eager")
    for policy in policies:
        scheduler = _shared(_model("m", policy), _model("n", policy))
        for deadline in (1.0, 2.0, 3.0):
            accept(scheduler, make_entry(deadline=deadline, rows=32), make_entry(model="n", deadline=deadline, rows=32))
        assert _models(scheduler) == ["m"]


def test_a_host_may_have_several_at_once() -> None:
    """As many as the pool says, of different members or of one."""
    pool = Pool("g", ("m", "n"), concurrency=2, memory_bytes=9)
    scheduler = _shared(pool=pool)
    accept(scheduler, make_entry(deadline=1.0), make_entry(model="n", deadline=2.0))
    assert _models(scheduler) == ["m", "n"]
    accept(scheduler, make_entry(deadline=3.0), now=0.001)
    assert _models(scheduler, 0.001) == []

    scheduler = _shared(pool=pool)
    accept(scheduler, *(make_entry(deadline=1.0, rows=32) for _ in range(3)))
    assert _models(scheduler) == ["m", "m"]


def test_what_is_less_urgent_takes_no_room_from_what_is_more() -> None:
    """It runs first, and the urgent one waits behind it at the host."""
    scheduler = _shared()
    accept(scheduler, make_entry(LOW, deadline=60.0))
    assert _models(scheduler) == ["m"]
    accept(scheduler, make_entry(HIGH, model="n"), make_entry(LOW, deadline=60.0), now=0.001)
    assert _models(scheduler, 0.001) == ["n"]


def test_what_the_gate_did_not_run_goes_again() -> None:
    """With what else is queued then, in order."""
    scheduler = _shared()
    first, second, third = accept(scheduler, *(make_entry(deadline=1.0 + at) for at in range(3)))
    sent = _only(scheduler)
    assert sent.entries == [first, second, third]
    scheduler.on_done(sent.bundle_id, [(1, 0, 0.006, "")], 0.01, returned=[second, third])
    (urgent,) = accept(scheduler, make_entry(HIGH, model="n"), now=0.01)
    other = _only(scheduler, 0.01)
    assert other.entries == [urgent]
    scheduler.on_done(other.bundle_id, [(1, 0, 0.006, "")], 0.02)

    assert _only(scheduler, 0.02).entries == [second, third]


# ------------------------------------------------------------------ order


def test_the_more_urgent_class_goes_first() -> None:
    """Whichever model it is of and whatever the deadlines are."""
    scheduler = _shared()
    accept(scheduler, make_entry(NORMAL, 1.0), make_entry(HIGH, 9.0, model="n"))

    assert _models(scheduler) == ["n"]


def test_in_a_class_the_one_with_the_least_slack_goes_first() -> None:
    """What its own execution takes is not slack: 200 ms that take 150 are tighter than 100 ms that take 6."""
    for heavy, first in ((AFFINE, "m"), ([(1, 0, 0.15), (32, 0, 0.6)], "n")):
        scheduler = make_scheduler(models=("m", "n"), pool=_POOL)
        scheduler.seed("m", [(*point, "") for point in AFFINE])
        scheduler.seed("n", [(*point, "") for point in heavy])
        accept(scheduler, make_entry(deadline=0.1), make_entry(model="n", deadline=0.2))
        assert _models(scheduler) == [first]


# ------------------------------------------------------------------ blocking


def _after_highs(scheduler: Scheduler, budget: float) -> None:
    """100 requests of the class ``high`` at model ``m`` within a second."""
    for at in range(100):
        now = 0.01 * at
        accept(scheduler, make_entry(HIGH, now + budget, arrival=now), now=now)
        scheduler.on_done(_only(scheduler, now).bundle_id, [(1, 0, 0.006, "")], now + 0.006)


def _low_rows(scheduler: Scheduler, model: str) -> int:
    """Rows of the bundle that goes right after that when 32 rows of the class ``low`` wait, one each."""
    accept(scheduler, *[make_entry(LOW, 60.0, model=model, arrival=1.0) for _ in range(32)], now=1.0)
    return _only(scheduler, 1.0).rows


def test_a_long_low_batch_is_cut_to_what_a_high_one_can_bear() -> None:
    """A high request with 30 ms leaves 24 ms for what runs when it comes: 5 ms and 1 ms per row."""
    scheduler = _shared()
    _after_highs(scheduler, 0.03)

    assert 15 <= _low_rows(scheduler, "n") <= 19


def test_patient_high_requests_cut_nothing() -> None:
    """A second is enough for any batch."""
    scheduler = _shared()
    _after_highs(scheduler, 1.0)

    assert _low_rows(scheduler, "n") == 32


def test_rows_that_can_wait_go_a_few_at_a_time_while_high_is_asked_for() -> None:
    """At any model of the device, by its own setting; all at once when it has ended."""
    scheduler = _shared(_model("m"), _model("n", high_slowdown=1.2))
    _after_highs(scheduler, 1.0)
    accept(scheduler, *[make_entry(LOW, 1000.0, model="n", arrival=1.0) for _ in range(40)], now=1.0)
    sent = _only(scheduler, 1.0)
    assert sent.rows == 1
    scheduler.on_done(sent.bundle_id, [(1, 0, 0.006, "")], 1.006)

    assert _only(scheduler, 9.0).rows == 32


def _with_regular_highs() -> tuple[Scheduler, float]:
    """A high request at ``m`` every 100 ms with 20 ms to go, for 10 s; model ``n`` takes 50 ms for a row.

    Gives the moment at which the latest one was answered.
    """
    scheduler = make_scheduler(models=(_model("m"), _model("n")), pool=_POOL)
    scheduler.seed("m", [(*point, "") for point in AFFINE])
    scheduler.seed("n", [(*point, "") for point in _HEAVY])
    now = 0.0
    for at in range(100):
        now = at * 0.1
        accept(scheduler, make_entry(HIGH, now + 0.02, arrival=now), now=now)
        scheduler.on_done(_only(scheduler, now).bundle_id, [(1, 0, 0.006, "")], now + 0.006)
    return scheduler, now + 0.006


def test_a_heavy_low_batch_is_held_back_when_a_high_one_is_due() -> None:
    """60 ms after the last one there is no time for 50 ms; right after the next one there is."""
    scheduler, now = _with_regular_highs()
    accept(scheduler, make_entry(LOW, now + 60.0, model="n", arrival=now + 0.06), now=now + 0.06)
    assert _models(scheduler, now + 0.06) == []
    wake_at = scheduler.wake_at
    assert wake_at is not None
    assert now + 0.06 < wake_at <= now + 0.06 + 0.05

    due = now + 0.094
    accept(scheduler, make_entry(HIGH, due + 0.02, arrival=due), now=due)
    high = _only(scheduler, due)
    assert high.model == "m"
    scheduler.on_done(high.bundle_id, [(1, 0, 0.006, "")], due + 0.006)
    assert _models(scheduler, due + 0.006) == ["n"]


def test_a_heavy_low_batch_goes_when_nothing_urgent_is_due() -> None:
    """Right after a high one there are 90 ms."""
    scheduler, now = _with_regular_highs()
    accept(scheduler, make_entry(LOW, now + 60.0, model="n", arrival=now), now=now)

    assert _models(scheduler, now) == ["n"]


def test_a_light_low_batch_is_never_held_back() -> None:
    """A high one that comes meanwhile can wait for it."""
    scheduler, now = _with_regular_highs()
    accept(scheduler, make_entry(LOW, now + 60.0, arrival=now + 0.09), now=now + 0.09)

    assert _models(scheduler, now + 0.09) == ["m"]


def test_heavy_low_batches_go_again_when_the_highs_have_ended() -> None:
    """Claims and the expectation of more fade."""
    scheduler, now = _with_regular_highs()
    later = now + 120.0
    accept(scheduler, make_entry(LOW, later + 60.0, model="n", arrival=later), now=later)

    assert _models(scheduler, later) == ["n"]


# ------------------------------------------------------------------ shares


def _saturate(scheduler: Scheduler, seconds: float, classes: dict[str, Priority]) -> dict[str, float]:
    """Keep 5 entries of 8 rows of one class queued at every model, and run; gives the server time per model."""
    served = dict.fromkeys(classes, 0.0)
    running: list[tuple[float, int, Dispatch]] = []
    now = free = 0.0
    while now < seconds:
        for model, priority in classes.items():
            for _ in range(5 - scheduler.queue_lengths(model)[priority].entries):
                scheduler.on_arrival(make_entry(priority, now + 1e6, model=model, rows=8, arrival=now), now)
        for dispatch in scheduler.decide(now).dispatches:
            free = max(now, free) + dispatch.predicted_s
            served[dispatch.model] += dispatch.predicted_s
            heappush(running, (free, dispatch.bundle_id, dispatch))
        now, _, done = heappop(running)
        scheduler.on_done(done.bundle_id, [(done.rows, 0, done.predicted_s, "")], now)
    return served


def test_without_a_share_the_lower_model_waits() -> None:
    """Classes are strict over models, too."""
    served = _saturate(_shared(), 5.0, {"m": HIGH, "n": LOW})

    assert served["n"] == 0.0


def test_a_lower_class_gets_its_share_of_the_host() -> None:
    """Whichever member its work is for. It counts only while a host has room for it."""
    served = _saturate(_shared(share=0.2), 20.0, {"m": HIGH, "n": LOW})

    assert 0.1 < served["n"] / sum(served.values()) < 0.24


# ------------------------------------------------------------------ bookkeeping


def _replica_lost(scheduler: Scheduler, running: Dispatch) -> None:
    scheduler.on_failed(running.bundle_id, 0.001, replica_lost=True)


def _quarantined(scheduler: Scheduler, running: Dispatch) -> None:
    scheduler.quarantine(running.model, running.replica, 0.001)


def _timed_out(scheduler: Scheduler, running: Dispatch) -> None:
    scheduler.on_timeout(running.bundle_id, 0.001)


@pytest.mark.parametrize("end", [_replica_lost, _quarantined, _timed_out])
def test_a_bundle_that_is_lost_frees_the_host(end: Callable[[Scheduler, Dispatch], None]) -> None:
    """Whichever way it was lost; a late answer changes nothing."""
    scheduler = _shared()
    accept(scheduler, make_entry(rows=320), make_entry(model="n"))
    running = _only(scheduler)
    assert _models(scheduler, 0.001) == []
    end(scheduler, running)
    other = [dispatch for dispatch in scheduler.decide(0.001).dispatches if dispatch.model == "n"]
    assert len(other) == 1

    scheduler.on_done(running.bundle_id, [], 0.002)
    accept(scheduler, make_entry(model="n", arrival=0.002), now=0.002)
    assert _models(scheduler, 0.002) == []
    scheduler.on_done(other[0].bundle_id, [], 0.003)
    assert _models(scheduler, 0.003)


def test_devices_are_checked() -> None:
    """A model is on one of them; a member may come later."""
    scheduler = make_scheduler(models=("m",), pool=Pool("g", ("m", "x"), 1, 9))
    scheduler.add_model(ModelScheduling("x", max_rows=4, slo_s=1.0, resident_bytes=1), "g")
    assert scheduler.serves("x")
    classes = dict.fromkeys(Priority, make_class())
    devices = [PoolDevice(pool, classes) for pool in (_POOL, Pool("h", ("n",), 1, 9))]
    with pytest.raises(ValueError, match="device h: model n is on two devices"):
        Scheduler((), classes, ProcessLimits(10**6), devices)
