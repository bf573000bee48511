"""Small media take no time whatever their bytes are, and only the server's own processors are known to keep to that."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from serve_app.payloads import Media, ModelSignature, TensorSpec, Texts
from serve_app.processors import create_processor
from serve_app.processors.image import ImageProcessor
from serve_app.processors.quick import quick_of

LOGITS = (TensorSpec("logits", "FP32", (-1, 10)),)
PICTURES = ModelSignature((TensorSpec("pixels", "FP32", (-1, 1, 28, 28)),), LOGITS)
SOUNDS = ModelSignature((TensorSpec("samples", "FP32", (-1, -1)),), LOGITS)
TEXTS = ModelSignature((TensorSpec("input_ids", "INT64", (-1, -1)),), LOGITS)


def picture(edge: int, kind: str = "PNG", **options: Any) -> Media:
    """A grey square."""
    file = io.BytesIO()
    Image.new("L", (edge, edge), 128).save(file, kind, **options)
    return Media(file.getvalue(), "", {})


def sound(samples: int, rate: int) -> Media:
    """Silence, a WAV of bytes."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 1, rate, samples, "NONE", ""))
        writer.writeframes(bytes(samples))
    return Media(file.getvalue(), "", {})


def note(name: str) -> PngImagePlugin.PngInfo:
    """A compressed text beside a picture."""
    info = PngImagePlugin.PngInfo()
    info.add_text(name, "0" * 100_000, zip=True)
    return info


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (picture(28), True),
        (picture(129), False),
        (picture(28, pnginfo=note("long")), False),
        (picture(28, "GIF"), False),
        (Media(picture(28).content + bytes(20_000), "", {}), False),
        (Media(picture(28).content[:20], "", {}), True),  # is refused at once
        (Texts(["7"], {}), False),
    ],
)
def test_pictures_are_quick_by_their_header(tmp_path: Path, payload: Media | Texts, expected: bool) -> None:
    """A PNG of few pixels, which holds nothing else that has to be unpacked."""
    is_quick = quick_of(create_processor("image-classification", PICTURES, tmp_path, {}))
    assert is_quick is not None
    assert expected == is_quick(payload)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (sound(16_000, 16_000), True),
        (sound(66_000, 16_000), False),
        (sound(16_000, 1_000), False),  # becomes sixteen times as long
        (Media(b"fLaC" + bytes(50), "", {}), False),
        (Texts(["seven"], {}), False),
    ],
)
def test_sounds_are_quick_by_their_length(tmp_path: Path, payload: Media | Texts, expected: bool) -> None:
    """A plain WAV of few samples, before and after it is resampled."""
    options = {"sampling_rate": 16_000}
    is_quick = quick_of(create_processor("audio-classification", SOUNDS, tmp_path, options))
    assert is_quick is not None
    assert expected == is_quick(payload)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (Texts(["hello world"], {"top_k": 3}), True),
        (Texts([[1, 2, 3]], {}), True),
        (Texts(["a" * 300, "b" * 300], {}), False),
        (Texts(["hello"], {"candidate_labels": ["world"]}), False),
        (Media(b"hello", "", {}), False),
    ],
)
def test_texts_are_quick_by_their_length(text_folder: Path, payload: Media | Texts, expected: bool) -> None:
    """A few hundred characters or token ids, and no parameter that may hold more of them."""
    is_quick = quick_of(create_processor("text-classification", TEXTS, text_folder, {}))
    assert is_quick is not None
    assert expected == is_quick(payload)


def test_a_model_of_large_pictures_has_no_quick_ones(tmp_path: Path) -> None:
    """A small picture becomes a large one."""
    large = ModelSignature((TensorSpec("pixels", "FP32", (-1, 3, 224, 224)),), LOGITS)
    assert quick_of(create_processor("image-classification", large, tmp_path, {})) is None
    assert quick_of(create_processor("image-classification", PICTURES, tmp_path, {"resize": "crop"})) is None


def test_what_derives_from_a_processor_of_the_server_is_other_code(tmp_path: Path) -> None:
    """It may do anything, and is called in a thread."""

    class Own(ImageProcessor):
        pass

    processor = create_processor("image-classification", PICTURES, tmp_path, {})
    assert isinstance(processor, ImageProcessor)
    assert quick_of(Own(processor.settings, processor.ranking)) is None
    assert quick_of(None) is None
