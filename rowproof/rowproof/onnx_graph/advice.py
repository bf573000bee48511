"""What an author of a model can do about what keeps its rows from being joined."""

from __future__ import annotations

import re
from typing import Final

_ADVICE: Final = (
    (r"^NonZero ", "a mask over all tokens picks from all rows at once: pick by row number, or export less"),
    (r"^NonMaxSuppression ", "export the detector without its selection of boxes, and select in the client"),
    (r"normalizes by the batch|may drop elements", "export it for inference: model.eval() before torch.onnx.export"),
    (r"draws random numbers", "export it for inference: model.eval(), and no sampling in the graph"),
    (r"takes its scale over the whole batch", "quantize its activations statically (QDQ), or not at all"),
    (r"first dimensions .* and \d|first dimension of \d+|fixes dimension 0",
     "export it with a batch of any size: dynamic_axes or dynamic_shapes"),
    (r"unknown rank", "run onnx.shape_inference.infer_shapes on it, or export it with torch.onnx.export(dynamo=True)"),
    (r"makes every row as wide as the widest", "split texts before the model"),
    (r"by their places|with the number of rows|to sizes that cannot be followed|rows of different sizes",
     "the other exporter of torch.onnx.export (dynamo=True or False) may write it in another way"),
    (r"is not known to treat rows", "export it with ONNX's own operators; if you know, say batching.unverified: allow"),
)  # fmt: skip
"""Patterns of reasons, the first that fits, and what mends it."""


def advice_on(reason: str) -> str:
    """What may help, in one line; empty where nothing is known to."""
    return next((words for pattern, words in _ADVICE if re.search(pattern, reason)), "")
