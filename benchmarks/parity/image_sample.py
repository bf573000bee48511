"""Writes a small part of what `benchmarks.parity.image_cases` made, for the tests.

    python -m benchmarks.parity.image_sample OUT FILE

A few pictures, the folders of some settings of each class, and some values of each result, at places drawn by a seed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

PICTURES = ("rgb-portrait.png", "rgb-tiny.png", "rgb-1-high.png", "l.png", "cmyk.jpg", "turned.jpg")
_FILES = {"saved", "class-only", "fast-of-4", "feature-extractor", "by-model-type", "nested"}
_SIZES = {"square", "number-cut", "shorter-cut", "padded", "kept", "part", "part-oblong", "longer", "no-cut"}
_LEVELS = {"not-rescaled", "not-normalized", "normalized", "offset", "no-top", "rgb"}
_SETTINGS = _FILES | _SIZES | _LEVELS | {"filter-nearest", "filter-lanczos"}
_VALUES = 12


def main(out: Path, file: Path) -> None:
    """Write the pictures, the cases and the values to one file."""
    random = np.random.default_rng(0)
    cases: list[dict[str, Any]] = []
    values: list[float] = []
    for path in sorted(out.glob("*/*/case.json")):
        case = json.loads(path.read_text())
        if case["name"] not in _SETTINGS and case["group"] not in {"timm", "torchvision"}:
            continue
        files = {each.name: json.loads(each.read_text()) for each in path.parent.glob("*config.json")}
        results = {}
        with np.load(path.parent / "expected.npz") as archive:
            for picture in PICTURES:
                if f"pil/{picture}" in archive:
                    array = archive[f"pil/{picture}"]
                    places = random.integers(0, array.size, _VALUES).tolist()
                    results[picture] = {"shape": array.shape, "places": places}
                    values.extend(array.ravel()[places].tolist())
        # A class without a backend that uses Pillow is only compared by `image_check`.
        if results or case["problem"]:
            cases.append({**case, "files": files, "results": results})
    pictures = {name: np.frombuffer((out / "pictures" / name).read_bytes(), np.uint8) for name in PICTURES}
    text = np.frombuffer(json.dumps(cases).encode(), np.uint8)
    np.savez_compressed(file, cases=text, values=np.array(values, np.float32), **pictures)  # type: ignore[arg-type]
    print(f"{len(cases)} cases, {len(values)} values, {file.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
