"""The dispatcher with a transport that the test steers."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from runtime_harness import MODEL, Transport, classes, make_dispatcher, settle, submit, tensor

from serve_app.domain.priority import Priority
from serve_app.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidRequest,
    ModelUnavailable,
    QueueFull,
)
from serve_app.payloads import Bundle, BundleResult, Execution, Failure, RequestAttributes, Success
from serve_app.scheduling.scheduler import Scheduler
from serve_app.transport.send import ReplicaLost


async def test_every_entry_gets_its_own_answer() -> None:
    """Results are dealt out to whom they belong, whatever bundle carried them."""

    async def echo(_: str, bundle: Bundle, __: str | None, ___: int) -> BundleResult:
        results = [Success(entry.payload) for entry in bundle.entries]
        return BundleResult(list(results), [Execution(len(results), 0, 0.001)], 0.0, 0.0, 0.0)

    dispatcher, _ = make_dispatcher(echo)
    answers = await asyncio.gather(*(submit(dispatcher, tensor(value)) for value in range(50)))
    assert [float(answer.value["x"][0, 0]) for answer in answers] == list(range(50))


async def test_arrivals_of_one_turn_travel_together() -> None:
    """A burst is one bundle, up to the model's rows."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, max_rows=4)
    tasks = [submit(dispatcher, tensor(value)) for value in range(6)]
    first = await transport.next()
    assert first.values == [0.0, 1.0, 2.0, 3.0]
    first.succeed()
    second = await transport.next()
    assert second.values == [4.0, 5.0]
    second.succeed()
    await asyncio.gather(*tasks)


async def test_high_overtakes_what_came_before() -> None:
    """When a slot frees, the most urgent class goes first."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, max_rows=1)
    tasks = [submit(dispatcher, tensor(0))]
    running = await transport.next()
    tasks.append(submit(dispatcher, tensor(1), priority=Priority.LOW))
    tasks.append(submit(dispatcher, tensor(2), priority=Priority.NORMAL))
    tasks.append(submit(dispatcher, tensor(3), priority=Priority.HIGH))
    await settle()
    order = []
    running.succeed()
    for _ in range(3):
        sent = await transport.next()
        order += sent.values
        sent.succeed()
    assert order == [3.0, 2.0, 1.0]
    await asyncio.gather(*tasks)


async def test_what_is_known_of_a_request_goes_to_the_gate_with_it() -> None:
    """As it is."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    task = submit(dispatcher, tensor(0), tenant="reports")
    sent = await transport.next()
    assert [entry.attributes for entry in sent.bundle.entries] == [RequestAttributes("reports")]
    sent.succeed()
    await task


async def test_an_entry_that_expires_in_the_queue_is_never_sent() -> None:
    """Its client gets the deadline error, and no replica ever sees it."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport, max_rows=1)
    blocker = submit(dispatcher, tensor(0))
    running = await transport.next()
    with pytest.raises(DeadlineExceeded, match="deadline of 20 ms passed"):
        await submit(dispatcher, tensor(1), timeout_s=0.02)
    running.succeed()
    await blocker
    await settle()
    assert transport.sent.empty()
    assert metrics.requests.of(MODEL, "normal", "deadline_exceeded").value == 1


async def test_a_deadline_that_passes_during_execution_is_answered_at_the_deadline() -> None:
    """The client does not wait for the late result, which is thrown away; the slot stays taken until it is here."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, max_rows=1)
    late = submit(dispatcher, tensor(0), timeout_s=0.02)
    running = await transport.next()
    with pytest.raises(DeadlineExceeded):
        await late
    other = submit(dispatcher, tensor(1))
    await settle()
    assert transport.sent.empty()
    running.succeed()
    sent = await transport.next()
    assert sent.values == [1.0]
    sent.succeed()
    await other


async def test_a_client_that_leaves_the_queue_costs_nothing() -> None:
    """A cancelled entry is not dispatched."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport, max_rows=1)
    blocker = submit(dispatcher, tensor(0))
    running = await transport.next()
    leaving = submit(dispatcher, tensor(1))
    staying = submit(dispatcher, tensor(2))
    await settle()
    leaving.cancel()
    running.succeed()
    sent = await transport.next()
    assert sent.values == [2.0]
    sent.succeed()
    await asyncio.gather(blocker, staying)
    assert leaving.cancelled()
    assert metrics.requests.of(MODEL, "normal", "cancelled").value == 1


async def test_a_client_that_leaves_during_execution_takes_nobody_along() -> None:
    """Its neighbours in the bundle are answered, and the bundle's call is not cancelled."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    leaving, staying = submit(dispatcher, tensor(1)), submit(dispatcher, tensor(2))
    running = await transport.next()
    leaving.cancel()
    await settle()
    assert not running.answer.cancelled()
    running.succeed()
    assert float((await staying).value["x"][0, 0]) == 2.0


async def test_bundles_do_not_carry_a_clients_context() -> None:
    """A call to a replica must not belong to the request that happened to trigger it."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="nobody")
    seen = []

    async def spy(_: str, bundle: Bundle, __: str | None, ___: int) -> BundleResult:
        seen.append(variable.get())
        return BundleResult([Success(entry.payload) for entry in bundle.entries], [], 0.0, 0.0, 0.0)

    dispatcher, _ = make_dispatcher(spy)
    variable.set("one client")
    await submit(dispatcher, tensor(0))
    assert seen == ["nobody"]


async def test_entries_of_a_lost_replica_are_tried_once_elsewhere() -> None:
    """The other replica gets them, each in a bundle of its own, and the clients never notice."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=("a", "b"))
    tasks = [submit(dispatcher, tensor(value)) for value in range(2)]
    first = await transport.next()
    assert len(first.bundle.entries) == 2
    first.answer.set_exception(ReplicaLost("it is gone"))
    values = []
    for _ in range(2):
        retry = await transport.next()
        assert retry.replica != first.replica
        values += retry.values
        assert len(retry.bundle.entries) == 1
        retry.succeed()
    assert sorted(values) == [0.0, 1.0]
    await asyncio.gather(*tasks)


async def test_bundles_that_were_never_sent_are_no_tries() -> None:
    """Replicas that are found gone, however many, cost an entry nothing."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=("a", "b", "c"))
    task = submit(dispatcher, tensor(0))
    for _ in range(2):
        (await transport.next()).answer.set_exception(ReplicaLost("it is gone", reached=False))
    (await transport.next()).succeed()
    await task


async def test_an_entry_that_two_replicas_failed_on_is_refused() -> None:
    """It is not tried a third time."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=("a", "b"))
    task = submit(dispatcher, tensor(0))
    for _ in range(2):
        (await transport.next()).answer.set_exception(ReplicaLost("it is gone"))
    with pytest.raises(InferenceFailed, match="two replicas failed"):
        await task
    await settle()
    assert transport.sent.empty()


async def test_one_bad_entry_fails_alone() -> None:
    """The error of one entry is not its neighbours' error."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    good, bad = submit(dispatcher, tensor(1)), submit(dispatcher, tensor(2))
    sent = await transport.next()
    results: list[Any] = [Success("fine"), Failure("invalid_request", "the picture is truncated")]
    sent.answer.set_result(BundleResult(results, [], 0.0, 0.0, 0.0))
    assert (await good).value == "fine"
    with pytest.raises(InvalidRequest, match="the picture is truncated"):
        await bad


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (RuntimeError("/secret/path: Traceback"), InferenceFailed, "model model failed on this request"),
        (ModelUnavailable("no replica"), ModelUnavailable, "no replica"),
    ],
    ids=["a bug keeps its text to itself", "an error of ours is passed on"],
)
async def test_an_error_of_the_whole_bundle_reaches_every_entry(
    raised: Exception, expected: type[Exception], message: str
) -> None:
    """All clients of the bundle get an error that is safe to show."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    tasks = [submit(dispatcher, tensor(value)) for value in range(2)]
    (await transport.next()).answer.set_exception(raised)
    for task in tasks:
        with pytest.raises(expected) as caught:
            await task
        assert str(caught.value) == message


async def test_a_replica_that_does_not_answer_is_quarantined() -> None:
    """Its entries go elsewhere once; it gets nothing more until it answers."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=("a", "b"), bundle_timeout_s=0.05)
    task = submit(dispatcher, tensor(0))
    wedged = await transport.next()
    retry = await transport.next()
    assert {wedged.replica, retry.replica} == {"a", "b"}
    retry.succeed()
    assert (await task).priority is Priority.NORMAL
    for _ in range(3):
        again = submit(dispatcher, tensor(1))
        sent = await transport.next()
        assert sent.replica == retry.replica
        sent.succeed()
        await again
    wedged.succeed()
    await settle()


async def test_a_full_queue_is_refused_at_once() -> None:
    """No room: the error says so, and when to come back is a number."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, max_rows=1, limits=classes(queue_entries=1))
    blocker = submit(dispatcher, tensor(0))
    running = await transport.next()
    queued = submit(dispatcher, tensor(1))
    await settle()
    with pytest.raises(QueueFull):
        await submit(dispatcher, tensor(2))
    running.succeed()
    (await transport.next()).succeed()
    await asyncio.gather(blocker, queued)


async def test_a_cancelled_call_frees_its_slot_and_its_entries_are_tried_again() -> None:
    """Ray can end a call with CancelledError; no client asked for that, and none pays for it."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    task = submit(dispatcher, tensor(0))
    (await transport.next()).answer.cancel()
    retry = await asyncio.wait_for(transport.next(), 5.0)
    assert retry.values == [0.0]
    retry.succeed()
    assert (await task).priority is Priority.NORMAL


async def test_an_answer_and_a_leaving_client_in_one_turn_are_counted_once() -> None:
    """Whichever is first decides how the entry ended."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport)
    task = submit(dispatcher, tensor(0))
    running = await transport.next()
    running.succeed()
    task.cancel()
    await settle()
    assert task.cancelled()
    outcomes = [metrics.requests.of(MODEL, "normal", name).value for name in ("ok", "cancelled")]
    assert sum(outcomes) == 1


async def test_a_scheduler_that_fails_shows_in_the_health_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a decision must not leave everybody waiting in silence."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    assert not dispatcher.broken

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Scheduler, "decide", broken)
    task = submit(dispatcher, tensor(0))
    await settle()
    task.cancel()
    assert dispatcher.broken
    assert "must be replaced" in caplog.text


async def test_without_any_replica_the_model_is_unavailable_and_not_the_client_late() -> None:
    """The deadline passes, but what the client learns is why nothing was done."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, max_rows=1, replicas=())
    with pytest.raises(ModelUnavailable, match="no replica of model model could take the request in time"):
        await submit(dispatcher, tensor(0), timeout_s=0.02)


async def test_a_result_that_does_not_fit_its_bundle_is_an_error_for_all() -> None:
    """Whose answer is whose cannot be known, so nobody gets one, and nobody waits for one."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    tasks = [submit(dispatcher, tensor(value)) for value in range(2)]
    (await transport.next()).answer.set_result(BundleResult([Success("one for two")], [], 0.0, 0.0, 0.0))
    for task in tasks:
        with pytest.raises(InferenceFailed):
            await task


async def test_an_answer_tells_where_its_time_went() -> None:
    """What was allowed, and what the replica says of the bundle: all runs of the model together."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    task = submit(dispatcher, tensor(1))
    sent = await transport.next()
    executions = [Execution(1, 0, 0.5), Execution(1, 0, 0.25)]
    sent.answer.set_result(BundleResult([Success("fine")], executions, 0.125, 0.0, 0.0625))
    answer = await task

    assert answer.timeout_s == pytest.approx(30.0)
    assert (answer.preprocess_s, answer.infer_s, answer.postprocess_s) == (0.125, 0.75, 0.0625)
