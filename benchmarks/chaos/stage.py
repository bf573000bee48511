"""What a scenario plays on: a server, load, faults on time, and the aims that it must meet."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from benchmarks.chaos.clients import Client, Grpc, Plain, Retrying
from benchmarks.chaos.load import TIMEOUTS_S, Load, Mix, arrive
from benchmarks.chaos.questions import Bank
from benchmarks.chaos.records import End, Record, Summary, rates, recovery_s, summarize
from benchmarks.chaos.server import ROUTER, FaultyServer, Reading, hit
from benchmarks.failure import BenchmarkError
from benchmarks.server import DIRECT, PROXY
from serve_app.cli.processes import Process

T = TypeVar("T")

CONNECTIONS = 64
_POLL_INTERVAL_S = 0.2
_READ_EVERY_S = 5.0
_WARM_UP_S, _FLAT_OUT_S = 4.0, 12.0
BIN_S = 0.5
"""Width of the bins in which answers are counted over time, seconds."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A fault.

    Attributes:
        at_s: When, seconds from the start of the scenario.
        what: What was done.
        recovery_s: From then to the end of the last request that suffered.
        mended_s: From then until what was broken was there again; ``None`` where nothing was to be replaced.
    """

    at_s: float
    what: str
    recovery_s: float = 0.0
    mended_s: float | None = None


@dataclass(frozen=True, slots=True)
class Aim:
    """Something that must hold.

    Attributes:
        says: What.
        met: Whether it held.
        found: What was found.
    """

    says: str
    met: bool
    found: str


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario that was played.

    Attributes:
        name: Its name.
        says: What happens in it.
        seconds: How long it took.
        capacity: Right answers per second at 64 connections flat out, before.
        rate: Requests per second that were sent; 0 where it varied.
        summary: Requests, counted.
        aims: What had to hold.
        marks: The faults.
        notes: What else is worth telling.
        peak_mib: Most memory of each kind of process, MiB, added up over its processes.
        timeline: Right answers per second by class, and failures, in bins of `bin_s`.
        bin_s: Width of a bin, seconds.
        examples: A few of the failures, as their clients saw them.
    """

    name: str
    says: str
    seconds: float
    capacity: float
    rate: float
    summary: Summary
    aims: list[Aim]
    marks: list[Mark]
    notes: list[str]
    peak_mib: dict[str, float]
    timeline: dict[str, list[float]]
    bin_s: float
    examples: list[str]

    @property
    def met(self) -> bool:
        """Whether every aim was."""
        return all(aim.met for aim in self.aims)


@dataclass
class Stage:
    """What a scenario plays on.

    Attributes:
        server: Runs, and is ready.
        bank: Questions for its models.
        mix: What is sent if a scenario does not say.
        capacity: Right answers per second at 64 connections flat out.
        quick: Whether to hit less often and wait less.
        tell: Takes a line for whoever watches.
        records: Every request so far.
        marks: The faults.
        aims: What had to hold.
        notes: What else is worth telling.
        rate: Requests per second that were sent.
        peak_mib: Most memory of each kind of process so far, MiB.
    """

    server: FaultyServer
    bank: Bank
    mix: Mix
    capacity: float
    quick: bool
    tell: Callable[[str], None]
    records: list[Record] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rate: float = 0.0
    peak_mib: dict[str, float] = field(default_factory=dict)
    _start_s: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    _mended: dict[int, float] = field(default_factory=dict)
    _load: Load | None = None
    _until_s: float | None = None

    def now(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self._start_s

    def over(self) -> None:
        """What follows is no part of the scenario's time."""
        self._until_s = self.now()

    def clients(self) -> list[Client]:
        """One client for every 4 connections: half of them ours with retries, by both ways in."""
        urls, server = self.server.urls, self.server
        made: list[Client] = []
        for number in range(CONNECTIONS // 4):
            way = (PROXY, DIRECT)[number % 2]
            if number % 4 < 2:
                made.append(Retrying(urls[way], f"ours, {way}"))
            elif number % 8 == 6:
                made.append(Grpc(server.grpc[PROXY], f"gRPC, {PROXY}"))
            elif number % 8 == 7:
                made.append(Grpc(server.grpc[DIRECT], f"gRPC, {DIRECT}"))
            else:
                made.append(Plain(urls[way], f"plain, {way}", CONNECTIONS))
        return made

    async def arrivals(self, client: Client, mix: Mix, rate: float, seconds: float, seed: int = 5) -> float:
        """Send requests at random times whatever the server does; see `benchmarks.chaos.load.arrive`."""
        self.rate += rate
        return await arrive(client, self.bank, mix, rate, seconds, self.records, self._start_s, seed)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Note the server's memory while the context lasts."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    @asynccontextmanager
    async def load(
        self,
        share: float | None = 0.5,
        *,
        mix: Mix | None = None,
        connections: int = CONNECTIONS,
        clients: Sequence[Client] | None = None,
        seed: int = 5,
    ) -> AsyncIterator[Load]:
        """Put load on the server while the context lasts.

        Args:
            share: Of the capacity; ``None`` for flat out.
            mix: What is sent.
            connections: How many.
            clients: Who asks; all kinds by default.
            seed: Of the random choices.
        """
        used = self.clients() if clients is None else list(clients)
        rate = None if share is None else share * self.capacity
        self.rate += rate or 0.0
        try:
            load = Load(used, connections, self.bank, mix or self.mix, rate, self.records, self._start_s, seed)
            async with self.watched(), load:
                self._load = load
                yield load
        finally:
            self._load = None
            for client in used:
                await client.close()

    async def hold(self, seconds: float) -> None:
        """Let the load run for so long."""
        await asyncio.sleep(seconds / 2 if self.quick and seconds > 4 else seconds)
        self._check()

    def times(self, count: int) -> int:
        """How often to hit: less in a quick run."""
        return min(count, 2) if self.quick else count

    async def find(self, role: str) -> list[Process]:
        """The server's living processes of a role."""
        return await asyncio.to_thread(self.server.find, role)

    async def one_of(self, role: str) -> Process:
        """One of them.

        Raises:
            BenchmarkError: There is none: the fault cannot be shown.
        """
        found = await self.find(role)
        if not found:
            raise BenchmarkError(f"there is no process of {role} to hit")
        return random.Random(len(self.marks)).choice(found)

    async def hit(self, process: Process, with_signal: signal.Signals, what: str) -> int:
        """Send a signal and note it. Returns the number of the mark, for `mended`.

        Raises:
            BenchmarkError: A killed process is still there: the fault has not happened.
        """
        number = self.mark(f"{with_signal.name} {what}")
        await asyncio.to_thread(hit, process, with_signal)
        if with_signal is signal.SIGKILL:
            await self.until(lambda: not process.alive(), f"the end of {what}", 10.0)
        return number

    async def free(self, process: Process) -> None:
        """Let a stopped process go on, if it still lives."""
        await asyncio.to_thread(hit, process, signal.SIGCONT)

    def mark(self, what: str) -> int:
        """Note that a fault happens now. Returns its number."""
        self.marks.append(Mark(self.now(), what))
        self.tell(what)
        return len(self.marks) - 1

    def spoil(self, what: str, every: int) -> int:
        """From now on let one question in so many be a guilty one, and note that as a fault."""
        self.bank.spoil(every)
        return self.mark(what)

    def mended(self, number: int) -> None:
        """Note that what this fault broke is there again."""
        self._mended[number] = self.now() - self.marks[number].at_s

    async def until(self, condition: Callable[[], bool], what: str, within_s: float = 60.0) -> float:
        """Wait for something that the server does; returns how long it took, seconds.

        Raises:
            BenchmarkError: It takes longer.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not await asyncio.to_thread(condition):
            self._check()
            if loop.time() - began > within_s:
                raise BenchmarkError(f"waited {within_s:.0f} s in vain for {what}")
            await asyncio.sleep(_POLL_INTERVAL_S)
        return loop.time() - began

    async def replaced(self, role: str, gone: Process, count: int, mark: int, within_s: float = 60.0) -> None:
        """Wait until ``count`` processes of a role run without ``gone``, and the routers reach them."""

        def there() -> bool:
            found = self.server.find(role)
            return gone not in found and len(found) == count and self._reached(role, count)

        await self.until(there, f"{count} processes of {role} after the loss of one", within_s)
        self.mended(mark)

    def _reached(self, role: str, count: int) -> bool:
        if role == ROUTER:
            return self.server.listening(role) == count
        return role not in self.bank.models or self.server.replicas(role) == count

    def require(self, says: str, met: bool, found: object) -> None:
        """Note an aim."""
        self.aims.append(Aim(says, bool(met), str(found)))

    def require_none(self, says: str, records: Sequence[Record]) -> None:
        """Note the aim that there are no such requests."""
        codes: dict[str, int] = defaultdict(int)
        for each in records:
            codes[f"{each.end} {each.code}"[:60].strip()] += 1
        found = ", ".join(f"{count} x {code}" for code, count in codes.items()) or "none"
        self.aims.append(Aim(says, not records, found))

    def played(self, name: str, says: str, *, complete: bool = True) -> Played:
        """The scenario's report.

        Args:
            name: Of the scenario.
            says: What happens in it.
            complete: Whether it went to its end, so that it must have shown something.

        Raises:
            BenchmarkError: No fault has happened, or nothing was answered: it shows nothing.
        """
        until_s = self.now() if self._until_s is None else self._until_s
        if complete and not self.marks:
            raise BenchmarkError("no fault has happened, so that this shows nothing")
        if complete and not any(each.end is End.RIGHT for each in self.records):
            raise BenchmarkError("nothing was answered, so that this shows nothing")
        ends = [*(mark.at_s for mark in self.marks[1:]), until_s]
        marks = [
            Mark(mark.at_s, mark.what, recovery_s(self.records, mark.at_s, end), self._mended.get(number))
            for number, (mark, end) in enumerate(zip(self.marks, ends[: len(self.marks)], strict=True))
        ]
        return Played(
            name=name,
            says=says,
            seconds=until_s,
            capacity=self.capacity,
            rate=self.rate,
            summary=summarize(self.records),
            aims=self.aims,
            marks=marks,
            notes=self.notes,
            peak_mib=dict(self.peak_mib),
            timeline=rates(self.records, BIN_S, until_s),
            bin_s=BIN_S,
            examples=_examples(self.records),
        )

    def _check(self) -> None:
        self.server.check_alive()
        if self._load is not None:
            self._load.check()

    async def _watch(self) -> None:
        """Note the most memory of each kind of process."""
        while True:
            readings = await asyncio.to_thread(self.server.readings)
            for role, mib in by_role(readings).items():
                self.peak_mib[role] = max(self.peak_mib.get(role, 0.0), mib)
            await asyncio.sleep(_READ_EVERY_S)


async def flat_out(server: FaultyServer, bank: Bank, mix: Mix) -> float:
    """A server's capacity: right answers per second at 64 connections flat out."""
    stage = Stage(server, bank, mix, 0.0, quick=False, tell=lambda _: None)
    async with stage.load(None):
        await stage.hold(_WARM_UP_S)
        stage.records.clear()
        began = stage.now()
        await stage.hold(_FLAT_OUT_S)
        right = sum(each.end is End.RIGHT for each in stage.records)
        return right / (stage.now() - began)


def by_role(readings: Sequence[Reading]) -> dict[str, float]:
    """Memory by role, MiB, added up."""
    found: dict[str, float] = defaultdict(float)
    for each in readings:
        found[each.role] += each.mib
    return dict(found)


def mix_of(models: Mapping[str, float], classes: Mapping[str, float] | None = None) -> Mix:
    """A mix of models; 30% high, 50% normal and 20% low unless told otherwise."""
    return Mix(models, classes or {"high": 0.3, "normal": 0.5, "low": 0.2}, TIMEOUTS_S)


def _examples(records: Sequence[Record]) -> list[str]:
    seen: dict[Any, str] = {}
    for each in records:
        if each.failed:
            key = (each.end, each.client, each.code[:30])
            line = f"{each.sent_s:.2f} s: {each.model}, {each.priority}, {each.client}: {each.end}"
            seen.setdefault(key, f"{line} after {each.seconds:.2f} s: {each.code[:160]}")
    return list(seen.values())[:12]
