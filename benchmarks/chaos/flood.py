"""A flood of unimportant requests, far more than can be answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import psutil

from benchmarks.chaos.kills import require_right
from benchmarks.chaos.lean import Lean
from benchmarks.chaos.questions import long_texts
from benchmarks.chaos.records import End, share_in_time
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.server import Setup
from benchmarks.chaos.setups import demo
from benchmarks.chaos.stage import Stage, flat_out, mix_of
from benchmarks.failure import BenchmarkError
from benchmarks.server import DIRECT

_MODEL = "minilm"
_FLOOD, _HIGH = 10.0, 0.2
_SECONDS, _BEFORE_S = 60.0, 5.0
_MOST_LATE_S = 0.5
_MOST_GROWTH_MIB = 1536.0

_ONE = Setup("one", [model for model in demo(1) if model["name"] == _MODEL])


async def _flood(stage: Stage) -> None:
    """Flood with `low`, while `high` asks for a fifth of the capacity."""
    seconds = _SECONDS / 4 if stage.quick else _SECONDS
    high, low = mix_of({_MODEL: 1.0}, {"high": 1.0}), mix_of({_MODEL: 1.0}, {"low": 1.0})
    important = Lean(stage.server.urls[DIRECT], "important")
    flood = Lean(stage.server.urls[DIRECT], "flood")

    async def from_here() -> tuple[float, float]:
        await asyncio.sleep(_BEFORE_S)
        before = _total(stage)
        spent = await _processor_s(stage)
        stage.mark(f"{_FLOOD:.0f} times the capacity in class low for {seconds:.0f} s")
        began = stage.now()
        late = await stage.arrivals(flood, low, _FLOOD * stage.capacity, seconds, 6)
        stage.notes.append(f"the flood's latest request was sent {late * 1e3:.0f} ms late")
        stage.notes.append(_cores(spent, await _processor_s(stage), stage.now() - began))
        if late > _MOST_LATE_S:
            raise BenchmarkError(
                f"the load generator itself was {late:.1f} s late: this is no flood of the stated rate"
            )
        return began, before

    try:
        async with stage.watched():
            (began, before), _ = await asyncio.gather(
                from_here(), stage.arrivals(important, high, _HIGH * stage.capacity, seconds + 2 * _BEFORE_S)
            )
    finally:
        await important.close()
        await flood.close()
    require_right(stage)
    during = [each for each in stage.records if began <= each.sent_s < began + seconds]
    share = share_in_time(each for each in during if each.priority == "high")
    stage.require("`high` is in time for at least 99.5% during the flood", share >= 0.995, f"{share:.2%}")
    ended = [each for each in stage.records if began <= each.ended_s < began + seconds and each.in_time]
    goodput = len(ended) / seconds
    stage.over()
    stage.tell("measuring its capacity again")
    after = await flat_out(stage.server, stage.bank, stage.mix)
    capacity = max(stage.capacity, after)  # not their mean: what harms the server for longer must not make this easier
    found = f"{goodput:.1f}/s of {stage.capacity:.1f}/s before, {after:.1f}/s after: {goodput / capacity:.2f}"
    stage.require("goodput is at least 0.9 of the capacity", goodput >= 0.9 * capacity, found)
    growth = _total(stage) - before
    stage.require(f"memory grows by less than {_MOST_GROWTH_MIB:,.0f} MiB", growth < _MOST_GROWTH_MIB, f"{growth:,.0f}")
    unclean = [each for each in stage.records if each.end in {End.CUT, End.UNREACHABLE}]
    stage.require_none("what is refused is refused cleanly", unclean)


async def _processor_s(stage: Stage) -> dict[str, float]:
    spent = await asyncio.to_thread(stage.server.processor_s)
    return {**spent, "load generator": sum(psutil.Process().cpu_times()[:2])}


def _cores(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> str:
    """Who had the processor during the flood: what the model had not is why it answered less than flat out."""
    cores = {role: (spent - before.get(role, 0.0)) / seconds for role, spent in after.items()}
    most = sorted(cores, key=lambda role: -cores[role])[:4]
    return "cores in use during the flood: " + ", ".join(f"{role} {cores[role]:.2f}" for role in most)


def _total(stage: Stage) -> float:
    return sum(stage.peak_mib.values())


SCENARIOS = (
    Scenario(
        "flood",
        f"{_FLOOD:.0f} times the capacity in class `low`, and `high` at {_HIGH:.0%} of it",
        _ONE,
        _flood,
        mix_of({_MODEL: 1.0}, {"low": 1.0}),
        long_texts,
    ),
)
