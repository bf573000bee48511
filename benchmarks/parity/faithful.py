"""Whether an exported graph answers as its model: exporters sometimes write the example's sizes into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnxruntime
import torch
from torch import nn

_TOLERANCE = 1e-3


def check_export(model: nn.Module, examples: Iterable[Mapping[str, torch.Tensor]], folder: Path) -> None:
    """Run both on each example. Raises `ValueError` where the graph fails or differs."""
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    for inputs in examples:
        with torch.no_grad():
            wanted = model(*inputs.values())
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        try:
            (answer, *_) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        except Exception as error:  # of ONNX Runtime, without a common base
            raise ValueError("the exported graph fails on another length than the example's") from error
        scale = max(1.0, float(wanted.abs().max()))
        if float((torch.from_numpy(answer) - wanted).abs().max()) > _TOLERANCE * scale:
            raise ValueError("the exported graph answers otherwise than the model")
