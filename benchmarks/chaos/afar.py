"""Replicas that die, hang or are killed by a request on another node than the router's.

No link reaches them there: bundles travel by Serve's handle, which learns of the end of a replica from Ray.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psutil

from benchmarks.chaos.cluster import ON_THE_FIRST, TwoNodes
from benchmarks.chaos.failing_models import KILLING_MIX, KILLS, REPLICAS, ask, crashing, faulty_model, make_models
from benchmarks.chaos.kills import replica_dies, replica_hangs
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.server import RAYLET, ROUTER, Setup
from benchmarks.chaos.setups import demo
from benchmarks.chaos.stage import Stage, mix_of
from benchmarks.failure import BenchmarkError

_MODELS = ("tiny", "digits")
_MIX = mix_of({"tiny": 0.7, "digits": 0.3})


def _on_the_second(model: dict[str, Any]) -> dict[str, Any]:
    """On the second of two nodes, which alone has what it asks for."""
    return {**model, "resources": {**model["resources"], "gpus": 0.125}}


_AFAR = Setup(
    "replicas on another node",
    [
        *(_on_the_second(model) for model in demo(2) if model["name"] in _MODELS),
        _on_the_second(faulty_model(KILLS, REPLICAS)),
    ],
    router=ON_THE_FIRST,
    settings={"proxy_location": "HeadOnly"},
    server=TwoNodes,
    prepare=make_models,
)


def _afar(play: Callable[[Stage], Awaitable[None]]) -> Callable[[Stage], Awaitable[None]]:
    """Play it once all replicas are on another node than the router."""

    async def checked(stage: Stage) -> None:
        router = await _nodes_of(stage, ROUTER)
        for model in stage.bank.models:
            if router & await _nodes_of(stage, model):
                raise BenchmarkError(f"a replica of {model} is on the router's node, where links reach it")
        await play(stage)

    return checked


async def _nodes_of(stage: Stage, role: str) -> set[int]:
    """The raylets of its processes, which have started them."""
    raylets = {each.pid for each in await stage.find(RAYLET)}
    try:
        found = {psutil.Process(each.pid).ppid() for each in await stage.find(role)}
    except psutil.Error as error:
        raise BenchmarkError(f"a process of {role} has ended: {error}") from error
    if not found or not found <= raylets:
        raise BenchmarkError(f"it is not known on which nodes {role} is: started by {found}, the nodes are {raylets}")
    return found


SCENARIOS = (
    Scenario("replica-afar", "one of two replicas on another node is killed", _AFAR, _afar(replica_dies), _MIX, ask),
    Scenario("wedged-afar", "one of two replicas on another node is stopped", _AFAR, _afar(replica_hangs), _MIX, ask),
    Scenario(
        "poison-afar",
        "some requests kill the process of their replica, on another node",
        _AFAR,
        _afar(crashing),
        KILLING_MIX,
        ask,
    ),
)
