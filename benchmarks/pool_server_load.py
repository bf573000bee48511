"""What is asked of a measured pool: everything at once, bursts by Zipf's law, and `high` with and without loads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import numpy as np
import numpy.typing as npt

from benchmarks.failure import BenchmarkError
from benchmarks.open_loop_workload import Floats, Ints, Workload
from benchmarks.pool_members import answer, member_name, request
from serve_app.domain.priority import Priority
from serve_app_simulator.scenario import Stream

POOL = "many"
WARM_UP_S = 10.0
"""Of the workload that is simulated as well: requests before this do not count."""
SHARE = {Priority.HIGH: 0.1, Priority.NORMAL: 0.6, Priority.LOW: 0.3}
TIMEOUTS_S = {Priority.HIGH: 0.1, Priority.NORMAL: 0.5, Priority.LOW: 2.0}
_PATIENT_MS = "30000"
_SLICE_S = 2.0
_SETTLE_S = 0.5


def bursts(rate: float) -> Stream:
    """What is measured and simulated: members are asked by Zipf's law, each in bursts of its own.

    Args:
        rate: Requests per second, of all members.
    """
    return Stream(
        "mmpp",
        POOL,
        rate=rate,
        surge=20.0,
        surge_s=2.0,
        quiet_s=30.0,
        share=SHARE,
        timeouts_s=TIMEOUTS_S,
        timeout_s=TIMEOUTS_S[Priority.NORMAL],
    )


def popularity(members: int) -> Floats:
    """The parts of requests of each member, in sum 1."""
    weights: Floats = 1.0 / np.arange(1, members + 1)
    parts: Floats = weights / weights.sum()
    return parts


async def ask_once(url: str, members: int) -> None:
    """Ask every member once, the most popular one last.

    Raises:
        BenchmarkError: An answer was wrong, or there was none.
    """
    async with aiohttp.ClientSession() as session:
        for number in reversed(range(members)):
            await _ask(session, url, number, number)


async def capacity(url: str, members: int, connections: int, seconds: float) -> float:
    """Right answers per second to so many connections that ask without a pause, members by their popularity.

    Args:
        url: Of the server.
        members: How many there are.
        connections: That ask at once. None of them is in a hurry.
        seconds: How long; the first third does not count.

    Raises:
        BenchmarkError: An answer was wrong, or there was none.
    """
    until, counted_from = time.monotonic() + seconds, time.monotonic() + seconds / 3

    async def ask(session: aiohttp.ClientSession, seed: int) -> int:
        random, answered = np.random.default_rng(seed), 0
        chosen = random.choice(members, 4096, p=popularity(members)).tolist()
        while time.monotonic() < until:
            number = chosen[answered % len(chosen)]
            await _ask(session, url, number, int(random.integers(1024)))
            answered += time.monotonic() >= counted_from
        return answered

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        counts = await asyncio.gather(*(ask(session, seed) for seed in range(connections)))
    return sum(counts) / (seconds * 2 / 3)


async def _ask(session: aiohttp.ClientSession, url: str, number: int, value: int) -> None:
    sent = request(value)
    target, headers = f"{url}/v2/models/{member_name(number)}/infer", {**sent.headers, "X-Timeout-Ms": _PATIENT_MS}
    async with session.post(target, data=sent.body, headers=headers) as reply:
        content = await reply.read()
    if reply.status != 200 or not content.endswith(answer(number, value)):
        raise BenchmarkError(f"{member_name(number)} answered {reply.status}: {content[:200]!r}")


@dataclass(frozen=True, slots=True)
class Beside:
    """Class `high` at resident members, beside requests that need loads, and beside as many that need none, by turns.

    Attributes:
        workload: What is sent.
        numbers: Of the member that each request asks.
        loading: Which requests of class `high` are of a time with loads.
        without: Which are of a time without. Neither holds those of the first moments of a turn.
    """

    workload: Workload
    numbers: Ints
    loading: npt.NDArray[np.bool_]
    without: npt.NDArray[np.bool_]


def beside_loads(members: int, places: int, high_rate: float, other_rate: float, turns: int, seed: int = 1) -> Beside:
    """Make that workload.

    Args:
        members: How many there are.
        places: For how many there is memory: a third of them are asked by class `high`, and one by class `normal` in
            times without loads.
        high_rate: Requests of class `high` per second.
        other_rate: Of class `normal`.
        turns: How many of each kind. Two without loads come first, and count for nothing.
        seed: Of the arrivals.
    """
    random, urgent = np.random.default_rng(seed), places // 3
    end = _SLICE_S * 2 * (turns + 1)
    high: Floats = np.sort(random.uniform(0.0, end, random.poisson(high_rate * end)))
    other: Floats = np.sort(random.uniform(0.0, end, random.poisson(other_rate * end)))
    turn = (other / _SLICE_S).astype(np.int64)
    rest = np.arange(len(other))
    # One after the other, so that none is resident when its turn comes again.
    cold = 2 * urgent + np.cumsum(_loads(turn)) % (members - 2 * urgent)
    numbers = np.concatenate(
        [random.integers(0, urgent, len(high)), np.where(_loads(turn), cold, urgent + rest % urgent)]
    )
    arrival: Floats = np.concatenate([high, other])
    priority = np.repeat([int(Priority.HIGH), int(Priority.NORMAL)], [len(high), len(other)])
    order = np.argsort(arrival, kind="stable")
    arrival, numbers, priority = arrival[order], numbers[order], priority[order]
    count = len(arrival)
    timeouts = np.where(priority == Priority.HIGH, 1.0, TIMEOUTS_S[Priority.LOW])
    workload = Workload(
        arrival, named(numbers), priority, np.ones(count, np.int64), np.zeros(count, np.int64), timeouts
    )  # fmt: skip
    turn = (arrival / _SLICE_S).astype(np.int64)
    counts = (priority == Priority.HIGH) & (turn >= 2) & (arrival - turn * _SLICE_S >= _SETTLE_S)
    return Beside(workload, numbers, counts & _loads(turn), counts & ~_loads(turn))


def named(numbers: Sequence[int] | Ints) -> npt.NDArray[np.str_]:
    """The names of members."""
    return np.array([member_name(number) for number in numbers])


def _loads(turn: Ints) -> npt.NDArray[np.bool_]:
    loads: npt.NDArray[np.bool_] = (turn >= 2) & (turn % 2 == 0)
    return loads
