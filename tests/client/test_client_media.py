"""Media as users have them: what is sent, and as what."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pytest
import soundfile
from PIL import Image

from serve_app_client.media import Media, are_in_memory, body_of, content_type_of, inputs_body, is_in_memory


@pytest.mark.parametrize(
    ("media", "parameters", "document"),
    [
        pytest.param("a", None, {"inputs": "a"}, id="text"),
        pytest.param(("a", "b"), {"top_k": 1}, {"inputs": ["a", "b"], "parameters": {"top_k": 1}}, id="texts"),
        pytest.param(
            {"source_sentence": "a", "sentences": ["b"]},
            None,
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
            id="object",
        ),
    ],
)
def test_text_is_sent_as_json(media: Media, parameters: dict[str, Any] | None, document: object) -> None:
    """With the parameters of the task beside it."""
    content, content_type = body_of(media, parameters)
    assert (orjson.loads(content), content_type) == (document, "application/json")
    assert is_in_memory(media)


def test_a_pipeline_gets_files_in_base64_and_all_else_as_json(tmp_path: Path) -> None:
    """By the names of its inputs; a list may hold files, too."""
    path = tmp_path / "picture.png"
    path.write_bytes(b"png")
    inputs: dict[str, Any] = {
        "path": path,
        "files": [b"one", io.BytesIO(b"two"), memoryview(b"three")],
        "text": "words",
        "json": {"deep": [1, None, True]},
        "tensor": np.arange(4, dtype=np.int16).reshape(2, 2),
        "rows": [[1, 2], np.float32(0.5)],
    }
    body = inputs_body(inputs)
    assert body.content_type == "application/json"
    assert orjson.loads(body.content) == {
        "path": {"b64": "cG5n"},
        "files": [{"b64": "b25l"}, {"b64": "dHdv"}, {"b64": "dGhyZWU="}],
        "text": "words",
        "json": {"deep": [1, None, True]},
        "tensor": [[0, 1], [2, 3]],
        "rows": [[1, 2], 0.5],
    }
    assert not are_in_memory(inputs)
    assert are_in_memory({name: inputs[name] for name in ("text", "json", "tensor", "rows")} | {"file": b"one"})


def test_files_are_sent_as_they_are(tmp_path: Path) -> None:
    """A path, its open file, its bytes: the same bytes, and the type as far as the name tells."""
    path = tmp_path / "a.png"
    path.write_bytes(b"any")
    assert body_of(path, None) == (b"any", "image/png")
    with path.open("rb") as file:
        assert body_of(file, None) == (b"any", "image/png")
    assert body_of(io.BytesIO(b"any"), None) == (b"any", "application/octet-stream")
    assert body_of(bytearray(b"any"), None) == (b"any", "application/octet-stream")
    assert not is_in_memory(path)


def test_a_file_with_parameters_is_sent_as_a_form() -> None:
    """The same bytes for every attempt."""
    content, content_type = body_of(b"any", {"top_k": 2})
    assert content_type.startswith("multipart/form-data; boundary=")
    assert b'name="file"; filename="file"' in content
    assert b'{"top_k":2}' in content


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.PNG", "image/png"),
        ("a.wav", "audio/"),
        ("a.flac", "audio/"),
        ("a.txt", "text/plain"),
        ("a.zip", "application/octet-stream"),
        ("a", "application/octet-stream"),
    ],
)
def test_names_tell_the_content_type(name: str, expected: str) -> None:
    """Where they do not, the server looks at the bytes."""
    assert content_type_of(name).startswith(expected)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (5, 4, 4)])
def test_pictures_survive(shape: tuple[int, ...]) -> None:
    """An array of pixels, and a PIL image, arrive without loss."""
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    for media in (pixels, Image.fromarray(pixels)):
        content, content_type = body_of(media, None)
        assert content_type == "image/png"
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), pixels)


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(np.linspace(-2, 2, 50, dtype=np.float32), id="float32-over-full-scale"),
        pytest.param(np.linspace(-1, 1, 50).astype(np.float32).reshape(25, 2), id="stereo"),
        pytest.param(np.arange(-25, 25, dtype=np.int16), id="int16"),
    ],
)
def test_sounds_survive(samples: npt.NDArray[Any]) -> None:
    """Samples arrive without loss, with their rate."""
    content, content_type = body_of(samples, None, 16000)
    read, rate = soundfile.read(io.BytesIO(content), dtype=samples.dtype.name)
    assert (content_type, rate) == ("audio/wav", 16000)
    assert np.array_equal(read, samples)


@pytest.mark.parametrize(
    ("media", "rate", "kind", "message"),
    [
        pytest.param(3, None, TypeError, "got int", id="number"),
        pytest.param(["a", b"b"], None, TypeError, "must hold texts", id="list-of-files"),
        pytest.param(io.StringIO("a"), None, TypeError, "binary mode", id="text-file"),
        pytest.param(np.zeros((2, 2), np.float32), None, ValueError, "uint8", id="float-picture"),
        pytest.param(np.zeros(9, np.int16), None, ValueError, "sampling_rate", id="sound-without-rate"),
        pytest.param(np.zeros(9, np.uint8), 8000, ValueError, "float or int16", id="odd-sound"),
        pytest.param(Path("/no/such/file"), None, FileNotFoundError, "no/such", id="missing"),
    ],
)
def test_what_cannot_be_sent_is_told(media: Any, rate: int | None, kind: type[Exception], message: str) -> None:
    """Before anything is sent."""
    with pytest.raises(kind, match=message):
        body_of(media, None, rate)
