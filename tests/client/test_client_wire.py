"""Words and limits that client and server write alike, without one importing the other."""

from __future__ import annotations

from serve_app.domain.options import MAX_TIMEOUT_S
from serve_app.domain.priority import Priority
from serve_app_client import wire


def test_classes() -> None:
    """By the same words, the most urgent first."""
    assert list(wire.PRIORITIES) == [priority.label for priority in sorted(Priority)]


def test_longest_deadline() -> None:
    """What the client lets pass the server takes."""
    assert wire.MAX_TIMEOUT_S == MAX_TIMEOUT_S
