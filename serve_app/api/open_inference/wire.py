"""Types of the V2 JSON objects that clients send. Unknown keys are ignored, as the protocol requires."""

from __future__ import annotations

import re
from typing import Generic, TypeVar

import msgspec

from serve_app.errors import InvalidRequest, Unsupported

_DataT = TypeVar("_DataT")

_PATH = re.compile(r" - at `\$?\.?(?P<path>.*)`$")
_QUOTED = re.compile(r"`([^`]*)`")
_TYPES = {
    "array": "array",
    "bool": "true or false",
    "float": "number",
    "int": "integer",
    "null": "null",
    "object": "object",
    "str": "string",
}


class InputParameters(msgspec.Struct, gc=False):
    """``inputs[].parameters``."""

    binary_data_size: int | None = None
    shared_memory_region: str | None = None


class InputTensor(msgspec.Struct, Generic[_DataT]):
    """``inputs[]``. A `msgspec.Raw` ``data`` stays undecoded until datatype and shape are checked."""

    name: str
    shape: list[int]
    datatype: str
    data: _DataT | msgspec.UnsetType = msgspec.UNSET
    parameters: InputParameters | None = None


class OutputParameters(msgspec.Struct, gc=False):
    """``outputs[].parameters``."""

    binary_data: bool | None = None
    classification: int = 0
    shared_memory_region: str | None = None


class RequestedOutput(msgspec.Struct):
    """``outputs[]`` of a request."""

    name: str
    parameters: OutputParameters | None = None


class RequestParameters(msgspec.Struct, gc=False):
    """``parameters`` of a request.

    Attributes:
        priority: A number of `serve_app.domain.priorities`; 0 for the default.
        timeout: Microseconds; 0 for the default.
        binary_data_output: Whether outputs are binary by default.
        variant: Name of the variant; empty for the exact model.
        fallback: Whether a fallback may answer if the exact model would be late.
        timings: Whether the response's parameters include the class, the deadline and the timings.
        sequence_id: Of the unsupported sequence extension.
        stream_timeout: Microseconds for all parts of an answer; 0 for the default.
        triton_enable_empty_final_response: Whether an empty final response follows a streamed answer in a gRPC stream.
        non_finite: Whether JSON answers use NaN, Infinity and -Infinity, which is no valid JSON.
    """

    priority: int = 0
    timeout: int = 0
    binary_data_output: bool = False
    variant: str = ""
    fallback: bool | None = None
    timings: bool = False
    sequence_id: int | str = 0
    stream_timeout: int = 0
    triton_enable_empty_final_response: bool = False
    non_finite: bool = False

    def check(self) -> None:
        """Raise `Unsupported` if the request uses an unsupported extension."""
        if self.sequence_id:
            raise Unsupported("parameters.sequence_id: sequences are not supported here")


class InferRequest(msgspec.Struct, Generic[_DataT]):
    """The JSON object of an infer request."""

    inputs: list[InputTensor[_DataT]]
    outputs: list[RequestedOutput] | None = None
    id: str | None = None
    parameters: RequestParameters | None = None


def invalid(error: Exception, prefix: str = "") -> InvalidRequest:
    """Make a JSON decoding error readable for the client.

    Args:
        error: From msgspec: a `ValidationError` with a path, a `DecodeError`, a `UnicodeDecodeError` or a
            `RecursionError`.
        prefix: Place of the decoded text in the request, e.g. ``inputs[0].data``.
    """
    if isinstance(error, RecursionError):
        return InvalidRequest(f"{prefix or 'the body'}: JSON is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return InvalidRequest(f"{prefix or 'the body'}: text is not valid UTF-8")
    message = str(error)
    if not isinstance(error, msgspec.ValidationError):
        reason = message.removeprefix("JSON is malformed: ")
        return InvalidRequest(f"{prefix or 'the body'}: not valid JSON: {reason[:1].lower()}{reason[1:]}")
    found = _PATH.search(message)
    path = ""
    if found is not None:
        path = found["path"]
        message = message[: found.start()]
    message = _QUOTED.sub(_in_words, message)
    separator = "." if prefix and path and not path.startswith("[") else ""
    where = f"{prefix}{separator}{path}" or "the body"
    return InvalidRequest(f"{where}: {message[:1].lower()}{message[1:]}")


def _in_words(match: re.Match[str]) -> str:
    """Types in JSON's terms; field names in quotes."""
    names = match[1].split(" | ")
    if all(name in _TYPES for name in names):
        return " or ".join(_TYPES[name] for name in names)
    return f"'{match[1]}'"
