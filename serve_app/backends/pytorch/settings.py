"""Configuration of PyTorch's models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from serve_app.backends.kind import BackendOptions
from serve_app.config.values import Section

DType = Literal[
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
Size = Annotated[int, Field(ge=-1)]
Name = Annotated[str, Field(min_length=1)]


class TensorOptions(Section):
    """One input or output."""

    dtype: DType
    """Its type, by PyTorch's name."""

    shape: Annotated[tuple[Size, ...], Field(strict=False)]
    """Its shape; `-1` for a dimension that may vary."""


class TorchScriptOptions(BackendOptions):
    """Properties of a model that its TorchScript file lacks."""

    inputs: dict[Name, TensorOptions] = Field(default_factory=dict)
    """The inputs by name: `forward`'s arguments by their names, or all of them under other names in their order."""

    outputs: dict[Name, TensorOptions] = Field(default_factory=dict)
    """The outputs by name: keys of the dict that `forward` returns, or of a tensor, tuple or list in their order."""
