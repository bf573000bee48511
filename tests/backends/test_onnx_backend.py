"""The ONNX Runtime backend, on real sessions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from onnx import TensorProto, helper

from serve_app.backends.backend import Backend
from serve_app.backends.description import describe_build
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.onnx.kind import ONNX
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.payloads import DTYPES, PROVEN, ModelSignature, TensorSpec

MakeModel = Callable[[onnx_models.Kind], Path]
Load = Callable[[Path], OnnxBackend]


@pytest.fixture
def load() -> Iterator[Load]:
    """Load models on the CPU in one thread, and close them afterwards."""
    backends = []

    def loaded(path: Path) -> OnnxBackend:
        backend = OnnxBackend(OnnxSettings(model="m", model_file=path, device="cpu"))
        backend.load()
        backends.append(backend)
        return backend

    yield loaded
    for backend in backends:
        backend.close()


def test_it_runs_a_model_and_names_its_outputs(make_model: MakeModel, load: Load) -> None:
    """Every output comes back under its name with as many rows as went in."""
    backend: Backend = load(make_model("sum_diff"))
    first = np.arange(32, dtype=np.int32).reshape(2, 16)
    second = np.ones((2, 16), np.int32)

    outputs = backend.run({"INPUT0": first, "INPUT1": second})

    assert list(outputs) == ["OUTPUT0", "OUTPUT1"]
    np.testing.assert_array_equal(first + 1, outputs["OUTPUT0"])
    np.testing.assert_array_equal(first - 1, outputs["OUTPUT1"])


def test_it_says_where_it_runs(make_model: MakeModel, load: Load) -> None:
    """A CPU session is on the CPU, and there is nothing to note about it."""
    backend = load(make_model("add_one"))

    assert (backend.device, backend.fixed_rows, backend.note) == ("cpu", None, None)
    assert repr(backend) == "<OnnxBackend m cpu>"


@pytest.mark.parametrize("kind", onnx_models.KINDS)
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_every_kind_of_model_keeps_the_number_of_rows(
    make_model: MakeModel, load: Load, kind: onnx_models.Kind, rows: int
) -> None:
    """Whatever the tensors, rows in are rows out, in the dtype that the signature promises."""
    backend = load(make_model(kind))
    inputs = {
        spec.name: np.full(
            (rows, *(5 if size < 0 else size for size in spec.shape[1:])),
            "é" if spec.datatype == "BYTES" else 1,
            DTYPES[spec.datatype],
        )
        for spec in backend.signature.inputs
    }

    outputs = backend.run(inputs)

    for spec in backend.signature.outputs:
        assert (rows, DTYPES[spec.datatype]) == (len(outputs[spec.name]), outputs[spec.name].dtype)


def test_inputs_may_be_read_only_and_strided(make_model: MakeModel, load: Load) -> None:
    """Views of network buffers and of larger arrays run as they are."""
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    values.flags.writeable = False

    outputs = load(make_model("add_one")).run({"x": values[::2, ::-1]})

    np.testing.assert_array_equal(values[::2, ::-1] + 1, outputs["y"])


def test_text_goes_in_as_str_or_utf8_bytes_and_comes_out_as_str(make_model: MakeModel, load: Load) -> None:
    """Bytes are decoded, never turned into their Python notation."""
    texts = np.array([["a", "é".encode()], [b"", "\0b"]], np.object_)

    outputs = load(make_model("string_identity")).run({"INPUT0": texts})

    assert outputs["OUTPUT0"].tolist() == [["a", "é"], ["", "\0b"]]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (b"\xff\0", "element 1 holds a NUL byte, which cannot be sent beside bytes that are not UTF-8"),
        (3, "element 1 is neither text nor bytes"),
    ],
)
def test_bytes_that_are_not_text_are_the_clients_fault(
    make_model: MakeModel, load: Load, value: object, fault: str
) -> None:
    """What ONNX Runtime could not be told is refused by name and place."""
    with pytest.raises(InvalidRequest) as caught:
        load(make_model("string_identity")).run({"INPUT0": np.array([["a", value]], np.object_)})

    assert f"input 'INPUT0': {fault}" == str(caught.value)


def test_bytes_that_come_back_are_the_clients_fault_too(make_model: MakeModel, load: Load) -> None:
    """ONNX Runtime takes bytes that are no text, and can give none back; a model that only reads them may have them."""
    backend = load(make_model("string_identity"))
    for run in (backend.run, backend.run_whole):
        with pytest.raises(
            InvalidRequest,
            match="bytes that are not UTF-8 are in the model's output, which ONNX Runtime gives as text only; send",
        ):
            run({"INPUT0": np.array([["a", b"\xff"]], np.object_)})


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 11])
def test_a_model_of_fixed_rows_takes_any_number(make_model: MakeModel, load: Load, rows: int) -> None:
    """It is run in pieces, and the filling of the last one is cut off again."""
    backend = load(make_model("fixed_batch"))
    values = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)

    assert backend.fixed_rows == 4
    assert (TensorSpec("x", "FP32", (-1, 8)),) == backend.signature.inputs
    np.testing.assert_array_equal(2 * values, backend.run({"x": values})["y"])


@pytest.mark.parametrize(
    ("rows", "run_with"), [(1, [1]), (2, [4] * 2), (4, [4] * 4), (5, [8] * 5), (8, [8] * 8), (10, [8] * 8 + [4] * 2)]
)
def test_batches_are_filled_up_to_the_next_row_size(tmp_path: Path, rows: int, run_with: list[int]) -> None:
    """The model adds the number of rows that it is run with; what a batch lacks is cut off its answer."""
    path = onnx_models.write(
        tmp_path / "model.onnx",
        [
            helper.make_node("Shape", ["x"], ["shape"], start=0, end=1),
            helper.make_node("Cast", ["shape"], ["rows"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["x", "rows"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n", "k"])],
        [("y", TensorProto.FLOAT, ["n", "k"])],
    )
    backend = OnnxBackend(OnnxSettings("m", path, device="cpu", row_sizes=(8, 1, 4)))
    backend.load()
    values = np.arange(rows, dtype=np.float32)

    outputs = backend.run({"x": values[:, None]})

    assert backend.row_sizes == (1, 4, 8)
    np.testing.assert_array_equal(values + run_with, outputs["y"][:, 0])


def test_a_failing_model_is_reported_in_one_safe_line(
    make_model: MakeModel, load: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    """The client reads the operator's reason; the server's log does not fill up with clients' mistakes."""
    backend = load(make_model("fail_on_negative"))

    with pytest.raises(InferenceFailed) as caught:
        backend.run({"x": np.array([[1, -1]], np.float32)})

    assert str(caught.value) == (
        "the model failed on this input: indices element out of data bounds, idx=1 must be within the inclusive range"
        " [-1,0]"
    )
    assert capfd.readouterr() == ("", "")
    np.testing.assert_array_equal([[2]], backend.run({"x": np.array([[2]], np.float32)})["y"])


def test_an_unknown_or_missing_input_fails_the_run_only(make_model: MakeModel, load: Load) -> None:
    """The session survives inputs that do not fit it."""
    backend = load(make_model("add_one"))
    x = np.zeros((1, 2), np.float32)

    for wrong in ({"z": x}, {"x": x, "z": x}, {"x": x.astype(np.float64)}, {"x": x[0]}):
        with pytest.raises(InferenceFailed, match=r"^the model failed on this input: "):
            backend.run(wrong)

    assert backend.run({"x": x})["y"].tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], []),
        ([helper.make_node("Transpose", ["x"], ["y"])], [3, 2]),
        ([helper.make_node("Concat", ["x", "x"], ["y"], axis=0)], [4, 3]),
    ],
)
def test_an_output_without_the_rows_is_named(tmp_path: Path, load: Load, nodes: list[object], shape: list[int]) -> None:
    """An output that cannot be cut into the entries' parts must never be."""
    path = onnx_models.write(
        tmp_path / "model.onnx", nodes, [("x", TensorProto.FLOAT, ["n", "k"])], [("y", TensorProto.FLOAT, None)]
    )

    with pytest.raises(InferenceFailed) as caught:
        load(path).run({"x": np.zeros((2, 3), np.float32)})

    assert (f"output 'y' of the model has shape {shape} for 2 rows of input: its dimension 0 must be the rows") == str(
        caught.value
    )


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    """The model and the file are named."""
    path = tmp_path / "model.onnx"

    with pytest.raises(ConfigError) as caught:
        OnnxBackend(OnnxSettings("digits", path)).load()

    assert (f"model 'digits': cannot read {path}: No such file or directory",) == caught.value.problems


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "No graph was found in the protobuf."),
        (b"<!DOCTYPE html>", "Protobuf parsing failed."),
        (b"version https://git-lfs.github.com/spec/v1\n", "Protobuf parsing failed."),
    ],
)
def test_a_file_that_is_no_model_is_a_config_error(tmp_path: Path, content: bytes, reason: str) -> None:
    """The reason is ONNX Runtime's, without its traceback."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        OnnxBackend(OnnxSettings("digits", path)).load()

    assert (f"model 'digits': {path} cannot be loaded: {reason}",) == caught.value.problems


def test_a_truncated_model_is_a_config_error(tmp_path: Path, make_model: MakeModel) -> None:
    """Half a download does not load."""
    path = tmp_path / "model.onnx"
    path.write_bytes(make_model("seq_mean").read_bytes()[:-100])

    with pytest.raises(ConfigError, match="cannot be loaded"):
        OnnxBackend(OnnxSettings("m", path)).load()


def test_an_operator_that_does_not_exist_is_a_config_error(tmp_path: Path) -> None:
    """ONNX Runtime's reason names the operator."""
    path = onnx_models.write(
        tmp_path / "model.onnx",
        [helper.make_node("Frobnicate", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["n"])],
        [("y", TensorProto.FLOAT, ["n"])],
    )

    with pytest.raises(ConfigError, match="No Op registered for Frobnicate"):
        OnnxBackend(OnnxSettings("m", path)).load()


def test_threads_are_explicit() -> None:
    """ONNX Runtime's own choice, 0, would be every core of the host in every replica."""
    with pytest.raises(ConfigError) as caught:
        OnnxSettings("m", Path("model.onnx"), intra_op_threads=0, gpu_memory_bytes=0)

    assert caught.value.problems == (
        "model 'm': intra_op_threads must be at least 1, not 0",
        "model 'm': gpu_memory_bytes must be at least 1, not 0",
    )


def test_several_threads_give_the_same_answer(make_model: MakeModel) -> None:
    """They change the speed only."""
    backend = OnnxBackend(OnnxSettings("m", make_model("image_logits"), intra_op_threads=2, device="cpu"))
    backend.load()
    pixels = np.zeros((2, 3, 32, 32), np.float32)
    pixels[:, 1] = 1

    outputs = backend.run({"pixels": pixels})
    backend.close()

    np.testing.assert_allclose([[0, 1, 0, -1]] * 2, outputs["logits"])


def test_closing_twice_is_harmless_and_running_then_is_a_bug(make_model: MakeModel, load: Load) -> None:
    """A closed backend holds no session."""
    backend = load(make_model("add_one"))

    backend.close()
    backend.close()

    assert repr(backend) == "<OnnxBackend m not loaded>"
    with pytest.raises(RuntimeError, match="the backend of model 'm' is not loaded"):
        backend.run({"x": np.zeros((1, 1), np.float32)})


def test_cuda_without_a_gpu_is_a_config_error(make_model: MakeModel) -> None:
    """The message says which setting gives the replica a GPU."""
    backend = OnnxBackend(OnnxSettings("m", make_model("add_one"), device="cuda"))

    with pytest.raises(ConfigError) as caught:
        backend.load()

    assert caught.value.problems == (
        "model 'm': device is cuda, but its replica was given no GPU: set resources.gpus above 0",
    )


def _has_cuda() -> bool:
    return shutil.which("nvidia-smi") is not None


@pytest.mark.skipif(_has_cuda(), reason="needs a machine without CUDA")
def test_cuda_that_turns_out_not_to_work_is_an_error_unless_auto(make_model: MakeModel) -> None:
    """ONNX Runtime falls back to the CPU without an exception; that is noticed."""
    path = make_model("add_one")
    automatic = OnnxBackend(OnnxSettings("m", path, device="auto", gpu_available=True, gpu_memory_bytes=1 << 30))

    automatic.load()

    assert automatic.device == "cpu"
    assert automatic.note is not None
    assert automatic.note.startswith("model 'm': a GPU was given, but ONNX Runtime could not use CUDA")
    assert automatic.note.endswith("; it runs on the CPU")
    with pytest.raises(ConfigError, match="ONNX Runtime could not use CUDA"):
        OnnxBackend(OnnxSettings("m", path, device="cuda", gpu_available=True)).load()


@pytest.mark.gpu
@pytest.mark.skipif(not _has_cuda(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [kind for kind in onnx_models.KINDS if kind != "string_identity"])
def test_cuda_gives_the_answers_of_the_cpu(make_model: MakeModel, load: Load, kind: onnx_models.Kind) -> None:
    """The same model on both devices agrees, inside a memory limit."""
    path = make_model(kind)
    cuda = OnnxBackend(OnnxSettings("m", path, device="cuda", gpu_available=True, gpu_memory_bytes=1 << 30))
    cuda.load()
    reference = load(path)
    inputs = {
        spec.name: np.ones((3, *(5 if size < 0 else size for size in spec.shape[1:])), DTYPES[spec.datatype])
        for spec in cuda.signature.inputs
    }

    outputs = cuda.run(inputs)

    assert (cuda.device, cuda.note) == ("cuda", None)
    for name, expected in reference.run(inputs).items():
        np.testing.assert_allclose(expected, outputs[name], rtol=1e-3)
    cuda.close()


def test_bfloat16_goes_in_and_comes_out(make_model: MakeModel, load: Load) -> None:
    """ONNX Runtime makes no numpy array of it; beside it other numbers pass as ever."""
    x = np.arange(12, dtype=np.float32).reshape(2, 6).astype(DTYPES["BF16"])
    backend = load(make_model("bfloat16"))

    outputs = backend.run({"x": x[:, ::2]})

    assert [(spec.name, spec.datatype) for spec in backend.signature.outputs] == [("y", "BF16"), ("half", "FP32")]
    assert (outputs["y"].dtype, outputs["half"].dtype) == (DTYPES["BF16"], DTYPES["FP32"])
    assert np.array_equal(outputs["y"].astype(np.float32), 2 * x[:, ::2].astype(np.float32))
    assert np.array_equal(outputs["half"], x[:, ::2].astype(np.float32) / 2)


@pytest.mark.parametrize("row_sizes", [(), (1, 3, 8)])
def test_bfloat16_in_any_memory(make_model: MakeModel, row_sizes: tuple[int, ...]) -> None:
    """Read-only, strided, not aligned, in other order, without rows; batches filled up."""
    backend = OnnxBackend(OnnxSettings("m", make_model("bfloat16"), device="cpu", row_sizes=row_sizes))
    backend.load()
    x = np.arange(20, dtype=np.float32).reshape(4, 5).astype(DTYPES["BF16"])
    fixed = x.copy()
    fixed.flags.writeable = False
    shifted = np.frombuffer(b"\0" + x.tobytes(), DTYPES["BF16"], offset=1).reshape(x.shape)
    for given in (fixed, x[::2], np.asfortranarray(x), shifted):
        assert np.array_equal(backend.run({"x": given})["y"], 2 * given)
    assert backend.run_whole({"x": x[:0]})["y"].shape == (0, 5)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_bfloat16_without_kernels_of_the_cpu(tmp_path: Path, on_gpu: bool) -> None:
    """A model that computes in it is for a GPU: it is described by its file, and refused where there is none."""
    path = onnx_models.write(
        tmp_path / "model.onnx",
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", TensorProto.BFLOAT16, ["n", 3])],
        [("y", TensorProto.BFLOAT16, ["n", 3])],
        {"w": np.ones(3, DTYPES["BF16"])},
    )
    if not on_gpu:
        with pytest.raises(ConfigError, match=r"^model 'm': .*Could not find an implementation for Add"):
            describe_build(ONNX, path, model="m")
        return
    found = describe_build(ONNX, path, model="m", on_gpu=True)
    assert found.signature == ModelSignature((TensorSpec("x", "BF16", (-1, 3)),), (TensorSpec("y", "BF16", (-1, 3)),))
    assert found.joinable.verdict == PROVEN


def test_text_beside_bfloat16_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime takes the one as arrays only and the other never."""
    types = {"text": TensorProto.STRING, "number": TensorProto.BFLOAT16}
    path = onnx_models.identity(tmp_path / "model.onnx", types)
    backend = OnnxBackend(OnnxSettings("m", path, device="cpu"))

    with pytest.raises(ConfigError, match="runs no model of both text and BF16"):
        backend.load()
