"""Nothing is run that nobody waits for any more."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from runtime_harness import batch_same_turn, tensor

from serve_app.payloads import EXPIRED, Bundle, ModelSignature, Success, Tensors, WireEntry
from serve_app.replica.joining import Joining
from serve_app.replica.staged import SMALL_BYTES, Staged
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling

BUDGET_S = 0.2


class Lasting:
    """A backend whose first run lasts until a budget that began before it is used up."""

    device = "gpu"
    signature = ModelSignature((), ())

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.runs: list[list[float]] = []

    def load(self) -> None:
        """Nothing to load."""

    def run(self, inputs: Tensors) -> Tensors:
        """Note what runs."""
        self.runs.append(inputs["x"][:, 0].tolist())
        if len(self.runs) == 1:
            time.sleep(BUDGET_S)
            if self.fails:
                raise ValueError("bad")
        return {"y": inputs["x"] + 1}

    run_whole = run

    def close(self) -> None:
        """Nothing to free."""


def make_worker(**backends: Lasting) -> Worker:
    """A worker that knows nothing of how long runs take."""
    return Worker(
        scheduling=ModelScheduling("m", 8, slo_s=60.0),
        backends={"" if name == "exact" else name: backend for name, backend in backends.items()},
        processor=None,
        preprocess_threads=1,
        batch=batch_same_turn,
    )


async def results(worker: Worker, *entries: WireEntry) -> list[Any]:
    """The value of every entry, or the code of its error."""
    found = (await worker.run(Bundle(list(entries)))).results
    worker.close()
    return [answer.value["y"][0, 0] if isinstance(answer, Success) else answer.code for answer in found]


async def test_what_expires_while_another_variant_runs_is_not_run() -> None:
    """It waits at the gate meanwhile."""
    exact, light = Lasting(fails=False), Lasting(fails=False)
    worker = make_worker(exact=exact, light=light)
    first, second = (
        asyncio.ensure_future(worker.run(Bundle([WireEntry(2, budget_s, 1, variant, tensor(1.0))])))
        for budget_s, variant in ((60.0, ""), (BUDGET_S, "light"))
    )
    assert isinstance((await first).results[0], Success)
    assert (await second).results == [EXPIRED]
    assert light.runs == []
    worker.close()


@pytest.mark.parametrize("alike", [True, False], ids=["assembled", "of two kinds"])
async def test_what_expires_while_its_batch_fails_is_not_run_again(alike: bool) -> None:
    """However the batch was made."""
    backend = Lasting(fails=True)
    other = {"x": np.zeros((1, 2), np.float32)}
    entries = [WireEntry(2, budget_s, 1, "", tensor(value)) for budget_s, value in ((BUDGET_S, 1.0), (60.0, 2.0))]
    if not alike:
        entries.append(WireEntry(2, 60.0, 1, "", other))
    found = await results(make_worker(exact=backend), *entries)
    assert found == ["deadline_exceeded", 3.0, 1.0][: len(entries)]
    assert [1.0] not in backend.runs
    assert [2.0] in backend.runs


async def test_a_bundle_of_unlike_entries_is_as_large_as_all_of_them() -> None:
    """Its first entry says nothing about the others."""
    worker = make_worker(exact=Lasting(fails=False))
    shapes = [(1, 1), (1, SMALL_BYTES)]
    tensors = [{"x": np.zeros(shape, np.float32)} for shape in shapes]
    staged = Staged([WireEntry(2, 1.0, 1, "", each) for each in tensors], [0.0] * 2, list(tensors), [None] * 2)
    staged.count_rows(Joining("m"))
    worker._assemble(staged)
    assert staged.nbytes == sum(each["x"].nbytes for each in tensors)
    worker.close()
