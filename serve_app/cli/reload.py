"""Reloads models of a running server through the repository API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

_PATIENCE_S: Final = 600.0
_UNSUPPORTED: Final = 501


def reload_models(url: str, models: Sequence[str], key: str) -> Iterator[tuple[str, bool]]:
    """Load models, one after the other.

    Args:
        url: Of the server.
        models: Their names; empty: all that are not unloaded.
        key: An API key, or empty.

    Yields:
        For each model, a line with the result, and whether it was loaded.
    """
    if not url.startswith(("http://", "https://")):
        yield f"{url}: expected a URL that begins with http:// or https://", False
        return
    root = f"{url.rstrip('/')}/v2/repository"
    try:
        index = _post(f"{root}/index", key)
        names = models or dict.fromkeys(entry["name"] for entry in index if entry["reason"] != "unloaded")
    except _Refused as refusal:
        yield f"{url}: {refusal}", False
        return
    for name in names:
        try:
            told = _post(f"{root}/models/{quote(name, safe='')}/load", key)
        except _Refused as refusal:
            if models or refusal.status != _UNSUPPORTED:  # members of pools are loaded when they are asked for
                yield f"{name}: {refusal}", False
            continue
        if told["before"] == told["after"]:
            yield f"{name}: unchanged, revision {told['after']}", True
        else:
            before = told["before"] or "none"
            yield f"{name}: version {told['version']}, revision {told['after']} after {before}", True


class _Refused(Exception):
    """The server refused; the message says why.

    Attributes:
        status: HTTP status; 0: no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def _post(url: str, key: str) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = Request(url, b"{}", headers, method="POST")  # noqa: S310 - the scheme was checked
    try:
        with urlopen(request, timeout=_PATIENCE_S) as answer:  # noqa: S310
            return json.load(answer)
    except HTTPError as error:
        raise _Refused(_said(error), error.code) from None
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise _Refused(f"no answer: {getattr(error, 'reason', error)}") from None


def _said(error: HTTPError) -> str:
    """An error's own message, or its status."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"
