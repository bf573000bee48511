"""The worker over real ONNX Runtime sessions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_models
import pytest
from runtime_harness import acquired, batch_same_turn, run_to_the_end, tensor

from serve_app.backends.onnx.backend import OnnxBackend
from serve_app.errors import InferenceFailed, InvalidRequest
from serve_app.payloads import (
    Bundle,
    BundleResult,
    Execution,
    Failure,
    Media,
    ModelSignature,
    Success,
    Tensors,
    Texts,
    WireEntry,
)
from serve_app.processors.processor import Cost, Processor
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling


def entry(payload: Any, *, priority: int = 2, budget_s: float = 30.0, rows: int = 1, variant: str = "") -> WireEntry:
    """One entry of a bundle."""
    return WireEntry(priority, budget_s, rows, variant, payload)


def values(result: BundleResult, output: str = "y") -> list[Any]:
    """Per entry its output as nested lists, or the code of its error."""
    return [answer.value[output].tolist() if isinstance(answer, Success) else answer.code for answer in result.results]


async def test_a_bundle_is_one_run(make_worker: Callable[..., Worker]) -> None:
    """Entries are assembled, run once and split again."""
    worker = make_worker("add_one")
    result = await worker.run(Bundle([entry(tensor(value)) for value in range(5)]))
    assert values(result) == [[[1.0]], [[2.0]], [[3.0]], [[4.0]], [[5.0]]]
    assert [(run.rows, run.bucket) for run in result.executions] == [(5, 0)]


async def test_bundles_that_wait_together_share_a_batch(make_worker: Callable[..., Worker]) -> None:
    """While a batch runs the gate collects, and what fits goes in the next one."""
    worker = make_worker("add_one", max_rows=4)
    first, second, third = await asyncio.gather(
        worker.run(Bundle([entry(tensor(0))])),
        worker.run(Bundle([entry(tensor(1)), entry(tensor(2))])),
        worker.run(Bundle([entry(tensor(3))])),
    )
    assert [values(result) for result in (first, second, third)] == [[[[1.0]]], [[[2.0]], [[3.0]]], [[[4.0]]]]
    assert [run.rows for run in first.executions] == [1]
    assert [run.rows for run in second.executions] == [3]
    assert second.executions == third.executions


async def test_a_bad_entry_does_not_fail_its_neighbours(make_worker: Callable[..., Worker]) -> None:
    """The entry that the model cannot run gets an error; those beside it are answered."""
    worker = make_worker("fail_on_negative")
    result = await worker.run(Bundle([entry(tensor(1)), entry(tensor(-1)), entry(tensor(2))]))
    assert [type(answer) for answer in result.results] == [Success, Failure, Success]
    assert isinstance(result.results[1], Failure)
    assert result.results[1].code == "inference_failed"


async def test_an_entry_larger_than_a_batch_runs_in_pieces(make_worker: Callable[..., Worker]) -> None:
    """Its answer is whole all the same."""
    worker = make_worker("add_one", max_rows=4)
    rows = np.arange(10, dtype=np.float32).reshape(10, 1)
    result = await worker.run(Bundle([entry({"x": rows}, rows=10)]))
    assert values(result) == [(rows + 1).tolist()]
    assert [run.rows for run in result.executions] == [4, 4, 2]


async def test_an_expired_entry_is_not_executed(make_worker: Callable[..., Worker]) -> None:
    """It gets the deadline's error; the rest of its bundle runs."""
    worker = make_worker("add_one")
    result = await worker.run(Bundle([entry(tensor(0), budget_s=-1.0), entry(tensor(1))]))
    assert values(result) == ["deadline_exceeded", [[2.0]]]
    assert [run.rows for run in result.executions] == [1]


async def test_a_bundle_that_expires_at_the_gate_is_not_executed(make_worker: Callable[..., Worker]) -> None:
    """Nobody waits for it any more."""
    worker = make_worker("add_one")
    result = await worker.run(Bundle([entry(tensor(0), budget_s=-1.0)]))
    assert values(result) == ["deadline_exceeded"]
    assert result.executions == []
    assert values(await worker.run(Bundle([entry(tensor(1))]))) == [[[2.0]]]


async def test_a_cancelled_bundle_gives_the_session_back(make_worker: Callable[..., Worker]) -> None:
    """Whoever leaves, at whatever point, the next bundle runs."""
    worker = make_worker("add_one")
    for turns in range(12):
        leaving = asyncio.ensure_future(worker.run(Bundle([entry(tensor(0))])))
        for _ in range(turns):
            await asyncio.sleep(0)
        leaving.cancel()
        assert values(await worker.run(Bundle([entry(tensor(1))]))) == [[[2.0]]]
        await asyncio.gather(leaving, return_exceptions=True)


async def test_a_variant_runs_on_its_own_session(make_worker: Callable[..., Worker]) -> None:
    """Entries for different variants never share a run."""
    worker = make_worker("add_one", variants=("light",))
    result = await run_to_the_end(worker, Bundle([entry(tensor(0)), entry(tensor(1), variant="light")]))
    assert values(result) == [[[1.0]], [[2.0]]]
    assert sorted((run.rows, run.variant) for run in result.executions) == [(1, ""), (1, "light")]


async def test_a_bundle_reports_only_the_runs_that_carried_it(make_worker: Callable[..., Worker]) -> None:
    """Bundles of two variants are granted together; neither's run is counted for the other."""
    worker = make_worker("add_one", variants=("light",))
    results = await asyncio.gather(
        worker.run(Bundle([entry(tensor(0))])),
        worker.run(Bundle([entry(tensor(1)), entry(tensor(2))])),
        worker.run(Bundle([entry(tensor(3), variant="light")])),
    )
    runs = [[(run.rows, run.variant) for run in result.executions] for result in results]
    assert runs == [[(1, "")], [(2, "")], [(1, "light")]]


class Doubling:
    """A processor that makes the text's length the model's input and doubles its output. It cannot do 6 and 7."""

    labels: tuple[str, ...] = ()
    buckets = (4, 8)
    bucket_invariant = True
    lengths = Processor.lengths
    cut = Processor.cut

    def estimate(self, payload: Media | Texts) -> Cost:
        return Cost(1, 4)

    def preprocess(self, payload: Media | Texts) -> Tensors:
        assert isinstance(payload, Texts)
        if payload.texts == ["bad"]:
            raise InvalidRequest("inputs: bad is not a text")
        if payload.texts == ["bug"]:
            raise ZeroDivisionError("a secret")
        return {"x": np.full((1, len(payload.texts[0])), 1.0, dtype=np.float32)}

    def bucket(self, tensors: Tensors) -> int:
        if tensors["x"].shape[1] == 7:
            raise InferenceFailed("the model's processor failed to size this request")
        return 4 if tensors["x"].shape[1] <= 4 else 8

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        if tensors["x"].shape[1] == 6:
            raise ZeroDivisionError("a secret")
        return {"x": np.pad(tensors["x"], ((0, 0), (0, bucket - tensors["x"].shape[1])))}

    def example(self, rows: int, bucket: int) -> Tensors:
        return {"x": np.zeros((rows, bucket), dtype=np.float32)}

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors | None = None) -> Any:
        return (2 * outputs["y"]).tolist()


@pytest.fixture
def media_worker(make_backend: Callable[[onnx_models.Kind], OnnxBackend]) -> Any:
    """A worker with a processor."""
    worker = Worker(
        scheduling=ModelScheduling("media", 8, slo_s=60.0),
        backends={"": make_backend("add_one")},
        processor=Doubling(),
        preprocess_threads=2,
        batch=batch_same_turn,
    )
    yield worker
    worker.close()


async def test_media_are_padded_to_the_batchs_bucket_and_tensors_are_left_alone(media_worker: Worker) -> None:
    """Texts of different length form one batch; a client's own tensors run as they came."""
    result = await media_worker.run(
        Bundle([entry(Texts(["ab"], {})), entry(Texts(["abcde"], {})), entry(tensor(5.0, 6.0))])
    )
    texts, tensors = result.results[:2], result.results[2]
    assert texts == [Success([[4.0, 4.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]]), Success([[4.0] * 5 + [2.0] * 3])]
    assert isinstance(tensors, Success)
    assert tensors.value["y"].tolist() == [[6.0, 7.0]]
    assert sorted((run.rows, run.bucket) for run in result.executions) == [(1, 4), (2, 8)]


async def test_what_a_processor_refuses_concerns_its_entry_alone(media_worker: Worker) -> None:
    """Bad media get the processor's message, a bug gets one that tells nothing, the neighbour gets its answer."""
    result = await media_worker.run(
        Bundle([entry(Texts(["bad"], {})), entry(Texts(["bug"], {})), entry(Texts(["abcd"], {}))])
    )
    assert result.results == [
        Failure("invalid_request", "inputs: bad is not a text"),
        Failure("inference_failed", "model media failed to preprocess this request"),
        Success([[4.0, 4.0, 4.0, 4.0]]),
    ]


async def test_what_a_processor_cannot_size_or_pad_fails_alone(media_worker: Worker) -> None:
    """Its neighbours in the batch are run without it."""
    result = await media_worker.run(Bundle([entry(Texts(["a" * length], {})) for length in (7, 6, 4, 5)]))
    sized, padded, *answered = result.results
    assert sized == Failure("inference_failed", "the model's processor failed to size this request")
    assert padded == Failure("inference_failed", "model media failed on this request")
    assert answered == [Success([[4.0] * 4]), Success([[4.0] * 5 + [2.0] * 3])]


class Wedged:
    """A backend that is inside a run until it is let go."""

    signature = ModelSignature((), ())
    device = "cpu"

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.go = threading.Event()

    def load(self) -> None:
        pass

    def run(self, inputs: Tensors) -> Tensors:
        self.inside.set()
        assert self.go.wait(30.0)
        return {"y": inputs["x"]}

    run_whole = run

    def close(self) -> None:
        pass


def wedged_worker(backend: Wedged, max_rows: int, processor: Processor | None = None) -> Worker:
    """A worker of that backend."""
    return Worker(
        scheduling=ModelScheduling("wedged", max_rows, slo_s=60.0),
        backends={"": backend},
        processor=processor,
        preprocess_threads=1,
        batch=batch_same_turn,
    )


class Padding(Doubling):
    """A processor of wide tensors that tells when it pads them, which is the first step of putting rows together."""

    def __init__(self) -> None:
        self.padded = threading.Semaphore(0)

    def preprocess(self, payload: Media | Texts) -> Tensors:
        assert isinstance(payload, Texts)
        return {"x": np.full((1, 200_000), len(payload.texts[0]), np.float32)}

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        self.padded.release()
        return tensors

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors | None = None) -> Any:
        return outputs["y"][0, 0].item()


async def test_rows_are_put_together_while_the_previous_batch_runs() -> None:
    """By a thread of the pool, where they are worth one."""
    backend, processor = Wedged(), Padding()
    worker = wedged_worker(backend, 2, processor)
    first = asyncio.ensure_future(worker.run(Bundle([entry(Texts(["a"], {}))])))
    await acquired(processor.padded)
    assert await asyncio.to_thread(backend.inside.wait, 30.0)
    second = asyncio.ensure_future(worker.run(Bundle([entry(Texts([text], {})) for text in ("ab", "abc")])))
    await acquired(processor.padded)
    await acquired(processor.padded)
    assert not first.done()
    backend.go.set()
    answers = await asyncio.gather(first, second)
    assert [result.results for result in answers] == [[Success(1.0)], [Success(2.0), Success(3.0)]]
    worker.close()


async def test_a_wedged_session_shows() -> None:
    """While a run lasts its age grows, and it is 0 again when the session is idle."""
    backend = Wedged()
    worker = wedged_worker(backend, max_rows=8)
    assert worker.stalled_s() == 0.0
    running = asyncio.ensure_future(worker.run(Bundle([entry(tensor(1))])))
    await asyncio.get_running_loop().run_in_executor(None, backend.inside.wait, 30.0)
    assert worker.stalled_s() > 0.0
    backend.go.set()
    assert values(await running) == [[[1.0]]]
    assert worker.stalled_s() == 0.0
    worker.close()


async def test_every_run_counts_as_progress() -> None:
    """A batch of many runs is busy, not wedged: the age is that of the run in progress."""
    backend = Wedged()
    worker = wedged_worker(backend, max_rows=1)
    rows = np.zeros((2, 1), dtype=np.float32)
    running = asyncio.ensure_future(worker.run(Bundle([entry({"x": rows}, rows=2)])))
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, backend.inside.wait, 30.0)
    await asyncio.sleep(0.1)
    assert worker.stalled_s() >= 0.1
    backend.inside.clear()
    let_go = loop.time()
    backend.go.set()
    backend.go.clear()
    await loop.run_in_executor(None, backend.inside.wait, 30.0)
    assert worker.stalled_s() <= loop.time() - let_go
    backend.go.set()
    assert values(await running) == [[[0.0], [0.0]]]
    worker.close()


async def test_a_variant_that_is_not_here_fails_its_entries_alone(make_worker: Callable[..., Worker]) -> None:
    """During a redeploy a router may still know a variant that the replica does not."""
    worker = make_worker("add_one")
    result = await run_to_the_end(worker, Bundle([entry(tensor(0)), entry(tensor(1), variant="gone")]))
    assert values(result) == [[[1.0]], "inference_failed"]


async def test_what_cannot_end_in_time_is_not_executed(
    make_backend: Callable[[onnx_models.Kind], OnnxBackend],
) -> None:
    """By what the warm-up took; what has the time for it runs all the same."""
    worker = Worker(
        scheduling=ModelScheduling("slow", 8, slo_s=60.0),
        backends={"": make_backend("add_one")},
        processor=None,
        preprocess_threads=1,
        batch=batch_same_turn,
        warm_up=[Execution(1, 0, 60.0), Execution(8, 0, 60.0)],
    )
    result = await worker.run(Bundle([entry(tensor(0)), entry(tensor(1), budget_s=300.0)]))
    assert values(result) == ["deadline_exceeded", [[2.0]]]
    assert isinstance(result.results[0], Failure)
    assert "could not finish before its deadline" in result.results[0].message
    assert [run.rows for run in result.executions] == [1]
    worker.close()
