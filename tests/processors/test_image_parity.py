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


def is_refused(case: dict[str, Any]) -> bool:
    """Whether it makes no processor: the library fails, makes pictures of many sizes, or does what is not done here."""
    return bool(case["problem"]) or case["group"] in UNSUPPORTED or case["name"] in REFUSED.get(case["group"], ())


def named(case: dict[str, Any]) -> str:
    """For the test's report."""
    return f"{case['group']}-{case['name']}"


@pytest.mark.parametrize(
    ("case", "start"),
    [
        pytest.param(case, start, id=named(case))
        for case, start in zip(CASES, STARTS.tolist(), strict=False)
        if not is_refused(case)
    ],
)
def test_a_folder_is_followed_as_the_library_does_it(tmp_path: Path, case: dict[str, Any], start: int) -> None:
    """Every recorded value is the same, whether the model's file declares the size or leaves all axes free."""
    (shape,) = {tuple(each["shape"]) for each in case["results"].values()}
    for axes in ((-1, *shape), (-1, -1, -1, -1)):
        made = load(case, tmp_path, axes)

        found: list[npt.NDArray[Any]] = []
        for picture, result in case["results"].items():
            x = made.preprocess(Media(RECORDED[picture].tobytes(), "", {}))["x"][0]
            assert x.shape == shape
            found.append(x.ravel()[result["places"]])

        values = np.concatenate(found)
        expected = RECORDED["values"][start : start + len(values)]
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("case", [pytest.param(case, id=named(case)) for case in CASES if is_refused(case)])
def test_a_folder_that_cannot_be_followed_is_refused(tmp_path: Path, case: dict[str, Any]) -> None:
    """With the file."""
    with pytest.raises(ConfigError, match=r"^(preprocessor_config|processor_config|config)\.json: "):
        load(case, tmp_path, (-1, 3, -1, -1))


def test_every_class_is_in_the_sample() -> None:
    """Those that are supported, and the other libraries. PPLCNet has no backend that uses Pillow."""
    groups = {case["group"] for case in CASES if case["results"]}

    assert groups >= (set(CLASSES) - {"PPLCNetImageProcessor"}) | {"timm", "torchvision"}
