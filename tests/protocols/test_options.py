"""Priorities and deadlines from bodies and headers."""

from __future__ import annotations

import pytest

from protocols.protocol_service import DOUBLE
from serve_app.errors import DeadlineExceeded, InvalidRequest
from serve_app.protocols.options import header_wish, reading_s, remaining, request_options
from serve_app.protocols.service import RequestOptions
from serve_app.scheduling.entry import Priority


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"high", Priority.HIGH),
        (b"Normal", Priority.NORMAL),
        (b"low", Priority.LOW),
        (b"1", Priority.HIGH),
        (b" 3 ", Priority.LOW),
    ],
)
def test_the_header_names_a_class(value: bytes, expected: Priority) -> None:
    """By name or number."""
    assert RequestOptions(expected, None, 5) == request_options(DOUBLE, {b"x-priority": value}, 5)


@pytest.mark.parametrize("value", [b"", b"0", b"4", b"urgent", b"-1", b"1.0", b"\xff"])
def test_an_unknown_class_in_the_header_is_refused(value: bytes) -> None:
    """The message names the header and what it takes."""
    with pytest.raises(InvalidRequest, match="X-Priority: expected high, normal or low"):
        request_options(DOUBLE, {b"x-priority": value}, 0)


@pytest.mark.parametrize(
    ("number", "expected"), [(0, None), (1, Priority.HIGH), (2, Priority.NORMAL), (3, Priority.LOW)]
)
def test_the_body_numbers_a_class(number: int, expected: Priority | None) -> None:
    """As the protocol says, 0 is the default."""
    assert expected == request_options(DOUBLE, {}, 0, priority=number).priority


@pytest.mark.parametrize("number", [-1, 4, 10**30])
def test_an_unknown_class_in_the_body_is_refused(number: int) -> None:
    """The message names the field."""
    with pytest.raises(InvalidRequest, match=r"parameters\.priority: expected 0"):
        request_options(DOUBLE, {}, 0, priority=number)


def test_the_body_beats_the_header_for_priority() -> None:
    """Unless it says 0, the default."""
    headers = {b"x-priority": b"low"}

    assert request_options(DOUBLE, headers, 0, priority=1).priority is Priority.HIGH
    assert request_options(DOUBLE, headers, 0, priority=0).priority is Priority.LOW


@pytest.mark.parametrize(
    ("header", "timeout_us", "expected"),
    [
        (None, 0, None),
        (b"250", 0, 0.25),
        (b"0.5", 0, 0.0005),
        (None, 1_500_000, 1.5),
        (b"250", 1_500_000, 0.25),
        (b"2e3", 1_500_000, 1.5),
        (None, 86_400_000_000, 86_400.0),
    ],
)
def test_the_tightest_deadline_wins(header: bytes | None, timeout_us: int, expected: float | None) -> None:
    """Body in microseconds, header in milliseconds."""
    headers = {} if header is None else {b"x-timeout-ms": header}

    assert expected == request_options(DOUBLE, headers, 0, timeout_us=timeout_us).timeout_s


@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"nan", b"inf", b"1_000", b"soon", b"86400001", b"\xff", b"1e400"])
def test_an_absurd_deadline_in_the_header_is_refused(value: bytes) -> None:
    """Zero, negative, not a number, or more than a day."""
    with pytest.raises(InvalidRequest, match="X-Timeout-Ms: expected milliseconds"):
        request_options(DOUBLE, {b"x-timeout-ms": value}, 0)


@pytest.mark.parametrize("value", [-1, 86_400_000_001, 10**400])
def test_an_absurd_deadline_in_the_body_is_refused(value: int) -> None:
    """Negative, or more than a day."""
    with pytest.raises(InvalidRequest, match=r"parameters\.timeout: expected microseconds"):
        request_options(DOUBLE, {}, 0, timeout_us=value)


def test_a_variant_must_exist() -> None:
    """From the body or a header; the body wins."""
    assert request_options(DOUBLE, {b"x-variant": b"int8"}, 0).variant == "int8"
    assert request_options(DOUBLE, {b"x-variant": b"other"}, 0, variant="int8").variant == "int8"
    with pytest.raises(InvalidRequest, match=r"no variant 'int4'; it has int8"):
        request_options(DOUBLE, {}, 0, variant="int4")


def test_reading_time_is_charged_to_the_deadline() -> None:
    """A client's deadline counts from the arrival of its request, not from when it was decoded."""
    assert remaining(DOUBLE, RequestOptions(None, 2.0), 0.5).timeout_s == 1.5
    with pytest.raises(DeadlineExceeded):
        remaining(DOUBLE, RequestOptions(None, 2.0), 2.0)


@pytest.mark.parametrize(("priority", "left"), [(None, 4.5), (Priority.HIGH, 0.5), (Priority.LOW, 29.5)])
def test_reading_time_is_charged_to_the_default_of_the_class(priority: Priority | None, left: float) -> None:
    """Naming no deadline makes none later."""
    assert remaining(DOUBLE, RequestOptions(priority), 0.5).timeout_s == left


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 5.0),
        ({b"x-priority": b"high"}, 1.0),
        ({b"x-priority": b"high", b"x-timeout-ms": b"2500"}, 2.5),
    ],
)
def test_the_headers_say_how_long_reading_may_take(headers: dict[bytes, bytes], seconds: float) -> None:
    """A deadline in the body is known only when it has been read."""
    assert seconds == reading_s(DOUBLE, header_wish(headers))
