"""The two exporters of PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

EXPORTERS = ("torchscript", "dynamo")
OUTPUTS: Mapping[str, Mapping[int, str]] = {"output": {0: "batch"}}

_LIMITS = {"batch": (1, 64), "sequence": (2, 128)}
"""What an axis may be. Others are inferred by the exporter."""


class Chosen(nn.Module):
    """A model with one output and inputs in a fixed order.

    Args:
        model: Gives a tensor, a tuple, or a mapping with `logits` or `last_hidden_state`.
        names: Names of the inputs, for a model that takes them by name.
        options: What the model is called with besides.
    """

    def __init__(self, model: nn.Module, names: list[str] | None = None, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.options = options or {}

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The first output."""
        if self.names is None:
            result = self.model(*inputs, **self.options)
        else:
            result = self.model(**dict(zip(self.names, inputs, strict=True)), **self.options)
        if isinstance(result, (torch.Tensor, tuple)):
            return result
        return result["logits"] if "logits" in result else result["last_hidden_state"]


def export(
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    axes: Mapping[str, Mapping[int, str]],
    exporter: str,
    folder: Path,
    outputs: Mapping[str, Mapping[int, str]] = OUTPUTS,
) -> None:
    """Write `model.onnx`.

    Args:
        model: Takes the inputs by position: `forward(*inputs)`.
        inputs: Examples, of more than one row.
        axes: The names of the axes of inputs that may vary.
        exporter: One of `EXPORTERS`.
        folder: Where the file goes.
        outputs: The names of outputs and of their axes that vary.
    """
    names = {"input_names": list(inputs), "output_names": list(outputs)}
    file, examples = str(folder / "model.onnx"), tuple(inputs.values())
    model.eval()  # exporters leave a model in the mode that it had
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "torchscript":
            dynamic = {**axes, **outputs}
            torch.onnx.export(model, examples, file, **names, dynamic_axes=dynamic, opset_version=17, dynamo=False)
        else:
            shapes = {"inputs": tuple({at: _dim(name) for at, name in axes[given].items()} for given in inputs)}
            torch.onnx.export(
                model, examples, file, **names, dynamic_shapes=shapes, dynamo=True, external_data=False, verbose=False
            )


def _dim(name: str) -> Any:
    if name not in _LIMITS:
        return name
    low, high = _LIMITS[name]
    return torch.export.Dim(name, min=low, max=high)
