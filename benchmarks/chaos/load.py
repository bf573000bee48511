"""Load on the server: a number of connections, each with a client, models and classes mixed, at a rate or flat out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from benchmarks.chaos.clients import Client
from benchmarks.chaos.questions import Bank, Question
from benchmarks.chaos.records import Record
from benchmarks.failure import BenchmarkError

TIMEOUTS_S: Mapping[str, float] = {"high": 1.0, "normal": 5.0, "low": 15.0}


@dataclass(frozen=True, slots=True)
class Mix:
    """What is sent.

    Attributes:
        models: Parts of the requests by model.
        classes: Parts of the requests by class.
        timeouts_s: Deadlines by class, seconds.
    """

    models: Mapping[str, float]
    classes: Mapping[str, float]
    timeouts_s: Mapping[str, float]


class Load:
    """Runs from `__aenter__` to `__aexit__`, which waits for the last answer.

    Each connection asks one question at a time: after a random (exponential) pause, or at once where there is no
    rate. Where answers take longer than the pauses, requests wait for a connection and are not sent late in a bunch.

    Args:
        clients: Connection ``i`` belongs to client ``i % len(clients)``.
        connections: How many at once.
        bank: The questions.
        mix: What is sent.
        rate: Requests per second in all; ``None`` for as many as are answered.
        records: Where every request is noted as it ends.
        start_s: The loop's time that records count from.
        seed: Of the random choices.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        connections: int,
        bank: Bank,
        mix: Mix,
        rate: float | None,
        records: list[Record],
        start_s: float,
        seed: int = 5,
    ) -> None:
        self._clients = clients
        self._connections = connections
        self._bank = bank
        self._mix = mix
        self._gap_s = 0.0 if rate is None else connections / rate
        self._records = records
        self._start_s = start_s
        self._seed = seed
        self._ending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._connection(number)) for number in range(self._connections)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if error is not None:
            for task in self._tasks:
                task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None:
            for each in ended:
                if isinstance(each, BaseException):
                    raise each

    def check(self) -> None:
        """Raise what has ended a connection: a fault of the harness."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _connection(self, number: int) -> None:
        client = self._client(number)
        random = np.random.default_rng((self._seed, number))
        loop = asyncio.get_running_loop()
        models, parts = _parts({name: part for name, part in self._mix.models.items() if self._takes(client, name)})
        classes, class_parts = _parts(self._mix.classes)
        due = loop.time() + random.uniform(0.0, self._gap_s)
        while not self._ending.is_set():
            await self._pause(due - loop.time())
            if self._ending.is_set():
                return
            model, priority = str(random.choice(models, p=parts)), str(random.choice(classes, p=class_parts))
            await self._ask(client, self._bank.take(model), priority)
            due = max(loop.time(), due + random.exponential(self._gap_s)) if self._gap_s else 0.0

    def _client(self, number: int) -> Client:
        """The connection's client, or the next one that can send any of what is to be sent."""
        for further in range(len(self._clients)):
            client = self._clients[(number + further) % len(self._clients)]
            if any(self._takes(client, model) for model in self._mix.models):
                return client
        raise BenchmarkError("no client can send what is to be sent")

    def _takes(self, client: Client, model: str) -> bool:
        return client.takes(self._bank.take(model))

    async def _ask(self, client: Client, question: Question, priority: str) -> None:
        timeout_s = self._mix.timeouts_s[priority]
        self._records.append(await asked(client, question, priority, timeout_s, self._start_s))

    async def _pause(self, seconds: float) -> None:
        if seconds <= 0.0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            return


async def asked(client: Client, question: Question, priority: str, timeout_s: float, start_s: float) -> Record:
    """Ask one question and note how it ended. ``start_s`` is the loop's time that records count from."""
    loop = asyncio.get_running_loop()
    sent = loop.time()
    ending = await client.ask(question, priority, timeout_s)
    return Record(
        sent - start_s,
        loop.time() - start_s,
        question.model,
        client.kind,
        priority,
        timeout_s,
        ending.end,
        ending.code,
    )


async def arrive(
    client: Client,
    bank: Bank,
    mix: Mix,
    rate: float,
    seconds: float,
    records: list[Record],
    start_s: float,
    seed: int = 5,
) -> float:
    """Send requests at random times (Poisson), whatever the server does, and wait for the last end.

    Args:
        client: Sends all of them, with as many connections as it takes.
        bank: The questions.
        mix: What is sent.
        rate: Requests per second.
        seconds: For how long.
        records: Where every request is noted as it ends.
        start_s: The loop's time that records count from.
        seed: Of the random choices.

    Returns:
        How late the latest request was sent, seconds: large where the generator itself could not keep up.
    """
    loop = asyncio.get_running_loop()
    random = np.random.default_rng(seed)
    models, parts = _parts(mix.models)
    classes, class_parts = _parts(mix.classes)
    count = int(rate * seconds)
    due = loop.time() + np.cumsum(random.exponential(1 / rate, count))
    chosen = zip(due, random.choice(models, count, p=parts), random.choice(classes, count, p=class_parts), strict=True)
    tasks: set[asyncio.Task[None]] = set()
    latest = 0.0

    async def one(model: str, priority: str) -> None:
        records.append(await asked(client, bank.take(model), priority, mix.timeouts_s[priority], start_s))

    for at, model, priority in chosen:
        ahead = at - loop.time()
        if ahead > 0:
            await asyncio.sleep(ahead)
        latest = max(latest, -ahead)
        task = asyncio.create_task(one(str(model), str(priority)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return latest


def _parts(shares: Mapping[str, float]) -> tuple[list[str], list[float]]:
    total = sum(shares.values())
    return list(shares), [share / total for share in shares.values()]
