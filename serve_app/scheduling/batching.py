"""Batch policies: how long the next bundle may execute, and so how many rows it takes."""

from __future__ import annotations

from math import inf
from typing import Protocol

from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.settings import ModelScheduling


class BatchPolicy(Protocol):
    """Decides how a bundle grows behind its head. Implementations are pure and hold no state of requests."""

    def target_s(
        self, latency: LatencyModel, settings: ModelScheduling, rows: int, bucket: int, slack_s: float
    ) -> float:
        """The longest predicted execution time that the bundle may have, seconds (``inf``: only rows bound it).

        Args:
            latency: Of the model.
            settings: Of the model.
            rows: Rows of the head.
            bucket: Cost bucket of the head.
            slack_s: Time that the head has left for execution, seconds.
        """


class Eager:
    """A free slot takes what is queued, as much as the head's slack and the model's latency target allow.

    A target that the head alone cannot keep is given up, the latency target before the deadline: a head that is late
    anyway does not make the batch behind it small.
    """

    def target_s(
        self, latency: LatencyModel, settings: ModelScheduling, rows: int, bucket: int, slack_s: float
    ) -> float:
        """See `BatchPolicy.target_s`."""
        alone = latency.predict(rows, bucket)
        if alone <= slack_s:
            return min(slack_s, settings.slo_s) if alone <= settings.slo_s else slack_s
        return settings.slo_s if alone <= settings.slo_s else inf


_EAGER = Eager()
_POLICIES: dict[str, BatchPolicy] = {"auto": _EAGER, "eager": _EAGER}


def batch_policy(name: str) -> BatchPolicy:
    """The policy of that name. Raises ValueError, listing the names there are."""
    try:
        return _POLICIES[name]
    except KeyError:
        raise ValueError(f"unknown batch policy {name!r}; there are: {', '.join(sorted(_POLICIES))}") from None
