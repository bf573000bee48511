"""Answers without what differs from run to run: all of that is named here, with the reason, and nowhere else."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from serve_process import ROOT

from serve_app import __version__
from serve_app.api.grpc_app import SERVICES
from serve_app.api.open_inference import inference_pb2
from wire.asking import Answer, Ask, GrpcAnswer, GrpcAsk

DIGITS: Final = 6
"""Of floating-point numbers: processors differ in the last ones."""

_LEFT_OUT: Final = {
    "date": "the time; every answer must have it, which is looked at where answers are read",
    "content-length": "follows from the body, with its numbers; compared with it where answers are read",
}
_HEADERS: Final[Mapping[str, tuple[str, str, str]]] = {
    # name: what of its value is replaced, by what, and why
    "x-request-id": (
        r"^(?!given-).*$",
        "<id>",
        "made up for each request that has none; the requests here give given-...",
    ),
    "server-timing": (r"dur=[0-9.]+", "dur=<ms>", "how long things took"),
    "etag": (r".+", "<etag>", "of a file of a package, which has versions"),
    "last-modified": (r".+", "<date>", "when that package was installed"),
    "content-range": (r"/\d+", "/<size>", "of that file"),
}
_FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    # name of a field of a body: what its value is replaced by, and why
    "created": ("<time>", "when the server started"),
    "loaded_at": ("<time>", "when the keys were read"),
    "revision": ("<revision>", "a digest of a model's files and settings, and of the version of this package"),
    "before": ("<revision>", "the same"),
    "after": ("<revision>", "the same"),
    "timeout": ("<us>", "what is left of a deadline, or follows from how long the model takes"),
    "joinable_deviation": ("<number>", "how joined runs compare depends on the processor"),
    "warm_up": ("<warm-up>", "how far it came in its time"),
    "queue_us": ("<us>", "how long it took"),
    "preprocess_us": ("<us>", "how long it took"),
    "infer_us": ("<us>", "how long it took"),
    "postprocess_us": ("<us>", "how long it took"),
}
_COUNTED: Final = ("/stats", "/status", "ModelStatistics")
"""Routes whose numbers are counts, times and sizes of what was asked before: only their places are compared."""
_ASSETS: Final = ("text/css", "image/png", "text/javascript")
"""Files of a package, which has versions. What the server writes itself is shorter than `_SHORT`."""
_SHORT: Final = 1000
_TYPES: Final[Mapping[str, Any]] = {
    method.name: getattr(module, method.output_type.name)
    for service, module in zip(SERVICES, (inference_pb2, health_pb2, reflection_pb2), strict=True)
    for method in service.methods
}


class Steady:
    """Makes answers comparable.

    Args:
        folder: Where the models lie that were made for this run: the server may name it.
    """

    def __init__(self, folder: Path) -> None:
        self._texts = (
            (str(folder), "<folder>"),
            (str(ROOT), "<root>"),  # where the checkout lies
            (f'"{__version__}"', '"<version>"'),  # released by itself
            (f"serve-app {__version__}", "serve-app <version>"),
        )

    def http(self, what: Ask, answer: Answer) -> dict[str, Any]:
        """An answer over HTTP as JSON has it."""
        headers: dict[str, Any] = {}
        for name, value in answer.headers:
            if name not in _LEFT_OUT:
                steady = _header(name, value)
                headers[name] = f"{headers[name]}, {steady}" if name in headers else steady
        return {"status": answer.status, "headers": headers, "body": self._body(what, answer, headers)}

    def grpc(self, what: GrpcAsk, answer: GrpcAnswer) -> dict[str, Any]:
        """The same of a call."""
        trailing = {name: _header(name, value) for name, value in answer.trailing}
        messages = [self._message(what, message) for message in answer.messages]
        return {
            "status": answer.code,
            "details": self._text(answer.details),
            "trailing": trailing,
            "messages": messages,
        }

    def _body(self, what: Ask, answer: Answer, headers: Mapping[str, str]) -> Any:
        body, kind = answer.body, headers.get("content-type", "")
        if not body:
            return None
        if what.route == "GET /metrics" and answer.status == 200:
            return _families(body.decode())
        if what.route == "GET /openapi.json" and answer.status == 200:
            return _outline(orjson.loads(body))
        if kind == "application/json":
            return self._plain(orjson.loads(self._text(body.decode())), counted=what.route.endswith(_COUNTED))
        if kind.startswith("text/event-stream"):
            events = self._text(body.decode()).removesuffix("\n\n").split("\n\n")
            return [self._plain(orjson.loads(event.removeprefix("data: ")), counted=False) for event in events]
        if "inference-header-content-length" in headers:
            split = int(headers["inference-header-content-length"])
            return {"json": self._plain(orjson.loads(body[:split]), counted=False), "binary": body[split:].hex()}
        if kind.startswith(_ASSETS) and (answer.status == 206 or len(body) > _SHORT or kind == "image/png"):
            return "<asset>"
        if kind.startswith("text/"):
            return self._text(body.decode()).split("\n")
        return body.hex()

    def _message(self, what: GrpcAsk, message: bytes) -> Any:
        kind: type[Message] = _TYPES[what.rpc]
        found = kind.FromString(message)
        content = json_format.MessageToDict(found, preserving_proto_field_name=True)
        if isinstance(found, reflection_pb2.ServerReflectionResponse):
            content.pop("original_request", None)
            files = found.file_descriptor_response.file_descriptor_proto
            if files:  # whole files are long, and their text is in the repository
                content["file_descriptor_response"] = [FileDescriptorProto.FromString(file).name for file in files]
        plain = orjson.loads(self._text(orjson.dumps(content).decode()))
        # Maps of messages have no order of their own.
        return self._plain(_sorted(plain), counted=what.rpc.endswith(_COUNTED))

    def _text(self, text: str) -> str:
        # What a path takes comes from a set, whose order is another one in every process.
        text = re.sub(r"(?<=this path takes )[A-Z, ]+", lambda methods: _in_order(methods[0]), text)
        # How many were tried depends on the time that it took, and what came of them on the processor.
        text = re.sub(r'(?<=the graph treats rows one by one; )[^"]+', "<what was tried>", text)
        for found, word in self._texts:
            text = text.replace(found, word)
        return text

    def _plain(self, value: Any, *, counted: bool) -> Any:
        match value:
            case {"object": "embedding", "embedding": str(encoded)}:
                # Numbers all the same: their last digits are not to be compared.
                vector = np.frombuffer(base64.b64decode(encoded), "<f4").tolist()
                return value | {"embedding": {"base64": self._plain(vector, counted=counted)}}
            case dict():
                return {
                    name: _FIELDS[name][0] if _varies(name, inner) else self._plain(inner, counted=counted)
                    for name, inner in value.items()
                }
            case list():
                return [self._plain(inner, counted=counted) for inner in value]
            case "exact" | "close":
                return "<exact or close>"  # how joined runs compare depends on the processor
            case bool():
                return value
            case int() | float() if counted:
                return "<number>"
            case str() if counted and value.isdigit():
                return "<number>"  # 64-bit numbers of messages are texts in JSON
            case float():
                return rounded(value)
        return value


def _varies(name: str, value: Any) -> bool:
    """Whether a field of a body is replaced. The revision of a table of traffic counts up, and is not."""
    return name in _FIELDS and not (name == "revision" and isinstance(value, int))


def _header(name: str, value: str) -> str:
    if name == "allow":
        return _in_order(value)
    if name not in _HEADERS:
        return value
    pattern, word, _ = _HEADERS[name]
    return re.sub(pattern, word, value)


def _in_order(methods: str) -> str:
    return ", ".join(sorted(methods.split(", ")))


def rounded(value: float) -> float:
    """With as many digits as are compared."""
    return float(f"{value:.{DIGITS}g}")


def differences(place: str, golden: Any, now: Any) -> list[str]:
    """How two answers differ: a line for each place, e.g. ``body.code: 'internal', and was 'queue_full'``."""
    match golden, now:
        case dict(), dict():
            lines = [
                f"{place}.{name}: is missing, and was {_short(golden[name])}" for name in golden if name not in now
            ]
            lines += [f"{place}.{name}: is new: {_short(now[name])}" for name in now if name not in golden]
            for name in golden:
                if name in now:
                    lines += differences(f"{place}.{name}", golden[name], now[name])
            if not lines and list(golden) != list(now):
                lines.append(f"{place}: has its fields in another order: {', '.join(now)}; it was {', '.join(golden)}")
            return lines
        case list(), list() if len(golden) == len(now):
            return [
                line
                for index, (before, after) in enumerate(zip(golden, now, strict=True))
                for line in differences(f"{place}[{index}]", before, after)
            ]
        case (int() | float(), float()) | (float(), int()):
            # Rounding alone would not do: it makes a large step of a small one at its edges.
            same = math.isclose(golden, now, rel_tol=10 * 10**-DIGITS, abs_tol=10**-DIGITS)
            return [] if same else [f"{place}: {now!r}, and was {golden!r}"]
    if golden == now and type(golden) is type(now):
        return []
    return [f"{place}: {_short(now)}, and was {_short(golden)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]}..."


def _sorted(value: Any) -> Any:
    match value:
        case dict():
            return {name: _sorted(value[name]) for name in sorted(value)}
        case list():
            return [_sorted(inner) for inner in value]
    return value


def _families(page: str) -> dict[str, str]:
    """Metrics with their type and the names of their labels. Those of Python and of the process depend on both."""
    types: dict[str, str] = {}
    labels: dict[str, set[str]] = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            types[name] = kind
        elif line and not line.startswith("#"):
            sample = re.split(r"[ {]", line, maxsplit=1)[0]
            labels.setdefault(sample, set()).update(re.findall(r'[{,]([a-z_]+)="', line))
    found: dict[str, str] = {}
    for name, kind in sorted(types.items()):
        if not name.startswith(("python_", "process_")):
            samples = [sample for sample in labels if sample.startswith(name)]
            named = sorted(set[str]().union(*(labels[sample] for sample in samples)))
            found[name] = " ".join([kind, *named])
    return found


def _outline(document: Mapping[str, Any]) -> dict[str, Any]:
    """The paths with their operations, and the names of the schemas: what they say is known by tests of its own."""
    paths = {
        f"{method.upper()} {path}": " ".join(
            [operation["operationId"], *operation.get("requestBody", {}).get("content", {}), *operation["responses"]]
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    return {
        "openapi": document["openapi"],
        "security": document.get("security"),
        "paths": paths,
        "components": {kind: ", ".join(parts) for kind, parts in document["components"].items()},
    }
