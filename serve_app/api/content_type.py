"""The type of a body: from its Content-Type, or else from its first bytes."""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.domain.service import ModelInfo
from serve_app.domain.tasks import JSON_TYPE, Kind
from serve_app.errors import InvalidRequest, UnsupportedMedia

JSON = JSON_TYPE
MULTIPART = "multipart/form-data"
_MULTIPART = MULTIPART.encode()
# Curl's default, and generic types: the processor looks at the bytes.
OPAQUE = frozenset({"", "application/octet-stream", "binary/octet-stream", "application/x-www-form-urlencoded"})
_AUDIO_ALIASES = frozenset({"application/ogg", "video/ogg", "video/webm"})
_FIRST_BYTES = 256
_IN_RIFF = {b"WAVE": "audio/wav", b"WEBP": "image/webp"}
_IN_FTYP = {b"avif": "image/avif", b"heic": "image/heic", b"M4A ": "audio/mp4"}
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"BM": "image/bmp",
    b"II*\0": "image/tiff",
    b"MM\0*": "image/tiff",
    b"\0\0\1\0": "image/x-icon",
    b"fLaC": "audio/flac",
    b"OggS": "audio/ogg",
    b"ID3": "audio/mpeg",
    b".snd": "audio/basic",
    b"caff": "audio/x-caf",
}
"""First bytes of the formats that are usual."""

WANTED: Mapping[Kind, str] = {
    "tensors": "tensors",
    "image": "a picture (image/*, application/octet-stream, multipart/form-data, or JSON with base64 inputs)",
    "audio": "a sound (audio/*, application/octet-stream, multipart/form-data, or JSON with base64 inputs)",
    "text": 'text (text/plain, or application/json {"inputs": "..."})',
    "json": 'JSON (application/json {"inputs": ...})',
    "parts": "its inputs by name (application/json, or multipart/form-data with a part for each)",
}


def media_type(headers: Mapping[bytes, bytes]) -> str:
    """The Content-Type without parameters, lower case; empty if missing.

    Raises:
        UnsupportedMedia: Text, or a form, in a charset other than UTF-8.
    """
    value = headers.get(b"content-type", b"").decode("latin-1")
    name, _, parameters = value.partition(";")
    name = name.strip().lower()
    if name in {"text/plain", JSON, MULTIPART}:
        for parameter in parameters.split(";"):
            key, _, charset = parameter.partition("=")
            if key.strip().lower() == "charset" and charset.strip(' "').lower() not in {"utf-8", "utf8", "us-ascii"}:
                raise UnsupportedMedia(f"Content-Type: charset {charset[:40]!r} is not served; send UTF-8")
    return name


def is_form(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body is a multipart form."""
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == _MULTIPART


def resolve(content_type: str, content: bytes) -> str:
    """Find the type of a body whose Content-Type is generic, e.g. the default of curl's ``--data-binary``.

    Returns:
        A specific type unchanged; otherwise JSON for the beginning of an object, `sniff`'s result, or the type
        unchanged.
    """
    if content_type not in OPAQUE:
        return content_type
    if content[:_FIRST_BYTES].lstrip(b" \t\r\n").startswith(b"{"):
        return JSON
    return sniff(content) or content_type


def sniff(content: bytes) -> str:
    """The media type of an image or audio by its first bytes; empty if unknown.

    Distinguishes images from audio; the processor decides which can be decoded.
    """
    if content[:4] in {b"RIFF", b"RIFX", b"RF64", b"BW64"}:
        return _IN_RIFF.get(content[8:12], "")
    if content[:4] == b"FORM" and content[8:12] in {b"AIFF", b"AIFC"}:
        return "audio/aiff"
    if content[4:8] == b"ftyp":
        return _IN_FTYP.get(content[8:12], "")
    for magic, media in _MAGIC.items():
        if content.startswith(magic):
            return media
    # MPEG audio: eleven set bits, then a layer that is not reserved.
    if len(content) > 1 and content[0] == 0xFF and content[1] & 0xE0 == 0xE0 and content[1] & 0x06:
        return "audio/mpeg"
    return ""


def check_content_type(info: ModelInfo, kind: Kind, content_type: str, *, final: bool = True) -> None:
    """Refuse a content type that the model does not take.

    Args:
        final: Whether the body has been inspected, so that no better type will be known.

    Raises:
        InvalidRequest: The model takes tensors only.
        UnsupportedMedia: The content type is not one of the model's.
    """
    if kind == "tensors":
        raise InvalidRequest(
            f"model {info.name!r} takes tensors, not media: send them to POST /v2/models/{info.segment}/infer"
        )
    if content_type == JSON or (content_type == MULTIPART and kind != "json"):
        return
    if kind in {"json", "parts"}:
        fits = content_type in OPAQUE and not final
    elif kind == "text":
        fits = content_type == "text/plain" or (content_type in OPAQUE and not final)
    elif kind == "image":
        fits = content_type.startswith("image/") or content_type in OPAQUE
    else:
        fits = content_type.startswith("audio/") or content_type in OPAQUE | _AUDIO_ALIASES
    if not fits:
        raise UnsupportedMedia(f"model {info.name!r} takes {WANTED[kind]}; got {content_type[:80] or 'no type'!r}")
