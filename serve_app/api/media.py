"""Decodes media: raw bodies, JSON with text or base64, and multipart forms.

Two steps: `parse` and `parse_form` split a body regardless of the model, and `payload_of` makes one model's input from
that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
from starlette.datastructures import UploadFile

from serve_app.api.base64_text import from_base64
from serve_app.api.content_type import JSON, MULTIPART, OPAQUE, WANTED, check_content_type, resolve, sniff
from serve_app.api.forms import opened_form
from serve_app.api.left_out import NULL
from serve_app.api.open_inference.wire import invalid
from serve_app.domain.service import ModelInfo
from serve_app.domain.tasks import Kind
from serve_app.errors import InvalidRequest, UnsupportedMedia
from serve_app.payloads import Media, Texts

_Scalar: TypeAlias = str | int | float | bool | None

_MAX_FIELDS = 2000
_OPTIONS: Final = "options"
_MOST_PARAMETER_BYTES = 2**20


class _SentenceSimilarity(msgspec.Struct, forbid_unknown_fields=True):
    """The ``inputs`` of Hugging Face's sentence-similarity task."""

    source_sentence: str
    sentences: list[str]


class _TextPair(msgspec.Struct, forbid_unknown_fields=True):
    """Two texts for a classifier to compare, in the form of transformers' pipeline."""

    text: str
    text_pair: str | None = None

    @property
    def both(self) -> str | list[str]:
        return [self.text, self.text_pair] if self.text_pair else self.text


class _Document(msgspec.Struct):
    inputs: msgspec.Raw


_DOCUMENT: Final = msgspec.json.Decoder(_Document)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT_OR_NULL: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_PARAMETER: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_Scalar | list[_Scalar])
_TEXT: Final = msgspec.json.Decoder(str)
_TEXTS: Final = msgspec.json.Decoder(list[str])
_SIMILARITY: Final = msgspec.json.Decoder(_SentenceSimilarity)
_PAIR: Final = msgspec.json.Decoder(_TextPair)
_OneOrTwo: TypeAlias = Annotated[list[str], msgspec.Meta(min_length=1, max_length=2)]
_MIXED: Final = msgspec.json.Decoder(list[str | _OneOrTwo | _TextPair])
_NESTED: Final = msgspec.json.Decoder(list[list[_OneOrTwo]])
_MOST_BRACKETS: Final = 100_000


class PredictRequest(NamedTuple):
    """A decoded predict request.

    Attributes:
        variant: Name of the requested variant; empty for the exact model.
        fallback: Whether the body allows a fallback; ``None``: unspecified.
        lone_text: Whether the body held one text, not a list.
    """

    payload: Media | Texts
    variant: str = ""
    fallback: bool | None = None
    lone_text: bool = False


class Parameters(NamedTuple):
    """The ``parameters`` of a request: for its task, and for the server."""

    task: dict[str, Any]
    variant: str = ""
    fallback: bool | None = None


class Document(NamedTuple):
    """A JSON body: the ``inputs``, still encoded, and the parameters from any place."""

    inputs: msgspec.Raw
    parameters: Parameters


class Body(NamedTuple):
    """A body that is the file or text itself."""

    content: bytes
    content_type: str


class Form(NamedTuple):
    """A multipart form.

    Attributes:
        field: Name of the file's field; empty without a file.
        content: Of the file.
        content_type: The form's type of the file; lower case, possibly empty.
        texts: Fields named ``inputs`` without a file name.
    """

    field: str
    content: bytes
    content_type: str
    texts: list[str]
    parameters: Parameters


Asked: TypeAlias = Document | Body | Form
"""A body, taken apart."""


def decode(info: ModelInfo, kind: Kind, content_type: str, content: bytes) -> PredictRequest:
    """`parse` and `payload_of` in one step."""
    return payload_of(info, kind, parse(content_type, content))


def parse(content_type: str, content: bytes) -> Document | Body:
    """Parse a body that is no form. Raises `InvalidRequest`."""
    if content_type != JSON:
        return Body(content, content_type)
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
    return Document(document.inputs, parameters)


def payload_of(info: ModelInfo, kind: Kind, asked: Asked) -> PredictRequest:
    """Make this model's input from a body.

    Raises:
        UnsupportedMedia: The model takes another media type.
    """
    match asked:
        case Body(content, content_type):
            check_content_type(info, kind, content_type)
            if kind == "text":
                return PredictRequest(Texts([_utf8(content, "the body")], {}), lone_text=True)
            return PredictRequest(Media(content, _declared(content_type, content), {}))
        case Document(inputs, parameters):
            if kind == "text":
                return _from_inputs(info, inputs, parameters)
            if kind == "json":
                task, variant, fallback = parameters
                return PredictRequest(Media(bytes(inputs), JSON, task), variant, fallback)
            return _from_base64(info, kind, inputs, parameters)
        case Form():
            return _from_form(info, kind, asked)


def _declared(content_type: str, content: bytes) -> str:
    """The client's declared type, not a detected one, for decoders' messages."""
    return "" if content_type in OPAQUE or content_type == sniff(content) else content_type


def text_of(inputs: msgspec.Raw, what: str = "text") -> str:
    """The ``inputs`` as a string. Raises `InvalidRequest` with the expectation."""
    try:
        return _TEXT.decode(inputs)
    except msgspec.ValidationError:
        raise InvalidRequest(f"inputs: expected {what}, as a string") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(error, "inputs") from None


def split_data_uri(inputs: str) -> tuple[str, str]:
    """Media type and base64 of a data URI; plain base64 has no type."""
    if not inputs.startswith("data:"):
        return "", inputs
    head, _, encoded = inputs.partition(",")
    return head[len("data:") :].partition(";")[0].strip().lower(), encoded


def file_of(text: str, what: str, where: str) -> tuple[str, bytes]:
    """Media type and content of base64 or a data URI.

    Args:
        what: Name of the expected file, for messages.

    Raises:
        InvalidRequest: The text is empty or no base64.
    """
    content_type, encoded = split_data_uri(text)
    media = from_base64(encoded, f"{where}: expected the {what} file in base64")
    if not media:
        raise InvalidRequest(f"{where}: the file is empty")
    return content_type, media


def _from_base64(info: ModelInfo, kind: Kind, inputs: msgspec.Raw, parameters: Parameters) -> PredictRequest:
    content_type, media = file_of(text_of(inputs, f"the {kind} file in base64"), kind, "inputs")
    check_content_type(info, kind, content_type or sniff(media))
    return PredictRequest(Media(media, content_type, parameters.task), parameters.variant, parameters.fallback)


def _from_inputs(info: ModelInfo, inputs: msgspec.Raw, parameters: Parameters) -> PredictRequest:
    first = bytes(memoryview(inputs)[:1])
    task, variant, fallback = parameters
    try:
        if first == b'"':
            return PredictRequest(Texts([_TEXT.decode(inputs)], task), variant, fallback, lone_text=True)
        if first == b"{":
            return _from_object(info, inputs, parameters)
        texts = _listed(inputs)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(error, "inputs") from None
    return PredictRequest(_texts(info, texts, task), variant, fallback)


def _from_object(info: ModelInfo, inputs: msgspec.Raw, parameters: Parameters) -> PredictRequest:
    task, variant, fallback = parameters
    members = _OBJECT.decode(inputs)
    if not {"text", "text_pair", "source_sentence", "sentences"} & members.keys():
        raise InvalidRequest("inputs: expected a text, a list of texts, or an object with text and text_pair")
    if "text" in members or "text_pair" in members:
        return PredictRequest(_texts(info, [_PAIR.decode(inputs).both], task), variant, fallback, lone_text=True)
    asked = _SIMILARITY.decode(inputs)
    # A parameter for the model's processor, which answers with one similarity per sentence.
    task = {**task, "source_sentence": asked.source_sentence}
    return PredictRequest(_texts(info, asked.sentences, task), variant, fallback)


def _listed(inputs: msgspec.Raw) -> Sequence[str | list[str]]:
    """Texts or pairs, in any form that pipelines and other servers accept."""
    try:
        return _TEXTS.decode(inputs)
    except msgspec.ValidationError as error:
        if bytes(inputs).count(b"[") + bytes(inputs).count(b"{") > _MOST_BRACKETS:  # a list takes many times its bytes
            raise
        try:
            mixed = _MIXED.decode(inputs)
        except msgspec.ValidationError as other:
            with suppress(msgspec.ValidationError):
                return [pair for pairs in _NESTED.decode(inputs) for pair in pairs]
            raise (other if b"{" in bytes(inputs) else error) from None
    return [each.both if isinstance(each, _TextPair) else each for each in mixed]


def _texts(info: ModelInfo, texts: Sequence[str | list[str]], parameters: dict[str, Any]) -> Texts:
    if not texts:
        raise InvalidRequest("inputs: expected at least one text")
    if len(texts) > info.max_request_rows:
        raise InvalidRequest(f"inputs: {len(texts)} texts; the most in one request is {info.max_request_rows}")
    return Texts([text[0] if isinstance(text, list) and len(text) == 1 else text for text in texts], parameters)


def _parameter_object(raw: msgspec.Raw | bytes) -> dict[str, msgspec.Raw]:
    """The members of the JSON object ``parameters`` that are not null."""
    try:
        members = _OBJECT_OR_NULL.decode(raw) or {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("parameters: expected a JSON object") from None
    return {name: value for name, value in members.items() if value != NULL}


def _parameters(given: Mapping[str, msgspec.Raw]) -> Parameters:
    """Split the parameters. Values are scalars or flat lists: no task needs more. Null counts as missing.

    The ``options`` of Hugging Face's clients concern loading and caching on their servers, and are ignored.
    """
    parameters: dict[str, Any] = {}
    for name, raw in given.items():
        if raw == NULL or (name == _OPTIONS and bytes(memoryview(raw)[:1]) == b"{"):
            continue
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
    return Parameters(parameters, variant or "", fallback)


async def parse_form(headers: Mapping[bytes, bytes], content: bytes) -> Form:
    """Parse a multipart form: a file, or texts in fields named ``inputs``; and JSON ``parameters``.

    Args:
        headers: By lower-case name.
    """
    async with opened_form(headers, content, max_files=1, max_fields=_MAX_FIELDS) as form:
        files = [(name, value) for name, value in form if isinstance(value, UploadFile)]
        texts = [_utf8(value, name) for name, value in form if name == "inputs" and isinstance(value, bytes)]
        parameters = _form_parameters(dict(form).get("parameters"))
        if not files:
            return Form("", b"", "", texts, parameters)
        field, file = files[0]
        content_type = (file.content_type or "").partition(";")[0].strip().lower()
        return Form(field, await file.read(), content_type, texts, parameters)


def _from_form(info: ModelInfo, kind: Kind, form: Form) -> PredictRequest:
    task, variant, fallback = form.parameters
    if kind == "text":
        texts = form.texts
        if form.field == "inputs":
            texts = [*texts, _utf8(form.content, "inputs")]  # curl -F inputs=@text.txt
        if not texts:
            raise InvalidRequest("inputs: expected at least one form field of this name, with a text")
        return PredictRequest(_texts(info, texts, task), variant, fallback, lone_text=len(texts) == 1)
    if not form.field:
        raise InvalidRequest(f"file: expected a form field of this name with the {kind} file (curl -F file=@...)")
    if not form.content:
        raise InvalidRequest("file: the file is empty")
    if form.content_type in {JSON, MULTIPART}:
        raise UnsupportedMedia(f"file: model {info.name!r} takes {WANTED[kind]}")
    check_content_type(info, kind, resolve(form.content_type, form.content))
    name = "" if form.content_type in OPAQUE else form.content_type
    return PredictRequest(Media(form.content, name, task), variant, fallback)


def _form_parameters(field: object) -> Parameters:
    if field is None:
        return Parameters({})
    if not isinstance(field, bytes) or len(field) > _MOST_PARAMETER_BYTES:
        raise InvalidRequest("parameters: expected a JSON object in this form field")
    try:
        given = _OBJECT_OR_NULL.decode(field) or {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("parameters: expected a JSON object in this form field") from None
    return _parameters(given)


def _utf8(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where}: text is not valid UTF-8") from None
