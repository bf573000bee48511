"""What errors say."""

from __future__ import annotations

import pytest

from serve_app.errors import some_of


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, ""),
        (2, "m0, m1"),
        (11, "m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10"),
        (1000, "m0, m1, m2, m3, m4, m5, m6, m7, m8, m9 and 990 more"),
    ],
)
def test_a_message_names_some(count: int, shown: str) -> None:
    """One more than is shown is shown as well: "and 1 more" would not be shorter."""
    assert some_of(f"m{number}" for number in range(count)) == shown
