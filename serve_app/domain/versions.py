"""Names of models' versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

_SEPARATOR: Final = "/"


class Asker(NamedTuple):
    """A client, for the choice of a version.

    Attributes:
        tenant: Name of the API key, else the client's address; empty if neither is known.
        request_id: Empty if the request has none.
    """

    tenant: str = ""
    request_id: str = ""


def version_key(model: str, version: str) -> str:
    """The key of one of several versions: of its queue, its deployment, and in metrics. No model has such a name."""
    return f"{model}{_SEPARATOR}{version}"


def model_of(key: str) -> str:
    """The name of the model of a `version_key`; a model's own name stays as it is."""
    return key.partition(_SEPARATOR)[0]


def newest_last(versions: Sequence[str]) -> tuple[str, ...]:
    """Versions in ascending order."""
    return tuple(sorted(versions, key=int))
