"""Plays scenarios one after the other, each on a server that is well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import groupby

from benchmarks.chaos.afar import SCENARIOS as AFAR
from benchmarks.chaos.changing import SCENARIOS as CHANGING
from benchmarks.chaos.cluster import SCENARIOS as CLUSTER
from benchmarks.chaos.disk import SCENARIOS as DISK
from benchmarks.chaos.failing_models import SCENARIOS as FAILING_MODELS
from benchmarks.chaos.flood import SCENARIOS as FLOOD
from benchmarks.chaos.kills import SCENARIOS as KILLS
from benchmarks.chaos.others import SCENARIOS as OTHERS
from benchmarks.chaos.questions import Bank
from benchmarks.chaos.records import rates, summarize
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.server import FaultyServer
from benchmarks.chaos.stage import BIN_S, Aim, Played, Stage, flat_out
from benchmarks.failure import BenchmarkError
from benchmarks.server import is_ready

SCENARIOS: tuple[Scenario, ...] = (*KILLS, *CHANGING, *FAILING_MODELS, *FLOOD, *CLUSTER, *AFAR, *DISK, *OTHERS)
"""All, in the order in which they are played."""

Tell = Callable[[str], None]


async def play(scenarios: Sequence[Scenario], *, quick: bool, tell: Tell, done: Callable[[Played], None]) -> None:
    """Play scenarios. Those that follow each other with one setup share a server, unless one of them failed.

    Args:
        scenarios: In this order.
        quick: Whether to hit less often and wait less.
        tell: Takes a line for whoever watches.
        done: Takes what each of them gave.
    """
    for _, group in groupby(scenarios, key=lambda each: each.setup.name):
        remaining = list(group)
        while remaining:
            try:
                await _on_one_server(remaining, quick=quick, tell=tell, done=done)
            except BenchmarkError as error:  # it has not started
                done(_not_played(remaining.pop(0), str(error)))


async def _on_one_server(remaining: list[Scenario], *, quick: bool, tell: Tell, done: Callable[[Played], None]) -> None:
    """Play what remains until one fails, and take what was played off the list."""
    async with served(remaining[0], tell) as (server, bank, capacity):
        sound = True
        while remaining and sound:
            played = await _played(remaining.pop(0), server, bank, capacity, quick=quick, tell=tell)
            done(played)
            sound = played.met and await asyncio.to_thread(_well, server)


@asynccontextmanager
async def served(scenario: Scenario, tell: Tell) -> AsyncIterator[tuple[FaultyServer, Bank, float]]:
    """A server of a scenario's setup, questions for it, and its capacity."""
    tell("asking ONNX Runtime")
    if scenario.setup.prepare is not None:
        scenario.setup.prepare()
    bank = await asyncio.to_thread(scenario.ask, scenario.setup.args().models)
    server = scenario.setup.make_server()
    tell("starting the server")
    await asyncio.to_thread(server.__enter__)
    try:
        await asyncio.to_thread(server.wait_until, lambda: all(map(is_ready, server.urls.values())))
        tell("measuring its capacity")
        yield server, bank, await flat_out(server, bank, scenario.mix)
    finally:
        tell("stopping the server")
        # In this thread: the clean-up holds signals off.
        server.stop()


async def _played(
    scenario: Scenario, server: FaultyServer, bank: Bank, capacity: float, *, quick: bool, tell: Tell
) -> Played:
    stage = Stage(server, bank, scenario.mix, capacity, quick=quick, tell=tell)
    bank.spoil(0)
    try:
        await scenario.play(stage)
        return stage.played(scenario.name, scenario.says)
    except BenchmarkError as error:
        stage.aims.append(Aim("the fault is shown, and the server gets over it", met=False, found=str(error)))
        return stage.played(scenario.name, scenario.says, complete=False)


def _not_played(scenario: Scenario, why: str) -> Played:
    """The report of a scenario whose server could not be started."""
    return Played(
        scenario.name,
        scenario.says,
        seconds=0.0,
        capacity=0.0,
        rate=0.0,
        summary=summarize([]),
        aims=[Aim("the server starts", met=False, found=why[-600:])],
        marks=[],
        notes=[],
        peak_mib={},
        timeline=rates([], BIN_S, 0.0),
        bin_s=BIN_S,
        examples=[],
    )


def _well(server: FaultyServer) -> bool:
    try:
        server.check_alive()
    except BenchmarkError:
        return False
    return all(map(is_ready, server.urls.values()))
