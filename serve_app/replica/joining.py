"""Holds and publishes which requests of a replica share runs, build by build."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from threading import Lock
from types import MappingProxyType

from serve_app.backends.batch import most_rows, rows_of
from serve_app.errors import InvalidRequest
from serve_app.payloads import JOINED, PADDING, PROVEN, EqualSizes, Joinable, Tensors, WireEntry
from serve_app.processors.processor import Processor, pads_to_buckets

logger = logging.getLogger(__name__)

_UNKNOWN = Joinable("exact", "not examined", padding="exact")
"""Of what runs without anybody having asked: simulated backends."""


class Joining:
    """The verdicts of one replica. May change at any time, from any thread.

    Args:
        verdicts: By variant, ``""`` for the exact model.
        inputs: By variant, the number of required inputs; a request with optional ones runs alone.
        fallbacks: Variants that may replace the exact model.

    Attributes:
        unbatched_variants: Variants whose requests share no runs.
    """

    def __init__(
        self,
        name: str,
        verdicts: Mapping[str, Joinable] = MappingProxyType({}),
        inputs: Mapping[str, int] = MappingProxyType({}),
        fallbacks: Sequence[str] = (),
    ) -> None:
        self._name = name
        self._verdicts = dict(verdicts)
        self.unbatched_variants = _unbatched(self._verdicts)
        self._inputs = inputs
        self._fallbacks = tuple(fallbacks)
        self._lock = Lock()
        self._revision = 0
        self._told: dict[str, int] = {}

    @property
    def verdicts(self) -> Mapping[str, Joinable]:
        """The current verdicts, by variant."""
        return self._verdicts

    def of(self, variant: str) -> Joinable:
        """The verdict on one variant."""
        return self._verdicts.get(variant, _UNKNOWN)

    def of_entry(self, entry: WireEntry) -> list[Joinable]:
        """The verdicts on all builds that may run an entry."""
        fallbacks = () if entry.variant or entry.exact else self._fallbacks
        return [self.of(variant) for variant in (entry.variant, *fallbacks)]

    def own_sizes(self, processor: Processor, entry: WireEntry) -> bool:
        """Whether an entry's inputs are padded to their own bucket in any case, since the model takes no others."""
        return pads_to_buckets(processor) or any(verdict.padding == "sizes" for verdict in self.of_entry(entry))

    def rows(self, variant: str, tensors: Tensors) -> tuple[int, bool]:
        """The rows that a request counts for, and whether it runs alone and uncut.

        Raises:
            InvalidRequest: Its tensors differ in their number of rows, which this model does not allow.
        """
        verdict = self._verdicts.get(variant, _UNKNOWN)
        if (
            len(tensors) == 1 and verdict[0] in JOINED and not verdict.equal_sizes
        ):  # of most small requests: one tensor agrees with itself
            (array,) = tensors.values()
            if array.ndim and (rows := len(array)):
                return rows, False
        if not verdict.rows or len(tensors) > self._inputs.get(variant, len(tensors)):
            return 1, True
        rows, even = most_rows(tensors)
        return rows or 1, not (rows and even and verdict.joins and _equal(verdict.equal_sizes, tensors))

    def may_try(self, variant: str, tensors: Tensors) -> bool:
        """Whether only a missing experiment keeps a request from sharing runs."""
        if self.of(variant).verdict != PROVEN or len(tensors) > self._inputs.get(variant, len(tensors)):
            return False
        try:
            return rows_of(tensors) > 0
        except InvalidRequest:
            return False

    def change(self, variant: str, verdict: Joinable) -> None:
        """Set another verdict, from the next batch on, and send it to the routers with their next answers."""
        with self._lock:
            before = self._verdicts.get(variant, _UNKNOWN)
            self._verdicts = {**self._verdicts, variant: verdict}
            self.unbatched_variants = _unbatched(self._verdicts)
            self._revision += 1
        build = f"{self._name}, variant {variant}" if variant else self._name
        level = logging.ERROR if before.joins and not verdict.joins else logging.INFO
        logger.log(level, "%s: %s", build, told(verdict))

    def news(self, router: str) -> Mapping[str, Joinable] | None:
        """The verdicts, if changed since this router received them."""
        if self._told.get(router, 0) == self._revision:
            return None
        with self._lock:
            self._told[router] = self._revision
            return self._verdicts


def _equal(groups: EqualSizes, tensors: Tensors) -> bool:
    """Whether a request's sizes are equal where its proof assumes so."""
    for group in groups:
        sizes = set()
        for name, axis in group:
            array = tensors.get(name)
            if array is not None:
                sizes.add(array.shape[axis] if axis < array.ndim else -1)
        if len(sizes) > 1:
            return False
    return True


def _unbatched(verdicts: Mapping[str, Joinable]) -> set[str]:
    return {variant for variant, verdict in verdicts.items() if not verdict.joins}


def told(verdict: Joinable) -> str:
    """A verdict in words, for logs."""
    how = "requests share runs" if verdict.joins else "requests are run one by one"
    measured = f", largest deviation {verdict.deviation:.2g}" if verdict.deviation else ""
    return f"{how} ({verdict.verdict}{measured}{PADDING[verdict.padding]}): {verdict.reason}"
