"""Pictures become what transformers, timm and torchvision make of them: values recorded by `benchmarks.parity`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from serve_app.errors import ConfigError
from serve_app.payloads import Media, ModelSignature, TensorSpec
from serve_app.processors import create_processor
from serve_app.processors.image import ImageProcessor
from serve_app.processors.image_classes import CLASSES

RECORDED = dict(np.load(Path(__file__).parent / "data" / "image_parity.npz"))
CASES: list[dict[str, Any]] = json.loads(RECORDED["cases"].tobytes())
STARTS = np.cumsum([0, *(sum(len(each["places"]) for each in case["results"].values()) for case in CASES)])


UNSUPPORTED = {"DonutImageProcessor", "Gemma3ImageProcessor", "Siglip2ImageProcessor", "TextNetImageProcessor"}
REFUSED = {
    "ConvNextImageProcessor": {"number-cut", "shorter-cut", "padded"},
    "PerceiverImageProcessor": {"number-cut", "part-oblong"},
    "timm": {"unknown-key"},
}
"""Settings that are refused though the library follows them: ConvNext would cut twice, and Perceiver cut out more than
there is."""


def load(case: dict[str, Any], folder: Path, shape: tuple[int, ...]) -> ImageProcessor:
    """The processor of the folder, for a model of that input."""
    for name, content in case["files"].items():
        (folder / name).write_text(json.dumps(content))
    signature = ModelSignature((TensorSpec("x", "FP32", shape),), (TensorSpec("logits", "FP32", (-1, -1)),))
    made = create_processor("image-classification", signature, folder, case["options"])
    assert isinstance(made, ImageProcessor)
    return made


def named(case: dict[str, Any]) -> str:
    """For the test's report."""
    return f"{case['group']}-{case['name']}"


@pytest.mark.parametrize(
    ("case", "start"), [pytest.param(*each, id=named(each[0])) for each in zip(CASES, STARTS.tolist(), strict=False)]
)
def test_a_folder_is_followed_as_the_library_does_it_or_refused(
    tmp_path: Path, case: dict[str, Any], start: int
) -> None:
    """Every recorded value is the same; what has none, or a class that is not supported, does not start."""
    shapes = {tuple(each["shape"]) for each in case["results"].values()} or {(3, 64, 64)}
    try:
        made = [load(case, tmp_path, shape) for shape in [(-1, *shapes.pop()), (-1, -1, -1, -1)]]
    except ConfigError as error:
        refused = case["group"] in UNSUPPORTED or case["name"] in REFUSED.get(case["group"], ())
        assert case["problem"] or refused, error.problems
        return
    assert not case["problem"]

    for processor in made:
        found: list[npt.NDArray[Any]] = []
        for picture, result in case["results"].items():
            x = processor.preprocess(Media(RECORDED[picture].tobytes(), "", {}))["x"][0]
            assert x.shape == tuple(result["shape"])
            found.append(x.ravel()[result["places"]])
        values = np.concatenate(found)
        expected = RECORDED["values"][start : start + len(values)]
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=2e-6)


def test_every_class_is_in_the_sample() -> None:
    """Those that are supported, and the other libraries. PPLCNet has no backend that uses Pillow."""
    groups = {case["group"] for case in CASES if case["results"]}

    assert groups >= (set(CLASSES) - {"PPLCNetImageProcessor"}) | {"timm", "torchvision"}
