"""One model twice that refuses the values which we make up to warm it up: with a sample that it takes, and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import edge_case_models

REQUEST = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1003, 1007]}]}
KNOWN, UNKNOWN = "ids-known", "ids-unknown"


def bring(folder: Path) -> list[dict[str, Any]]:
    """Write the model's file and the sample, and return the configuration of both."""
    edge_case_models.ids(folder / "ids" / "1" / "model.onnx")
    sample = folder / "sample.json"
    sample.write_text(json.dumps(REQUEST))
    path = str(folder / "ids")
    return [
        {"name": UNKNOWN, "path": path},
        {"name": KNOWN, "path": path, "warm_up": {"samples": [str(sample)]}},
    ]
