"""What a body is."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from serve_app.api.content_type import check_content_type, resolve, sniff
from serve_app.domain.service import ModelInfo
from serve_app.domain.tasks import Kind
from serve_app.errors import UnsupportedMedia
from serve_app.payloads import ModelSignature

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.mark.parametrize(("kind", "prefix"), [("digits", "image/"), ("speech", "audio/")])
def test_pictures_and_sounds_are_told_apart(kind: str, prefix: str) -> None:
    """All of those that the models are tested with."""
    files = [path for path in (DATA / kind).iterdir() if path.suffix not in {".md", ".npz"}]

    assert {path.name: sniff(path.read_bytes())[: len(prefix)] for path in files} == {
        path.name: prefix for path in files
    }


@pytest.mark.parametrize("name", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "ICO"])
def test_pictures(name: str) -> None:
    """As Pillow writes them."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, name)

    assert sniff(buffer.getvalue()).startswith("image/")


@pytest.mark.parametrize("name", ["WAV", "FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "RF64"])
def test_sounds(name: str) -> None:
    """As libsndfile writes them."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(8000), 16000, format=name)

    assert sniff(buffer.getvalue()).startswith("audio/")


@pytest.mark.parametrize("content", [b"", b"R", b"RIFF", b"RIFFxxxxNONE", b"\xff", b"text", b"{}", b"\0" * 12])
def test_what_is_not_known(content: bytes) -> None:
    """Short and unusual beginnings are nothing."""
    assert sniff(content) == ""


@pytest.mark.parametrize(
    ("content_type", "content", "resolved"),
    [
        ("", b' \n{"inputs": ""}', "application/json"),
        ("application/x-www-form-urlencoded", b'{"inputs": ""}', "application/json"),
        ("application/octet-stream", b"OggS", "audio/ogg"),
        ("application/x-www-form-urlencoded", b"a=b", "application/x-www-form-urlencoded"),
        ("", b"", ""),
        ("image/png", b"OggS", "image/png"),
        ("text/plain", b"{}", "text/plain"),
    ],
)
def test_only_what_says_nothing_is_looked_at(content_type: str, content: bytes, resolved: Any) -> None:
    """A type that says something is believed."""
    assert resolve(content_type, content) == resolved


@pytest.mark.parametrize("kind", ["json", "parts", "text"])
@pytest.mark.parametrize("content_type", ["", "application/octet-stream"])
def test_what_says_nothing_may_be_json_until_it_is_looked_at(kind: Kind, content_type: str) -> None:
    """Once no better type is known, it is refused."""
    info = ModelInfo("houses", "1", ("1",), "tabular-regression", ModelSignature((), ()), 8, 8, {}, ())

    check_content_type(info, kind, content_type, final=False)
    with pytest.raises(UnsupportedMedia):
        check_content_type(info, kind, content_type)
