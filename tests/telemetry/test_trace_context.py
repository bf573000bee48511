"""W3C trace context: what is valid is passed on, and what is not is as if it were not there."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.domain.trace_context import child_of, parent_of, trace_and_span

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f" 00-{TRACE}-{SPAN}-00 ", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-03"),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-01-more", ""),
        (f"ff-{TRACE}-{SPAN}-01", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (f"00-{TRACE.upper()}-{SPAN}-01", ""),
        (f"00-{TRACE[1:]}-{SPAN}-01", ""),
        ("", ""),
        (f"cc-{TRACE}-{SPAN}-01-{'x' * 1000}", ""),
    ],
)
def test_parents(given_value: str, expected: str) -> None:
    """As the recommendation's own examples and rules say."""
    assert parent_of(given_value.encode()) == expected


@given(st.binary(max_size=80))
def test_whatever_comes_is_valid_or_nothing(value: bytes) -> None:
    """Nothing that a client sends gets further unless it has the form."""
    assert re.fullmatch(r"|00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]", parent_of(value))


def test_a_child_is_in_the_same_trace() -> None:
    """With a span of its own and the same flags."""
    parent = f"00-{TRACE}-{SPAN}-01"
    child = child_of(parent)
    assert parent_of(child.encode()) == child
    assert (trace_and_span(child)[0], child[-2:], trace_and_span(child)[1] == SPAN) == (TRACE, "01", False)
    assert trace_and_span("") == ("", "")
