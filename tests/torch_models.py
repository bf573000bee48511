"""Tiny models of PyTorch for tests, built on the spot with a seed, in both formats. Without PyTorch, tests skip.

=============== ========================================= ==============================================================
model           inputs                                    outputs
=============== ========================================= ==============================================================
``dense``       x FP32[-1,3]                              output FP32[-1,4]: a layer, ReLU, a normalisation, softmax
``convolution`` image FP32[-1,3,8,8]                      output FP32[-1,4]: convolution, batch norm, pooling, a layer
``attention``   ids INT64[-1,-1], mask BOOL[-1,-1]        output FP32[-1,8]: embeddings, attention, mean of what is kept
``several``     x FP32[-1,3], ids INT64[-1,5]             scores FP32[-1] = sum of x, even BOOL[-1,5], next INT64[-1,5]
``half``        x FP16[-1,8]                              output_0 FP16[-1,8] = 2 x, output_1 FP16[-1] = sum
``bfloat16``    x BF16[-1,8]                              output BF16[-1,8] = 2 x
``fixed``       x FP32[4,8]                               output FP32[4,8] = 2 x
``bounded``     x FP32[-1,3], 2 to 6 rows                 output FP32[-1,3] = 2 x
``total``       x FP32[-1,3]                              output FP32[3]: sum over dimension 0
``scalar``      x FP64[]                                  output FP64[] = 2 x
``in_place``    x FP32[-1,3]                              output FP32[-1,3] = x + 1, written to x and given back
``same``        x FP32[-1,3]                              output FP32[-1,3]: x itself
``counted``     x FP32[-1,3]                              output FP32[-1,3] = x + number of rows
=============== ========================================= ==============================================================
"""

from __future__ import annotations

import gc
import io
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import pytest

from serve_app.backends.backend import Backend
from serve_app.backends.kind import AnyKind, BuildSettings
from serve_app.backends.pytorch.kind import TORCH_EXPORT, TORCH_SCRIPT

pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")

import torch

Format: TypeAlias = Literal["torchscript", "torch_export"]
Tensors: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]

KINDS: Mapping[Format, AnyKind] = {"torchscript": TORCH_SCRIPT, "torch_export": TORCH_EXPORT}


class Model(NamedTuple):
    """A model before it is written.

    Attributes:
        module: What runs.
        inputs: Type and shape by name.
        outputs: Likewise.
        example: Makes what it is exported with.
        dynamic: Sizes that may vary, by the name of an input and the dimension; by default all that are -1.
    """

    module: Any
    inputs: Tensors
    outputs: Tensors
    example: Callable[[], tuple[Any, ...]]
    dynamic: Callable[[], Mapping[str, Any]] | None = None

    def options(self) -> dict[str, Any]:
        """What a configuration says of it as TorchScript."""

        def told(tensors: Tensors) -> dict[str, Any]:
            return {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in tensors.items()}

        return {"inputs": told(self.inputs), "outputs": told(self.outputs)}


class Dense(torch.nn.Module):
    """A layer, ReLU, a normalisation, softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return torch.softmax(self.norm(self.layer(x).relu()), -1)


class Convolution(torch.nn.Module):
    """Of pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 5, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(5)
        self.layer = torch.nn.Linear(5, 4)

    def forward(self, image):  # type: ignore[no-untyped-def]
        found = torch.nn.functional.relu(self.norm(self.convolution(image)), inplace=True)
        pooled = torch.nn.functional.adaptive_avg_pool2d(torch.nn.functional.max_pool2d(found, 2), 1)
        return self.layer(pooled.flatten(1))


class Attention(torch.nn.Module):
    """Of token ids; a class token is in front of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 8)
        self.first = torch.nn.Parameter(torch.randn(1, 1, 8))
        self.project = torch.nn.Linear(8, 24)

    def forward(self, ids, mask):  # type: ignore[no-untyped-def]
        rows, length = ids.shape
        tokens = torch.cat([self.first.expand(rows, -1, -1), self.table(ids)], dim=1)
        heads = self.project(tokens).view(rows, length + 1, 3, 2, 4).permute(0, 3, 2, 1, 4)
        query, key, value = heads.select(2, 0), heads.select(2, 1), heads.select(2, 2)
        kept = torch.cat([torch.ones(rows, 1, dtype=torch.bool), mask], dim=1)
        seen = torch.nn.functional.scaled_dot_product_attention(query, key, value, kept[:, None, None, :])
        together = seen.transpose(1, 2).reshape(rows, length + 1, 8)
        weights = kept.unsqueeze(-1).to(torch.float32)
        return (together * weights).sum(1) / weights.sum(1)


class Several(torch.nn.Module):
    """Of several types, in a dict."""

    def forward(self, x, ids):  # type: ignore[no-untyped-def]
        return {"next": ids + 1, "scores": x.sum(1), "even": ids % 2 == 0}


class Half(torch.nn.Module):
    """A tuple."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return 2 * x, x.sum(-1)


class Double(torch.nn.Module):
    """Twice its input."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return 2 * x


class Total(torch.nn.Module):
    """Mixes rows."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x.sum(0)


class InPlace(torch.nn.Module):
    """Writes to its input."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x.add_(1)


class Same(torch.nn.Module):
    """Gives its input back."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x


class Counted(torch.nn.Module):
    """Depends on the number of rows."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x + x.shape[0]


def _floats(*shape: int, dtype: str = "float32") -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(shape).to(getattr(torch, dtype)),)


def _rows(width: int, dtype: str = "float32") -> tuple[str, tuple[int, ...]]:
    return dtype, (-1, width)


MODELS: Mapping[str, Callable[[], Model]] = {
    "dense": lambda: Model(Dense(), {"x": _rows(3)}, {"output": _rows(4)}, _floats(2, 3)),
    "convolution": lambda: Model(
        Convolution(), {"image": ("float32", (-1, 3, 8, 8))}, {"output": _rows(4)}, _floats(2, 3, 8, 8)
    ),
    "attention": lambda: Model(
        Attention(),
        {"ids": _rows(-1, "int64"), "mask": _rows(-1, "bool")},
        {"output": _rows(8)},
        lambda: (torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool)),
    ),
    "several": lambda: Model(
        Several(),
        {"x": _rows(3), "ids": _rows(5, "int64")},
        {"next": _rows(5, "int64"), "scores": ("float32", (-1,)), "even": _rows(5, "bool")},
        lambda: (torch.randn(2, 3), torch.ones(2, 5, dtype=torch.int64)),
    ),
    "half": lambda: Model(
        Half(),
        {"x": _rows(8, "float16")},
        {"output_0": _rows(8, "float16"), "output_1": ("float16", (-1,))},
        _floats(2, 8, dtype="float16"),
    ),
    "bfloat16": lambda: Model(
        Double(), {"x": _rows(8, "bfloat16")}, {"output": _rows(8, "bfloat16")}, _floats(2, 8, dtype="bfloat16")
    ),
    "fixed": lambda: Model(Double(), {"x": ("float32", (4, 8))}, {"output": ("float32", (4, 8))}, _floats(4, 8)),
    "bounded": lambda: Model(
        Double(),
        {"x": _rows(3)},
        {"output": _rows(3)},
        _floats(3, 3),
        lambda: {"x": {0: torch.export.Dim("rows", min=2, max=6)}},
    ),
    "total": lambda: Model(Total(), {"x": _rows(3)}, {"output": ("float32", (3,))}, _floats(2, 3)),
    "scalar": lambda: Model(Double(), {"x": ("float64", ())}, {"output": ("float64", ())}, _floats(dtype="float64")),
    "in_place": lambda: Model(InPlace(), {"x": _rows(3)}, {"output": _rows(3)}, _floats(2, 3)),
    "same": lambda: Model(Same(), {"x": _rows(3)}, {"output": _rows(3)}, _floats(2, 3)),
    "counted": lambda: Model(Counted(), {"x": _rows(3)}, {"output": _rows(3)}, _floats(2, 3)),
}


@cache
def model(name: str) -> Model:
    """One of `MODELS`, always with the same weights."""
    torch.manual_seed(7)
    made = MODELS[name]()
    made.module.eval()
    return made


def file_name(kind: Format) -> str:
    """How a backend calls it."""
    return KINDS[kind].file


def make(folder: Path, kind: Format, name: str) -> Path:
    """Write a model as version 1 in a folder; returns its file."""
    file = folder / "1" / file_name(kind)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_content(kind, name))
    return file


def scripted(module: Any) -> bytes:
    """A module as TorchScript."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # all of TorchScript
        torch.jit.save(torch.jit.script(module.eval()), stream)
    return stream.getvalue()


def exported(
    module: Any,
    example: tuple[Any, ...],
    dynamic: Any = None,
    *,
    core: bool = False,
    training: bool = False,
    **named: Any,
) -> bytes:
    """A module as a program of ``torch.export``; of the operators of core ATen, if that is wanted."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # among them those of Python about PyTorch's own source
        program = torch.export.export(module.train(training), example, named, dynamic_shapes=dynamic)
        torch.export.save(program.run_decompositions() if core else program, stream)
    return stream.getvalue()


@cache
def _content(kind: Format, name: str) -> bytes:
    made = model(name)
    if kind == "torchscript":
        return scripted(made.module)
    written = _exported(made)
    gc.freeze()  # what PyTorch has imported stays: collections need not look at half a million objects each time
    return written


def _exported(made: Model) -> bytes:
    auto = torch.export.Dim.AUTO
    dynamic = (
        made.dynamic()
        if made.dynamic
        else {
            name: {place: auto for place, size in enumerate(shape) if size < 0}
            for name, (_, shape) in made.inputs.items()
        }
    )
    return exported(made.module, made.example(), dynamic)


def load(kind: AnyKind, file: Path, options: Any = None, **build: Any) -> Backend:
    """A backend of a file, loaded; with rows in front unless the build says otherwise."""
    options = kind.options.model_validate(options or {}) if isinstance(options, dict | None) else options
    backend: Backend = kind.create(BuildSettings("m", file, **build), options)
    backend.load()
    return backend
