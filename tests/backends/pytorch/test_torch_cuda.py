"""Models of PyTorch on a GPU; without one, what there is to refuse, and models opened on PyTorch's `meta` device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_models import KINDS, Format, load, make, model, torch
from typer.testing import CliRunner

from serve_app.backends.backend import Backend, CheckedBackend, RuntimeCheck, SessionLost
from serve_app.backends.kind import BuildSettings
from serve_app.backends.pytorch.backend import TorchBackend
from serve_app.backends.pytorch.cuda import lacks_cuda
from serve_app.backends.pytorch.kind import TORCH_EXPORT, TorchExportOptions
from serve_app.backends.pytorch.program import open_program
from serve_app.backends.pytorch.script import open_script
from serve_app.backends.pytorch.settings import TorchScriptOptions
from serve_app.cli.commands import app
from serve_app.errors import ConfigError, InferenceFailed
from serve_app.payloads import Tensors

pytestmark = pytest.mark.torch
both = pytest.mark.parametrize("kind", ["torchscript", "torch_export"])
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and PyTorch built for it")
without_cuda = pytest.mark.skipif(torch.version.cuda is not None, reason="needs PyTorch without CUDA")

CONFIG = """
applications:
  - import_path: serve_app.app:build
    args:
      models: [{name: m, path: m, resources: {gpus: 0.5, device: %s}}]
"""


def opened(kind: Format, name: str, folder: Path, **build: Any) -> Backend:
    """One of `torch_models.MODELS`, loaded in a replica with a share of a GPU."""
    options = model(name).options() if kind == "torchscript" else {}
    return load(KINDS[kind], make(folder, kind, name), options, gpu_available=True, **build)


def drawn(name: str, rows: int) -> Tensors:
    """Inputs for a model."""
    random = np.random.default_rng(rows)
    shapes = {each: (dtype, (rows, *sizes)) for each, (dtype, (_, *sizes)) in model(name).inputs.items()}
    return {each: random.standard_normal(shape).astype(dtype) for each, (dtype, shape) in shapes.items()}


@both
@pytest.mark.parametrize("name", ["dense", "convolution", "several", "half", "bfloat16", "in_place", "counted"])
def test_a_model_is_opened_on_another_device(kind: Format, name: str, tmp_path: Path) -> None:
    """With its weights, and the constants of its graph: all of its outputs are there."""
    file = make(tmp_path, kind, name)
    if kind == "torchscript":
        found = open_script(file, "m", TorchScriptOptions.model_validate(model(name).options()), "meta")
    else:
        found = open_program(file, "m", "meta")
    inputs = {
        each: torch.empty((2, *sizes), dtype=getattr(torch, dtype), device="meta")
        for each, (dtype, (_, *sizes)) in model(name).inputs.items()
    }
    with torch.inference_mode():
        outputs = found.run(inputs)

    expected = [(dtype, (2, *sizes)) for dtype, (_, *sizes) in model(name).outputs.values()]
    assert [(str(each.dtype).removeprefix("torch."), tuple(each.shape)) for each in outputs] == expected
    assert {each.device.type for each in outputs} == {"meta"}


@both
@without_cuda
def test_a_gpu_that_the_build_cannot_use(kind: Format, tmp_path: Path) -> None:
    """The replica that may do without says so, the other one is not served."""
    fault = f"model 'm': a GPU was given, but PyTorch {torch.__version__} is built without CUDA"
    backend = opened(kind, "same", tmp_path)

    assert (backend.device, backend.load()) == ("cpu", f"{fault}; it runs on the CPU")
    with pytest.raises(ConfigError) as caught:
        opened(kind, "same", tmp_path, device="cuda")
    assert caught.value.problems == (fault,)


@without_cuda
@pytest.mark.parametrize(("device", "code"), [("cuda", 2), ("auto", 0)])
def test_validate_refuses_a_device_that_the_build_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, code: int
) -> None:
    """By the model's name, without importing PyTorch; not of a file for another machine."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    make(tmp_path / "m", "torch_export", "dense")
    path = tmp_path / "serve.yaml"
    path.write_text(CONFIG % device)
    result = CliRunner().invoke(app, ["validate", str(path)])

    told = f"{path}: model 'm': its share of a GPU cannot be used: {lacks_cuda()}" in result.output
    assert (result.exit_code, told) == (code, code == 2)
    assert CliRunner().invoke(app, ["validate", str(path), "--no-models"]).exit_code == 0


@pytest.mark.parametrize(("other", "rounding", "note"), [("same", 0.0, ""), ("counted", 0.0, "differs on cpu by 0.75")])
def test_answers_are_compared_with_those_of_the_cpu(other: str, rounding: float, note: str, tmp_path: Path) -> None:
    """A difference that is no rounding is told, and bounds nothing."""
    backend = TORCH_EXPORT.create(
        BuildSettings("m", make(tmp_path / "m", "torch_export", "same")), TorchExportOptions()
    )
    assert isinstance(backend, TorchBackend)
    backend.load()
    reference = open_program(make(tmp_path / other, "torch_export", other), "m", "cpu")
    found = backend.beside(reference, [{"x": np.full((3, 3), 1.0, np.float32)}])

    assert isinstance(backend, CheckedBackend)
    assert backend.check([]) == RuntimeCheck(0.0)
    assert (found.rounding, note in found.note) == (rounding, True)


@both
@on_a_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dense", "convolution", "in_place", "half", "counted"])
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_answers_are_those_of_the_cpu(kind: Format, name: str, device: str, tmp_path: Path) -> None:
    """Of batches of changing sizes; inputs stay as they are."""
    backend = opened(kind, name, tmp_path, device=device)
    reference = load(
        KINDS[kind], make(tmp_path / "cpu", kind, name), model(name).options() if kind == "torchscript" else {}
    )
    assert backend.device == "cuda"
    assert isinstance(backend, CheckedBackend)
    assert backend.check([drawn(name, 2)]).rounding < 0.02
    for rows in (3, 16, 1):
        inputs = drawn(name, rows)
        before = {each: array.copy() for each, array in inputs.items()}
        outputs = backend.run(inputs)
        for each, expected in reference.run(before).items():
            np.testing.assert_allclose(outputs[each], expected, atol=0.02)
        for each, array in inputs.items():
            np.testing.assert_array_equal(array, before[each])


@on_a_gpu
@pytest.mark.gpu
def test_a_batch_beyond_the_memory_limit_fails_alone(tmp_path: Path) -> None:
    """And the next one runs."""
    backend = opened("torchscript", "same", tmp_path, gpu_memory_bytes=64 << 20)
    with pytest.raises(InferenceFailed) as caught:
        backend.run({"x": np.zeros((64 << 20, 3), np.float32)})

    assert not isinstance(caught.value, SessionLost)
    assert backend.run({"x": np.ones((1, 3), np.float32)})["output"].tolist() == [[1, 1, 1]]
