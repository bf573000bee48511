"""What the steps of an ensemble may name, and which documents are ensembles."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from serve_app.triton.fields import TritonDocument

ENSEMBLE: Final = "ensemble"
"""The platform of an ensemble."""


class Neighbours(NamedTuple):
    """What the steps of an ensemble may name.

    Attributes:
        models: Entries of `models` by name; ``None`` for a folder whose model is not served.
        pipelines: Names of the other ensembles and of pipelines.
        complete: Whether there is nothing else.
    """

    models: Mapping[str, Mapping[str, Any] | None]
    pipelines: Collection[str]
    complete: bool = True


def is_ensemble(document: TritonDocument) -> bool:
    """Whether a `config.pbtxt` is that of an ensemble."""
    return document.fields.has("ensemble_scheduling") or document.fields.value("platform") == ENSEMBLE
