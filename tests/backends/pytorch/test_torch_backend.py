"""Models of PyTorch, run: their answers are those of their modules."""

from __future__ import annotations

import gc
import linecache
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch_models
from torch_models import KINDS, Format, exported, load, make, model, scripted, torch

from serve_app.backends.backend import Backend
from serve_app.backends.layout import NO_ROWS, Layout
from serve_app.backends.outputs import UnexpectedShape
from serve_app.backends.profiler import resident_bytes
from serve_app.backends.pytorch.kind import TORCH_EXPORT, TORCH_SCRIPT
from serve_app.errors import ConfigError, InferenceFailed
from serve_app.payloads import DTYPES, Tensors

pytestmark = pytest.mark.torch

FORMATS: tuple[Format, ...] = ("torchscript", "torch_export")
both = pytest.mark.parametrize("kind", FORMATS)


def opened(kind: Format, name: str, folder: Path, **build: Any) -> Backend:
    """One of `torch_models.MODELS`, loaded."""
    options = model(name).options() if kind == "torchscript" else {}
    return load(KINDS[kind], make(folder, kind, name), options, **build)


def of_module(module: Any, folder: Path, inputs: dict[str, str], outputs: dict[str, str], **build: Any) -> Backend:
    """A module as TorchScript, loaded; tensors by name and type, of shape [-1, 3]."""
    file = folder / "model.pt"
    file.write_bytes(scripted(module))

    def told(tensors: dict[str, str]) -> dict[str, Any]:
        return {name: {"dtype": dtype, "shape": [-1, 3]} for name, dtype in tensors.items()}

    return load(TORCH_SCRIPT, file, {"inputs": told(inputs), "outputs": told(outputs)}, **build)


def drawn(name: str, rows: int) -> Tensors:
    """Inputs for a model."""
    random = np.random.default_rng(rows)
    made = {}
    for each, (dtype, (_, *sizes)) in model(name).inputs.items():
        shape = (rows, *(5 if size < 0 else size for size in sizes))
        if dtype in {"int64", "bool"}:
            made[each] = random.integers(0, 2 if dtype == "bool" else 9, shape).astype(dtype)
        else:
            made[each] = random.standard_normal(shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return made


def expected(name: str, inputs: Tensors) -> list[Any]:
    """What the module itself answers, in the order of the outputs."""
    given = [
        torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
        if array.dtype == ml_dtypes.bfloat16
        else torch.from_numpy(array.copy())
        for array in inputs.values()
    ]
    with torch.inference_mode():
        answer = model(name).module(*given)
    if isinstance(answer, dict):
        return [answer[each] for each in model(name).outputs]
    return list(answer) if isinstance(answer, tuple) else [answer]


@both
@pytest.mark.parametrize("name", ["dense", "convolution", "attention", "several", "half", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 5])
def test_answers(kind: Format, name: str, rows: int, tmp_path: Path) -> None:
    """Of the module's types and shapes, and equal but for rounding."""
    inputs = drawn(name, rows)
    answer = opened(kind, name, tmp_path).run(inputs)

    assert list(answer) == list(model(name).outputs)
    for (dtype, _), array, wanted in zip(
        model(name).outputs.values(), answer.values(), expected(name, inputs), strict=True
    ):
        assert array.dtype == (DTYPES["BF16"] if dtype == "bfloat16" else np.dtype(dtype))
        assert array.shape == tuple(wanted.shape)
        np.testing.assert_allclose(array.astype(np.float64), wanted.to(torch.float64).numpy(), rtol=1e-5, atol=1e-6)


@both
@pytest.mark.parametrize("name", ["in_place", "same", "half"])
def test_inputs_stay_and_outputs_are_the_callers(kind: Format, name: str, tmp_path: Path) -> None:
    """Whether the model writes to its inputs or gives them back; read-only memory included."""
    inputs = drawn(name, 2)
    before = {each: array.copy() for each, array in inputs.items()}
    for array in inputs.values():
        array.flags.writeable = False
    backend = opened(kind, name, tmp_path)
    answer = backend.run(inputs)
    kept = {each: array.copy() for each, array in answer.items()}
    for array in answer.values():
        np.add(array, 1, out=array)
        assert not any(np.shares_memory(array, each) for each in inputs.values())

    for each, array in inputs.items():
        np.testing.assert_array_equal(array, before[each])
    for each, array in backend.run(inputs).items():
        np.testing.assert_array_equal(array, kept[each])


def test_inputs_that_a_program_gives_back_changed(tmp_path: Path) -> None:
    """Core ATen writes nothing; PyTorch copies into the inputs what the program gives of them."""
    file = tmp_path / "model.pt2"
    file.write_bytes(exported(torch_models.InPlace(), (torch.ones(2, 3),), core=True))
    inputs = np.ones((2, 3), np.float32)
    answer = load(TORCH_EXPORT, file).run({"x": inputs})

    np.testing.assert_array_equal(answer["output"], inputs + 1)
    assert inputs.max() == 1


@both
def test_nan_stays_in_its_row(kind: Format, tmp_path: Path) -> None:
    """Rows of NaN among others."""
    inputs = drawn("dense", 3)
    inputs["x"][1] = np.nan
    (answer,) = opened(kind, "dense", tmp_path).run(inputs).values()

    assert np.isnan(answer).all(1).tolist() == [False, True, False]


@both
def test_without_rows(kind: Format, tmp_path: Path) -> None:
    """Scalars go in and come out."""
    backend = opened(kind, "scalar", tmp_path, layout=NO_ROWS)
    (answer,) = backend.run({"x": np.array(1.5)}).values()

    assert answer.dtype == np.dtype(np.float64)
    assert (answer.ndim, float(answer)) == (0, 3.0)


@both
def test_rows_elsewhere(kind: Format, tmp_path: Path) -> None:
    """In the last dimension of the model's tensors: in front here, as everywhere."""
    double = torch_models.Double()
    if kind == "torchscript":
        file, options = tmp_path / "model.pt", {"inputs": {"x": {"dtype": "float32", "shape": [3, -1]}}}
        options["outputs"] = {"output": options["inputs"]["x"]}
        file.write_bytes(scripted(double))
    else:
        file, options = tmp_path / "model.pt2", {}
        file.write_bytes(exported(double, (torch.ones(3, 2),), {"x": {1: torch.export.Dim("rows", max=4)}}))
    backend = load(KINDS[kind], file, options, layout=Layout(axes={"x": 1, "output": 1}))
    inputs = np.arange(30, dtype=np.float32).reshape(10, 3)

    assert [spec.shape for spec in (*backend.signature.inputs, *backend.signature.outputs)] == [(-1, 3), (-1, 3)]
    np.testing.assert_array_equal(backend.run({"x": inputs})["output"], 2 * inputs)


@both
def test_fixed_rows(kind: Format, tmp_path: Path) -> None:
    """Any number of rows, in pieces of four."""
    backend = opened(kind, "fixed", tmp_path)
    inputs = drawn("fixed", 10)

    for run in (backend.run, backend.run_whole):
        np.testing.assert_array_equal(run(inputs)["output"], 2 * inputs["x"])


@pytest.mark.parametrize("rows", [1, 2, 6, 7, 20])
def test_rows_within_a_range(rows: int, tmp_path: Path) -> None:
    """A program that takes 2 to 6 rows is given as many."""
    backend = opened("torch_export", "bounded", tmp_path)
    inputs = drawn("bounded", rows)

    for run in (backend.run, backend.run_whole):
        np.testing.assert_array_equal(run(inputs)["output"], 2 * inputs["x"])


@both
@pytest.mark.parametrize(("row_sizes", "added"), [((2, 4), 4), ((1, 16), 16), ((), 3)])
def test_row_sizes(kind: Format, row_sizes: Any, added: int, tmp_path: Path) -> None:
    """Batches are filled up to those that are named. The model adds the number of rows that it has seen."""
    backend = opened(kind, "counted", tmp_path, row_sizes=row_sizes)
    inputs = drawn("counted", 3)

    np.testing.assert_allclose(backend.run(inputs)["output"], inputs["x"] + added, rtol=1e-6)
    np.testing.assert_allclose(backend.run_whole(inputs)["output"], inputs["x"] + 3, rtol=1e-6)


@both
def test_requests_that_fail(kind: Format, tmp_path: Path) -> None:
    """A request of another shape, without harm to the next one; an output without rows."""
    backend = opened(kind, "dense", tmp_path)
    with pytest.raises(InferenceFailed, match=r"^input 'x' has shape \[2, 4\], and \[-1, 3\] is declared$"):
        backend.run({"x": np.ones((2, 4), np.float32)})
    with pytest.raises(InferenceFailed, match=r"^input 'x' is missing$"):
        backend.run_whole({})
    assert backend.run(drawn("dense", 2))["output"].shape == (2, 4)

    with pytest.raises(UnexpectedShape, match=r"^output 'output' of the model has shape \[3\] for 2 rows of input"):
        opened(kind, "total", tmp_path).run(drawn("total", 2))


class Refusing(torch.nn.Module):
    """Takes no negative numbers."""

    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        if bool((x < 0).any()):
            raise ValueError("negative numbers")
        return {"y": x * 2, "z": x.sum(0)}


def test_a_model_that_raises(tmp_path: Path) -> None:
    """What it says is the reason, and that alone."""
    backend = of_module(Refusing(), tmp_path, {"x": "float32"}, {"y": "float32"})
    with pytest.raises(InferenceFailed) as caught:
        backend.run({"x": -np.ones((2, 3), np.float32)})
    assert str(caught.value) == "the model failed on this input: negative numbers"
    np.testing.assert_array_equal(backend.run({"x": np.ones((2, 3), np.float32)})["y"], np.full((2, 3), 2, np.float32))


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ({"w": "float32"}, "the model failed on this input: it returned no w, only y, z"),
        ({"y": "float64"}, "output 'y' of the model is of type float32, and FP64 is declared"),
    ],
)
def test_outputs_that_are_not_there(outputs: dict[str, str], reason: str, tmp_path: Path) -> None:
    """What only a run can tell."""
    backend = of_module(Refusing(), tmp_path, {"x": "float32"}, outputs)
    with pytest.raises(InferenceFailed) as caught:
        backend.run({"x": np.ones((2, 3), np.float32)})
    assert str(caught.value) == reason


class Differences(torch.nn.Module):
    """A list."""

    def forward(self, a: torch.Tensor, b: torch.Tensor):  # type: ignore[no-untyped-def]
        return [a - b, b - a]


@pytest.mark.parametrize(
    ("first", "second"), [("a", "b"), ("INPUT__0", "INPUT__1")], ids=["of the arguments", "of one's own"]
)
def test_names_of_inputs(first: str, second: str, tmp_path: Path) -> None:
    """Those of the arguments, in any order; or others, in theirs."""
    one, two = np.ones((2, 3), np.float32), np.full((2, 3), 3, np.float32)
    inputs = {second: "float32", first: "float32"} if first == "a" else {first: "float32", second: "float32"}
    backend = of_module(Differences(), tmp_path, inputs, {"OUTPUT__0": "float32", "OUTPUT__1": "float32"})
    answer = backend.run({second: two, first: one})

    np.testing.assert_array_equal(answer["OUTPUT__0"], one - two)
    np.testing.assert_array_equal(answer["OUTPUT__1"], two - one)


def test_a_list_of_another_length(tmp_path: Path) -> None:
    """Only a run tells it."""
    backend = of_module(Differences(), tmp_path, dict.fromkeys("ab", "float32"), {"y": "float32"})
    with pytest.raises(InferenceFailed, match=r"it returned 2 tensors, and 1 are declared$"):
        backend.run(dict.fromkeys("ab", np.ones((2, 3), np.float32)))


@both
def test_threads(kind: Format, tmp_path: Path) -> None:
    """PyTorch computes with those of the build."""
    before = torch.get_num_threads()
    try:
        opened(kind, "same", tmp_path, threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("kind", "content"),
    [(TORCH_SCRIPT, b"__torch__"), (TORCH_EXPORT, b"schema_version")],
    ids=["torchscript", "torch_export"],
)
def test_a_damaged_file(kind: Any, content: bytes, tmp_path: Path) -> None:
    """One whose archive can be read, and whose program cannot, is a fault of the configuration."""
    format_: Format = kind.name
    file = make(tmp_path, format_, "dense")
    file.write_bytes(file.read_bytes().replace(content, bytes(len(content))))
    with pytest.raises(ConfigError, match=f"^model 'm': {file}"):
        load(kind, file, model("dense").options() if kind is TORCH_SCRIPT else {})


@pytest.mark.parametrize(("kind", "cycles"), [("torchscript", 120), ("torch_export", 15)])
def test_it_may_be_loaded_and_closed_for_ever(kind: Format, cycles: int, tmp_path: Path) -> None:
    """What is closed leaves nothing."""
    backend, inputs = opened(kind, "dense", tmp_path), drawn("dense", 2)

    def cycle(times: int) -> int | None:
        for _ in range(times):
            backend.load()
            backend.run(inputs)
            backend.close()
        return resident_bytes()

    first, last = cycle(cycles // 3), cycle(cycles)
    if first is not None and last is not None:
        assert last - first < 8 * 2**20


def test_pytorch_keeps_nothing_of_a_closed_program(tmp_path: Path) -> None:
    """Neither the code that it has generated of it nor its symbolic sizes, as it does by itself for every load."""
    backend, inputs = opened("torch_export", "dense", tmp_path), drawn("dense", 2)

    def kept_after(times: int) -> tuple[int, int]:
        for _ in range(times):
            backend.load()
            backend.run(inputs)
            backend.close()
        for _ in range(2):  # symbolic sizes are found to be garbage once what was garbage before has gone
            gc.collect()
        code = sum(name.startswith("<eval_with_key>") for name in linecache.cache)
        sizes = torch.fx.experimental.symbolic_shapes.ShapeEnv
        return code, sum(type(each) is sizes for each in gc.get_objects())

    first = kept_after(1)
    assert [kept_after(times) for times in (1, 3)] == [first, first]


class _Wide(torch.nn.Module):
    """A layer of 16 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2048, 2048)

    def forward(self, x: Any) -> Any:
        """Returns (rows, 2048)."""
        return self.layer(x)


def test_weights_go_when_it_is_closed(tmp_path: Path) -> None:
    """And not when Python looks for cycles: until then there would be room for dozens of models."""
    program = torch.export.export(_Wide().eval(), (torch.ones(2, 2048),))
    file = tmp_path / "model.pt2"
    torch.export.save(program, str(file))

    def cycle(times: int) -> int | None:
        for _ in range(times):
            backend = load(TORCH_EXPORT, file)
            backend.run({"x": np.ones((2, 2048), np.float32)})
            backend.close()
        return resident_bytes()

    gc.disable()
    try:
        first, last = cycle(2), cycle(4)
    finally:
        gc.enable()
    if first is not None and last is not None:
        assert last - first < 32 * 2**20


@both
def test_threads_of_a_thread_that_has_run_another_build(kind: Format, tmp_path: Path) -> None:
    """PyTorch would compute with as many as for the first one, whatever loading has set."""
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(1) as session:
            for threads in (before + 1, before + 2):
                backend = opened(kind, "same", tmp_path, threads=threads)
                session.submit(backend.run, drawn("same", 2)).result()
                assert session.submit(torch.get_num_threads).result() == threads
    finally:
        torch.set_num_threads(before)
