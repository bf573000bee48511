"""Base64 in the forms in which clients write it."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.base64_text import from_base64
from serve_app.errors import InvalidRequest

FORMS: dict[str, Callable[[bytes], str]] = {
    "plain": lambda content: base64.b64encode(content).decode(),
    "unpadded": lambda content: base64.b64encode(content).decode().rstrip("="),
    "URL-safe": lambda content: base64.urlsafe_b64encode(content).decode(),
    "URL-safe, unpadded": lambda content: base64.urlsafe_b64encode(content).decode().rstrip("="),
    "in lines": lambda content: base64.encodebytes(content).decode(),
    "in lines of Windows": lambda content: base64.encodebytes(content).decode().replace("\n", "\r\n"),
}


@given(content=st.binary(max_size=300))
def test_every_form_is_read(content: bytes) -> None:
    """All of them give the same bytes."""
    assert {name: from_base64(form(content), "it") for name, form in FORMS.items()} == dict.fromkeys(FORMS, content)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no base64!", "character 10 is '!'"),
        ("AAAA\nAA*A", "character 8 is '*'"),
        ("QUJD=QUJD", "character 5 is '='"),
        ("QUJD\u00e9", "character 5 is '\u00e9'"),
        ("AAAAA", "5 characters, padding included, are no whole number of bytes"),
        ("AAA==", "5 characters"),
        ("AA=", "3 characters"),
        ("AAAA====", "8 characters"),
        ("=", "1 characters"),
    ],
)
def test_what_is_no_base64_is_refused_with_the_reason(text: str, reason: str) -> None:
    """The place of the first foreign character, or the length."""
    with pytest.raises(InvalidRequest) as raised:
        from_base64(text, "inputs: expected a file")

    assert raised.value.message.startswith(f"inputs: expected a file: {reason}")
