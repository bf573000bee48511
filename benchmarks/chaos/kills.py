"""Processes that die or stop: replicas, routers, the proxy, Serve's controller."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from benchmarks.chaos.records import LATE, End, Record, share_in_time
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.server import CONTROLLER, HAPROXY, ROUTER
from benchmarks.chaos.setups import PAIRS, SINGLES
from benchmarks.chaos.stage import Stage
from serve_app.cli.processes import Process

_STEADY_S = 4.0
_KILLS = 10
_VICTIM = "digits"
_SERVED_AGAIN_S = 15.0
"""Three of Serve's looks at its proxy, and the start of another one, which imports Ray."""
_REPLACED_WITHIN_S = 45.0
"""Three health checks in a row that time out, the end of the old process, and the start of a new one."""


def lost(records: Sequence[Record]) -> list[Record]:
    """What was accepted and came to nothing; time that ran out is counted apart."""
    return [each for each in records if each.failed and each.end is not End.WRONG and each.code not in LATE]


def ours(records: Sequence[Record]) -> list[Record]:
    """What our own client, which tries again, could not bring home."""
    return [each for each in records if each.client.startswith("ours") and each.failed]


def require_right(stage: Stage) -> None:
    """The aims of every scenario: no wrong answer, nothing hung."""
    stage.require_none("no answer is wrong", [each for each in stage.records if each.end is End.WRONG])
    stage.require_none("no request hangs", [each for each in stage.records if each.end is End.HUNG])


async def replica_dies(stage: Stage) -> None:
    """One of two replicas is killed, ten times."""
    async with stage.load():
        await stage.hold(_STEADY_S)
        for _ in range(stage.times(_KILLS)):
            await _kill(stage, _VICTIM, f"one of two replicas of {_VICTIM}", 2)
            await stage.hold(1.0)
        await stage.hold(_STEADY_S)
    require_right(stage)
    stage.require_none("no accepted request is lost", lost(stage.records))
    require_high(stage, 0.99)


async def replica_hangs(stage: Stage) -> None:
    """One of two replicas is stopped, three times."""
    async with stage.load():
        await stage.hold(_STEADY_S)
        for _ in range(stage.times(3)):
            victim = await stage.one_of(_VICTIM)
            mark = await stage.hit(victim, signal.SIGSTOP, f"one of two replicas of {_VICTIM}")
            try:
                await stage.replaced(_VICTIM, victim, 2, mark, _REPLACED_WITHIN_S)
            finally:
                await stage.free(victim)
            await stage.hold(_STEADY_S)
    require_right(stage)
    stage.require_none("no accepted request is lost", lost(stage.records))
    require_high(stage, 0.99)


async def _kill(stage: Stage, role: str, what: str, replicas: int) -> None:
    """Kill one process of a role, and wait until there are so many that work again."""
    victim = await stage.one_of(role)
    mark = await stage.hit(victim, signal.SIGKILL, what)
    await stage.replaced(role, victim, replicas, mark)


async def _only_replica(stage: Stage) -> None:
    async with stage.load():
        await stage.hold(_STEADY_S)
        for _ in range(stage.times(3)):
            await _kill(stage, _VICTIM, f"the only replica of {_VICTIM}", 1)
            await stage.hold(_STEADY_S)
    require_right(stage)
    unclean = [each for each in lost(stage.records) if each.code != "model_unavailable"]
    stage.require_none("whatever is not answered gets a clean 503 or 504", unclean)
    others = [each for each in stage.records if each.model != _VICTIM]
    stage.require_none("other models lose nothing", lost(others))
    kills = [mark.at_s for mark in stage.marks]
    right = [each for each in stage.records if each.model == _VICTIM and each.end is End.RIGHT]
    waited = [each for each in right if any(each.sent_s < kill < each.ended_s for kill in kills)]
    stage.notes.append(f"{len(waited)} requests were in flight at a kill and answered after it")


async def _router(stage: Stage) -> None:
    async with stage.load():
        await stage.hold(_STEADY_S)
        for _ in range(stage.times(_KILLS)):
            await _kill(stage, ROUTER, "one of two routers", 2)
            await stage.hold(_STEADY_S)  # HAProxy sends to the new one after its next look at it
        await stage.hold(_STEADY_S)
    require_right(stage)
    stage.require_none("our client, with its retries, sees no error", ours(stage.records))
    unclean = [each for each in lost(stage.records) if each.end is not End.CUT]
    stage.require_none("a client without retries loses nothing but the connections that are cut", unclean)


async def _proxy(stage: Stage) -> None:
    async with stage.load():
        await stage.hold(_STEADY_S)
        for _ in range(stage.times(3)):
            victim = await stage.one_of(HAPROXY)
            mark = await stage.hit(victim, signal.SIGKILL, "HAProxy")
            await another(stage, HAPROXY, victim, mark)
            await stage.hold(_SERVED_AGAIN_S)
    require_right(stage)
    direct = [each for each in stage.records if each.client.endswith("direct")]
    stage.require_none("the routers' own port loses nothing", [each for each in direct if each.failed])
    _require_served_again(stage)


async def _controller(stage: Stage) -> None:
    async with stage.load():
        await stage.hold(_STEADY_S)
        for _ in range(stage.times(2)):
            victim = await stage.one_of(CONTROLLER)
            mark = await stage.hit(victim, signal.SIGKILL, "Serve's controller")
            await another(stage, CONTROLLER, victim, mark)
            await stage.hold(2 * _STEADY_S)
        await _kill(stage, _VICTIM, f"a replica of {_VICTIM} under the new controller", 2)
        await stage.hold(_STEADY_S)
    require_right(stage)
    stage.require_none("no accepted request is lost", lost(stage.records))


async def another(stage: Stage, role: str, gone: Process, mark: int) -> None:
    """Wait for another process of a role in its place."""

    def there() -> bool:
        found = stage.server.find(role)
        return bool(found) and gone not in found

    await stage.until(there, f"another {role}")
    stage.mended(mark)


def require_high(stage: Stage, least: float) -> None:
    """The aim that so much of the class `high` was answered in time."""
    share = share_in_time(each for each in stage.records if each.priority == "high")
    stage.require(f"`high` is in time for at least {least:.1%}", share >= least, f"{share:.2%}")


def _require_served_again(stage: Stage) -> None:
    """After the last fault everything is as before."""
    last = stage.marks[-1].at_s + _SERVED_AGAIN_S
    late = [each for each in stage.records if each.sent_s >= last]
    says = f"{_SERVED_AGAIN_S:.0f} s after the fault everything is answered again"
    stage.require(f"{says}: there was something to answer", bool(late), len(late))
    stage.require_none(says, [each for each in late if each.failed])


SCENARIOS = (
    Scenario("replica", "one of two replicas is killed, again and again", PAIRS, replica_dies),
    Scenario("wedged", "one of two replicas is stopped (SIGSTOP): alive, and silent", PAIRS, replica_hangs),
    Scenario("router", "one of two routers is killed, again and again", PAIRS, _router),
    Scenario("haproxy", "HAProxy is killed", PAIRS, _proxy),
    Scenario("controller", "Serve's controller is killed", PAIRS, _controller),
    Scenario("only-replica", "the only replica is killed", SINGLES, _only_replica),
)
