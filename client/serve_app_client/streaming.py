"""Parses streamed answers: server-sent events of JSON objects. Nothing here reads from a connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import orjson

from serve_app_client.calls import Answer, Call, served_of
from serve_app_client.connection import GRACE_S
from serve_app_client.errors import DeadlineExceeded, InvalidAnswer, error_in_stream
from serve_app_client.results import StreamPart

_END: Final = b"\n\n"
_DATA: Final = b"data:"
_NAMES: Final = frozenset({"model_name", "model_version", "id", "parameters"})
"""Members of a part that are no outputs."""


@dataclass(slots=True)
class PartReader:
    """Parses the bytes of one answer into parts.

    Attributes:
        head: Without its body.
        gap_s: Longest wait for the next bytes without a total time, seconds.
    """

    call: Call[Any]
    head: Answer
    gap_s: float
    _rest: bytes = b""

    def left(self) -> float:
        """Seconds for the next bytes: a little longer than the server's deadline, whose own error is more precise.

        Raises:
            DeadlineExceeded: The time for the whole answer is over.
        """
        whole = self.call.whole
        if whole is None:
            return self.gap_s
        left = whole.at + GRACE_S - monotonic()
        if left <= 0.0:
            raise DeadlineExceeded("the time for the whole answer passed before its end")
        return left

    def feed(self, piece: bytes) -> Iterator[StreamPart]:
        """Yield parts completed by these bytes.

        Raises:
            ServeAppClientError: The server reports an error in place of the rest.
            InvalidAnswer: It is no stream of parts.
        """
        *events, self._rest = (self._rest + piece).split(_END)
        for event in events:
            data = b"\n".join(line[len(_DATA) :].strip() for line in event.split(b"\n") if line.startswith(_DATA))
            if data:
                yield self._part(data)

    def finish(self) -> None:
        """End the answer. Raises `InvalidAnswer` inside a part."""
        if self._rest.strip():
            raise InvalidAnswer("the answer ends in the middle of a part", self.head.status)

    def _part(self, data: bytes) -> StreamPart:
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise InvalidAnswer(f"a part of the answer is not JSON: {error}", self.head.status) from None
        if not isinstance(document, Mapping) or ("model_name" not in document and "error" not in document):
            raise InvalidAnswer("a part of the answer has not the form expected", self.head.status)
        if "model_name" not in document:
            raise error_in_stream(data, self.call.request_id)
        outputs = {name: value for name, value in document.items() if name not in _NAMES}
        model, version = str(document["model_name"]), str(document.get("model_version", ""))
        return StreamPart(outputs, model, version, served_of(self.head))
