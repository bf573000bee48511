"""Models that change, and Python models, while processes die: routers and replicas during loads, and own processes."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import aiohttp

from benchmarks.chaos.changing_models import (
    CHANGES,
    CHANGING,
    HOSTED,
    LOAD_S,
    MIX,
    ChangingBank,
    Span,
    ask,
    write_revision,
)
from benchmarks.chaos.kills import another, lost, ours, require_high, require_right
from benchmarks.chaos.records import End
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.server import CONTROLLER, HOST, ROUTER
from benchmarks.chaos.stage import Stage
from benchmarks.failure import BenchmarkError
from serve_app.cli.processes import Process

_STEADY_S = 4.0
_STORM = 100
_AGREE_WITHIN_S = 30.0
_LOADED_WITHIN_S = 150.0
"""A lease, and a load after it."""

_SHARE = 0.3
"""Of the capacity: a process that starts takes a core."""


@dataclass(frozen=True, slots=True)
class _Told:
    """How a load ended.

    Attributes:
        status: Of the answer; 0 where there was none.
        text: The answer, or what became of the connection.
    """

    status: int
    text: str


async def _load(stage: Stage) -> _Told:
    """Load what lies in the folder of the model that changes, by whichever router takes the connection."""
    url = f"{stage.server.direct}/v2/repository/models/{CHANGING}/load"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_LOADED_WITHIN_S)) as session:
        try:
            async with session.post(url) as answer:
                return _Told(answer.status, await answer.text())
        except (aiohttp.ClientError, TimeoutError) as error:
            return _Told(0, f"{type(error).__name__}: {error}")


def _span(stage: Stage) -> Span:
    assert isinstance(stage.bank, ChangingBank)
    return stage.bank.span


def _change(stage: Stage) -> None:
    """Put the next revision in its place, from which moment it may be loaded, and answer."""
    span = _span(stage)
    span.newest += 1
    write_revision(CHANGING, span.newest)


async def _loaded(stage: Stage, ends: Counter[str], first: _Told | None = None) -> float:
    """Load until one is answered, and let nothing older answer what is asked afterwards.

    Args:
        stage: What it is done on.
        ends: Where the end of each load is counted.
        first: How one has ended that was begun before.

    Returns:
        How long that took, seconds.

    Raises:
        BenchmarkError: It takes longer than any lease lasts, or a load ends otherwise than it may.
    """
    began = stage.now()
    while True:
        newest = _span(stage).newest  # whose files are there
        told, first = first or await _load(stage), None
        ends[f"{told.status or 'cut'}"] += 1
        if told.status == 200:
            _span(stage).oldest = newest
            return stage.now() - began
        if told.status not in {0, 503}:
            raise BenchmarkError(f"a load ended with {told.status}: {told.text[:300]}")
        if stage.now() - began > _LOADED_WITHIN_S:
            raise BenchmarkError(f"no load was answered for {_LOADED_WITHIN_S:.0f} s: {told.status} {told.text[:300]}")
        await asyncio.sleep(0.5)


async def _revisions(stage: Stage) -> set[str]:
    """What the routers say that they serve, asked over so many connections that each of them has some."""
    return {str((await asyncio.to_thread(stage.server.status)).get(CHANGING, {}).get("revision")) for _ in range(12)}


async def _agreed(stage: Stage) -> None:
    """Wait until all routers name the same revision."""
    began = stage.now()
    while len(found := await _revisions(stage)) > 1:
        if stage.now() - began > _AGREE_WITHIN_S:
            raise BenchmarkError(f"routers serve several revisions: {', '.join(sorted(found))}")
        await asyncio.sleep(0.2)


@asynccontextmanager
async def _steady_load(stage: Stage) -> AsyncIterator[None]:
    """Load the server while the context lasts, and for a while before and after nothing happens."""
    async with stage.load(_SHARE):
        await stage.hold(_STEADY_S)
        yield
        await stage.hold(_STEADY_S)


async def _undisturbed(stage: Stage) -> float:
    """How long it takes to load the next revision when nothing dies, seconds."""
    _change(stage)
    return await _loaded(stage, Counter())


async def _begun(stage: Stage, for_s: float) -> asyncio.Task[_Told]:
    """Begin to load the next revision, and let it go on for so long."""
    _change(stage)
    loading = asyncio.create_task(_load(stage))
    await asyncio.sleep(for_s)
    return loading


def _note_loads(stage: Stage, ends: Counter[str], longest_s: float) -> None:
    stage.notes.append(f"loads ended with {_counted(ends)}; the longest way to the next load was {longest_s:.1f} s")


def _require_loads(stage: Stage, ends: Counter[str], rounds: int) -> None:
    stage.require("a load works after every death", ends["200"] == rounds, _counted(ends))


async def _routers_die(stage: Stage) -> None:
    """A router is killed while a load is under way, at moments spread over its length."""
    ends: Counter[str] = Counter()
    longest = 0.0
    async with _steady_load(stage):
        usual = await _undisturbed(stage)
        rounds = stage.times(8)
        for number in range(rounds):
            loading = await _begun(stage, usual * (number + 0.5) / rounds)
            victim = await stage.one_of(ROUTER)
            mark = await stage.hit(victim, signal.SIGKILL, "one of two routers during a load")
            first = await loading
            longest = max(longest, await _loaded(stage, ends, first))
            await stage.replaced(ROUTER, victim, 2, mark)
            await _agreed(stage)
            await stage.hold(1.0)
    _note_loads(stage, ends, longest)
    require_right(stage)
    stage.require_none("our client, with its retries, sees no error", ours(stage.records))
    unclean = [each for each in lost(stage.records) if each.end is not End.CUT]
    stage.require_none("a client without retries loses nothing but the connections that are cut", unclean)
    _require_loads(stage, ends, rounds)


async def _lease(stage: Stage) -> None:
    """A router dies while replicas prepare what it wants; then other files are to be loaded."""
    ends: Counter[str] = Counter()
    async with _steady_load(stage):
        waited = []
        for _ in range(1 if stage.quick else 2):
            while True:
                loading = await _begun(stage, 0.6 * LOAD_S)
                victim = await stage.one_of(ROUTER)
                mark = await stage.hit(victim, signal.SIGKILL, "one of two routers during a load")
                first = await loading
                await stage.replaced(ROUTER, victim, 2, mark)
                if first.status != 200:
                    break
                _span(stage).oldest = _span(stage).newest  # it was the other router's
            _change(stage)
            waited.append(await _loaded(stage, ends))
            await _agreed(stage)
    stage.notes.append(f"loads of other files ended with {_counted(ends)}, after {max(waited):.0f} s at most")
    require_right(stage)
    stage.require_none("our client, with its retries, sees no error", ours(stage.records))
    in_time = max(waited) <= _LOADED_WITHIN_S
    stage.require("what nobody agreed on is dropped, and other files are loaded", in_time, _counted(ends))


async def _replicas_die(stage: Stage) -> None:
    """One replica, and every other time both, are killed while they prepare a revision."""
    ends: Counter[str] = Counter()
    longest = 0.0
    async with _steady_load(stage):
        usual = await _undisturbed(stage)
        rounds = stage.times(6)
        for number in range(rounds):
            loading = await _begun(stage, usual * (number + 0.5) / rounds)
            victims = (await stage.find(CHANGING))[: 1 + number % 2]
            if not victims:
                raise BenchmarkError(f"there is no replica of {CHANGING} to hit")
            what = f"{len(victims)} of two replicas during a load"
            marks = [await stage.hit(victim, signal.SIGKILL, what) for victim in victims]
            first = await loading
            longest = max(longest, await _loaded(stage, ends, first))
            for victim, mark in zip(victims, marks, strict=True):
                await stage.replaced(CHANGING, victim, 2, mark)
            await _agreed(stage)
            await stage.hold(1.0)
    _note_loads(stage, ends, longest)
    require_right(stage)
    others = [each for each in stage.records if each.model != CHANGING]
    stage.require_none("no request to another model is lost", lost(others))
    # The latter of a request that was at one replica and then at the other: it may be what kills them.
    unclean = [each for each in lost(stage.records) if each.code not in {"model_unavailable", "inference_failed"}]
    stage.require_none("what is lost with both replicas is told by 503, or 500 after the second", unclean)
    both = [mark.at_s for mark in stage.marks if "2 of two" in mark.what]
    poison = [each for each in stage.records if each.code == "inference_failed"]
    apart = [each for each in poison if not any(each.sent_s <= at_s <= each.ended_s for at_s in both)]
    stage.require_none("and by 500 only then", apart)
    _require_loads(stage, ends, rounds)


async def _controller_dies(stage: Stage) -> None:
    """Serve's controller is killed while a load is under way, and a replica of the model under the next one."""
    ends: Counter[str] = Counter()
    async with _steady_load(stage):
        rounds = stage.times(3)
        for number in range(rounds):
            loading = await _begun(stage, LOAD_S * (number + 0.5) / rounds)
            victim = await stage.one_of(CONTROLLER)
            mark = await stage.hit(victim, signal.SIGKILL, "Serve's controller during a load")
            await _loaded(stage, ends, await loading)
            await another(stage, CONTROLLER, victim, mark)
            await _agreed(stage)
            await stage.hold(2.0)
        victim = await stage.one_of(CHANGING)
        mark = await stage.hit(victim, signal.SIGKILL, f"a replica of {CHANGING} under the new controller")
        await stage.replaced(CHANGING, victim, 2, mark)
    require_right(stage)
    stage.require_none("no accepted request is lost", lost(stage.records))
    _require_loads(stage, ends, rounds)


async def _storm(stage: Stage) -> None:
    """A hundred loads at once, by both routers, while the files change again."""
    ends: Counter[str] = Counter()
    async with _steady_load(stage):
        for number in range(stage.times(4)):
            _change(stage)
            mark = stage.mark(f"{_STORM} loads at once")
            loading = [asyncio.create_task(_load(stage)) for _ in range(_STORM)]
            if number % 2:
                await asyncio.sleep(0.5 * LOAD_S)
                _change(stage)
            told = await asyncio.gather(*loading)
            ends.update("changed" if each.status == 400 and "again" in each.text else str(each.status) for each in told)
            await _loaded(stage, Counter())
            stage.mended(mark)
            await _agreed(stage)
            await stage.hold(1.0)
    require_right(stage)
    clean = ends.keys() <= {"200", "503", "changed"} and ends["200"] > 0
    stage.require("every load is answered, or refused with 503, or since files have changed", clean, _counted(ends))
    stage.require_none("no request notices", lost(stage.records))


async def _hosts_die(stage: Stage) -> None:
    """The process of its own of one of two replicas is killed, ten times."""
    async with _steady_load(stage):
        for _ in range(stage.times(10)):
            victim = await stage.one_of(HOST)
            mark = await stage.hit(victim, signal.SIGKILL, f"the own process of one of two replicas of {HOSTED}")
            await stage.until(partial(_whole, stage, without=victim), "two replicas, each with a process of its own")
            stage.mended(mark)
            await stage.hold(1.0)
    require_right(stage)
    stage.require_none("no accepted request is lost", lost(stage.records))
    others = [each for each in stage.records if each.model != HOSTED]
    stage.require_none("other models do not notice", [each for each in others if each.failed])
    require_high(stage, 0.99)


def _whole(stage: Stage, without: Process) -> bool:
    """Whether two replicas are there, each with a process of its own that is not this one."""
    server, hosts = stage.server, stage.server.find(HOST)
    return without not in hosts and len(hosts) == len(server.find(HOSTED)) == server.replicas(HOSTED) == 2


def _counted(ends: Counter[str]) -> str:
    return ", ".join(f"{count} x {end}" for end, count in sorted(ends.items())) or "none"


SCENARIOS = tuple(
    Scenario(name, says, CHANGES, play, MIX, ask)
    for name, says, play in (
        ("host", "the own process of a Python model is killed, again and again", _hosts_die),
        ("load-router", "a router is killed while a model is loaded, again and again", _routers_die),
        ("load-replica", "replicas are killed while they load a revision, one or both", _replicas_die),
        ("load-controller", "Serve's controller is killed while a model is loaded", _controller_dies),
        ("load-storm", "a hundred loads of a model at once, whose files change meanwhile", _storm),
        ("load-lease", "a router is killed during a load, and then other files are loaded", _lease),
    )
)
