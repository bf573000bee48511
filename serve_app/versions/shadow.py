"""Shadow requests: copies that another version of the model runs, to compare its answers with those of clients.

A copy begins when its client has its answer, in class ``low``. It never affects a client: copies without room are
dropped, and the data kept for the comparison has a bound.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from msgspec.structs import replace

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.errors import DeadlineExceeded, QueueFull, ServeAppError
from serve_app.payloads import Embeddings, Payload, RequestAttributes, held_bytes, payload_bytes
from serve_app.versions.policy import Tolerance

logger = logging.getLogger(__name__)

Outcome: TypeAlias = Literal["same", "different", "failed", "dropped"]

MOST: Final = 64
"""Most copies under way."""
MOST_BYTES: Final = 64 * 2**20
"""Most bytes of these, and of the answers that they are compared with."""

_LOG_EVERY_S: Final = 1.0
_ASIDE_BYTES: Final = 256 * 1024
"""Larger answers are compared in a thread."""
_LISTENER: Final = "shadow"
SHADOW_TENANT: Final = ":shadow"
"""The tenant of copies; no API key and no address has this name."""
SHADOW_WEIGHT: Final = 1e-6
"""Of that tenant: in a full class a copy takes no other's place, and it yields to all others that wait."""
_DEFAULT: Final = Tolerance()


class Shadows:
    """Runs copies.

    Args:
        info_of: Present description of the version of a key.
        has_room: Whether class ``low`` of a model takes so many bytes now.
        submit: Runs a request, past the cache.
        count: Called with the version and the outcome of every copy.
    """

    def __init__(
        self,
        info_of: Callable[[str], ModelInfo],
        has_room: Callable[[str, int], bool],
        submit: Callable[[str, Payload, RequestOptions], Awaitable[Answer]],
        count: Callable[[str, Outcome], None],
    ) -> None:
        self._info_of = info_of
        self._has_room = has_room
        self._submit = submit
        self._count = count
        self._tasks: set[asyncio.Task[None]] = set()
        self._nbytes = 0
        self._log_at = 0.0
        self._not_logged = 0

    def answered(
        self,
        key: str,
        info: ModelInfo,
        payload: Payload,
        options: RequestOptions,
        answer: Answer,
        tolerance: Mapping[str, Tolerance],
    ) -> None:
        """Run a copy of an answered request if the other version can run it, and there is room.

        Args:
            key: The other version.
            info: Of the version that answered.
            payload: As answered, like ``options``.
            answer: The client's.
            tolerance: By output.
        """
        other = self._info_of(key)
        if (
            other.fault
            or other.signature.inputs != info.signature.inputs
            or answer.variant not in ("", *other.variants)  # the exact model has no name
        ):
            self._count(key, "failed")
            return
        if not options.nbytes:
            options = replace(options, nbytes=payload_bytes(payload))
        self.start(key, payload, options, answer, tolerance)

    def start(
        self,
        key: str,
        payload: Payload,
        options: RequestOptions,
        answer: Answer,
        tolerance: Mapping[str, Tolerance],
    ) -> None:
        """Run a copy of an answered request, if there is room.

        Args:
            key: The other version. It takes the same payloads, and has the variant that answered.
            payload: As answered, like ``options``.
            answer: The client's.
            tolerance: By output.
        """
        held = options.nbytes + held_bytes(answer.value)
        if len(self._tasks) >= MOST or self._nbytes + held > MOST_BYTES or not self._has_room(key, options.nbytes):
            self._count(key, "dropped")
            return
        self._nbytes += held
        # Not in the request's context: its end is not that of the copy, and its API key is not asked again.
        task = asyncio.get_running_loop().create_task(
            self._run(key, payload, _of_copy(options, answer.variant), answer, tolerance), context=contextvars.Context()
        )
        self._tasks.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._nbytes -= held

        task.add_done_callback(ended)

    async def close(self) -> None:
        """Cancel all copies."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(
        self,
        key: str,
        payload: Payload,
        options: RequestOptions,
        answer: Answer,
        tolerance: Mapping[str, Tolerance],
    ) -> None:
        try:
            copy = await self._submit(key, payload, options)
        except (QueueFull, DeadlineExceeded):  # other requests took the time
            self._count(key, "dropped")
            return
        except ServeAppError as error:
            self._end(key, "failed", options, f"fails: {error}")
            return
        if held_bytes(answer.value) > _ASIDE_BYTES:
            found = await asyncio.to_thread(difference, answer.value, copy.value, tolerance)
        else:
            found = difference(answer.value, copy.value, tolerance)
        if not found:
            self._count(key, "same")
        else:
            self._end(key, "different", options, f"differs: {found}")

    def _end(self, key: str, outcome: Outcome, options: RequestOptions, what: str) -> None:
        self._count(key, outcome)
        now = monotonic()
        if now < self._log_at:
            self._not_logged += 1
            return
        more = f" ({self._not_logged} before it are not logged)" if self._not_logged else ""
        logger.warning("Shadow %s: request %s %s%s", key, options.request_id or "without an id", what, more)
        self._log_at, self._not_logged = now + _LOG_EVERY_S, 0


def _of_copy(options: RequestOptions, variant: str) -> RequestOptions:
    """Options of a copy: least urgent, with the whole time of its class, without client or key.

    It runs on the variant that answered: a fallback on one side alone would differ, whatever the versions do.
    """
    return replace(
        options,
        variant=variant,
        fallback=False,
        priority=Priority.LOW,
        timeout_s=None,
        spent_s=0.0,
        cacheable=False,
        key="",
        attributes=RequestAttributes(SHADOW_TENANT, SHADOW_WEIGHT),
        listener=_LISTENER,
        revision="",  # which is that of the other version
    )


def difference(real: Any, other: Any, tolerance: Mapping[str, Tolerance]) -> str:
    """The first difference of two answers and its size, without values of theirs; empty if they are equal.

    Args:
        real: The client's: tensors by name, or any result of a processor.
        other: The copy's.
        tolerance: By output, or by the field of an answer; others have the default.
    """
    return _difference("", real, other, tolerance, _DEFAULT)


def _difference(place: str, real: Any, other: Any, tolerance: Mapping[str, Tolerance], allowed: Tolerance) -> str:
    if isinstance(real, Embeddings) and isinstance(other, Embeddings):
        real, other = {"vectors": real.vectors}, {"vectors": other.vectors}
    if isinstance(real, np.ndarray) and isinstance(other, np.ndarray):
        return _difference_of_arrays(place, real, other, allowed)
    if isinstance(real, Mapping) and isinstance(other, Mapping):
        if real.keys() != other.keys():
            return f"{place or 'answer'} has {_listed(other)} instead of {_listed(real)}"
        parts = [(f"{place}.{name}" if place else str(name), name, tolerance.get(name, allowed)) for name in real]
    elif isinstance(real, list | tuple) and isinstance(other, list | tuple):
        if len(real) != len(other):
            return f"{place or 'answer'} has {len(other)} parts instead of {len(real)}"
        parts = [(f"{place}[{at}]", at, allowed) for at in range(len(real))]
    elif isinstance(real, float) and isinstance(other, float | int):
        return "" if _near(real, float(other), allowed) else f"{place} by {abs(real - other):g}"
    else:
        return "" if real == other else f"{place} is another"
    for where, step, its in parts:
        if found := _difference(where, real[step], other[step], tolerance, its):
            return found
    return ""


def _near(real: float, other: float, allowed: Tolerance) -> bool:
    if math.isnan(real) or math.isnan(other):
        return math.isnan(real) and math.isnan(other)
    return real == other or abs(real - other) <= allowed.atol + allowed.rtol * abs(real)


def _difference_of_arrays(place: str, real: Any, other: Any, allowed: Tolerance) -> str:
    if real.shape != other.shape:
        return f"{place} has shape {list(other.shape)} instead of {list(real.shape)}"
    if real.dtype != other.dtype:
        return f"{place} is {other.dtype} instead of {real.dtype}"
    if real.dtype.kind in "biuOSU":
        count = int(np.count_nonzero(real != other))
        return f"{place} in {count} of {real.size} values" if count else ""
    # Floats, those of ml_dtypes as well, which numpy's functions do not all take.
    expected, found = real.astype(np.float64), other.astype(np.float64)
    apart = ~np.isclose(found, expected, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
    count = int(np.count_nonzero(apart))
    if not count:
        return ""
    most = np.abs(found[apart] - expected[apart]).max()
    return f"{place} in {count} of {real.size} values, by up to {most:g}"


def _listed(names: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, names)) or "nothing"
