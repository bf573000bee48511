"""The key that headers carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.access.credentials import LONGEST, credential_from
from serve_app.domain.keys import new_key, scrubbed
from serve_app.errors import Unauthenticated


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer sa_key"},
        {b"authorization": b"bearer   sa_key "},
        {b"x-api-key": b" sa_key"},
        {b"x-api-key": b"sa_key", b"authorization": b"Basic dTpw"},
        {b"x-api-key": b"sa_key", b"authorization": b"Bearer another"},
    ],
)
def test_where_keys_are_found(headers: dict[bytes, bytes]) -> None:
    """In either header; a header of its own counts first."""
    assert credential_from(headers) == b"sa_key"


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b""},
        {b"authorization": b"Bearer"},
        {b"authorization": b"sa_secret"},
        {b"authorization": b"Basic sa_secret"},
        {b"authorization": b"Bearer sa_secret sa_secret"},
        {b"authorization": "Bearer sa_secret\xe9".encode("latin-1")},
        {b"x-api-key": b""},
        {b"x-api-key": b"sa_secret\x00"},
        {b"x-api-key": b"sa_secret" * LONGEST},
    ],
)
def test_what_is_no_key_is_refused_unrepeated(headers: dict[bytes, bytes]) -> None:
    """The message says how to send one, and nothing of what came."""
    with pytest.raises(Unauthenticated) as caught:
        credential_from(headers)
    assert "secret" not in str(caught.value)
    assert "X-API-Key: <key>" in str(caught.value)


@given(st.dictionaries(st.sampled_from([b"authorization", b"x-api-key", b"other"]), st.binary(max_size=400)))
def test_any_bytes(headers: dict[bytes, bytes]) -> None:
    """There is a key of printable characters, none, or an error of ours."""
    try:
        key = credential_from(headers)
    except Unauthenticated:
        return
    if key is None:
        assert not headers.keys() & {b"authorization", b"x-api-key"}
    else:
        assert 0 < len(key) <= LONGEST
        assert key.decode("ascii").isprintable()


def test_new_keys_are_different_and_recognized() -> None:
    """They fit into a header, and whoever prints one by mistake can tell."""
    keys = {new_key() for _ in range(100)}

    assert len(keys) == 100
    for key in keys:
        assert credential_from({b"x-api-key": key.encode()}) == key.encode()
        assert scrubbed(f"a {key} b") == "a sa_*** b"
