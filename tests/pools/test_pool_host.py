"""A host of a pool with real models."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pool_models import pool_args
from runtime_harness import batch_same_turn, tensor

from serve_app.backends.joining.verdict_store import VerdictStore
from serve_app.composition import read_args, read_models
from serve_app.composition.replica import make_replica
from serve_app.composition.revision import find_revision
from serve_app.domain.hosting import Owner
from serve_app.payloads import RETURNED, STALE, Bundle, Success, WireEntry
from serve_app.pools.host import LoadedMember, PoolHost
from serve_app.pools.hosting import MemberLoader, MemberPlan

OWNER = Owner(1.0, "router")


def make_loader(folder: Path, members: int = 4) -> MemberLoader:
    """Loads the members of a pool that has so many."""
    config = read_args(pool_args(folder, members))
    described = read_models(config)
    plans = {model.name: MemberPlan(find_revision(model), described[model.name]) for model in config.models}
    records = VerdictStore(folder / "joinable")
    return MemberLoader(plans, partial(make_replica, batch=batch_same_turn, records=records))


def make_host(folder: Path) -> PoolHost:
    """A host of a pool; none of its members is loaded."""
    return PoolHost("small", make_loader(folder).load)


def bundle(model: str, *values: float, priority: int = 2, sender: str = "router") -> Bundle:
    """A bundle of one entry for each value."""
    return Bundle([WireEntry(priority, 30.0, 1, "", tensor(value, value)) for value in values], sender, model=model)


def answers(results: list[Any]) -> list[float]:
    """The first number of each answer."""
    return [float(result.value["y"][0, 0]) for result in results if isinstance(result, Success)]


async def run_all(host: PoolHost, model: str, *values: float) -> list[float]:
    """All answers, also those that did not run with the first batch."""
    result = await host.run(bundle(model, *values))
    found = answers(result.results)
    left = [value for value, each in zip(values, result.results, strict=True) if each == RETURNED]
    return found + (await run_all(host, model, *left) if left else [])


async def test_it_loads_runs_and_unloads_what_it_is_told_to(tmp_path: Path) -> None:
    """Each member answers for itself; what a load took and holds is told."""
    host = make_host(tmp_path)
    loaded = await host.change(OWNER, (), "m1")
    assert loaded.told is not None
    assert loaded.seconds > 0.0
    assert loaded.nbytes >= (tmp_path / "m1" / "1" / "model.onnx").stat().st_size
    assert loaded.told.joinable[""].verdict == "exact"
    assert loaded.told.executions[0].rows == 1
    await host.change(OWNER, (), "m2")
    assert await run_all(host, "m1", 5.0, 6.0) == [6.0, 7.0]
    assert await run_all(host, "m2", 5.0, 6.0) == [7.0, 8.0]
    await host.change(OWNER, ("m1",), "m3")
    assert set(host.resident) == {"m2", "m3"}
    assert (await host.run(bundle("m1", 5.0))).results == [STALE]
    host.close()
    assert not host.resident


async def test_a_second_load_trusts_the_first(tmp_path: Path) -> None:
    """It tells the same of the member, and one that is there already is not loaded again."""
    host = make_host(tmp_path)
    first = await host.change(OWNER, (), "m1")
    assert await host.change(OWNER, (), "m1") == first
    again = await host.change(OWNER, ("m1",), "m1")
    assert again.told == first.told
    assert again.nbytes <= first.nbytes
    host.close()


async def test_files_that_cannot_be_loaded_are_told_and_cost_neighbours_nothing(tmp_path: Path) -> None:
    """Neither replaced files are loaded, which are not those that clients were told of."""
    host = make_host(tmp_path)
    await host.change(OWNER, (), "m1")
    file = tmp_path / "m2" / "1" / "model.onnx"
    file.write_bytes(b"no model")
    failed = await host.change(OWNER, (), "m2")
    assert failed.told is None
    assert "model 'm2'" in failed.fault
    assert str(tmp_path) not in failed.fault
    assert await run_all(host, "m1", 5.0) == [6.0]
    assert (await host.change(OWNER, (), "no member")).told is None
    host.close()


async def test_bundles_of_many_members_at_once_are_all_answered(tmp_path: Path) -> None:
    """They take turns."""
    host = make_host(tmp_path)
    for number in range(4):
        await host.change(OWNER, (), f"m{number}")
    values = np.arange(20.0)
    asked = [run_all(host, f"m{number % 4}", *values) for number in range(40)]
    for number, found in enumerate(await asyncio.gather(*asked)):
        assert sorted(found) == [value + number % 4 for value in values]
    host.close()


async def test_what_runs_is_answered_before_its_member_is_unloaded(tmp_path: Path) -> None:
    """Nothing that has come is lost by an eviction."""
    host = make_host(tmp_path)
    await host.change(OWNER, (), "m1")
    running = asyncio.ensure_future(run_all(host, "m1", 5.0))
    await asyncio.sleep(0)
    await host.change(OWNER, ("m1",))
    assert await running == [6.0]
    assert not host.resident


async def test_who_comes_later_takes_it_over_and_finds_it_empty(tmp_path: Path) -> None:
    """The owner before is told so, also of a load that was under way."""
    host = make_host(tmp_path)
    await host.change(OWNER, (), "m1")
    loading = asyncio.ensure_future(host.change(OWNER, (), "m2"))
    await asyncio.sleep(0)
    later = Owner(2.0, "another")
    assert (await host.change(later, (), "m3")).told is not None
    await loading
    assert set(host.resident) == {"m3"}
    refused = await host.change(OWNER, ("m3",), "m1")
    assert refused.told is None
    assert "taken this host over" in refused.fault
    assert refused.superseded == later.since
    assert (await host.change(OWNER, ("m3",))).superseded == later.since
    assert set(host.resident) == {"m3"}
    host.close()


@pytest.mark.parametrize("measured", [0, 10, 10**9])
async def test_what_is_measured_counts_within_reason(tmp_path: Path, measured: int) -> None:
    """At least the files, and not what others have taken meanwhile."""
    held = iter([0, measured])
    host = PoolHost("small", make_loader(tmp_path).load, lambda: next(held))
    loaded = await host.change(OWNER, (), "m1")
    size = (tmp_path / "m1" / "1" / "model.onnx").stat().st_size
    assert size <= loaded.nbytes <= 4 * size + 2**20
    host.close()


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is a process's here")
async def test_loads_leave_the_processor_to_runs_unless_class_high_waits_for_them(tmp_path: Path) -> None:
    """By the niceness of the thread that loads; what comes in between changes nothing for it."""
    loader, usual = make_loader(tmp_path), os.getpriority(os.PRIO_PROCESS, 0)
    niceness: list[int] = []

    def load(name: str) -> LoadedMember:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return loader.load(name)

    host = PoolHost("small", load, yields=True)
    for number, urgent in enumerate((False, True, False)):
        await host.change(OWNER, (), f"m{number}", urgent=urgent)
    assert niceness == [min(19, usual + 10), usual, min(19, usual + 10)]
    host.close()
