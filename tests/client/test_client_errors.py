"""Answers that are errors become exceptions that say what the server said."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.openai import render_error
from serve_app.api.routes import Errors
from serve_app.errors import ServeAppError, error_from_code
from serve_app.http.errors import STATUSES, render
from serve_app_client import (
    InvalidAnswer,
    InvalidRequest,
    NotFound,
    QueueFull,
    Refused,
    ServeAppClientError,
    ServerFault,
    Unavailable,
)
from serve_app_client.errors import BY_CODE, error_of, retry_after_s


def test_every_code_of_the_server_has_its_exception() -> None:
    """No code is missing here, and none is made up."""
    assert set(BY_CODE) == set(STATUSES)


@pytest.mark.parametrize("shape", [pytest.param(render, id="own"), pytest.param(render_error, id="openai")])
@pytest.mark.parametrize("code", sorted(set(STATUSES) - {"internal", "not_found"}))
def test_rendered_errors_are_understood(code: str, shape: Errors) -> None:
    """The exception has the server's message, status, code and hint, in both forms of the body."""
    rendered = shape(error_from_code(code, "what is wrong", 2.5))
    headers = {name.decode(): value.decode() for name, value in rendered.headers}
    error = error_of(rendered.status, headers, rendered.body, "id-1")
    assert type(error) is BY_CODE[code]
    assert (error.message, error.status, error.code) == ("what is wrong", STATUSES[code].http, code)
    assert (error.retry_after, error.request_id) == (3.0, "id-1")


def test_the_servers_request_id_counts() -> None:
    """A bug of the server names the request in its log."""
    rendered = render(ServeAppError("internal error"))
    error = error_of(rendered.status, {"x-request-id": "theirs"}, rendered.body, "mine")
    assert type(error) is ServerFault
    assert str(error) == "internal error (500, internal, request theirs)"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (302, InvalidAnswer),
        (404, NotFound),
        (418, InvalidRequest),
        (429, Refused),
        (500, ServerFault),
        (502, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
        (520, ServerFault),
    ],
)
def test_what_proxies_say_is_told_by_its_status(status: int, expected: type[ServeAppClientError]) -> None:
    """A page of HTML has no code; its beginning stands in the message."""
    error = error_of(status, {}, b"<html>\n  no such\tluck</html>")
    assert type(error) is expected
    assert (error.code, error.message) == ("", f"HTTP status {status}: <html> no such luck</html>")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"Internal Server Error"),
        (404, b"Path '/v2/models/m/infer' not found. Ping http://.../-/routes for available routes."),
    ],
)
def test_serves_proxy_without_a_router_is_unavailable(status: int, body: bytes) -> None:
    """It was restarted, or the router behind it was: the next attempt finds one."""
    assert type(error_of(status, {}, body)) is Unavailable


def test_codes_of_newer_servers_are_kept() -> None:
    """A code that is not known here is told by its status, and can still be read."""
    error = error_of(429, {}, b'{"error": "slow down", "code": "too_eager"}')
    assert (type(error), error.code, error.message) == (Refused, "too_eager", "slow down")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("nan", None),
        ("soon", None),
        ("Sun, 06 Nov 1994 08:49:40 GMT", 3.0),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0.0),
        ("Sun, 06 Nov 1994 08:49:40", 3.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    """Both forms that HTTP has."""
    now = datetime.datetime(1994, 11, 6, 8, 49, 37, tzinfo=datetime.UTC)
    assert retry_after_s({"retry-after": value}, now) == seconds


@given(st.integers(201, 599), st.binary(), st.text(st.characters(codec="latin-1")))
def test_any_answer_becomes_an_exception(status: int, body: bytes, hint: str) -> None:
    """Nothing that a stranger answers breaks the reading of it."""
    error = error_of(status, {"retry-after": hint}, body)
    assert error.status == status
    assert error.retry_after is None or error.retry_after >= 0.0


def test_exceptions_survive_copies() -> None:
    """They can cross process boundaries, as results of pools do."""
    import pickle

    error = QueueFull("full", 429, "queue_full", 1.0, "id")
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), vars(copied)) == (QueueFull, vars(error))
