"""Errors as clients see them."""

from __future__ import annotations

import math

import orjson
import pytest

import serve_app.errors as tree
from serve_app.api.grpc.call import GrpcCall
from serve_app.api.openai import render_error
from serve_app.errors import InvalidRequest, ModelNotFound, QueueFull, ServeAppError
from serve_app.http.errors import STATUSES, internal_error, render, retry_after, status_of

DESIGN = [
    (tree.InvalidRequest, 400, "INVALID_ARGUMENT", "invalid_request"),
    (tree.PermissionDenied, 403, "PERMISSION_DENIED", "permission_denied"),
    (tree.MethodNotAllowed, 405, "UNIMPLEMENTED", "method_not_allowed"),
    (tree.Unsupported, 501, "UNIMPLEMENTED", "unsupported"),
    (tree.Unauthenticated, 401, "UNAUTHENTICATED", "unauthenticated"),
    (tree.ModelNotFound, 404, "NOT_FOUND", "model_not_found"),
    (tree.PayloadTooLarge, 413, "INVALID_ARGUMENT", "payload_too_large"),
    (tree.UnsupportedMedia, 415, "INVALID_ARGUMENT", "unsupported_media"),
    (tree.QueueFull, 429, "RESOURCE_EXHAUSTED", "queue_full"),
    (tree.ModelUnavailable, 503, "UNAVAILABLE", "model_unavailable"),
    (tree.DeadlineExceeded, 504, "DEADLINE_EXCEEDED", "deadline_exceeded"),
    (tree.InferenceFailed, 500, "INTERNAL", "inference_failed"),
]


@pytest.mark.parametrize(("kind", "http", "grpc", "code"), DESIGN)
def test_every_error_has_its_statuses_and_code(kind: type[ServeAppError], http: int, grpc: str, code: str) -> None:
    """The table that clients rely on."""
    reply = render(kind("what is wrong"))

    assert (http, grpc) == status_of(kind("what is wrong"))
    assert http == reply.status
    assert {"error": "what is wrong", "code": code} == orjson.loads(reply.body)


def test_every_class_of_the_tree_is_in_the_table() -> None:
    """A new error cannot be forgotten: configuration errors alone never reach a client."""
    codes = {cls.code for cls in vars(tree).values() if isinstance(cls, type) and issubclass(cls, ServeAppError)}

    assert codes - {"invalid_config"} <= set(STATUSES)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (QueueFull("full", 0.01), 1),
        (QueueFull("full", 2.1), 3),
        (QueueFull("full"), 1),
        (QueueFull("late", math.inf), 3600),
        (tree.ModelUnavailable("down"), 1),
        (InvalidRequest("wrong"), None),
        (tree.InferenceFailed("broken", 4.0), 4),
    ],
)
def test_retry_after_is_whole_seconds(error: ServeAppError, expected: int | None) -> None:
    """429 and 503 always carry Retry-After, others where somebody knows when to try again."""
    headers = dict(render(error).headers)

    assert expected == retry_after(error)
    assert (None if expected is None else str(expected).encode()) == headers.get(b"retry-after")


def test_openai_errors_are_wrapped() -> None:
    """OpenAI's client reads message, type, param and code."""
    reply = render_error(ModelNotFound("no such model"))

    assert orjson.loads(reply.body) == {
        "error": {
            "message": "no such model",
            "type": "invalid_request_error",
            "param": None,
            "code": "model_not_found",
        }
    }


def test_an_unknown_code_is_internal() -> None:
    """A code that clients were never told of does not reach them."""

    class Odd(ServeAppError):
        code = "odd"

    assert orjson.loads(render(Odd("strange")).body) == {"error": "strange", "code": "internal"}


def test_a_message_without_utf8_form_is_rendered() -> None:
    """A path may hold anything; the error about it is still JSON."""
    assert orjson.loads(render(InvalidRequest("\ud800")).body)["error"] == "?"


def test_bugs_are_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets an id to quote; the log has the traceback under that id."""
    with pytest.raises(ZeroDivisionError) as bug:
        _ = 1 / 0
    error = internal_error(bug.value, "id-7", "POST /x")

    assert error.message == "internal error (request id id-7)"
    assert "id-7" in caplog.text
    assert "ZeroDivisionError: division by zero" in caplog.text


class _Ended:
    """The context of a gRPC call, as it was left."""

    def __init__(self, *came: tuple[str, str]) -> None:
        self.metadata: list[tuple[str, str]] = []
        self._came = came

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._came

    def peer(self) -> str:
        return ""

    def set_code(self, code: object) -> None:
        pass

    def set_details(self, details: str) -> None:
        pass

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None:
        self.metadata = trailing_metadata


def test_metadata_of_cache_control_add_up() -> None:
    """As HTTP's lines do; of all others the last counts."""
    call = GrpcCall(
        _Ended(("cache-control", "no-store"), ("x-priority", "low"), ("cache-control", "x"), ("x-priority", "1"))
    )
    assert (call.headers[b"cache-control"], call.headers[b"x-priority"]) == (b"no-store,x", b"1")
