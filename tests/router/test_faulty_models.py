"""Models that misbehave by their input: the guilty entry alone fails, and the replica knows whether it is the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from runtime_harness import batch_same_turn, tensor

from benchmarks.faulty_models import BAD, KINDS, make
from serve_app.backends.backend import SessionLost
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.outputs import DeclaredShapes, UnexpectedShape, not_finite
from serve_app.errors import ConfigError, InferenceFailed
from serve_app.payloads import Bundle, ModelSignature, Success, Tensors, TensorSpec, WireEntry
from serve_app.replica.process_memory import ProcessMemory, own_memory
from serve_app.replica.self_test import SelfTest
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling

EXAMPLE = tensor(1.0)
SIGNATURE = ModelSignature((), (TensorSpec("y", "FP32", (-1, 2, -1)), TensorSpec("z", "FP32", (-1,))))


@pytest.fixture
def worker_of(tmp_path: Path) -> Iterator[Callable[[str], Worker]]:
    """Makes workers of faulty models, which refuse what is no number, and closes them."""
    workers: list[Worker] = []

    def worker(kind: str) -> Worker:
        backend = OnnxBackend(OnnxSettings(kind, make(tmp_path / kind / "model.onnx", kind), device="cpu"))
        backend.load()
        workers.append(
            Worker(
                scheduling=ModelScheduling(kind, 8, slo_s=60.0),
                backends={"": backend},
                processor=None,
                preprocess_threads=1,
                batch=batch_same_turn,
                examples={"": EXAMPLE},
                refuse_non_finite=True,
            )
        )
        return workers[-1]

    yield worker
    for made in workers:
        made.close()


def entries(*values: float) -> Bundle:
    """One entry of one row per value."""
    return Bundle([WireEntry(2, 60.0, 1, "", tensor(value)) for value in values])


@pytest.mark.parametrize("kind", ["raises", "gives_nan"])
async def test_only_the_guilty_entry_fails(worker_of: Callable[[str], Worker], kind: str) -> None:
    """Its neighbours have their own answers, and the model is known to work."""
    worker = worker_of(kind)
    result = await worker.run(entries(1.0, BAD, 3.0, 4.0))
    answers = [each.value["y"].tolist() if isinstance(each, Success) else each.code for each in result.results]
    assert answers == [[[2.0]], "inference_failed", [[6.0]], [[8.0]]]
    assert (result.model_works, worker.failing) == (True, False)
    sound = await worker.run(entries(1.0, 2.0))
    assert sound.model_works is None


@pytest.mark.parametrize("kind", ["drops_rows", "wrong_shape"])
async def test_an_entry_that_changes_the_shape_of_all_outputs_is_run_alone(
    worker_of: Callable[[str], Worker], tmp_path: Path, kind: str
) -> None:
    """Its neighbours have their own answers, and it has what ONNX Runtime alone gives it."""
    worker = worker_of(kind)
    session = onnxruntime.InferenceSession(tmp_path / kind / "model.onnx", providers=["CPUExecutionProvider"])
    result = await worker.run(entries(1.0, BAD, 3.0, 4.0))
    answers = [each.value["y"].tolist() if isinstance(each, Success) else each.code for each in result.results]
    (odd,) = session.run(None, tensor(BAD))
    assert answers == [[[2.0]], odd.tolist(), [[6.0]], [[8.0]]]
    assert (result.model_works, worker.failing) == (None, False)


async def test_a_slow_input_fails_nobody(worker_of: Callable[[str], Worker]) -> None:
    """Whoever shares its batch has to wait, and is answered."""
    result = await worker_of("slow").run(entries(1.0, -0.01, 3.0))
    assert [each.value["y"][0, 0] for each in result.results if isinstance(each, Success)] == [
        2.0,
        np.float32(-0.02),
        6.0,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_faulty_models_are_sound_by_default(tmp_path: Path, kind: str) -> None:
    """Twice the value, for any that is not bad."""
    backend = OnnxBackend(OnnxSettings(kind, make(tmp_path / "model.onnx", kind), device="cpu"))
    backend.load()
    x = np.array([[1.0], [7.0], [1000.0]], np.float32)
    assert np.array_equal(backend.run({"x": x})["y"], 2 * x)


class Moody:
    """A backend that works as long as it is told to."""

    signature = ModelSignature((), ())
    device = "cpu"

    def __init__(self) -> None:
        self.fails = False
        self.failure: type[InferenceFailed] = InferenceFailed
        self.gives = 1.0
        self.runs = 0

    def load(self) -> None:
        """Nothing to load."""

    def run(self, inputs: Tensors) -> Tensors:
        """What it was told."""
        self.runs += 1
        if self.fails:
            raise self.failure("out of memory")
        return {"y": np.full_like(inputs["x"], self.gives)}

    run_whole = run

    def close(self) -> None:
        """Nothing to free."""


class Bench:
    """A self-test on a virtual clock."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.backend = Moody()
        self.test = SelfTest("m", {"": self.backend}, {"": EXAMPLE}, clock=lambda: self.now, **options)
        self.test.start()

    def works(self, after_s: float = 1.5) -> bool | None:
        """Ask, so much later."""
        self.now += after_s
        return self.test.works("")


def test_a_model_that_fails_its_example_three_times_is_failing() -> None:
    """In a row, and no more often than once a second; what it answers ends it."""
    tested = Bench()
    assert tested.works() is True
    tested.backend.fails = True
    assert (tested.works(0.5), tested.works(0.5), tested.test.failing) == (True, False, False)
    runs = tested.backend.runs
    assert (tested.works(0.1), tested.backend.runs) == (False, runs)
    assert (tested.works(), tested.test.failing) == (False, False)
    assert (tested.works(), tested.test.failing) == (False, True)
    tested.test.answered("")
    assert not tested.test.failing
    tested.backend.fails = False
    assert tested.works(0.0) is True


def test_not_a_number_is_a_failure_where_it_is_refused() -> None:
    """And only there."""
    for refused in (True, False):
        tested = Bench(refuse_non_finite=refused)
        tested.backend.gives = np.nan
        assert tested.works() is not refused


def test_an_example_that_never_ran_tells_nothing() -> None:
    """Nobody knows, then or for a variant that has none."""
    tested = Bench()
    tested.backend.fails = True
    tested.test.start()
    assert (tested.works(), tested.test.works("light")) == (None, None)


def test_a_session_that_has_ended_when_its_replica_starts_is_told() -> None:
    """Its replica would end with the first request. Later on, one that ends fails its test."""
    tested = Bench()
    tested.backend.fails, tested.backend.failure = True, SessionLost
    assert tested.works() is False
    with pytest.raises(SessionLost):
        tested.test.start()


async def test_a_worker_whose_model_is_broken_says_so() -> None:
    """The router is told with the answer, and the health check can see it."""
    backend = Moody()
    worker = Worker(
        scheduling=ModelScheduling("m", 8, slo_s=60.0), backends={"": backend}, processor=None,
        preprocess_threads=1, batch=batch_same_turn, examples={"": EXAMPLE},
    )  # fmt: skip
    backend.fails = True
    assert (await worker.run(entries(1.0, 2.0))).model_works is False
    worker.close()


async def test_whoever_runs_a_worker_hears_of_a_lost_session_before_its_requests_are_answered() -> None:
    """So that a replica can end first, and all that it has goes to another one."""
    backend = Moody()
    told = []

    def lost() -> None:
        told.append(running.done())

    worker = Worker(
        scheduling=ModelScheduling("m", 8, slo_s=60.0), backends={"": backend}, processor=None,
        preprocess_threads=1, batch=batch_same_turn, examples={"": EXAMPLE}, on_lost=lost,
    )  # fmt: skip
    backend.fails = True
    running = asyncio.ensure_future(worker.run(entries(1.0, 2.0)))
    await running
    assert told == []  # it may work again
    backend.failure = SessionLost
    running = asyncio.ensure_future(worker.run(entries(1.0, 2.0)))
    await running
    assert set(told) == {False}
    worker.close()


@pytest.mark.parametrize("shape", [(3, 2, 1), (3, 2, 9)])
def test_declared_shapes_allow_what_is_free(shape: tuple[int, ...]) -> None:
    """Rows and dimensions that may vary, and all of an output whose rank nobody knows."""
    outputs = {"y": np.zeros(shape), "z": np.zeros((3, 4, 5))}
    assert DeclaredShapes("m", SIGNATURE).check(outputs) is outputs


@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 2), (3, 2, 1, 1)])
def test_other_shapes_are_refused_of_shared_runs_and_told_of_others(
    caplog: pytest.LogCaptureFixture, shape: tuple[int, ...]
) -> None:
    """The message names both; the log has it once."""
    declared, outputs = DeclaredShapes("m", SIGNATURE), {"y": np.zeros(shape), "z": np.zeros(3)}
    with pytest.raises(UnexpectedShape, match=r"has shape \[-1, .*but it declares \[-1, 2, -1\]"):
        declared.check(outputs)
    assert [declared.tell(outputs) is outputs for _ in range(2)] == [True, True]
    assert len(caplog.messages) == 1
    assert "the model's file declares [-1, 2, -1]" in caplog.messages[0]


def test_not_finite_names_entries_once() -> None:
    """Of several outputs; integers are always finite, and a sum that overflows is not infinity."""
    y = np.full((4, 2), 3e38, np.float32)
    z = np.zeros((4, 1), np.float16)
    assert not_finite({"y": y, "z": z, "n": np.ones((4, 1), np.int64)}, [1, 2, 1]) == []
    y[2, 1], z[2], z[3] = np.nan, np.inf, -np.inf
    assert not_finite({"y": y, "z": z}, [1, 2, 1]) == [(1, "y"), (2, "z")]


def test_memory_over_the_limit_fails_the_health_check(caplog: pytest.LogCaptureFixture) -> None:
    """With a warning once it is near; a limit below what the model needs anyway is a fault of the configuration."""
    held = 800
    memory = ProcessMemory("m", 1000, lambda: held)
    memory.check_start()
    assert (memory.check(), caplog.text) == (800, "")
    held = 950
    assert (memory.check(), memory.check(), caplog.text.count("of memory held")) == (950, 950, 1)
    held = 1001
    with pytest.raises(RuntimeError, match="this replica holds"):
        memory.check()
    with pytest.raises(ConfigError, match="after its warm-up"):
        memory.check_start()


def test_memory_without_a_limit_is_told() -> None:
    """It is this process's own."""
    memory = ProcessMemory("m", None)
    memory.check_start()
    assert memory.check() > 0
    assert own_memory() > 0
