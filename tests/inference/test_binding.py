"""Sessions on buffers that stay: the same code as on a GPU, with the CPU as the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_models
import onnxruntime
import pytest
from onnx import TensorProto, helper

from serve_app.errors import InferenceFailed
from serve_app.inference import binding
from serve_app.inference.backend import Prepared, PreparingBackend
from serve_app.inference.binding import BoundSession
from serve_app.inference.memory import HostMemory
from serve_app.inference.onnx import OnnxBackend, OnnxSettings
from serve_app.inference.signature import signature_of
from serve_app.payloads import DTYPES, Tensors

MakeModel = Callable[[onnx_models.Kind], Path]
BINDABLE = [kind for kind in onnx_models.KINDS if kind != "string_identity"]


class CountingMemory(HostMemory):
    """The host's memory, which keeps count of the bytes that are copied."""

    def __init__(self) -> None:
        self.uploaded: list[int] = []
        self.downloaded: list[int] = []

    def upload(self, array: np.ndarray, address: int) -> None:
        self.uploaded.append(array.nbytes)
        super().upload(array, address)

    def download(self, address: int, array: npt.NDArray[Any]) -> None:
        self.downloaded.append(array.nbytes)
        super().download(address, array)


@pytest.fixture(params=[False, True], ids=["plain", "graphs"])
def graphs(request: pytest.FixtureRequest) -> bool:
    """Whether slots keep to a shape each, as for graphs. The CPU records nothing, but all else is the same."""
    return bool(request.param)


def bound(path: Path, *, graphs: bool = False, memory: HostMemory | None = None) -> BoundSession:
    """A session of a model, bound to the CPU's memory."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    signature = signature_of(session, model="m").signature
    return BoundSession(session, signature, memory or HostMemory(), graphs=graphs)


@pytest.fixture
def load() -> Iterator[Callable[..., OnnxBackend]]:
    """Load models on the CPU as on a GPU with buffers that stay."""
    backends = []

    def loaded(path: Path, **settings: object) -> OnnxBackend:
        backend = OnnxBackend(OnnxSettings("m", path, device="cpu", **settings), HostMemory)  # type: ignore[arg-type]
        backend.load()
        backends.append(backend)
        return backend

    yield loaded
    for backend in backends:
        backend.close()


def inputs_of(backend: OnnxBackend, rows: int, length: int = 5) -> Tensors:
    """Different rows of every input."""
    random = np.random.default_rng((rows, length))
    return {
        spec.name: random.integers(0, 3, (rows, *(length if size < 0 else size for size in spec.shape[1:]))).astype(
            DTYPES[spec.datatype]
        )
        for spec in backend.signature.inputs
    }


@pytest.mark.parametrize("kind", BINDABLE)
@pytest.mark.parametrize("sizes", [(), (1, 4, 8)], ids=["any rows", "row sizes"])
def test_answers_are_those_of_an_ordinary_run(
    make_model: MakeModel,
    load: Callable[..., OnnxBackend],
    kind: onnx_models.Kind,
    sizes: tuple[int, ...],
    graphs: bool,
) -> None:
    """Whatever came before: other rows, other lengths, more rows than one run takes."""
    path = make_model(kind)
    reference = OnnxBackend(OnnxSettings("m", path, device="cpu"))
    reference.load()
    backend = load(path, row_sizes=sizes, cuda_graphs=graphs)

    for rows, length in ((3, 5), (8, 5), (1, 9), (2, 5), (11, 4), (3, 5)):
        inputs = inputs_of(backend, rows, length) if kind != "image_logits" else inputs_of(backend, rows)
        for name, expected in reference.run(inputs).items():
            np.testing.assert_allclose(backend.run(inputs)[name], expected, rtol=1e-6, atol=1e-6)


def test_parts_are_joined_on_the_way(make_model: MakeModel, load: Callable[..., OnnxBackend]) -> None:
    """Rows of several entries, views and read-only ones too, become one batch."""
    backend: PreparingBackend = load(make_model("add_one"), row_sizes=(4, 8))
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    values.flags.writeable = False
    parts = [{"x": values[:1]}, {"x": values[1:3]}, {"x": values[5:2:-1]}]

    outputs = backend.run_prepared(backend.prepare(parts))

    np.testing.assert_array_equal(outputs["y"], values[[0, 1, 2, 5, 4, 3]] + 1)


def test_a_batch_is_prepared_while_others_wait_to_run(
    make_model: MakeModel, load: Callable[..., OnnxBackend], graphs: bool
) -> None:
    """Each has buffers of its own, also when another thread prepares it; they run in any order."""
    backend = load(make_model("add_one"), row_sizes=(4,), cuda_graphs=graphs)
    batches = [np.full((rows, 3), rows, np.float32) for rows in (1, 2, 3)]
    prepared: list[Prepared] = []
    thread = threading.Thread(target=lambda: prepared.extend(backend.prepare([{"x": batch}]) for batch in batches))
    thread.start()
    thread.join()

    for index in (2, 0, 1):
        np.testing.assert_array_equal(backend.run_prepared(prepared[index])["y"], batches[index] + 1)


def test_answers_are_memory_of_their_own(make_model: MakeModel) -> None:
    """The next batch in the same buffers leaves them as they are."""
    session = bound(make_model("add_one"))
    first = session.run(session.fill([{"x": np.zeros((2, 3), np.float32)}], 2))

    session.run(session.fill([{"x": np.ones((2, 3), np.float32)}], 2))

    assert first["y"].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_only_real_rows_are_copied(make_model: MakeModel) -> None:
    """Once the buffers are full of real rows, filling a batch up takes nothing, and its answer is cut on the device."""
    memory = CountingMemory()
    session = bound(make_model("fixed_batch"), memory=memory)  # rows of 8 values

    for rows in (3, 2, 4, 1):
        session.run(session.fill([{"x": np.ones((rows, 8), np.float32)}], 4))

    assert memory.uploaded == [4 * 32, 2 * 32, 4 * 32, 1 * 32]
    assert memory.downloaded == [3 * 32, 2 * 32, 4 * 32, 1 * 32]


def test_a_slot_is_used_again(make_model: MakeModel, graphs: bool) -> None:
    """One batch after the other needs one set of buffers, for as many shapes as there are."""
    session = bound(make_model("add_one"), graphs=graphs)
    slots = []
    for width in (3, 5, 3, 5):
        filled = session.fill([{"x": np.zeros((2, width), np.float32)}], 2)
        slots.append(id(filled.slot))
        session.run(filled)

    assert slots == [slots[0], slots[1]] * 2
    assert (slots[0] == slots[1]) is not graphs


def test_rows_of_a_discarded_batch_fill_up_no_other(make_model: MakeModel) -> None:
    """They were copied from memory that may by then have been somebody else's."""
    memory = CountingMemory()
    session = bound(make_model("fixed_batch"), memory=memory)

    session.discard(session.fill([{"x": np.ones((4, 8), np.float32)}], 4))
    outputs = session.run(session.fill([{"x": np.ones((1, 8), np.float32)}], 4))

    assert memory.uploaded == [4 * 32, 4 * 32]
    assert outputs["y"].tolist() == [[2.0] * 8]


def test_a_discarded_batch_frees_its_slot(make_model: MakeModel, load: Callable[..., OnnxBackend]) -> None:
    """Its buffers serve the next one."""
    backend = load(make_model("add_one"))
    values = np.zeros((2, 3), np.float32)
    prepared = backend.prepare([{"x": values}])
    first = prepared.staged
    backend.discard(prepared)

    again = backend.prepare([{"x": values}]).staged

    assert isinstance(first, binding.Filled)
    assert isinstance(again, binding.Filled)
    assert again.slot is first.slot


def test_shapes_beyond_the_most_graphs_run_without(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that invents lengths cannot fill the memory with graphs."""
    monkeypatch.setattr(binding, "MOST_GRAPHS", 2)
    session = bound(make_model("add_one"), graphs=True)
    recorded = []
    for width in (1, 2, 3, 4, 1, 3):
        filled = session.fill([{"x": np.zeros((1, width), np.float32)}], 1)
        recorded.append(filled.slot.graph)
        assert session.run(filled)["y"].tolist() == [[1.0] * width]

    assert recorded == [True, True, False, False, True, False]


def test_each_thread_records_for_itself(make_model: MakeModel) -> None:
    """ONNX Runtime keeps a graph with the thread that recorded it."""
    session = bound(make_model("add_one"), graphs=True)
    batch = [{"x": np.zeros((1, 2), np.float32)}]
    filled = session.fill(batch, 1)
    session.run(filled)
    session.run(session.fill(batch, 1))
    thread = threading.Thread(target=lambda: session.run(session.fill(batch, 1)))
    thread.start()
    thread.join()

    assert len(filled.slot.recorded_by) == 2


@pytest.mark.parametrize(
    "inputs",
    [
        {"z": np.zeros((1, 2), np.float32)},
        {"x": np.zeros((1, 2), np.float64)},
        {"x": np.zeros(1, np.float32)},
        {},
    ],
    ids=["name", "dtype", "rank", "nothing"],
)
def test_inputs_that_are_not_the_models_fail_the_run_only(make_model: MakeModel, inputs: Tensors, graphs: bool) -> None:
    """Addresses say nothing of what is there, so ONNX Runtime is told, and checks. The session goes on."""
    session = bound(make_model("add_one"), graphs=graphs)
    good = {"x": np.zeros((1, 2), np.float32)}

    for _ in range(3):
        with pytest.raises(InferenceFailed, match=r"^the model failed on this input: (?!Error)"):
            session.run(session.fill([inputs or {"y": good["x"]}], 1))

    assert session.run(session.fill([good], 1))["y"].tolist() == [[1, 1]]


def test_parts_that_do_not_fit_together_fail(make_model: MakeModel) -> None:
    """Nothing is converted in silence."""
    session = bound(make_model("add_one"))
    first = {"x": np.zeros((1, 2), np.float32)}

    for other in ({"x": np.zeros((1, 3), np.float32)}, {"x": np.zeros((1, 2), np.float64)}, {"z": first["x"]}):
        with pytest.raises(InferenceFailed):
            session.fill([first, other], 2)


def test_an_output_without_the_rows_is_named(tmp_path: Path) -> None:
    """As in an ordinary run."""
    path = onnx_models.write(
        tmp_path / "model.onnx",
        [helper.make_node("Transpose", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", "k"])],
        [("y", TensorProto.FLOAT, None)],
    )
    session = bound(path)

    with pytest.raises(InferenceFailed, match=r"output 'y' of the model has shape \[3, 2\] for 2 rows of input"):
        session.run(session.fill([{"x": np.zeros((2, 3), np.float32)}], 2))


def test_outputs_may_differ_in_size_from_run_to_run(tmp_path: Path) -> None:
    """The model keeps the columns whose first row is positive, so how many depends on the data."""
    path = onnx_models.write(
        tmp_path / "model.onnx",
        [
            helper.make_node("ReduceMax", ["x"], ["largest"], axes=[0], keepdims=0),
            helper.make_node("Greater", ["largest", "zero"], ["keep"]),
            helper.make_node("Compress", ["x", "keep"], ["y"], axis=1),
            helper.make_node("Neg", ["x"], ["z"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 3])],
        [("y", TensorProto.FLOAT, ["n", "k"]), ("z", TensorProto.FLOAT, ["n", 3])],
        {"zero": np.array(0, np.float32)},
    )
    session = bound(path)

    for row in ([1, 0, 2], [1, 1, 1], [0, 3, 0], [1, 0, 2]):
        outputs = session.run(session.fill([{"x": np.array([row, row], np.float32)}], 2))
        kept = [value for value in row if value > 0]
        assert outputs["y"].tolist() == [kept, kept]
        assert outputs["z"].tolist() == [[-value for value in row]] * 2


def test_text_is_never_bound(make_model: MakeModel, load: Callable[..., OnnxBackend]) -> None:
    """It has no addresses."""
    backend = load(make_model("string_identity"))

    prepared = backend.prepare([{"INPUT0": np.array([["a"]], np.object_)}, {"INPUT0": np.array([["b"]], np.object_)}])

    assert backend.run_prepared(prepared)["OUTPUT0"].tolist() == [["a"], ["b"]]


def test_memory_that_is_not_to_be_had_is_noted(make_model: MakeModel) -> None:
    """Batches are run from the host's memory then."""

    def no_runtime() -> HostMemory:
        raise OSError("libcudart.so.13: cannot open shared object file")

    backend = OnnxBackend(OnnxSettings("m", make_model("add_one"), device="cpu"), no_runtime)
    backend.load()

    assert backend.note == (
        "model 'm': no buffers are kept on the GPU: libcudart.so.13: cannot open shared object file"
    )
    assert backend.run({"x": np.zeros((1, 1), np.float32)})["y"].tolist() == [[1]]
