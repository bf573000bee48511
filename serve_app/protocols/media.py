"""Decodes media as users have them: raw bodies, JSON with text or base64, and multipart forms."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import orjson
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.types import Message

from serve_app.errors import InvalidRequest, UnsupportedMedia
from serve_app.payloads import Media, Texts
from serve_app.protocols.open_inference.wire import invalid
from serve_app.protocols.service import ModelInfo

Kind: TypeAlias = Literal["tensors", "image", "audio", "text"]

_Scalar: TypeAlias = str | int | float | bool | None
_Parameters: TypeAlias = dict[str, _Scalar | list[_Scalar]]

JSON = "application/json"
MULTIPART = "multipart/form-data"
# What curl says when nobody told it anything better, and what says nothing: the processor looks at the bytes.
_OPAQUE = frozenset({"", "application/octet-stream", "application/x-www-form-urlencoded"})
_AUDIO_ALIASES = frozenset({"application/ogg", "video/ogg", "video/webm"})
_MAX_FIELDS = 2000
_FORM_PIECE = 64 * 1024


class _SentenceSimilarity(msgspec.Struct, forbid_unknown_fields=True):
    """The ``inputs`` of Hugging Face's sentence-similarity task."""

    source_sentence: str
    sentences: list[str]


class Work(NamedTuple):
    """A decoded predict request.

    Attributes:
        payload: What the model takes.
        variant: Name of the variant that the body asks for; empty for the exact model.
    """

    payload: Media | Texts
    variant: str = ""


def kind_of(task: str) -> Kind:
    """What a model of this task takes, from Hugging Face's naming: ``image-...``, ``audio-...``, else text."""
    if task == "tensors":
        return "tensors"
    if task.startswith("image-"):
        return "image"
    if task.startswith("audio-") or task == "automatic-speech-recognition":
        return "audio"
    return "text"


WANTED: Mapping[Kind, str] = {
    "tensors": "tensors",
    "image": "a picture (image/*, application/octet-stream, multipart/form-data, or JSON with base64 inputs)",
    "audio": "a sound (audio/*, application/octet-stream, multipart/form-data, or JSON with base64 inputs)",
    "text": 'text (text/plain, or application/json {"inputs": "..."})',
}


def media_type(headers: Mapping[bytes, bytes]) -> str:
    """The Content-Type without parameters, lower case; empty where there is none.

    Raises:
        UnsupportedMedia: Text in a charset other than UTF-8.
    """
    value = headers.get(b"content-type", b"").decode("latin-1")
    name, _, parameters = value.partition(";")
    name = name.strip().lower()
    if name in {"text/plain", JSON}:
        for parameter in parameters.split(";"):
            key, _, charset = parameter.partition("=")
            if key.strip().lower() == "charset" and charset.strip(' "').lower() not in {"utf-8", "utf8", "us-ascii"}:
                raise UnsupportedMedia(f"Content-Type: charset {charset[:40]!r} is not served; send UTF-8")
    return name


def check_content_type(info: ModelInfo, kind: Kind, content_type: str) -> None:
    """Refuse what this model cannot take, before its body is read.

    Raises:
        InvalidRequest: The model takes tensors only.
        UnsupportedMedia: The content type is not one of the model's.
    """
    if kind == "tensors":
        raise InvalidRequest(
            f"model {info.name!r} takes tensors, not media: send them to POST /v2/models/{info.name}/infer"
        )
    if content_type in {JSON, MULTIPART}:
        return
    if kind == "text":
        fits = content_type == "text/plain"
    elif kind == "image":
        fits = content_type.startswith("image/") or content_type in _OPAQUE
    else:
        fits = content_type.startswith("audio/") or content_type in _OPAQUE | _AUDIO_ALIASES
    if not fits:
        raise UnsupportedMedia(f"model {info.name!r} takes {WANTED[kind]}; got {content_type[:80] or 'no type'!r}")


def decode(info: ModelInfo, kind: Kind, content_type: str, content: bytes) -> Work:
    """Make a payload of a body that is not a form.

    Raises:
        InvalidRequest: It cannot be understood.
    """
    if content_type == JSON:
        return _from_json(info, kind, content)
    if kind == "text":
        return Work(Texts([_utf8(content, "the body")], {}))
    return Work(Media(content, "" if content_type in _OPAQUE else content_type, {}))


def _from_json(info: ModelInfo, kind: Kind, content: bytes) -> Work:
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body: not valid JSON: {error.msg[:100]}") from None
    if not isinstance(document, dict) or "inputs" not in document:
        raise InvalidRequest('the body: expected a JSON object {"inputs": ..., "parameters": {...}}')
    inputs = document.pop("inputs")
    nested = document.pop("parameters", None)
    if nested is not None and not isinstance(nested, dict):
        raise InvalidRequest("parameters: expected a JSON object")
    # Some tasks of Hugging Face's clients put their parameters beside the inputs.
    parameters, variant = _parameters({**document, **(nested or {})})
    if kind == "text":
        return _from_inputs(info, inputs, parameters, variant)
    if not isinstance(inputs, str):
        raise InvalidRequest(f"inputs: expected the {kind} file in base64, as a string")
    content_type, encoded = "", inputs
    if inputs.startswith("data:"):
        head, _, encoded = inputs.partition(",")
        content_type = head[len("data:") :].partition(";")[0].strip().lower()
    try:
        media = binascii.a2b_base64("".join(encoded.split()), strict_mode=True)
    except ValueError:
        raise InvalidRequest(f"inputs: expected the {kind} file in base64") from None
    if not media:
        raise InvalidRequest("inputs: the file is empty")
    if content_type:
        check_content_type(info, kind, content_type)
    return Work(Media(media, content_type, parameters), variant)


def _from_inputs(info: ModelInfo, inputs: Any, parameters: dict[str, Any], variant: str) -> Work:
    if isinstance(inputs, str):
        return Work(Texts([inputs], parameters), variant)
    try:
        if isinstance(inputs, dict):
            pair = msgspec.convert(inputs, _SentenceSimilarity)
            # A parameter for the model's processor, which answers with one similarity per sentence.
            parameters["source_sentence"] = pair.source_sentence
            return Work(_texts(info, pair.sentences, parameters), variant)
        texts = msgspec.convert(inputs, list[str])
    except msgspec.ValidationError as error:
        raise invalid(error, "inputs") from None
    return Work(_texts(info, texts, parameters), variant)


def _texts(info: ModelInfo, texts: list[str], parameters: dict[str, Any]) -> Texts:
    if not texts:
        raise InvalidRequest("inputs: expected at least one text")
    if len(texts) > info.max_request_rows:
        raise InvalidRequest(f"inputs: {len(texts)} texts; the most in one request is {info.max_request_rows}")
    return Texts(texts, parameters)


def _parameters(given: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Task parameters, and the variant among them. Values are scalars or flat lists: no task needs more."""
    try:
        parameters = msgspec.convert(given, _Parameters)
    except msgspec.ValidationError:
        name = next((key for key, value in given.items() if not _is_plain(value)), "*")
        raise InvalidRequest(
            f"parameters.{name[:64]}: expected a string, a number, true, false or a list of these"
        ) from None
    variant = parameters.pop("variant", None)
    if variant is not None and not isinstance(variant, str):
        raise InvalidRequest("parameters.variant: expected a string")
    return parameters, variant or ""


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return not any(isinstance(item, list | dict) for item in value)
    return not isinstance(value, dict)


async def decode_form(info: ModelInfo, kind: Kind, request: Request, content: bytes) -> Work:
    """Make a payload of a multipart form: a file, or texts in fields named ``inputs``; and JSON ``parameters``.

    Args:
        info: The model.
        kind: What it takes.
        request: For its headers; its body has been read.
        content: The body.

    Raises:
        InvalidRequest: It cannot be understood.
    """
    position = 0

    async def replay() -> Message:
        nonlocal position
        piece = content[position : position + _FORM_PIECE]
        position += len(piece)
        await asyncio.sleep(0)  # others get their turn between pieces: the parser is Python and never waits
        return {"type": "http.request", "body": piece, "more_body": position < len(content)}

    try:
        async with Request(request.scope, replay).form(
            max_files=1, max_fields=_MAX_FIELDS, max_part_size=len(content)
        ) as form:
            files = [value for value in form.values() if isinstance(value, UploadFile)]
            texts = [value for value in form.getlist("inputs") if isinstance(value, str)]
            parameters_field = form.get("parameters")
            uploaded = await files[0].read() if files else b""
            upload_type = (files[0].content_type or "") if files else ""
    except MultiPartException as error:
        raise InvalidRequest(f"the multipart form cannot be read: {error.message}") from None
    except HTTPException as error:
        raise InvalidRequest(f"the multipart form cannot be read: {error.detail}") from None
    parameters, variant = _form_parameters(parameters_field)
    if kind == "text":
        if not texts:
            raise InvalidRequest("inputs: expected at least one form field of this name, with a text")
        return Work(_texts(info, texts, parameters), variant)
    if not files:
        raise InvalidRequest(f"file: expected a form field of this name with the {kind} file (curl -F file=@...)")
    if not uploaded:
        raise InvalidRequest("file: the file is empty")
    name = upload_type.partition(";")[0].strip().lower()
    if name in {JSON, MULTIPART}:
        raise UnsupportedMedia(f"file: model {info.name!r} takes {WANTED[kind]}")
    check_content_type(info, kind, name)
    return Work(Media(uploaded, "" if name in _OPAQUE else name, parameters), variant)


def _form_parameters(field: object) -> tuple[dict[str, Any], str]:
    if field is None:
        return {}, ""
    try:
        given = orjson.loads(field) if isinstance(field, str) else None
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise InvalidRequest("parameters: expected a JSON object in this form field")
    return _parameters(given)


def _utf8(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where}: text is not valid UTF-8") from None
