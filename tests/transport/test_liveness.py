"""Replicas in processes of their own that really stop, go on, and die; and requests that go through it all."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from link_calls import ask
from runtime_harness import MODEL, make_dispatcher, submit, tensor
from transport.doubling_replica import DEADLY, serve_doubles

from serve_app.domain.service import Answer
from serve_app.errors import InferenceFailed
from serve_app.payloads import Bundle, BundleResult
from serve_app.scheduling.health.liveness import Liveness, Watch
from serve_app.transport.link_server import LinkServer
from serve_app.transport.links import Links
from serve_app.transport.send import ReplicaLost
from serve_app.transport.ties import TieTable

_needs_links = pytest.mark.skipif(not LinkServer.supported(), reason="needs Linux's sockets and memory files")


class _Fleet:
    """Replicas in processes, the links to them, and a dispatcher in front."""

    def __init__(self, silence_s: float, kill_s: float | None) -> None:
        self.up: asyncio.Queue[str] = asyncio.Queue()
        self.news: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.processes: dict[str, multiprocessing.process.BaseProcess] = {}
        self._addresses: dict[str, str] = {}
        watch = Watch(silence_s, kill_s, self._silent, self._heard)
        self.links = Links(
            TieTable(), None, lambda model, replica, up: self.up.put_nowait(replica) if up else None, watch
        )
        self.dispatcher, self.metrics = make_dispatcher(self._send, replicas=())

    async def add(self, *names: str) -> None:
        """Start replicas."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["serve_app.transport.link_server", "numpy"])
        pipes = {}
        for name in names:
            pipes[name], theirs = context.Pipe()
            self.processes[name] = context.Process(target=serve_doubles, args=(theirs,), daemon=True)
            self.processes[name].start()
        for name, pipe in pipes.items():
            self._addresses[name] = await asyncio.to_thread(pipe.recv)
        self.links.update(MODEL, self._addresses)
        for _ in names:
            await self.up.get()
        self.dispatcher.on_replicas(MODEL, list(self._addresses))

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Signal one."""
        process = self.processes[name].pid
        assert process is not None
        os.kill(process, number)

    async def _send(self, model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:
        if (link := self.links.find(replica)) is None:
            raise ReplicaLost(f"no link to {replica}", reached=False)
        return await ask(link, bundle)

    def _silent(self, model: str, replica: str) -> None:
        self.dispatcher.on_unresponsive(model, replica)
        self.news.put_nowait(("silent", replica))

    def _heard(self, model: str, replica: str) -> None:
        self.dispatcher.on_responsive(model, replica)
        self.news.put_nowait(("responsive", replica))

    def close(self) -> None:
        """End everything."""
        self.links.close()
        for process in self.processes.values():
            process.kill()
            process.join()


@contextlib.asynccontextmanager
async def _fleet(*names: str, silence_s: float = 0.2, kill_s: float | None = None) -> AsyncIterator[_Fleet]:
    fleet = _Fleet(silence_s, kill_s)
    try:
        await fleet.add(*names)
        yield fleet
    finally:
        fleet.close()


def _value(answer: Answer) -> float:
    value: Any = answer.value
    return float(value["x"].ravel()[0])


def _page(fleet: _Fleet) -> dict[str, float]:
    """The metrics of one model without further labels, by name."""
    lines = [line.rsplit(" ", 1) for line in fleet.metrics.render().splitlines() if not line.startswith("#")]
    return {name.split("{")[0]: float(value) for name, value in lines if name.endswith(f'{{model="{MODEL}"}}')}


@_needs_links
async def test_a_stopped_replica_s_work_is_done_elsewhere_and_it_returns() -> None:
    """It is noticed by its silence, while its process and its socket are there."""
    async with _fleet("a", "b") as fleet:
        fleet.send_signal("a", signal.SIGSTOP)
        answers = await asyncio.gather(*[submit(fleet.dispatcher, tensor(float(n))) for n in range(12)])
        assert [_value(answer) for answer in answers] == [2.0 * n for n in range(12)]
        assert await fleet.news.get() == ("silent", "a")
        page = _page(fleet)
        assert (page["serve_app_replicas_silent"], page["serve_app_silences_total"]) == (1.0, 1.0)
        fleet.send_signal("a", signal.SIGCONT)
        assert await fleet.news.get() == ("responsive", "a")
        assert fleet.dispatcher.scheduler.usable(MODEL) == 2
        await submit(fleet.dispatcher, tensor(1.0))
        page = _page(fleet)
        assert (page["serve_app_replicas_silent"], page["serve_app_recovery_seconds_count"]) == (0.0, 1.0)


@_needs_links
async def test_a_silent_replica_is_killed_and_what_waits_for_it_goes_to_the_next() -> None:
    """Also where it is the only one: what it had waits for a new one."""
    async with _fleet("a", kill_s=0.4) as fleet:
        fleet.send_signal("a", signal.SIGSTOP)
        request = submit(fleet.dispatcher, tensor(3.0))
        assert await fleet.news.get() == ("silent", "a")
        await asyncio.to_thread(fleet.processes["a"].join)
        assert fleet.processes["a"].exitcode == -signal.SIGKILL
        await fleet.add("b")
        assert _value(await request) == 6.0


@_needs_links
async def test_poison_is_refused_and_its_neighbours_are_answered() -> None:
    """It takes two replicas along, and none of those who shared a bundle with it."""
    async with _fleet("a", "b", "c") as fleet:
        requests = [submit(fleet.dispatcher, tensor(value)) for value in (1.0, 2.0, DEADLY, 4.0)]
        with pytest.raises(InferenceFailed, match="two replicas failed"):
            await requests[2]
        answers = await asyncio.gather(*requests[:2], requests[3])
        assert [_value(answer) for answer in answers] == [2.0, 4.0, 8.0]
        assert fleet.metrics.requests.of(MODEL, "normal", "poisoned").value == 1
        assert [process.is_alive() for process in fleet.processes.values()].count(False) <= 2


@_needs_links
async def test_poison_with_one_replica_at_a_time() -> None:
    """The neighbours wait for the next replica, and so does the poison: nobody else is to blame for its second end."""
    async with _fleet("a") as fleet:
        requests = [submit(fleet.dispatcher, tensor(value)) for value in (1.0, DEADLY)]
        for name in ("b", "c"):
            previous = fleet.processes[chr(ord(name) - 1)]
            await asyncio.to_thread(previous.join)
            await fleet.add(name)
        with pytest.raises(InferenceFailed, match="two replicas failed"):
            await requests[1]
        assert _value(await requests[0]) == 2.0


async def test_only_what_owes_answers_is_watched() -> None:
    """No timer runs where nothing is in flight: the next silence begins with what is sent next."""
    told: asyncio.Queue[str] = asyncio.Queue()
    in_flight, looked = [True], asyncio.Event()

    def looking() -> bool:
        if not in_flight[0]:
            looked.set()
        return in_flight[0]

    data_received = [False]

    def was_heard() -> bool:
        was, data_received[0] = data_received[0], False
        return was

    liveness = Liveness(
        0.02,
        0.04,
        call_later=asyncio.get_running_loop().call_later,
        in_flight=looking,
        data_received=was_heard,
        ask=lambda: told.put_nowait("ask"),
        on_unresponsive=lambda: told.put_nowait("silent"),
        on_responsive=lambda: told.put_nowait("responsive"),
        on_given_up=lambda: told.put_nowait("given up"),
    )
    liveness.begin()
    assert [await told.get() for _ in range(3)] == ["ask", "silent", "given up"]
    data_received[0] = True
    assert await told.get() == "responsive"
    in_flight[0], data_received[0] = False, True
    await looked.wait()
    assert repr(liveness) == "<Liveness at rest>"
    liveness.begin()
    assert repr(liveness) == "<Liveness watching, 0 quiet turns>"
    liveness.end()
