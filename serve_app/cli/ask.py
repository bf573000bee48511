"""Queries a running server for the commands that show or change it."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import typer

URL_VARIABLE: Final = "SERVE_APP_URL"
KEY_VARIABLE: Final = "SERVE_APP_API_KEY"
"""As for the Python client."""
URL: Final = "http://127.0.0.1:8000"
PATIENCE_S: Final = 30.0


def ask(
    url: str | None, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Request a JSON object; POST if there is content.

    Args:
        url: The server's address; ``None`` for the environment's or the default.
        headers: In addition to the API key and JSON's type.

    Raises:
        typer.Exit: The request failed; the reason has been printed.
        typer.BadParameter: The address is malformed.
    """
    with_body = fetch(url, path, content, headers)
    try:
        found: dict[str, Any] = json.loads(with_body)
    except ValueError as error:
        raise failed(f"{url}: {error}") from None
    return found


def fetch(url: str | None, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """`ask` for an answer of any type."""
    url = url or os.environ.get(URL_VARIABLE) or URL
    if urlsplit(url).scheme not in {"http", "https"}:
        raise typer.BadParameter(f"must begin with http:// or https://, got {url!r}", param_hint="--url")
    sent = {"Content-Type": "application/json", **(headers or {})}
    if key := os.environ.get(KEY_VARIABLE):
        sent["X-API-Key"] = key
    request = urllib.request.Request(url.rstrip("/") + path, content, sent)  # noqa: S310 - looked at above
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
            body: bytes = answer.read()
    except urllib.error.HTTPError as error:
        raise failed(_message(error)) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise failed(f"{url}: {error}") from None
    return body


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return f"the server answers {error.code}"


def failed(message: str) -> typer.Exit:
    """Print why something is impossible; returns an exception to raise."""
    typer.echo(message, err=True)
    return typer.Exit(1)
