"""The revisions of a replica over real workers, whose backends tell when they are closed and wait until they may be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from runtime_harness import MODEL, Paced, acquired, batch_same_turn, settle, tensor, until

from serve_app.domain.agreed import Agreed, Told
from serve_app.payloads import STALE, Bundle, Success, Tensors, WireEntry
from serve_app.replica.revisions import LEASE_S, Hosted, Revisions
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling


class Closable(Paced):
    """A backend that answers at once, and is closed when the test says so.

    Args:
        tell: Is called when `close` has begun, and when it ends.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell
        self.closing = threading.Semaphore(0)
        self.may_close = threading.Event()
        self.may_close.set()

    def run(self, inputs: Tensors) -> Tensors:
        """Run without a wait."""
        return {"y": inputs["x"]}

    run_whole = run

    def close(self) -> None:
        """Wait until it may be closed."""
        self.closing.release()
        assert self.may_close.wait(timeout=10.0)
        self._tell("closed")


class Replica:
    """One replica that can load whatever it is asked for, and has loaded ``a``.

    Attributes:
        events: What was loaded, closed and released, as it happened.
        agreed: What is agreed on.
        kept: What `Revisions` said last that is agreed on, when it gave up what was kept of others.
    """

    def __init__(self, lease_s: float) -> None:
        self.events: list[str] = []
        self.agreed: Agreed | None = None
        self.kept: str | None = None
        self.backends: dict[str, Closable] = {}
        self.revisions = Revisions(
            MODEL,
            self._load("a"),
            Agreed("a"),
            self._load,
            lambda _name, _version: 0,
            self._read,
            self._forget,
            lease_s=lease_s,
        )

    async def _read(self) -> Agreed | None:
        return self.agreed

    def _forget(self, agreed: str) -> None:
        self.kept = agreed

    def _load(self, name: str, _version: int | None = None) -> Hosted:
        self.events.append(f"{name} loaded")
        backend = self.backends[name] = Closable(lambda what: self.events.append(f"{name} {what}"))
        worker = Worker(
            scheduling=ModelScheduling(MODEL, max_rows=4, slo_s=60.0),
            backends={"": backend},
            processor=None,
            preprocess_threads=1,
            batch=batch_same_turn,
        )
        return Hosted(name, worker, Told(), lambda: self.events.append(f"{name} released"))

    async def answers(self, revision: str) -> bool:
        """Whether it answers a bundle that names a revision; it gives it back otherwise."""
        entry = WireEntry(2, 30.0, 1, "", tensor(1.0))
        (result,) = (await self.revisions.run(Bundle([entry], revision=revision))).results
        assert isinstance(result, Success) or result == STALE
        return isinstance(result, Success)


@pytest.fixture
async def make_replica() -> AsyncIterator[Any]:
    """Makes replicas and closes them."""
    made: list[Replica] = []

    def replica(lease_s: float = LEASE_S) -> Replica:
        made.append(Replica(lease_s))
        return made[-1]

    yield replica
    for each in made:
        for backend in each.backends.values():
            backend.may_close.set()
        await each.revisions.close()


async def test_the_former_revision_is_closed_while_the_next_one_answers(make_replica: Callable[..., Replica]) -> None:
    """However long that takes; whoever turns it to the next one hears when its memory is free."""
    replica = make_replica()
    replica.backends["a"].may_close.clear()
    await replica.revisions.prepare("b", None, "load")
    replica.agreed = Agreed("b")
    settling = asyncio.ensure_future(replica.revisions.settle())
    await acquired(replica.backends["a"].closing)
    assert await replica.answers("b")
    assert not await replica.answers("a")
    assert not settling.done()
    replica.backends["a"].may_close.set()
    assert await settling == "b"
    assert replica.events == ["a loaded", "b loaded", "a closed", "a released"]
    assert replica.kept == "b"


async def test_the_next_revision_is_loaded_when_the_former_one_is_closed(make_replica: Callable[..., Replica]) -> None:
    """A replica has room for two."""
    replica = make_replica()
    await replica.revisions.prepare("b", None, "first")
    replica.backends["b"].may_close.clear()
    given_up = asyncio.ensure_future(replica.revisions.settle("first"))
    await acquired(replica.backends["b"].closing)
    loading = asyncio.ensure_future(replica.revisions.prepare("c", None, "second"))
    await settle()
    assert replica.events == ["a loaded", "b loaded"]
    replica.backends["b"].may_close.set()
    await loading
    assert await given_up == "a"
    assert replica.events == ["a loaded", "b loaded", "b closed", "b released", "c loaded"]


async def test_a_replica_that_ends_has_closed_everything(make_replica: Callable[..., Replica]) -> None:
    """What it serves, and what it was closing."""
    replica = make_replica()
    await replica.revisions.prepare("b", None, "load")
    replica.backends["b"].may_close.clear()
    given_up = asyncio.ensure_future(replica.revisions.settle("load"))
    await acquired(replica.backends["b"].closing)
    ending = asyncio.ensure_future(replica.revisions.close())
    await until(lambda: "a released" in replica.events)
    await settle()
    assert not ending.done()
    replica.backends["b"].may_close.set()
    await ending
    assert replica.events == ["a loaded", "b loaded", "a closed", "a released", "b closed", "b released"]
    await given_up


async def test_what_was_agreed_on_answers_while_the_next_one_is_loaded(make_replica: Callable[..., Replica]) -> None:
    """A router did not turn in time, so that nobody told the replica, and nobody says any more that it is wanted."""
    replica = make_replica(lease_s=0.0)
    await replica.revisions.prepare("b", None, "first")
    replica.agreed = Agreed("b")
    await replica.revisions.prepare("c", None, "second")
    assert replica.revisions.current == "b"
    assert await replica.answers("b")


async def test_what_nobody_wants_any_more_makes_room_for_the_next_one(make_replica: Callable[..., Replica]) -> None:
    """What is agreed on stays, and is not loaded again."""
    replica = make_replica(lease_s=0.0)
    await replica.revisions.prepare("b", None, "first")
    await replica.revisions.prepare("c", None, "second")
    assert [await replica.answers(name) for name in "abc"] == [True, False, True]
    assert replica.events == ["a loaded", "b loaded", "b closed", "b released", "c loaded"]
