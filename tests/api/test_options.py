"""Priorities and deadlines from bodies and headers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from api.protocol_service import DOUBLE
from serve_app.domain.options import Hints, header_timeout_s, parse_qos_headers, remaining, request_options
from serve_app.domain.priorities import DEFAULT_LEVELS, PriorityLevels
from serve_app.domain.priority import Priority
from serve_app.domain.service import RequestOptions
from serve_app.errors import DeadlineExceeded, InvalidRequest


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"high", Priority.HIGH),
        (b"Normal", Priority.NORMAL),
        (b"low", Priority.LOW),
        (b"1", Priority.HIGH),
        (b" 3 ", Priority.LOW),
        (b"4", Priority.LOW),
        (b"18446744073709551615", Priority.LOW),
        (b"0", None),
    ],
)
def test_the_header_names_a_class(value: bytes, expected: Priority | None) -> None:
    """By name or number; 0 is the default, and numbers without a class of their own are the lowest."""
    assert RequestOptions(expected, None, 5) == request_options(DOUBLE, {b"x-priority": value}, 5)


@pytest.mark.parametrize(
    "value", [b"", b"18446744073709551616", b"9" * 5000, b"urgent", b"-1", b"1.0", b"\xb2", b"\xff"]
)
def test_an_unknown_class_in_the_header_is_refused(value: bytes) -> None:
    """The message names the header and what it takes."""
    with pytest.raises(InvalidRequest, match="X-Priority: expected high, normal or low"):
        request_options(DOUBLE, {b"x-priority": value}, 0)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, None),
        (1, Priority.HIGH),
        (2, Priority.NORMAL),
        (3, Priority.LOW),
        (4, Priority.LOW),
        (2**64 - 1, Priority.LOW),
    ],
)
def test_the_body_numbers_a_class(number: int, expected: Priority | None) -> None:
    """As the protocol says, 0 is the default, and 1 the most urgent; those without a class of their own are low."""
    assert expected == request_options(DOUBLE, {}, 0, Hints(priority=number)).priority


@pytest.mark.parametrize("number", [-1, 2**64, 10**30])
def test_an_unknown_class_in_the_body_is_refused(number: int) -> None:
    """The message names the field."""
    with pytest.raises(InvalidRequest, match=r"parameters\.priority: expected 0"):
        request_options(DOUBLE, {}, 0, Hints(priority=number))


def test_the_body_beats_the_header_for_priority() -> None:
    """Unless it says 0, the default."""
    headers = {b"x-priority": b"low"}

    assert request_options(DOUBLE, headers, 0, Hints(priority=1)).priority is Priority.HIGH
    assert request_options(DOUBLE, headers, 0, Hints(priority=0)).priority is Priority.LOW


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

    assert expected == request_options(DOUBLE, headers, 0, Hints(timeout=timeout_us)).timeout_s


@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"nan", b"inf", b"1_000", b"soon", b"86400001", b"\xff", b"1e400"])
def test_an_absurd_deadline_in_the_header_is_refused(value: bytes) -> None:
    """Zero, negative, not a number, or more than a day."""
    with pytest.raises(InvalidRequest, match="X-Timeout-Ms: expected milliseconds"):
        request_options(DOUBLE, {b"x-timeout-ms": value}, 0)


@pytest.mark.parametrize("value", [-1, 86_400_000_001, 10**400])
def test_an_absurd_deadline_in_the_body_is_refused(value: int) -> None:
    """Negative, or more than a day."""
    with pytest.raises(InvalidRequest, match=r"parameters\.timeout: expected microseconds"):
        request_options(DOUBLE, {}, 0, Hints(timeout=value))


def test_a_variant_must_exist() -> None:
    """From the body or a header; the body wins."""
    assert request_options(DOUBLE, {b"x-variant": b"int8"}, 0).variant == "int8"
    assert request_options(DOUBLE, {b"x-variant": b"other"}, 0, Hints(variant="int8")).variant == "int8"
    with pytest.raises(InvalidRequest, match=r"no variant 'int4'; it has int8"):
        request_options(DOUBLE, {}, 0, Hints(variant="int4"))


def test_reading_time_is_charged_to_the_deadline() -> None:
    """A client's deadline counts from the arrival of its request, not from when it was decoded."""
    assert remaining(RequestOptions(None, 2.0), 0.5).timeout_s == 1.5
    with pytest.raises(DeadlineExceeded):
        remaining(RequestOptions(None, 2.0), 2.0)


def test_reading_time_is_told_where_only_the_service_knows_the_deadline() -> None:
    """Naming no deadline makes none later: the default depends on what the request costs, and is charged, too."""
    named = RequestOptions(Priority.HIGH, None, 7, variant="int8", listener="http")

    assert replace(named, spent_s=0.5) == remaining(named, 0.5)
    assert replace(named, spent_s=0.5, nbytes=9) == remaining(named, 0.5, 9)


def test_numbers_mean_what_the_configuration_says() -> None:
    """In the body as in the header; words stay."""
    levels = PriorityLevels({1: Priority.HIGH, 2: Priority.HIGH, 3: Priority.NORMAL, 7: Priority.LOW})
    info = DOUBLE._replace(levels=levels)
    numbers = (0, 1, 2, 3, 7, 8)
    expected = [None, Priority.HIGH, Priority.HIGH, Priority.NORMAL, Priority.LOW, Priority.LOW]

    assert expected == [request_options(info, {}, 0, Hints(priority=number)).priority for number in numbers]
    assert expected == [request_options(info, {b"x-priority": b"%d" % number}, 0).priority for number in numbers]
    assert request_options(info, {b"x-priority": b"low"}, 0, Hints(priority=2)).priority is Priority.HIGH
    assert request_options(info, {b"x-priority": b"normal"}, 0).priority is Priority.NORMAL


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
    assert seconds == header_timeout_s(DOUBLE, parse_qos_headers(headers, DEFAULT_LEVELS))
