"""What others do to the server: clients that are slow on purpose."""

from __future__ import annotations

from functools import partial

from benchmarks.chaos.kills import require_high, require_right
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.setups import SINGLES
from benchmarks.chaos.stage import Stage
from benchmarks.failure import BenchmarkError
from benchmarks.server import DIRECT, PROXY
from benchmarks.slow_clients import Crowd, raise_open_files, slow_clients

_IDLE, _SLOW = 2000, 500
_STEADY_S = 4.0


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


SCENARIOS = (Scenario("slow-clients", "thousands of idle and slow connections", SINGLES, _crowd),)
