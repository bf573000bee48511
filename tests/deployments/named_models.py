"""Models called as people call theirs, which no deployment could be: one is a file, the other a flat folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_models

FILE = "ResNet50 v2.1"
FOLDER = "router 100% é"
NAMES = (FILE, FOLDER)
VARIANT = "FP16 (fast)"
LABELS = ("red", "green", "blue", "none")


def bring(folder: Path) -> list[dict[str, Any]]:
    """Write the models' files and return their configuration."""
    file = onnx_models.make(folder / "models" / "ResNet50.onnx", "image_logits")
    onnx.save(onnx.load(file), file, save_as_external_data=True, location="ResNet50.onnx_data", size_threshold=0)
    onnx_models.make(file.with_name("Other.onnx"), "add_one")
    onnx_models.make(folder / "flat" / "net.onnx", "image_logits")
    file.with_name("labels.txt").write_text("\n".join(LABELS), encoding="utf-8")
    return [
        {
            "name": FILE,
            "path": str(file),
            "format": "NCHW",
            "cache": {},
            "variants": [{"name": VARIANT, "path": str(folder / "flat")}],
        },
        {"name": FOLDER, "path": str(folder / "flat"), "labels": {"logits": list(LABELS)}},
    ]
