"""Measures the exported model on held-out digits, through drawings of many sizes and both polarities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from rich.progress import track

from training.digits.rendering import KERNELS, normalise, prepare, render

if TYPE_CHECKING:
    from pathlib import Path

    from training.digits.samples import Samples

SIZES = (8, 12, 16, 28, 64, 128, 256, 512, 1024, 2048)


def evaluate(model: Path, samples: Samples) -> dict[str, Any]:
    """Give the share of right answers per size and polarity, over all kernels, and over everything.

    Args:
        model: The ONNX file.
        samples: Digits that the model was not trained on.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    table: dict[str, dict[str, float]] = {}
    for size in track(SIZES, description="held-out digits"):
        right = {
            (dark_ink, kernel): _right(session, samples, size, kernel, dark_ink=dark_ink)
            for dark_ink in (False, True)
            for kernel in KERNELS
        }
        table[str(size)] = {
            name: float(np.mean([right[dark_ink, kernel] for kernel in KERNELS]))
            for name, dark_ink in (("white on black", False), ("black on white", True))
        }
    shares = [share for row in table.values() for share in row.values()]
    return {
        "samples": int(samples.labels.size),
        "drawings": int(samples.labels.size) * len(SIZES) * len(KERNELS) * 2,
        "accuracy": float(np.mean(shares)),
        "worst_accuracy": min(shares),
        "accuracy_by_size_and_ink": table,
    }


def _right(session: Any, samples: Samples, size: int, kernel: Any, *, dark_ink: bool) -> list[bool]:
    pixels = np.stack([prepare(render(digit, size, kernel, dark_ink=dark_ink)) for digit in samples.ink])
    (logits,) = session.run(["logits"], {"image": normalise(pixels)})
    return list(np.argmax(logits, axis=1) == samples.labels)
