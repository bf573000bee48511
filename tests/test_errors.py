"""What errors say."""

from __future__ import annotations

import pytest

from serve_app.domain.service import unknown_model
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


def test_an_unknown_model_is_told_within_what_clients_read() -> None:
    """Clients of gRPC read no more than 8 KiB of an error."""
    told = str(unknown_model("m" * 10_000, (f"model-{number}" for number in range(1000))))
    assert told.startswith(f"Request for unknown model: there is no {'m' * 64!r} here; models: model-0, model-1, ")
    assert told.endswith(", model-9 and 990 more")
