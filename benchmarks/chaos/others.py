"""What others do to the server: a cache that goes away, and clients that are slow on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from typing_extensions import override

from benchmarks.chaos.kills import require_high, require_right
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.server import FaultyServer, Setup
from benchmarks.chaos.setups import PAIRS, SINGLES, demo
from benchmarks.chaos.stage import Stage
from benchmarks.failure import BenchmarkError
from benchmarks.process import OUT
from benchmarks.redis_server import RedisServer
from benchmarks.server import DIRECT, PROXY
from benchmarks.slow_clients import Crowd, raise_open_files, slow_clients

_IDLE, _SLOW = 2000, 500
_STEADY_S = 4.0


class WithRedis(FaultyServer):
    """A server whose routers share their answers in a Redis server of its own.

    Attributes:
        redis: That server.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.redis = RedisServer(OUT)
        application = self._document["applications"][0]
        application["args"]["router"]["cache"] = {"redis": {"url": self.redis.url}}

    @override
    def _prepare(self) -> tuple[Sequence[str], Mapping[str, str]]:
        self.redis.start()
        return super()._prepare()

    @override
    def _clean_up(self) -> None:
        super()._clean_up()
        self.redis.kill()

    def sees_redis(self) -> bool:
        """Whether the router that answers uses it."""
        return bool(self.snapshot().get("cache", {}).get("redis", {}).get("up"))


async def _cache(stage: Stage) -> None:
    server = stage.server
    assert isinstance(server, WithRedis)
    async with stage.load():
        await stage.hold(_STEADY_S)
        await stage.until(server.sees_redis, "a router that uses Redis")
        for _ in range(stage.times(3)):
            mark = stage.mark("SIGKILL Redis")
            server.redis.kill()
            await stage.until(lambda: not server.sees_redis(), "a router that misses Redis")
            await stage.hold(_STEADY_S)
            await asyncio.to_thread(server.redis.start)
            await stage.until(server.sees_redis, "a router that uses Redis again")
            stage.mended(mark)
            await stage.hold(_STEADY_S)
    require_right(stage)
    stage.require_none("no request notices", [each for each in stage.records if each.failed])
    require_high(stage, 0.99)


async def _crowd(stage: Stage) -> None:
    wanted = raise_open_files(_IDLE + _SLOW + 512)
    if wanted < _IDLE + _SLOW + 512:
        raise BenchmarkError(f"this process may have {wanted} open files, which is too few")
    idle, slow = (_IDLE // 4, _SLOW // 4) if stage.quick else (_IDLE, _SLOW)
    async with stage.load(0.4):
        await stage.hold(_STEADY_S)
        for way in (DIRECT, PROXY):
            url = stage.server.urls[way]
            async with slow_clients(url, "/v2/models/tiny/infer", idle=idle, slow=slow) as crowd:
                await stage.until(partial(_stands, crowd, idle + slow), "the crowd to be connected")
                stage.mark(f"{idle:,} idle and {slow} slow connections, {way}")
                await stage.hold(12.0)
                stage.notes.append(f"{way}: {crowd.standing:,} connections stood, {crowd.cut} were cut by the server")
    require_right(stage)
    stage.require_none("others lose nothing", [each for each in stage.records if each.failed])
    require_high(stage, 0.99)


def _stands(crowd: Crowd, count: int) -> bool:
    return crowd.standing >= 0.95 * count  # those that the server cuts are on their way back


_CACHED = Setup(
    "cached",
    [{**model, "cache": {"ttl_s": 60}} for model in demo(1)],
    router={**PAIRS.router},
    classes=PAIRS.classes,
    server=WithRedis,
)

SCENARIOS = (
    Scenario("slow-clients", "thousands of idle and slow connections", SINGLES, _crowd),
    Scenario("cache", "the Redis server of the response cache is killed and comes back", _CACHED, _cache),
)
