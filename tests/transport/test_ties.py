"""Of the replicas that have a request exactly one runs it: whoever is free first."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from link_calls import ask
from runtime_harness import MODEL, Paced, acquired, batch_same_turn, make_dispatcher, submit, tensor, until

from serve_app.domain.service import Answer
from serve_app.payloads import RETURNED, Bundle, BundleResult, Execution, Success, WireEntry
from serve_app.replica.worker import Worker
from serve_app.router.dispatcher import Dispatcher
from serve_app.scheduling.settings import ModelScheduling
from serve_app.transport.link_server import LinkServer
from serve_app.transport.replica_link import ReplicaLink, connect
from serve_app.transport.ties import PLACES, SharedTies, TieTable

pytestmark = pytest.mark.skipif(not LinkServer.supported(), reason="needs Linux's sockets and memory files")

_RACER = """
import random, sys
from serve_app.transport.ties import SharedTies
ties, places = SharedTies(int(sys.argv[1])), list(range(1, int(sys.argv[2]) + 1))
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[3] == "shuffled":
    random.Random(int(sys.argv[4])).shuffle(places)
print(*[place for place in places if ties.take(place)])
"""
_RUN_S = 0.5


def test_a_place_is_taken_once() -> None:
    """And is free for another request when it was given back."""
    table = TieTable()
    here, there = SharedTies(table.fd), SharedTies(table.fd)
    place = table.place()

    assert place
    assert not here.taken(place)
    assert here.take(place)
    assert not here.take(place)
    assert not there.take(place)
    assert there.taken(place)
    table.free(place)
    assert table.place() == place
    assert there.take(place)


def test_a_full_table_has_no_place() -> None:
    """Place 0 is none; to free it changes nothing."""
    table = TieTable()
    places = [table.place() for _ in range(PLACES - 1)]

    assert 0 not in places
    assert len(set(places)) == len(places) == table.held
    assert table.place() == 0
    table.free(0)
    assert table.place() == 0
    table.free(places[7])
    assert table.place() == places[7]


def test_a_smaller_file_is_no_table() -> None:
    """It is refused when it is mapped, not when a place is looked at."""
    fd = os.memfd_create("small")
    try:
        with pytest.raises(ValueError, match="greater than file size"):
            SharedTies(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("order", ["alike", "shuffled"])
def test_processes_that_race_take_every_place_once(order: str) -> None:
    """10,000 places, three processes, in the same order and in others."""
    table, count = TieTable(), 10_000
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, str(table.fd), str(count), order, str(seed)],
            pass_fds=[table.fd],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    won = [[int(place) for place in racer.communicate(timeout=60)[0].split()] for racer in racers]

    assert sorted(place for places in won for place in places) == list(range(1, count + 1))


class Replica:
    """A worker whose runs the test lets go."""

    def __init__(self) -> None:
        self.backend = Paced()
        self.worker = Worker(
            scheduling=ModelScheduling(MODEL, 4, slo_s=60.0),
            backends={"": self.backend},
            processor=None,
            preprocess_threads=1,
            batch=batch_same_turn,
            warm_up=[Execution(1, 0, _RUN_S), Execution(4, 0, _RUN_S)],
        )

    async def begun(self) -> None:
        """Wait in the event loop until the next run has begun."""
        await acquired(self.backend.begun)


@pytest.fixture
def replicas() -> Iterator[list[Replica]]:
    """Two replicas."""
    made = [Replica(), Replica()]
    yield made
    for replica in made:
        replica.backend.go.release(100)
        replica.worker.close()


@asynccontextmanager
async def linked(replicas: list[Replica], table: TieTable) -> AsyncIterator[list[ReplicaLink]]:
    """A link to each."""
    servers = [LinkServer(MODEL, replica.worker.run, replica.worker.recall) for replica in replicas]
    links = [await connect(server.address, "r", table, None, lambda: None) for server in servers]
    yield links
    for link in links:
        link.close()
    for server in servers:
        server.close()


def routed(links: list[ReplicaLink], table: TieTable) -> Dispatcher:
    """A dispatcher whose replicas these are."""

    async def send(_: str, sent: Bundle, replica: str | None, __: int) -> BundleResult:
        return await ask(links[int(replica or 0)], sent)

    def recall(sent: Bundle, replica: str | None, positions: object) -> None:
        links[int(replica or 0)].recall(sent, list(positions))  # type: ignore[call-overload]

    dispatcher, _ = make_dispatcher(
        send,
        window=4,
        replicas=("0", "1"),
        recall=recall,
        ties=table,
        executions=[(1, 0, _RUN_S, ""), (4, 0, _RUN_S, "")],
    )
    return dispatcher


async def occupied(dispatcher: Dispatcher, replicas: list[Replica]) -> list[asyncio.Task[Answer]]:
    """A request that runs at each."""
    tasks = []
    for number, replica in enumerate(replicas):
        tasks.append(submit(dispatcher, tensor(1.0 + number)))
        await replica.begun()
    return tasks


async def answer(task: asyncio.Task[Answer]) -> float:
    """The number that it answers with."""
    return float((await task).value["y"][0, 0])


def bundles(dispatcher: Dispatcher) -> int:
    """Bundles in flight."""
    count: int = dispatcher.scheduler.totals()["bundles"]
    return count


@pytest.mark.parametrize("first", [0, 1])
async def test_who_is_free_first_runs_it(replicas: list[Replica], first: int) -> None:
    """Two run, a third waits at both replicas: it runs once, at the one whose run ends first."""
    table = TieTable()
    async with linked(replicas, table) as links:
        dispatcher = routed(links, table)
        tasks = await occupied(dispatcher, replicas)
        tasks.append(submit(dispatcher, tensor(3.0)))
        await until(lambda: table.held == 1)
        assert bundles(dispatcher) == 4
        replicas[first].backend.go.release(2)
        assert await answer(tasks[2]) == 4.0
        replicas[1 - first].backend.go.release(1)
        assert [await answer(task) for task in tasks] == [2.0, 3.0, 4.0]
        await until(lambda: bundles(dispatcher) == 0)
        assert table.held == 0
        assert [len(replica.backend.runs) for replica in replicas] == ([2, 1] if first == 0 else [1, 2])


async def test_whose_client_leaves_is_recalled_from_both(replicas: list[Replica]) -> None:
    """It runs nowhere, and leaves nothing behind."""
    table = TieTable()
    async with linked(replicas, table) as links:
        dispatcher = routed(links, table)
        tasks = await occupied(dispatcher, replicas)
        leaving = submit(dispatcher, tensor(3.0))
        await until(lambda: table.held == 1)
        leaving.cancel()
        await until(lambda: bundles(dispatcher) == 2)
        assert table.held == 0
        for replica in replicas:
            replica.backend.go.release(1)
        assert [await answer(task) for task in tasks] == [2.0, 3.0]
        assert [len(replica.backend.runs) for replica in replicas] == [1, 1]
        await until(lambda: bundles(dispatcher) == 0)


async def test_a_lost_replica_leaves_it_to_the_other(replicas: list[Replica]) -> None:
    """What waited at both is run by the one that is left; what ran at the lost one is tried once more."""
    table = TieTable()
    async with linked(replicas, table) as links:
        dispatcher = routed(links, table)
        tasks = await occupied(dispatcher, replicas)
        tasks.append(submit(dispatcher, tensor(3.0)))
        await until(lambda: table.held == 1)
        links[0].close()
        replicas[1].backend.go.release(3)
        assert [await answer(task) for task in tasks] == [2.0, 3.0, 4.0]
        await until(lambda: bundles(dispatcher) == 0)
        assert table.held == 0


async def test_what_another_replica_has_taken_is_returned_at_the_next_batch(replicas: list[Replica]) -> None:
    """Of a bundle the rest runs; of one with nothing left there is an answer without a run."""
    table = TieTable()
    places = [table.place() for _ in range(3)]
    elsewhere = SharedTies(table.fd)

    def entry(value: float, place: int) -> WireEntry:
        return WireEntry(2, 60.0, 1, "", tensor(value), place=place)

    async with linked(replicas[:1], table) as [link]:
        running = asyncio.ensure_future(ask(link, Bundle([entry(1.0, 0)], "router")))
        await replicas[0].begun()
        mixed = asyncio.ensure_future(ask(link, Bundle([entry(2.0, places[0]), entry(3.0, places[1])], "router")))
        taken = asyncio.ensure_future(ask(link, Bundle([entry(4.0, places[2])], "router")))
        # The link's frames come in order: when this one has been answered, the others are at the gate.
        recalled = Bundle([entry(5.0, 0)], "router")
        behind = asyncio.ensure_future(ask(link, recalled))
        await asyncio.sleep(0)
        link.recall(recalled, [0])
        await behind
        assert elsewhere.take(places[0])
        assert elsewhere.take(places[2])
        replicas[0].backend.go.release(2)
        await running
        results = (await mixed).results
        assert results[0] == RETURNED
        assert isinstance(results[1], Success)
        assert np.array_equal(results[1].value["y"], tensor(4.0)["x"])
        assert (await taken).results == [RETURNED]
        assert replicas[0].backend.runs == [[1.0], [3.0]]
        assert elsewhere.taken(places[1])
