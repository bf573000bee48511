"""Null for an optional member of a body is as if it were not there."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import pytest

from serve_app.api.left_out import BodyDecoder
from serve_app.versions.policy import TrafficChange


class _Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    needed: str
    several: list[int] = []
    some: Annotated[int, msgspec.Meta(ge=1)] = 3
    raw: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Outer(msgspec.Struct):
    inner: list[_Inner] | None = None
    words: dict[str, str] = {}
    empty: str | None = "given"
    seen: int = 0

    def __post_init__(self) -> None:
        self.seen += 1


def test_what_may_be_left_out_may_be_null() -> None:
    """Wherever it stands; what has a meaning for null gets it, and what is not looked into stays as it is."""
    body = {
        "inner": [{"needed": "a", "several": None, "some": None, "raw": {"a": None}}, {"needed": "b"}],
        "words": None,
        "empty": None,
        "other": None,
    }
    found = BodyDecoder(_Outer).decode(json.dumps(body).encode())

    assert found.inner is not None
    first, second = found.inner
    assert (first.several, first.some, first.raw) == ([], 3, msgspec.Raw(b'{"a": null}'))
    assert (second.several, second.some, second.raw) == ([], 3, msgspec.UNSET)
    assert first.several is not second.several
    assert (found.words, found.empty, found.seen) == ({}, None, 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"inner": [{"needed": null}]}', "Expected `str`, got `null` - at `$.inner[0].needed`"),
        (b'{"inner": [null]}', "Expected `object`, got `null` - at `$.inner[0]`"),
        (b'{"inner": [{"needed": "a", "several": [null]}]}', "Expected `int`, got `null`"),
        (b'{"inner": [{"needed": "a", "several": null, "some": 0}]}', "Expected `int` >= 1"),
        (b'{"words": {"a": null}}', "Expected `str`, got `null`"),
        (b'{"words": null, "seen": "a"}', "Expected `int | null`, got `str`"),
        (b"null", "Expected `object`, got `null`"),
    ],
)
def test_all_else_is_refused(body: bytes, message: str) -> None:
    """As without null."""
    with pytest.raises(msgspec.ValidationError) as raised:
        BodyDecoder(_Outer).decode(body)

    assert message in str(raised.value)


def test_null_keeps_a_meaning_of_its_own() -> None:
    """The shadow of a model is ended with it."""
    found = BodyDecoder(TrafficChange).decode(
        b'{"aliases": {"a": null}, "traffic": null, "sticky": null, "shadow": null}'
    )

    assert msgspec.structs.astuple(found) == ({"a": None}, msgspec.UNSET, msgspec.UNSET, None)
