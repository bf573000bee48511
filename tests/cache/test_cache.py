"""The response cache in the service: hits, requests that share one execution, and what must not be shared."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic
from typing import Any

import numpy as np
import pytest
from runtime_harness import MODEL, Sent, Transport, classes, make_dispatcher, serve, settle, tensor

from serve_app.cache.response_cache import Hashing, ResponseCache
from serve_app.cache.settings import CacheSettings
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.errors import DeadlineExceeded, InferenceFailed, ModelUnavailable, QueueFull, ServeAppError
from serve_app.payloads import UNVERIFIED, BundleResult, Execution, Failure, Joinable, ModelSignature, Payload, Success
from serve_app.router.answer_cache import ModelCacheSettings

HIGH, NORMAL, LOW = Priority


class Line:
    """A service with a cache, and a transport that tests steer."""

    def __init__(
        self, *, max_followers: int = 10, max_bytes: int = 10**6, variants: tuple[str, ...] = (), **changes: Any
    ) -> None:
        self.transport = Transport()
        self.dispatcher, self.metrics = make_dispatcher(self.transport, **({"max_rows": 1} | changes))
        settings = ModelCacheSettings(300.0, max_bytes, {"": "a", "light": "b"})
        self.cache = ResponseCache(CacheSettings(max_followers), self.dispatcher, self.metrics)
        info = ModelInfo(
            MODEL, "1", ("1",), "tensors", ModelSignature((), ()), 4, 8, dict.fromkeys(Priority, 30.0), (), variants
        )
        self.service = serve(info, self.dispatcher, self.metrics, cache=settings, caches=self.cache)

    def ask(self, value: float = 1, priority: Priority = NORMAL, timeout_s: float = 30.0, **options: Any) -> Any:
        """Ask in a task of its own, which runs until it waits."""
        asked = RequestOptions(priority, timeout_s, **options)
        return asyncio.ensure_future(self.service.inference.submit(MODEL, tensor(value), asked))

    async def busy(self) -> Sent:
        """Have the only slot taken by another request, so that what comes next is queued."""
        self._other = self.ask(999, HIGH, cacheable=False)
        return await self.transport.next()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Hits, misses and shared answers."""
        status = self.service.administration.status()["models"][MODEL]["cache"]
        return status["hits"], status["misses"], status["shared"]

    @property
    def outcomes(self) -> dict[tuple[str, str], float]:
        """Requests by class and outcome."""
        return {
            (sample.labels["priority"], sample.labels["outcome"]): sample.value
            for family in self.metrics.requests.collect()
            for sample in family.samples
        }


def fail(sent: Sent, code: str = "inference_failed") -> None:
    """Answer every entry with an error."""
    failures: list[Any] = [Failure(code, "no") for _ in sent.bundle.entries]
    sent.answer.set_result(BundleResult(failures, [Execution(1, 0, 0.001)], 0.0, 0.0, 0.0))


async def test_the_second_request_is_answered_without_work() -> None:
    """In its own class; what was executed for it says so."""
    line = Line()
    first = line.ask(1, LOW)
    (await line.transport.next()).succeed()
    missed = await first
    hit = await line.ask(1, HIGH, timeout_s=2.0)
    assert (missed.cache, hit.cache) == ("miss", "hit")
    assert (hit.priority, hit.timeout_s, hit.queue_s, hit.infer_s) == (HIGH, 2.0, 0.0, 0.0)
    assert hit.value["x"].tolist() == missed.value["x"].tolist() == [[1.0]]
    assert line.transport.sent.empty()
    assert line.counts == (1, 1, 0)
    assert line.outcomes == {("low", "ok"): 1, ("high", "ok"): 1}
    told = line.service.administration.statistics(MODEL)
    assert told["inference_count"] == 1
    stats = told["inference_stats"]
    assert [stats[name]["count"] for name in ("success", "queue", "cache_hit", "cache_miss")] == [2, 1, 1, 1]


async def test_a_hit_needs_neither_room_nor_a_replica() -> None:
    """What has to be executed is refused, in the same state."""
    line = Line(limits=classes(queue_entries=1))
    first = line.ask()
    (await line.transport.next()).succeed()
    await first
    running = line.ask(2)
    sent = await line.transport.next()
    queued = line.ask(3)
    await settle()
    line.service.inference.precheck(MODEL, NORMAL, 8)
    with pytest.raises(QueueFull):
        await line.ask(4)
    assert (await line.ask()).cache == "hit"
    line.dispatcher.on_replicas(MODEL, ())
    assert not line.service.inference.model_ready(MODEL)
    assert (await line.ask()).cache == "hit"
    sent.succeed()
    await running
    queued.cancel()


async def test_no_store_and_no_cache() -> None:
    """The one leaves the cache alone, the other renews it, and neither shares a request in flight."""
    line = Line(max_rows=4, window=4)
    first = line.ask()
    stored_not, fresh = line.ask(cacheable=False), line.ask(fresh=True)
    entries = 0
    while entries < 3:
        sent = await line.transport.next()
        entries += len(sent.bundle.entries)
        sent.succeed()
    assert [(await task).cache for task in (first, stored_not, fresh)] == ["miss", "", "miss"]
    again = line.ask(fresh=True)
    (await line.transport.next()).succeed()
    assert (await again).cache == "miss"


async def test_the_same_requests_in_flight_are_executed_once() -> None:
    """All are answered, each in its own class."""
    line = Line()
    tasks = [line.ask(1, HIGH), *(line.ask(1, priority) for priority in Priority)]
    sent = await line.transport.next()
    await settle()
    sent.succeed()
    answers = [await task for task in tasks]
    assert [answer.cache for answer in answers] == ["miss", "shared", "shared", "shared"]
    assert [answer.priority for answer in answers] == [HIGH, HIGH, NORMAL, LOW]
    assert line.transport.sent.empty()
    assert line.counts == (0, 1, 3)
    assert sum(line.outcomes.values()) == 4


async def test_a_more_urgent_follower_does_not_wait_behind_its_leader() -> None:
    """It is queued in its own class, before everything else; its answer is the leader's, whose entry is taken out."""
    line = Line()
    running = await line.busy()
    leader, between = line.ask(1, LOW), line.ask(2, NORMAL)
    await settle()
    urgent, follower = line.ask(1, HIGH), line.ask(1, LOW)
    await settle()
    running.succeed()
    sent = await line.transport.next()
    assert sent.values == [1.0]
    assert sent.bundle.entries[0].priority == HIGH
    sent.succeed()
    answers = [await task for task in (leader, urgent, follower)]
    assert [(answer.cache, answer.priority) for answer in answers] == [("shared", LOW), ("miss", HIGH), ("shared", LOW)]
    last = await line.transport.next()
    assert last.values == [2.0]
    last.succeed()
    await between
    await line._other
    await settle()
    assert line.transport.sent.empty()
    assert line.outcomes == {("high", "ok"): 2, ("low", "ok"): 2, ("normal", "ok"): 1}


async def test_a_follower_with_much_less_time_goes_first() -> None:
    """Inside a class, the deadline decides; a slightly earlier one is worth no execution of its own."""
    line = Line()
    running = await line.busy()
    leader, between = line.ask(1, timeout_s=30.0), line.ask(2, timeout_s=20.0)
    await settle()
    hardly, soon = line.ask(1, timeout_s=29.0), line.ask(1, timeout_s=10.0)
    await settle()
    running.succeed()
    for value in (1.0, 2.0):
        sent = await line.transport.next()
        assert sent.values == [value]
        sent.succeed()
    assert [(await task).cache for task in (leader, hardly, soon, between)] == ["shared", "shared", "miss", "miss"]


async def test_a_leader_that_is_already_executed_is_answered_by_the_first() -> None:
    """Its late result is nobody's."""
    line = Line(window=2)
    leader = line.ask(1, LOW)
    slow = await line.transport.next()
    urgent = line.ask(1, HIGH)
    quick = await line.transport.next()
    quick.succeed()
    assert [(await task).cache for task in (leader, urgent)] == ["shared", "miss"]
    slow.succeed()
    await settle()
    assert line.outcomes == {("low", "ok"): 1, ("high", "ok"): 1}


async def test_a_cancelled_leader_is_replaced_by_the_most_urgent_follower() -> None:
    """Whether it was queued or executed when its client left."""
    line = Line()
    leader = line.ask(1, NORMAL)
    first = await line.transport.next()
    low, normal = line.ask(1, LOW), line.ask(1, NORMAL)
    await settle()
    leader.cancel()
    await settle()
    first.succeed()
    second = await line.transport.next()
    assert second.bundle.entries[0].priority == NORMAL
    second.succeed()
    assert [(await task).cache for task in (low, normal)] == ["shared", "miss"]
    assert line.outcomes == {("normal", "cancelled"): 1, ("normal", "ok"): 1, ("low", "ok"): 1}


async def test_a_follower_that_is_cancelled_as_it_becomes_leader_is_replaced_too() -> None:
    """Nobody waits for somebody who has left."""
    line = Line(max_bytes=1)  # no answer is kept
    running = await line.busy()
    tasks = [line.ask() for _ in range(3)]
    await settle()
    tasks[0].cancel()
    await asyncio.sleep(0)  # the first has left, and the second is told
    tasks[1].cancel()
    await settle()
    running.succeed()
    (await line.transport.next()).succeed()
    assert (await tasks[2]).cache == "miss"
    later = line.ask()
    (await line.transport.next()).succeed()  # nothing is left of the three that it could wait for
    assert (await later).cache == "miss"


async def test_an_answer_that_comes_as_another_leader_leaves_is_everybody_elses() -> None:
    """The one whose client left has not been told of it yet; it is counted as cancelled."""
    line = Line(window=2)
    first = line.ask(1, LOW)
    sent = await line.transport.next()
    urgent = line.ask(1, HIGH)
    await line.transport.next()
    follower = line.ask(1, LOW)
    await settle()
    sent.succeed()
    await asyncio.sleep(0)
    urgent.cancel()
    assert [(await task).cache for task in (first, follower)] == ["miss", "shared"]
    with pytest.raises(asyncio.CancelledError):
        await urgent
    assert line.outcomes == {("low", "ok"): 2, ("high", "cancelled"): 1}
    assert (await line.ask()).cache == "hit"


async def test_a_leaders_deadline_is_its_own() -> None:
    """A follower with more time is executed for itself, and answered."""
    line = Line()
    running = await line.busy()
    leader = line.ask(timeout_s=0.01)
    await settle()
    follower = line.ask(timeout_s=30.0)
    with pytest.raises(DeadlineExceeded):
        await leader
    running.succeed()
    sent = await line.transport.next()
    sent.succeed()
    assert (await follower).cache == "miss"


async def test_a_follower_keeps_its_own_deadline() -> None:
    """It is told at its time, however long the leader may wait."""
    line = Line()
    leader = line.ask(1, HIGH, timeout_s=30.0)
    sent = await line.transport.next()
    with pytest.raises(DeadlineExceeded, match="deadline of 10 ms"):
        await line.ask(1, LOW, timeout_s=0.01)
    sent.succeed()
    assert (await leader).cache == "miss"
    assert line.outcomes == {("low", "deadline_exceeded"): 1, ("high", "ok"): 1}


async def test_errors_of_the_request_are_shared_and_never_kept() -> None:
    """Running what fails once per client would only fail once per client. The next one is executed anew."""
    line = Line()
    tasks = [line.ask() for _ in range(3)]
    sent = await line.transport.next()
    await settle()
    fail(sent)
    errors = [await _error(task) for task in tasks]
    assert [type(error) for error in errors] == [InferenceFailed] * 3
    assert len({id(error) for error in errors}) == 3
    assert all(error.counted for error in errors)
    assert line.outcomes == {("normal", "inference_failed"): 3}
    again = line.ask()
    (await line.transport.next()).succeed()
    assert (await again).cache == "miss"


async def test_errors_of_the_moment_concern_only_who_met_them() -> None:
    """A replica that says it has no room says so to the leader; the follower is tried."""
    line = Line()
    leader, follower = line.ask(), line.ask()
    fail(await line.transport.next(), "model_unavailable")
    assert (await _error(leader)).code == "model_unavailable"
    (await line.transport.next()).succeed()
    assert (await follower).cache == "miss"


async def _error(task: Any) -> ServeAppError:
    with pytest.raises(ServeAppError) as caught:
        await task
    return caught.value


async def test_followers_are_bounded() -> None:
    """Beyond the bound, the same requests are queued by themselves, where classes have limits."""
    line = Line(max_followers=1, limits=classes(queue_entries=1))
    leader = line.ask()
    sent = await line.transport.next()
    follower, queued = line.ask(), line.ask()
    await settle()
    with pytest.raises(QueueFull):
        await line.ask()
    sent.succeed()
    assert [(await task).cache for task in (leader, follower, queued)] == ["miss", "shared", "shared"]


async def test_what_a_fallback_answered_is_not_kept_nor_given_to_the_more_urgent() -> None:
    """Equals and the less urgent share it; the more urgent wait for their own."""
    line = Line()
    cache = line.cache.of(MODEL)
    assert cache is not None
    ends: list[asyncio.Future[Answer]] = []

    async def submit(model: str, payload: Any, options: RequestOptions, queued: Any = None) -> Answer:
        ends.append(asyncio.get_running_loop().create_future())
        return await ends[-1]

    def ask(priority: Priority) -> asyncio.Future[Answer]:
        options = RequestOptions(priority, 30.0, 8)
        return asyncio.ensure_future(cache.answer(30.0, tensor(1), options, submit))

    normal, low, high = [ask(priority) for priority in (NORMAL, LOW, HIGH)]
    await settle()
    assert len(ends) == 2
    ends[0].set_result(Answer({"x": np.zeros((1, 1))}, NORMAL, 0.0, 0.0, "light"))
    assert [(await task).cache for task in (normal, low)] == ["miss", "shared"]
    assert not high.done()
    assert len(cache.store) == 0
    ends[1].set_result(Answer({"x": np.ones((1, 1))}, HIGH, 0.0, 0.0))
    assert (await high).value["x"].tolist() == [[1.0]]
    assert (await ask(LOW)).cache == "hit"


async def test_who_forbids_fallbacks_shares_with_nobody_who_allows_them() -> None:
    """But an answer of the exact model is the same to both."""
    line = Line(max_rows=4, window=2)
    lax, strict = line.ask(), line.ask(fallback=False)
    entries = 0
    while entries < 2:
        sent = await line.transport.next()
        entries += len(sent.bundle.entries)
        sent.succeed()
    assert [(await task).cache for task in (lax, strict)] == ["miss", "miss"]
    assert (await line.ask(fallback=False)).cache == "hit"


async def test_variants_are_kept_apart() -> None:
    """Each has answers of its own."""
    line = Line(variants=("light",))
    for variant in ("", "light"):
        task = line.ask(variant=variant)
        (await line.transport.next()).succeed(variant)
        assert (await task).cache == "miss"
        hit = await line.ask(variant=variant)
        assert (hit.cache, hit.variant) == ("hit", variant)


async def test_nothing_is_kept_while_other_files_run_somewhere() -> None:
    """During a redeploy, replicas of the one before may still answer."""
    line = Line()
    line.cache.on_replicas(MODEL, [{"": "a", "light": "b"}, {"": "old"}])
    first = line.ask()
    (await line.transport.next()).succeed()
    await first
    line.cache.on_replicas(MODEL, [{"": "a", "light": "b"}])
    second = line.ask()
    (await line.transport.next()).succeed()
    assert (await second).cache == "miss"
    assert (await line.ask()).cache == "hit"


async def test_what_shared_a_run_is_not_used_once_runs_are_not_shared() -> None:
    """Neither what was kept before, nor what ends after it is told; what runs alone is kept again."""
    line = Line(max_rows=4, window=4)
    line.service.models.on_joinable(MODEL, {"": Joinable("exact", "tried")})
    first = line.ask()
    (await line.transport.next()).succeed()
    await first
    running = line.ask(2)
    sent = await line.transport.next()
    line.service.models.on_joinable(MODEL, {"": Joinable("dependent", "an answer differed")})
    sent.succeed()
    assert (await running).cache == "miss"
    for value in (1.0, 2.0):
        again = line.ask(value)
        (await line.transport.next()).succeed()
        assert ((await again).cache, (await line.ask(value)).cache) == ("miss", "hit")


async def test_what_may_have_shared_a_run_without_proof_says_so_from_the_cache_too() -> None:
    """Whether it was kept, or executed for somebody else at the same time."""
    line = Line()
    line.service.models.on_joinable(MODEL, {"": Joinable(UNVERIFIED, "the configuration allows it")})
    first, second = line.ask(), line.ask()
    (await line.transport.next()).succeed()
    answers = [await first, await second, await line.ask()]
    assert [("miss", True), ("shared", True), ("hit", True)] == [
        (answer.cache, answer.unverified) for answer in answers
    ]


async def test_large_requests_are_hashed_aside() -> None:
    """And found again."""
    line = Line()
    payload = {"x": np.zeros((1, 100_000), np.float32)}
    first = asyncio.ensure_future(line.service.inference.submit(MODEL, payload, RequestOptions()))
    sent = await line.transport.next()
    sent.answer.set_result(BundleResult([Success({"y": np.ones((1, 1))})], [Execution(1, 0, 0.001)], 0.0, 0.0, 0.0))
    assert (await first).cache == "miss"
    assert (await line.service.inference.submit(MODEL, payload, RequestOptions())).cache == "hit"


class Hashes:
    """Keys that are not made before the test says so, and how many were in the making at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, payload: Payload, variant: str) -> bytes:
        """Make one, in a thread."""
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self.go.wait()
        with self._lock:
            self._now -= 1
        return b"key"


async def test_a_request_that_leaves_takes_its_hashing_threads_place_along() -> None:
    """The thread goes on; who comes next waits for it."""
    hashing, hashes = Hashing(0, threads=2, max_bytes=10**6), Hashes()
    later = monotonic() + 60.0
    for _ in range(3):
        gone = [asyncio.ensure_future(hashing.aside(hashes, tensor(1), "", 1, later)) for _ in range(2)]
        await settle()
        for task in gone:
            task.cancel()
        await settle()
    waiting = asyncio.ensure_future(hashing.aside(hashes, tensor(1), "", 1, later))
    await settle()
    hashes.go.set()
    assert (await waiting, hashes.most) == (b"key", 2)


async def test_a_request_whose_key_cannot_be_made_is_not_kept() -> None:
    """Only a bug ends so."""

    def fail(payload: Payload, variant: str) -> bytes:
        raise RuntimeError(variant)

    hashing = Hashing(0, threads=1, max_bytes=10)
    with pytest.raises(RuntimeError, match="exact"):
        await hashing.aside(fail, tensor(1), "exact", 1, monotonic() + 60.0)


async def test_waiting_for_a_key_ends_at_the_deadline_and_has_a_bound() -> None:
    """Beyond the bound there is no key; a large one alone is no too many."""
    hashing, hashes = Hashing(0, threads=1, max_bytes=10), Hashes()
    now = monotonic()
    running = asyncio.ensure_future(hashing.aside(hashes, tensor(1), "", 11, now + 60.0))
    await settle()
    assert await hashing.aside(hashes, tensor(1), "", 1, now + 60.0) is None
    hashes.go.set()
    assert await running == b"key"

    hashes.go.clear()
    running = asyncio.ensure_future(hashing.aside(hashes, tensor(1), "", 9, now + 60.0))
    await settle()
    with pytest.raises(DeadlineExceeded):
        await hashing.aside(hashes, tensor(1), "", 1, now)
    hashes.go.set()
    assert await running == b"key"


async def test_a_deadline_that_passes_while_a_request_is_hashed_is_counted() -> None:
    """As every end of a request."""
    line = Line()
    payload = {"x": np.zeros((1, 100_000), np.float32)}
    with pytest.raises(DeadlineExceeded):
        await line.service.inference.submit(MODEL, payload, RequestOptions(LOW, 1e-9))
    assert line.outcomes == {("low", "deadline_exceeded"): 1}
    assert line.transport.sent.empty()


async def test_what_follows_or_is_hashed_was_taken_and_is_answered_before_the_end() -> None:
    """Also where it leads only after the end has begun; what comes then is refused."""
    line = Line(window=2)
    first, follower = line.ask(), line.ask()
    await line.transport.next()
    await settle()
    ending = asyncio.ensure_future(line.service.inference.finish(60.0))
    await settle()
    first.cancel()
    await settle()
    assert not ending.done()
    with pytest.raises(ModelUnavailable):
        await line.ask()
    (await line.transport.next()).succeed()
    assert ((await follower).cache, await ending) == ("miss", 0)

    line = Line()
    payload = {"x": np.zeros((1, 100_000), np.float32)}
    hashed = asyncio.ensure_future(line.service.inference.submit(MODEL, payload, RequestOptions()))
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(line.service.inference.finish(60.0))
    (await line.transport.next()).succeed()
    assert ((await hashed).cache, await ending) == ("miss", 0)


async def test_what_has_no_key_is_executed() -> None:
    """As if there were no cache."""
    line = Line()
    payload = {"x": np.zeros((1, 1), "c8")}
    task = asyncio.ensure_future(line.service.inference.submit(MODEL, payload, RequestOptions()))
    (await line.transport.next()).succeed()
    assert (await task).cache == ""


async def test_metrics_and_status_show_the_cache() -> None:
    """Under the names that the documentation gives."""
    line = Line()
    first = line.ask()
    (await line.transport.next()).succeed()
    await first
    await line.ask()
    page = line.metrics.render()
    for sample in (
        f'serve_app_cache_answers_total{{model="{MODEL}",result="hit"}} 1.0',
        f'serve_app_cache_entries{{model="{MODEL}"}} 1.0',
        f'serve_app_cache_evictions_total{{model="{MODEL}"}} 0.0',
    ):
        assert sample in page
    status = line.service.administration.status()["models"][MODEL]["cache"]
    assert status["bytes"] > 512
    assert status == {"hits": 1, "misses": 1, "shared": 0, "entries": 1, "bytes": status["bytes"], "evictions": 0}
