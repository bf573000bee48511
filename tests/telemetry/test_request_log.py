"""Lines about requests: which ones there are, and what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from serve_app.domain.service import RequestOptions
from serve_app.domain.settings import LogSettings
from serve_app.telemetry.request_log import RequestLog

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Sink:
    """Keeps lines; time and chance are as told."""

    def __init__(self, settings: LogSettings) -> None:
        self.now = 0.0
        self.chance = 0.5
        self.raw: list[bytes] = []
        self.calls: list[Callable[[], None]] = []
        self.log = RequestLog(
            settings, self.raw.append, lambda _, call: self.calls.append(call), lambda: self.now, lambda: self.chance
        )

    def lines(self) -> list[dict[str, Any]]:
        """What was written, without times."""
        return [{name: value for name, value in orjson.loads(line).items() if name != "time"} for line in self.raw]


def test_an_entry_s_line_has_stable_keys() -> None:
    """One line, ended, with the names that the metrics use."""
    sink = Sink(LogSettings())
    options = RequestOptions(request_id="r-1", trace_parent=TRACE, key="team-a", listener="http")
    sink.log.ended("given_up", "tiny", options, {"class": "low", "variant": "", "rows": 3, "total_ms": 1.5})
    assert sink.raw[0].endswith(b"}\n")
    assert sink.lines() == [
        {
            "level": "warning",
            "outcome": "given_up",
            "status": 504,
            "model": "tiny",
            "request_id": "r-1",
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
            "span_id": "b7ad6b7169203331",
            "key": "team-a",
            "listener": "http",
            "class": "low",
            "variant": "",
            "rows": 3,
            "total_ms": 1.5,
        }
    ]


@pytest.mark.parametrize(
    ("outcome", "listener", "level", "status"),
    [
        ("ok", "direct-http", "info", 200),
        ("ok", "grpc", "info", "OK"),
        ("cancelled", "http", "warning", 499),
        ("queue_full", "direct-grpc", "warning", "RESOURCE_EXHAUSTED"),
        ("inference_failed", "http", "error", 500),
        ("poisoned", "http", "error", 500),
        ("poisoned", "grpc", "error", "INTERNAL"),
        ("nobody knows", "http", "warning", 500),
    ],
)
def test_levels_and_statuses(outcome: str, listener: str, level: str, status: int | str) -> None:
    """The status is what the client saw, in the terms of its protocol."""
    sink = Sink(LogSettings())
    sink.log.ended(outcome, "tiny", RequestOptions(listener=listener), {})
    assert [(line["level"], line["status"]) for line in sink.lines()] == [(level, status)]


def test_what_came_with_a_refused_request_is_not_told() -> None:
    """Its id and its trace are; what else it sent is nobody's business, and line breaks do not make lines."""
    sink = Sink(LogSettings())
    headers = {
        b"x-request-id": b"r\n{}" + b"x" * 500,
        b"traceparent": TRACE.encode(),
        b"authorization": b"Bearer secret",
        b":listener": b"http",
    }
    sink.log.refused("", "unauthenticated", headers)
    (line,) = sink.lines()
    assert (line["trace_id"], len(line["request_id"]), line["status"]) == (TRACE[3:35], 128, 401)
    assert b"secret" not in sink.raw[0]
    assert sink.raw[0].count(b"\n") == 1


def test_slow_answers_and_a_sample_of_the_others() -> None:
    """And of none where the sample is 0."""
    none, some = Sink(LogSettings(slow_s=1.0)), Sink(LogSettings(sample=0.25, slow_s=1.0))
    assert [none.log.wants(0.5), none.log.wants(1.5)] == [False, True]
    some.chance = 0.2
    assert some.log.wants(0.5)
    some.chance = 0.25
    assert [some.log.wants(0.5), some.log.wants(1.5)] == [False, True]


def test_a_flood_gets_few_lines_and_is_counted() -> None:
    """The number of those left out stands in one line a second later, and new room brings lines again."""
    sink = Sink(LogSettings(lines_per_s=10.0))
    for _ in range(1000):
        sink.log.ended("queue_full", "tiny", RequestOptions(), {})
    sink.log.refused("", "invalid_request", {})
    assert (len(sink.raw), len(sink.calls)) == (10, 1)
    sink.now = 1.0
    sink.calls.pop()()
    assert sink.lines()[-1] == {"level": "warning", "suppressed": {"queue_full": 990, "invalid_request": 1}}
    sink.log.ended("queue_full", "tiny", RequestOptions(), {})
    assert (len(sink.raw), sink.calls) == (12, [])
