"""Encodes media as a body with its content type. Imports Pillow and soundfile on demand."""

from __future__ import annotations

import base64
import io
import mimetypes
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TypeAlias

import httpx
import numpy as np
import numpy.typing as npt
import orjson

from serve_app_client.extras import brought_by

if TYPE_CHECKING:
    from PIL.Image import Image

Texts: TypeAlias = str | Sequence[str] | Mapping[str, Any]
"""A text, several, or an object that a task takes, e.g. ``{"source_sentence": ..., "sentences": [...]}``."""

Blob: TypeAlias = bytes | bytearray | memoryview
"""An encoded file in memory."""

Media: TypeAlias = "Texts | Blob | os.PathLike[str] | BinaryIO | Image | npt.NDArray[Any]"
"""What `predict` takes. A string is always a text: a file is a `pathlib.Path`."""

Value: TypeAlias = (
    "Blob | os.PathLike[str] | BinaryIO | Image | npt.NDArray[Any] | str | float | Sequence[Any] | Mapping[str, Any]"
    " | None"
)
"""What `run_pipeline` takes for one input: a file, text, JSON data, a tensor, or a list of such."""

_UNKNOWN: Final = "application/octet-stream"  # the server looks at the bytes
_JSON: Final = "application/json"


class Body(NamedTuple):
    """A body and its content type."""

    content: bytes
    content_type: str


def is_text(media: Media) -> bool:
    """Whether it is sent as JSON text."""
    return isinstance(media, str | Mapping) or (isinstance(media, Sequence) and not isinstance(media, Blob))


def is_in_memory(media: Media) -> bool:
    """Whether encoding it neither reads nor makes a file."""
    return is_text(media) or isinstance(media, Blob)


def are_in_memory(inputs: Mapping[str, Value]) -> bool:
    """The same for a pipeline's inputs. Raises `TypeError` if they have no names."""
    _check_named(inputs)
    return not any(
        _is_file(each) and not isinstance(each, Blob)
        for value in inputs.values()
        for each in (value if isinstance(value, list | tuple) else [value])
    )


def body_of(media: Media, parameters: Mapping[str, Any] | None, sampling_rate: int | None = None) -> Body:
    """Make the body of a predict request: JSON for text; a file unchanged, or in a form if there are parameters.

    Args:
        media: See `Media`. An array with a sampling rate is audio: float or int16, (samples,) or (samples, channels).
            Others are images: uint8, (height, width) or (height, width, 3 or 4).

    Raises:
        TypeError: It cannot be sent.
        ValueError: An array is neither an image nor audio.
        OSError: The file is unreadable.
    """
    if is_text(media):
        return Body(orjson.dumps(_text_document(media, parameters)), _JSON)
    file = file_of(media, sampling_rate)
    if not parameters:
        return file
    # Made here and not by the transport: every attempt sends the same bytes.
    form = httpx.Request(
        "POST",
        "http://form",
        files={"file": ("file", file.content, file.content_type)},
        data={"parameters": orjson.dumps(dict(parameters)).decode()},
    )
    return Body(form.read(), form.headers["content-type"])


def inputs_body(inputs: Mapping[str, Value]) -> Body:
    """Make the body of a pipeline's request: JSON by input, with files in base64.

    Args:
        inputs: By name. Files are bytes, paths, open binary files and PIL images, or lists of these. Arrays are
            tensors.

    Raises:
        TypeError: They have no names, or a value is no file and has no JSON form.
        OSError: A file is unreadable.
    """
    _check_named(inputs)
    parts = {
        name: [_part(each) for each in value] if isinstance(value, list | tuple) else _part(value)
        for name, value in inputs.items()
    }
    return Body(orjson.dumps(parts, default=plain, option=orjson.OPT_SERIALIZE_NUMPY), _JSON)


def _check_named(inputs: Mapping[str, Value]) -> None:
    if not isinstance(inputs, Mapping):
        raise TypeError(f"a pipeline's inputs are given by name, as {{'image': ...}}, not as {type(inputs).__name__}")


def plain(value: Any) -> Any:
    """Convert numpy's values for orjson. Raises `TypeError` for others."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def file_of(media: Media, sampling_rate: int | None = None) -> Body:
    """The encoded file of an image or audio, and its content type. Arguments and errors as in `body_of`."""
    if isinstance(media, Blob):
        return Body(bytes(media), _UNKNOWN)
    if isinstance(media, os.PathLike):
        path = Path(media)
        return Body(path.read_bytes(), content_type_of(path.name))
    if isinstance(media, np.ndarray):
        return _picture_of(media) if sampling_rate is None else _sound_of(media, sampling_rate)
    if _is_image(media):
        return _png(media)
    if callable(getattr(media, "read", None)):
        return _read(media)
    raise TypeError(
        f"media: expected text, bytes, a path (pathlib.Path), an open binary file, a PIL image or a numpy array;"
        f" got {type(media).__name__}"
    )


def content_type_of(name: str) -> str:
    """The content type by a file's name; a generic one if unknown, for the server to detect."""
    guess = mimetypes.guess_type(name)[0] or _UNKNOWN
    return guess if guess.startswith(("image/", "audio/")) or guess == "text/plain" else _UNKNOWN


def _is_file(value: Any) -> bool:
    return isinstance(value, Blob | os.PathLike) or _is_image(value) or callable(getattr(value, "read", None))


def _is_image(value: Any) -> bool:
    return "PIL.Image" in sys.modules and isinstance(value, sys.modules["PIL.Image"].Image)


def _part(value: Any) -> Any:
    return {"b64": base64.b64encode(file_of(value).content).decode()} if _is_file(value) else value


def _text_document(media: Any, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(media, Sequence) and not isinstance(media, str):
        media = list(media)
        if not all(isinstance(text, str) for text in media):
            raise TypeError("media: a list must hold texts; send files one by one")
    return {"inputs": media, "parameters": dict(parameters)} if parameters else {"inputs": media}


def _read(file: Any) -> Body:
    content = file.read()
    if not isinstance(content, bytes):
        raise TypeError("media: the file is open as text; open it in binary mode ('rb')")
    name = getattr(file, "name", "")
    return Body(content, content_type_of(name) if isinstance(name, str) else _UNKNOWN)


def _picture_of(array: npt.NDArray[Any]) -> Body:
    with brought_by("media"):
        from PIL import Image  # noqa: PLC0415 - see the module's text

    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in {3, 4})):
        raise ValueError(
            "media: a picture is uint8 of shape (height, width) or (height, width, 3 or 4), and a sound needs its"
            f" sampling_rate; got {array.dtype} of shape {array.shape}"
        )
    return _png(Image.fromarray(array))


def _png(image: Any) -> Body:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)  # speed matters more than size
    return Body(buffer.getvalue(), "image/png")


def _sound_of(array: npt.NDArray[Any], sampling_rate: int) -> Body:
    with brought_by("media"):
        import soundfile  # noqa: PLC0415 - see the module's text

    if array.ndim not in {1, 2} or not (array.dtype.kind == "f" or array.dtype == np.int16):
        raise ValueError(
            "media: a sound is float or int16 of shape (samples,) or (samples, channels);"
            f" got {array.dtype} of shape {array.shape}"
        )
    buffer = io.BytesIO()
    as_float = array.dtype.kind == "f"
    samples = array.astype(np.float32, copy=False) if as_float else array
    soundfile.write(buffer, samples, sampling_rate, format="WAV", subtype="FLOAT" if as_float else "PCM_16")
    return Body(buffer.getvalue(), "audio/wav")
