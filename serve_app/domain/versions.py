"""Versions of a model, as everything that serves models names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

_SEPARATOR: Final = "/"


class Asker(NamedTuple):
    """Who asks, as far as the choice of a version depends on it.

    Attributes:
        tenant: Name of the API key, else the client's address; empty where neither is known.
        request_id: Empty where the request has none.
    """

    tenant: str = ""
    request_id: str = ""


def version_key(model: str, version: str) -> str:
    """What the server calls one of several versions: its queue, its deployment, in metrics. No model is called so."""
    return f"{model}{_SEPARATOR}{version}"


def model_of(key: str) -> str:
    """The name of the model of a `version_key`; a model's own name stays as it is."""
    return key.partition(_SEPARATOR)[0]


def newest_last(versions: Sequence[str]) -> tuple[str, ...]:
    """Versions in ascending order."""
    return tuple(sorted(versions, key=int))
