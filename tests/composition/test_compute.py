"""What replicas of a configuration compute with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_models
import pytest
import python_models
from runtime_harness import batch_same_turn, tensor

from serve_app.composition.compute import choose_rows
from serve_app.composition.model import find_files, read_builds
from serve_app.composition.replica import AsMember, MadeReplica, make_replica
from serve_app.config.args import parse_args
from serve_app.payloads import Bundle, Execution, Success, WireEntry
from serve_app.replica.process_memory import RunMemory
from serve_app.replica.turn import Turn

MakeReplica = Callable[..., MadeReplica]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeReplica]:
    """Replicas of a small model that have these resources."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    onnx_models.make(tmp_path / "m" / "1" / "model.onnx", "add_one")
    python_models.make(tmp_path / "p", "linear")
    made: list[MadeReplica] = []

    def replica(*, pooled: bool = False, path: str = "m", keys: Any = None, **resources: Any) -> MadeReplica:
        (model,) = parse_args({"models": [{"name": "m", "path": path, "resources": resources, **(keys or {})}]}).models
        locations = find_files(model)
        member = AsMember(Turn(), {"": "digest"}) if pooled else None
        made.append(make_replica(model, read_builds(model, locations), batch_same_turn, member=member))
        return made[-1]

    yield replica
    for each in made:
        each.worker.close()


def answered(replica: MadeReplica) -> list[float]:
    """What requests that come at once get."""

    async def ask() -> list[Any]:
        entries = [WireEntry(2, 60.0, 1, "", tensor(float(value))) for value in range(8)]
        return await asyncio.gather(*(replica.worker.run(Bundle([entry], "r")) for entry in entries))

    results = [result.results[0] for result in asyncio.run(ask())]
    return [result.value["y"].item() for result in results if isinstance(result, Success)]


@pytest.mark.parametrize(("threads", "instances"), [(1, 1), (1, 3), (2, 1), (2, 2)])
def test_what_is_configured(threads: int, instances: int, make: MakeReplica) -> None:
    """And it answers with it."""
    replica = make(threads=threads, instances=instances)
    assert replica.compute[:3] == (threads, instances, "as configured")
    assert answered(replica) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_a_small_model_is_left_as_it_is(make: MakeReplica, caplog: pytest.LogCaptureFixture) -> None:
    """Its runs take microseconds. The log tells."""
    with caplog.at_level(logging.INFO, logger="serve_app"):
        compute = make().compute
    assert compute[:2] == (1, 1)
    assert f"m computes with 1 thread, 1 instance: {compute.reason}" in caplog.text


def test_who_runs_one_batch_at_a_time(make: MakeReplica) -> None:
    """Whatever is configured: a member of a pool, and one of a backend that wants it."""
    shared = make(pooled=True, threads=2, instances=2).compute
    assert shared[:3] == (2, 1, "one batch at a time: it is of a pool")
    own = make(path="p", keys={"backend": "python"}, instances=2).compute
    assert own[:3] == (1, 1, "one batch at a time: so its backend or device wants it")


MIB = 1024**2


def _executions(fixed_s: float, row_s: float, bucket: int = 0) -> list[Execution]:
    return [Execution(rows, bucket, fixed_s + row_s * rows) for rows in (1, 2, 4, 8, 16, 32, 64)]


@pytest.mark.parametrize(
    ("executions", "rows"),
    [
        (_executions(0.003, 0.0002), 64),
        (_executions(0.0, 0.01), 32),
        ([*_executions(0.003, 0.0002, 8), *_executions(0.0, 0.01, 256)], 32),
        ([], 32),
    ],
    ids=["twice the rows save time", "they save none", "only short ones do", "nothing is known"],
)
def test_batches_have_as_many_rows_as_pay(executions: list[Execution], rows: int) -> None:
    """Beyond 32; the longest decides."""
    (model,) = parse_args({"models": [{"name": "m", "path": "m"}]}).models
    assert choose_rows(model, executions, RunMemory(1024 * MIB, lambda: 0)) == rows


@pytest.mark.parametrize(("per_row", "rows"), [(1, 64), (15, 32), (100, 4), (10_000, 1)])
def test_batches_fit_into_seven_tenths_of_the_memory_that_is_left(per_row: int, rows: int) -> None:
    """Judged by what runs have added to what the process holds."""
    (model,) = parse_args({"models": [{"name": "m", "path": "m"}]}).models
    held = 200 * MIB
    memory = RunMemory(1000 * MIB, lambda: held)
    assert memory.fits(2, 0)
    held += 2 * per_row * MIB
    assert choose_rows(model, _executions(0.003, 0.0002), memory) == rows


def test_a_limit_that_the_model_nearly_fills_makes_no_batch_small() -> None:
    """Where runs take next to nothing of what is left."""
    (model,) = parse_args({"models": [{"name": "m", "path": "m"}]}).models
    memory = RunMemory(1000 * MIB, lambda: 950 * MIB)
    assert memory.fits(1, 0)
    assert choose_rows(model, _executions(0.003, 0.0002), memory) == 64


def test_a_replica_tells_how_many_rows_it_takes(make: MakeReplica) -> None:
    """Where it has chosen."""
    assert make().compute.max_rows == 64  # what a run costs besides its rows is much for this model
    assert make(keys={"batching": {"max_rows": 16}}).compute.max_rows == 0
    assert make(pooled=True).compute.max_rows == 0
