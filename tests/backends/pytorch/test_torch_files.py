"""What a file of PyTorch says before anything runs it, and which files are none."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch_models
from torch_models import exported, make, scripted, torch

from serve_app.backends.description import describe_build
from serve_app.backends.kind import AnyKind
from serve_app.backends.pytorch.kind import TORCH_EXPORT, TORCH_SCRIPT
from serve_app.backends.pytorch.settings import TorchScriptOptions
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature, TensorSpec

pytestmark = pytest.mark.torch


def signature(content: bytes, folder: Path) -> ModelSignature:
    """What a program of ``torch.export`` says."""
    file = folder / "model.pt2"
    file.write_bytes(content)
    return TORCH_EXPORT.inspect(file, "m", TORCH_EXPORT.options()).signature


def problem(kind: str, content: bytes, folder: Path, **options: Any) -> str:
    """Why it is refused, the file being called FILE."""
    chosen: AnyKind = TORCH_SCRIPT if kind == "pt" else TORCH_EXPORT
    file = folder / f"model.{kind}"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        chosen.inspect(file, "m", chosen.options.model_validate(options))
    return str(caught.value).replace(str(file), "FILE")


def test_tensors_of_a_program(tmp_path: Path) -> None:
    """Names, types and sizes that may vary are in the file."""
    described = describe_build(TORCH_EXPORT, make(tmp_path, "torch_export", "several"), model="m")

    assert described.signature == ModelSignature(
        (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("ids", "INT64", (-1, 5))),
        (
            TensorSpec("next", "INT64", (-1, 5)),
            TensorSpec("scores", "FP32", (-1,)),
            TensorSpec("even", "BOOL", (-1, 5)),
        ),
    )
    assert described.joinable.verdict == "proven"


class Nested(torch.nn.Module):
    """Takes and gives dicts, a number, and nothing."""

    def forward(self, images, scale, *, masks=None):  # type: ignore[no-untyped-def]
        left = images["left"] * scale
        return {"boxes": (left, masks), "nothing": None}, images["right"]


def test_nested_values_have_names(tmp_path: Path) -> None:
    """Of the arguments as PyTorch has it, of the results by keys and places; what is no tensor is left out."""
    pair = {"left": torch.ones(2, 3), "right": torch.ones(2)}
    found = signature(exported(Nested(), (pair, 2), masks=torch.ones(2, 1)), tmp_path)

    assert [spec.name for spec in found.inputs] == ["images_left", "images_right", "masks"]
    assert [spec.name for spec in found.outputs] == ["output_0_boxes_0", "output_0_boxes_1", "output_1"]


class Colliding(torch.nn.Module):
    """Two results that would have one name."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return {"a_0": x + 1, "a": (x + 2,)}


class Complex(torch.nn.Module):
    """Of a type that the protocol does not have."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return torch.complex(x, x)


class Size(torch.nn.Module):
    """Gives a number."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x, x.shape[0]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Colliding, "model 'm': two outputs would be called 'a_0': rename what forward returns"),
        (Complex, "model 'm': output 'output' is of a type that cannot be served"),
        (Size, "model 'm': an output is no tensor: output_1"),
    ],
)
def test_programs_that_cannot_be_served(module: Callable[[], Any], reason: str, tmp_path: Path) -> None:
    """What is in the way is told by name."""
    assert (
        problem("pt2", exported(module(), (torch.ones(2, 3),), {"x": {0: torch.export.Dim.AUTO}}), tmp_path) == reason
    )


def changed(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A program whose graph is changed, in the text of its archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name.endswith("/models/model.json"):
                graph = json.loads(text)
                change(graph)
                text = json.dumps(graph).encode()
            new.writestr(name, text)
    return stream.getvalue()


def _on_a_gpu(stored: dict[str, Any]) -> None:
    stored["graph_module"]["graph"]["tensor_values"]["x"]["device"] = {"type": "cuda", "index": 0}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda stored: stored["schema_version"].update(major=9),
            "model 'm': FILE is of version 9 of the format, and 8 is known: export it again",
        ),
        (_on_a_gpu, "model 'm': input 'x' is on cuda: export the model on the CPU"),
        (lambda stored: stored.pop("graph_module"), "model 'm': FILE cannot be understood: KeyError: 'graph_module'"),
    ],
)
def test_other_programs(change: Callable[[dict[str, Any]], object], reason: str, tmp_path: Path) -> None:
    """Of a format that is not known, or for a GPU."""
    content = make(tmp_path, "torch_export", "dense").read_bytes()
    assert problem("pt2", changed(content, change), tmp_path) == reason


def archive(**files: bytes) -> bytes:
    """An archive of these files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for name, content in files.items():
            made.writestr(name.replace("__", "/"), content)
    return stream.getvalue()


def weights() -> bytes:
    """What ``torch.save`` writes of weights."""
    stream = io.BytesIO()
    torch.save(torch.nn.Linear(3, 4).state_dict(), stream)
    return stream.getvalue()


def test_files_that_are_no_models(tmp_path: Path) -> None:
    """Weights alone, packages of another format, the other format under this one's name."""
    hint = "weights without a program, as torch.save writes them, cannot be served: use torch.export or torch.jit"
    assert problem("pt", weights(), tmp_path) == f"model 'm': FILE is no TorchScript; {hint}"
    assert problem("pt", make(tmp_path, "torch_export", "dense").read_bytes(), tmp_path) == (
        f"model 'm': FILE is no TorchScript; {hint}"
    )
    hint = "torch.export.save writes those; packages of AOTInductor cannot be served"
    for content in (archive(m__data__aotinductor=b""), make(tmp_path, "torchscript", "dense").read_bytes()):
        assert problem("pt2", content, tmp_path) == f"model 'm': FILE holds no program of torch.export: {hint}"


def test_a_script_whose_tensors_are_not_said(tmp_path: Path) -> None:
    """The hint is what is to be written."""
    content = make(tmp_path, "torchscript", "dense").read_bytes()
    hint = "backend_options must, e.g. outputs: {y: {dtype: float32, shape: [-1, 4]}}, and inputs likewise"
    assert problem("pt", content, tmp_path) == (
        f"model 'm': a TorchScript file does not say what its tensors are: {hint}"
    )


class Arguments(torch.nn.Module):
    """Two tensors, one of which need not be there, and a number."""

    def forward(self, x: torch.Tensor, scale: int = 2, shift: torch.Tensor | None = None):  # type: ignore[no-untyped-def]
        return x * scale if shift is None else x * scale + shift


class Texts(torch.nn.Module):
    """Gives no tensors."""

    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        return "text", x


X = {"dtype": "float32", "shape": [-1, 3]}
TAKES = "forward takes x: Tensor, scale: int = 2, shift: Optional[Tensor] = None"


@pytest.mark.parametrize(
    ("module", "inputs", "outputs", "reason"),
    [
        (Arguments, ["x", "shft"], ["y"], f"inputs: shft: no argument of that name, while others have one; {TAKES}"),
        (Arguments, ["a", "b", "c", "d"], ["y"], f"inputs: there are more than arguments; {TAKES}"),
        (Arguments, ["x", "scale"], ["y"], f"inputs: scale: the argument is no tensor; {TAKES}"),
        (Arguments, ["shift"], ["y"], f"inputs: there is none for x; {TAKES}"),
        (Arguments, ["x"], ["y", "z"], "outputs: there are 2, and forward returns 1"),
        (
            Texts,
            ["x"],
            ["y", "z"],
            "outputs: forward returns Tuple[str, Tensor], and not tensors, or a tuple, list or dict of them",
        ),
    ],
)
def test_tensors_that_a_script_does_not_have(
    module: Callable[[], Any], inputs: list[str], outputs: list[str], reason: str, tmp_path: Path
) -> None:
    """Told when it is loaded."""
    file = tmp_path / "model.pt"
    file.write_bytes(scripted(module()))
    options = TorchScriptOptions.model_validate(
        {"inputs": dict.fromkeys(inputs, X), "outputs": dict.fromkeys(outputs, X)}
    )
    with pytest.raises(ConfigError) as caught:
        torch_models.load(TORCH_SCRIPT, file, options)
    assert str(caught.value) == f"model 'm': backend_options.{reason}"
