"""Decodes media as users have them: raw bodies, JSON with text or base64, and multipart forms."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
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

JSON = "application/json"
MULTIPART = "multipart/form-data"
# What curl says when nobody told it anything better, and what says nothing: the processor looks at the bytes.
_OPAQUE = frozenset({"", "application/octet-stream", "application/x-www-form-urlencoded"})
_AUDIO_ALIASES = frozenset({"application/ogg", "video/ogg", "video/webm"})
_MAX_FIELDS = 2000
_FORM_PIECE = 64 * 1024
_MOST_PARAMETER_BYTES = 2**20


class _SentenceSimilarity(msgspec.Struct, forbid_unknown_fields=True):
    """The ``inputs`` of Hugging Face's sentence-similarity task."""

    source_sentence: str
    sentences: list[str]


class _Document(msgspec.Struct):
    inputs: msgspec.Raw


_DOCUMENT: Final = msgspec.json.Decoder(_Document)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT_OR_NULL: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_PARAMETER: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_Scalar | list[_Scalar])
_TEXT: Final = msgspec.json.Decoder(str)
_TEXTS: Final = msgspec.json.Decoder(list[str])
_PAIR: Final = msgspec.json.Decoder(_SentenceSimilarity)


class PredictRequest(NamedTuple):
    """A decoded predict request.

    Attributes:
        payload: What the model takes.
        variant: Name of the variant that the body asks for; empty for the exact model.
        fallback: Whether the body lets a fallback answer; ``None`` where it does not say.
        lone_text: Whether the body held one text and not a list of them.
    """

    payload: Media | Texts
    variant: str = ""
    fallback: bool | None = None
    lone_text: bool = False


class _Parameters(NamedTuple):
    """The ``parameters`` of a request: those of its task, and those for the server."""

    task: dict[str, Any]
    variant: str = ""
    fallback: bool | None = None


def kind_of(task: str) -> Kind:
    """What a model of this task takes, from Hugging Face's naming: ``image-...``, ``audio-...``, else text."""
    if task == "tensors":
        return "tensors"
    if task.startswith("image-"):
        return "image"
    if task.startswith("audio-"):
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


def decode(info: ModelInfo, kind: Kind, content_type: str, content: bytes) -> PredictRequest:
    """Make a payload of a body that is not a form.

    Raises:
        InvalidRequest: It cannot be understood.
    """
    if content_type == JSON:
        return _from_json(info, kind, content)
    if kind == "text":
        return PredictRequest(Texts([_utf8(content, "the body")], {}), lone_text=True)
    return PredictRequest(Media(content, "" if content_type in _OPAQUE else content_type, {}))


def _from_json(info: ModelInfo, kind: Kind, content: bytes) -> PredictRequest:
    # Only what is needed is decoded, as the type it must have: a decoder that makes objects of whatever comes holds
    # the GIL, and with it every other request, for seconds on a body of brackets.
    try:
        document = _DOCUMENT.decode(content)
        if len(content) - len(memoryview(document.inputs)) > _MOST_PARAMETER_BYTES:
            raise InvalidRequest(f"parameters: more than {_MOST_PARAMETER_BYTES} bytes beside the inputs")
        values = _OBJECT.decode(content)
    except msgspec.ValidationError:
        raise InvalidRequest('the body: expected a JSON object {"inputs": ..., "parameters": {...}}') from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(error) from None
    del values["inputs"]
    nested = values.pop("parameters", None)
    # Some tasks of Hugging Face's clients put their parameters beside the inputs.
    parameters = _parameters({**values, **(_parameter_object(nested) if nested is not None else {})})
    if kind == "text":
        return _from_inputs(info, document.inputs, parameters)
    try:
        inputs = _TEXT.decode(document.inputs)
    except msgspec.ValidationError:
        raise InvalidRequest(f"inputs: expected the {kind} file in base64, as a string") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(error, "inputs") from None
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
    return PredictRequest(Media(media, content_type, parameters.task), parameters.variant, parameters.fallback)


def _from_inputs(info: ModelInfo, inputs: msgspec.Raw, parameters: _Parameters) -> PredictRequest:
    first = bytes(memoryview(inputs)[:1])
    task, variant, fallback = parameters
    try:
        if first == b'"':
            return PredictRequest(Texts([_TEXT.decode(inputs)], task), variant, fallback, lone_text=True)
        if first == b"{":
            pair = _PAIR.decode(inputs)
            # A parameter for the model's processor, which answers with one similarity per sentence.
            task["source_sentence"] = pair.source_sentence
            return PredictRequest(_texts(info, pair.sentences, task), variant, fallback)
        texts = _TEXTS.decode(inputs)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(error, "inputs") from None
    return PredictRequest(_texts(info, texts, task), variant, fallback)


def _texts(info: ModelInfo, texts: list[str], parameters: dict[str, Any]) -> Texts:
    if not texts:
        raise InvalidRequest("inputs: expected at least one text")
    if len(texts) > info.max_request_rows:
        raise InvalidRequest(f"inputs: {len(texts)} texts; the most in one request is {info.max_request_rows}")
    return Texts(texts, parameters)


def _parameter_object(raw: msgspec.Raw | bytes) -> dict[str, msgspec.Raw]:
    """The members of the JSON object ``parameters``, none for null."""
    try:
        return _OBJECT_OR_NULL.decode(raw) or {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("parameters: expected a JSON object") from None


def _parameters(given: Mapping[str, msgspec.Raw]) -> _Parameters:
    """Take the parameters apart. Values are scalars or flat lists: no task needs more."""
    parameters: dict[str, Any] = {}
    for name, raw in given.items():
        try:
            parameters[name] = _PARAMETER.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise InvalidRequest(
                f"parameters.{name[:64]}: expected a string, a number, true, false or a list of these"
            ) from None
    variant = parameters.pop("variant", None)
    if variant is not None and not isinstance(variant, str):
        raise InvalidRequest("parameters.variant: expected a string")
    fallback = parameters.pop("fallback", None)
    if fallback is not None and not isinstance(fallback, bool):
        raise InvalidRequest("parameters.fallback: expected true or false")
    return _Parameters(parameters, variant or "", fallback)


async def decode_form(info: ModelInfo, kind: Kind, request: Request, content: bytes) -> PredictRequest:
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
    task, variant, fallback = _form_parameters(parameters_field)
    if kind == "text":
        if not texts:
            raise InvalidRequest("inputs: expected at least one form field of this name, with a text")
        return PredictRequest(_texts(info, texts, task), variant, fallback)
    if not files:
        raise InvalidRequest(f"file: expected a form field of this name with the {kind} file (curl -F file=@...)")
    if not uploaded:
        raise InvalidRequest("file: the file is empty")
    name = upload_type.partition(";")[0].strip().lower()
    if name in {JSON, MULTIPART}:
        raise UnsupportedMedia(f"file: model {info.name!r} takes {WANTED[kind]}")
    check_content_type(info, kind, name)
    return PredictRequest(Media(uploaded, "" if name in _OPAQUE else name, task), variant, fallback)


def _form_parameters(field: object) -> _Parameters:
    if field is None:
        return _Parameters({})
    if not isinstance(field, str) or len(field) > _MOST_PARAMETER_BYTES:
        raise InvalidRequest("parameters: expected a JSON object in this form field")
    try:
        given = _OBJECT.decode(field)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("parameters: expected a JSON object in this form field") from None
    return _parameters(given)


def _utf8(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where}: text is not valid UTF-8") from None
