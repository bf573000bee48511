"""Models without replicas: how one is woken up, and what its entries do meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from runtime_harness import MODEL, Transport, make_dispatcher, settle, submit, tensor

from serve_app.errors import DeadlineExceeded, ModelUnavailable
from serve_app.payloads import BundleResult
from serve_app.transport.send import ReplicaLost

AWAKE = BundleResult([], [], 0.0, 0.0, 0.0)
"""What a replica answers to a bundle without entries."""


async def test_one_call_without_entries_wakes_the_model() -> None:
    """The entries wait in the scheduler, and leave together when a replica is listed."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, max_rows=2, window=2, replicas=())
    tasks = [submit(dispatcher, tensor(value)) for value in range(4)]
    wake_up = await transport.next()
    assert (wake_up.replica, wake_up.bundle.entries, wake_up.nbytes) == (None, [], 0)
    await settle()
    assert transport.sent.empty()
    dispatcher.on_replicas(MODEL, ["a"])
    bundles = [await asyncio.wait_for(transport.next(), 10.0) for _ in range(2)]
    assert [(sent.replica, sent.values) for sent in bundles] == [("a", [0.0, 1.0]), ("a", [2.0, 3.0])]
    wake_up.answer.set_result(AWAKE)
    for sent in bundles:
        sent.succeed()
    answers = await asyncio.gather(*tasks)
    assert [float(answer.value["x"][0, 0]) for answer in answers] == [0.0, 1.0, 2.0, 3.0]


async def test_budgets_are_what_is_left_when_the_replica_is_there() -> None:
    """Waiting for its start is charged to them."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=())
    task = submit(dispatcher, tensor(0), timeout_s=30.0)
    await transport.next()
    await settle()
    dispatcher.on_replicas(MODEL, ["a"])
    sent = await asyncio.wait_for(transport.next(), 10.0)
    assert sent.bundle.entries[0].budget_s < 30.0
    sent.succeed()
    await task


async def test_a_start_may_take_longer_than_the_bundle_timeout() -> None:
    """Nothing is held against the entries, and there is no second wake-up."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=(), bundle_timeout_s=0.01)
    task = submit(dispatcher, tensor(0))
    await transport.next()
    blocked, _ = make_dispatcher(Transport())
    with pytest.raises(DeadlineExceeded):  # somebody else's deadline, well after the bundle's time-out
        await submit(blocked, tensor(1), timeout_s=0.05)
    assert not task.done()
    assert transport.sent.empty()
    dispatcher.on_replicas(MODEL, ["a"])
    sent = await asyncio.wait_for(transport.next(), 10.0)
    sent.succeed()
    assert float((await task).value["x"][0, 0]) == 0.0


async def test_what_expires_while_the_model_wakes_up_is_never_executed() -> None:
    """The replica comes too late, finds nothing to do, and serves what comes next."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport, replicas=())
    with pytest.raises(ModelUnavailable, match="no replica of model model could take the request in time"):
        await submit(dispatcher, tensor(0), timeout_s=0.02)
    wake_up = await transport.next()
    dispatcher.on_replicas(MODEL, ["a"])
    wake_up.answer.set_result(AWAKE)
    await settle()
    assert transport.sent.empty()
    task = submit(dispatcher, tensor(1))
    sent = await asyncio.wait_for(transport.next(), 10.0)
    assert sent.values == [1.0]
    sent.succeed()
    await task
    assert metrics.statistics(MODEL).rows == 1


async def test_an_answer_before_the_replica_is_listed_keeps_the_entries() -> None:
    """They are not lost, and there is no loop of wake-ups."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=())
    task = submit(dispatcher, tensor(0))
    (await transport.next()).answer.set_result(AWAKE)
    await settle()
    assert transport.sent.empty()
    dispatcher.on_replicas(MODEL, ["a"])
    sent = await asyncio.wait_for(transport.next(), 10.0)
    assert sent.values == [0.0]
    sent.succeed()
    await task


async def test_a_wake_up_that_is_lost_is_tried_again() -> None:
    """After a while; its entries are not to blame."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=())
    task = submit(dispatcher, tensor(0))
    (await transport.next()).answer.set_exception(ReplicaLost("died while it started"))
    again = await asyncio.wait_for(transport.next(), 10.0)
    assert (again.replica, again.bundle.entries) == (None, [])
    dispatcher.on_replicas(MODEL, ["a"])
    sent = await asyncio.wait_for(transport.next(), 10.0)
    sent.succeed()
    again.answer.set_result(AWAKE)
    assert float((await task).value["x"][0, 0]) == 0.0


async def test_a_model_that_cannot_start_fails_what_waits_for_it() -> None:
    """With the error that Serve gave."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=())
    task = submit(dispatcher, tensor(0))
    (await transport.next()).answer.set_exception(ModelUnavailable("model model cannot take requests now", 1.0))
    with pytest.raises(ModelUnavailable, match="cannot take requests now"):
        await task


async def test_a_model_can_be_woken_up_again_and_again() -> None:
    """Time spent on starting is no overhead of its bundles, and no wake-up holds back the next."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=())
    before = dispatcher.scheduler.snapshot()[MODEL]["overhead_s"]
    for value in range(6):
        task = submit(dispatcher, tensor(value))
        wake_up = await transport.next()
        assert wake_up.replica is None
        dispatcher.on_replicas(MODEL, [f"replica {value}"])
        (await transport.next()).succeed()
        wake_up.answer.set_result(AWAKE)
        await task
        dispatcher.on_replicas(MODEL, [])
        await settle()
    picture = dispatcher.scheduler.snapshot()[MODEL]
    assert (picture["slots_in_use"], picture["running_rows"]) == (0, 0)
    assert picture["overhead_s"] < before + 1.0
