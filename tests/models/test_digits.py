"""The committed image model, run on held-out digits prepared as the server prepares them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image, ImageOps

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "digits"
DATA = ROOT / "tests" / "data" / "digits"
PICTURES = sorted(path for path in DATA.iterdir() if path.suffix != ".npz")


def prepared(image: Image.Image) -> NDArray[np.float32]:
    """Upright, on white paper, grey, 28 x 28, in -1 to 1: the preprocessing that the model was trained for."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    grey = image.convert("L").resize((28, 28), Image.Resampling.BILINEAR, reducing_gap=3.0)
    pixels = np.asarray(grey, dtype=np.float32)
    return (pixels / 255.0 - 0.5) / 0.5


def logits(session: Any, images: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Run the graph on prepared images; float32 (rows, 10)."""
    (result,) = session.run(["logits"], {"image": np.stack(images)[:, np.newaxis]})
    answer: NDArray[np.float32] = result
    return answer


@pytest.fixture(scope="module")
def session() -> Any:
    """The committed model, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(MODEL / "1" / "model.onnx", options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def held_out() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Ink (360, 8, 8) and labels (360) of the digits that the model was not trained on."""
    with np.load(DATA / "held_out.npz") as archive:
        return archive["ink"], archive["labels"]


@pytest.mark.parametrize("dark_ink", [False, True], ids=["white on black", "black on white"])
@pytest.mark.parametrize("kernel", [Image.Resampling.NEAREST, Image.Resampling.BICUBIC], ids=["nearest", "bicubic"])
@pytest.mark.parametrize(
    ("size", "every"), [(8, 1), (20, 1), (28, 1), (100, 1), (512, 2), (2048, 10)], ids=lambda number: f"{number}"
)
def test_held_out_digits_are_read_at_every_size_and_ink(
    session: Any,
    held_out: tuple[NDArray[np.uint8], NDArray[np.int64]],
    size: int,
    every: int,
    kernel: Image.Resampling,
    dark_ink: bool,
) -> None:
    """At least 97% of held-out digits are right, from 8 to 2,048 pixels and with light and dark ink."""
    ink, labels = held_out[0][::every], held_out[1][::every]
    drawn = [Image.fromarray(255 - digit if dark_ink else digit).resize((size, size), kernel) for digit in ink]
    answers = logits(session, [prepared(image) for image in drawn]).argmax(axis=1)
    assert float(np.mean(answers == labels)) >= 0.97


def test_picture_files_of_all_kinds_are_read(session: Any) -> None:
    """At least 97% of the picture files are right, whatever their format, colour mode and orientation."""
    images = []
    for path in PICTURES:
        with Image.open(path) as image:
            images.append(prepared(image))
    answers = logits(session, images).argmax(axis=1)
    wrong = [path.name for path, answer in zip(PICTURES, answers, strict=True) if path.name[0] != str(answer)]
    assert len(PICTURES) >= 60
    assert len(wrong) <= 0.03 * len(PICTURES), wrong


def test_rows_of_a_batch_do_not_see_each_other(
    session: Any, held_out: tuple[NDArray[np.uint8], NDArray[np.int64]]
) -> None:
    """A row's logits are the same alone and in a batch."""
    images = [prepared(Image.fromarray(digit)) for digit in held_out[0][:16]]
    together = logits(session, images)
    alone = np.concatenate([logits(session, [image]) for image in images])
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_labels_name_every_logit(session: Any) -> None:
    """The label file has one line per output of the graph."""
    labels = (MODEL / "labels.txt").read_text(encoding="utf-8").split()
    assert labels == [str(digit) for digit in range(10)]
    assert [(entry.name, entry.type, entry.shape) for entry in session.get_inputs()] == [
        ("image", "tensor(float)", ["rows", 1, 28, 28])
    ]
    assert [(entry.name, entry.shape) for entry in session.get_outputs()] == [("logits", ["rows", 10])]
