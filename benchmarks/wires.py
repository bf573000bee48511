"""How requests and answers look on the wire, for each of the forms that the compared servers speak."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from typing_extensions import override

from benchmarks.requests import JSON_HEADERS, Request
from serve_app.payloads import DTYPES

Arrays = Mapping[str, npt.NDArray[Any]]
Answer = npt.NDArray[np.float32]

_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
HEADER_LENGTH = "Inference-Header-Content-Length"


class Wire(ABC):
    """One form of requests and answers.

    Attributes:
        name: For settings and reports.
        says: A phrase for people.
    """

    name: str
    says: str

    @abstractmethod
    def request(self, inputs: Arrays) -> Request:
        """What a client posts for these inputs, each (rows, ...)."""

    @abstractmethod
    def answer(self, headers: Mapping[str, str], content: bytes) -> Answer:
        """The values of the first output, flat.

        Args:
            headers: Of the answer; names in lower case.
            content: Its body.

        Raises:
            ValueError, LookupError, TypeError: It is not an answer of this form.
        """


class Json(Wire):
    """JSON of the Open Inference Protocol."""

    name = "json"
    says = "V2 JSON"

    @override
    def request(self, inputs: Arrays) -> Request:
        """Values as numbers, flat."""
        tensors = [{**_described(name, array), "data": array.ravel()} for name, array in inputs.items()]
        return Request(JSON_HEADERS, orjson.dumps({"inputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY))

    @override
    def answer(self, headers: Mapping[str, str], content: bytes) -> Answer:
        """Its ``data``."""
        return np.asarray(orjson.loads(content)["outputs"][0]["data"], np.float32).ravel()


class Binary(Wire):
    """The protocol's binary tensor extension."""

    name = "binary"
    says = "V2 binary"

    @override
    def request(self, inputs: Arrays) -> Request:
        """A short JSON, and the tensors after it."""
        return binary_request(inputs)

    @override
    def answer(self, headers: Mapping[str, str], content: bytes) -> Answer:
        """What stands after the JSON; the only output is asked for."""
        at = int(headers[HEADER_LENGTH.lower()])
        size = orjson.loads(content[:at])["outputs"][0]["parameters"]["binary_data_size"]
        return np.frombuffer(content[at : at + size], np.float32)


class RawBytes(Wire):
    """Nothing but the bytes of one tensor: what a server of one's own would take."""

    name = "bytes"
    says = "plain bytes"

    @override
    def request(self, inputs: Arrays) -> Request:
        """The first input."""
        return Request({"Content-Type": "application/octet-stream"}, next(iter(inputs.values())).tobytes())

    @override
    def answer(self, headers: Mapping[str, str], content: bytes) -> Answer:
        """All of it."""
        return np.frombuffer(content, np.float32)


class Base64(Wire):
    """JSON around the bytes of one tensor in base64."""

    name = "base64"
    says = "base64 in JSON"

    @override
    def request(self, inputs: Arrays) -> Request:
        """The first input."""
        text = base64.b64encode(next(iter(inputs.values())).tobytes()).decode("ascii")
        return Request(JSON_HEADERS, orjson.dumps({"data": text}))

    @override
    def answer(self, headers: Mapping[str, str], content: bytes) -> Answer:
        """The same way back."""
        return np.frombuffer(base64.b64decode(orjson.loads(content)["data"]), np.float32)


class Nested(Wire):
    """JSON with one list per axis, by the name of the input; the answer is such a list."""

    name = "nested"
    says = "nested lists in JSON"

    @override
    def request(self, inputs: Arrays) -> Request:
        """Every input."""
        return Request(JSON_HEADERS, orjson.dumps(dict(inputs), option=orjson.OPT_SERIALIZE_NUMPY))

    @override
    def answer(self, headers: Mapping[str, str], content: bytes) -> Answer:
        """All of it."""
        return np.asarray(orjson.loads(content), np.float32).ravel()


WIRES: Mapping[str, Wire] = {wire.name: wire for wire in (Json(), Binary(), RawBytes(), Base64(), Nested())}


def binary_request(inputs: Arrays) -> Request:
    """A request of the binary tensor extension; the answer shall be binary as well."""
    tensors = [
        {**_described(name, array), "parameters": {"binary_data_size": array.nbytes}} for name, array in inputs.items()
    ]
    header = orjson.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}})
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
    return Request(headers, b"".join((header, *(array.tobytes() for array in inputs.values()))))


def _described(name: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": _DATATYPES[array.dtype], "shape": array.shape}
