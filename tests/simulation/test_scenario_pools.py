"""Pools in scenario files: what they mean to the simulator, and what is said of faults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scenario_documents import document, parsed, problems

from serve_app.pools.policy.settings import Pool
from serve_app_simulator.report import CaseResults, swept, table
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, SimulatedPool
from serve_app_simulator.scenarios import load_scenario

ROOT = Path(__file__).parents[2]
MIB = 2**20
SMALL: Mapping[str, Any] = {"name": "small", "count": 3, "holds": "10MiB", "latency": {"alpha_ms": 2, "beta_ms": 1}}
LARGE: Mapping[str, Any] = {**SMALL, "name": "large", "count": 1, "holds": "25MiB"}


def pooled(stream: Mapping[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A scenario of one pool of four members, with some keys of the pool, or of its stream, changed."""
    pool = {"name": "many", "memory": "40MiB", "load_ms": 20, "members": [dict(SMALL), dict(LARGE)]} | keys
    asked = {"kind": "poisson", "model": "many", "rate": 50} | dict(stream or {})
    return {"name": "test", "duration_s": 5, "seeds": [1], "pools": [pool], "workload": [asked]}


def test_a_pool_is_its_members_its_hosts_and_their_memory() -> None:
    """What alike members have in common is written once; nothing is loaded at first."""
    scenario = parsed(pooled(hosts=2, loads=3, load_spread=0.5, slowdown=1.5)).cases[0].scenario

    members = ("small-1", "small-2", "small-3", "large")
    assert scenario.pools == (
        SimulatedPool(
            Pool("many", members, memory_bytes=40 * MIB, loads=3),
            hosts=2,
            load_s=0.02,
            load_spread=0.5,
            slowdown=1.5,
        ),
    )
    assert [model.scheduling.name for model in scenario.models] == list(members)
    assert [model.scheduling.resident_bytes for model in scenario.models] == [10 * MIB] * 3 + [25 * MIB]
    assert {model.replicas for model in scenario.models} == {0}
    assert scenario.models[0].curve == Affine(0.002, 0.001)


def test_members_are_beside_models_with_replicas() -> None:
    """Only these have a load that is known."""
    data = document(pools=pooled()["pools"])
    data["workload"] += pooled(stream={"exponent": 0.5})["workload"]

    (case,) = parsed(data).cases

    assert list(case.loads) == list(case.capacities) == ["images", "speech"]
    assert [stream.exponent for stream in case.scenario.workload] == [1.0, 0.5]


def test_a_sweep_of_memory_gives_every_host_so_much() -> None:
    """In bytes, and told as people write them."""
    cases = parsed(pooled() | {"sweep": {"memory": ["25MiB", "1GiB"]}}).cases

    assert [case.scenario.pools[0].scheduling.memory_bytes for case in cases] == [25 * MIB, 1024 * MIB]
    assert [swept("memory", case.value) for case in cases] == ["memory 25.0MiB", "memory 1.0GiB"]


def test_more_memory_finds_more_members_loaded() -> None:
    """The table tells how often, and how many loads that takes."""
    found = []
    for case in parsed(pooled() | {"sweep": {"memory": ["25MiB", "55MiB"]}}).cases:
        system = parsed(pooled()).file.systems[0]
        result = simulate(case.scenario, system.make(), 1)
        header, (line,) = table(CaseResults({system.title: [result]}, case.value))
        found.append(dict(zip(header, line, strict=True)))

    scarce, ample = (float(each["found loaded"].rstrip("%")) for each in found)
    assert scarce < ample
    assert float(found[0]["loads /s"]) > float(found[1]["loads /s"])


def test_the_example_is_a_scenario() -> None:
    """Of hundreds of members, with room for some of them."""
    experiment = load_scenario(ROOT / "configs" / "scenarios" / "pool.yaml")

    assert experiment.sweep == "memory"
    assert len(experiment.cases[0].scenario.models) == 420


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (pooled(members=[]), "pools[0].members: needs at least one"),
        (pooled(memory="20MiB"), "pools[0].members[1].holds: 25.0MiB is more than a host has, 20.0MiB"),
        (
            pooled() | {"sweep": {"memory": ["20MiB", "40MiB"]}},
            "pools[0].members[1].holds: 25.0MiB is more than a host has, 20.0MiB in the sweep",
        ),
        (
            pooled(members=[{**SMALL, "count": 6000}, {**SMALL, "name": "more", "count": 6000}]),
            "pools[0].members: at most 10,000 members are simulated, got 12,000",
        ),
        (
            pooled(members=[dict(SMALL), {**LARGE, "name": "small-2"}]),
            "pools[0].members[1].name: 'small-2' stands at pools[0].members[0] too",
        ),
        (
            pooled(members=[{**SMALL, "batching": {"slo_ms": 2}}]),
            "pools[0].members[0].batching.slo_ms: 2 is less than one row takes, 3 ms",
        ),
        (pooled() | {"routers": 2}, "routers: must be 1 with pools, got 2: one router decides what hosts load"),
        (pooled({"model": "man"}), "workload[0].model: unknown model 'man'; did you mean many?"),
        (
            pooled({"rate": None, "load": 0.5}),
            "workload[0].load: of a pool is not known before, since its members wait for loads; say rate",
        ),
        (
            pooled({"model": "small-1", "exponent": 1.0}),
            "workload[0].exponent: does nothing for a single model; name a pool",
        ),
        (
            pooled() | {"workload": [{"kind": "video", "model": "many", "streams": 2}]},
            "workload[0].model: frames are of one model, and 'many' is a pool",
        ),
        (
            pooled() | {"sweep": {"load": [0.5, 1.0]}},
            "sweep.load: of a pool is not known before, since its members wait for loads; sweep memory",
        ),
        (document(sweep={"memory": ["1GiB"]}), "sweep.memory: there is no pool"),
        (document(models=[], workload=[{"kind": "long_tail", "rate": 5}]), "models: needs at least one"),
        (
            pooled({"timeout_ms": 2}),
            (
                "workload[0].timeout_ms: 2 ms for class normal is less than one request of 'small-1' takes alone,"
                " 3 ms with overheads"
            ),
        ),
    ],
)
def test_faults_are_one_line_each(data: dict[str, Any], problem: str) -> None:
    """With the place in the file."""
    assert problems(data) == (problem,)
