"""When the requests of a listener are begun: in turns, the most urgent first (`serve_app.scheduling.intake`).

A request is begun at once while the event loop keeps up: in each round of the loop a few are. Those beyond wait here,
with their heads parsed and their bodies raw. So each round reads whatever has arrived, sends what has been answered,
and then begins a few more. What cannot be in time is answered without having been begun.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import Final, NamedTuple, Protocol, TypeAlias

from starlette.types import Scope

from serve_app.errors import QueueFull
from serve_app.http.errors import ErrorsOf, Rendered
from serve_app.http.exchange import Exchange
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.intake import Intake

_PER_ROUND: Final = 4
_UNIT: Final = 16 * 1024
"""Bytes. A body counts as one more request for each."""
_SHOWN: Final = 256

Urgency: TypeAlias = tuple[Priority, float]
"""A class, and seconds in which the answer is wanted."""


class Asked(Protocol):
    """A connection, to what waits for its turn."""

    def begin(self, exchange: Exchange) -> None:
        """Have a request answered."""

    def turn_down(self, exchange: Exchange, reply: Rendered) -> None:
        """Answer it with this instead."""


class _Waiting(NamedTuple):
    connection: Asked
    exchange: Exchange
    priority: Priority


def ordinary(_: Scope) -> Urgency:
    """The urgency of every request where nobody knows better."""
    return Priority.NORMAL, inf


class Turns:
    """Begins requests.

    Args:
        loop: Runs all of it.
        errors_of: The shape of errors at a path.
        urgency_of: How urgent a request is, as far as its head tells. Takes microseconds, and raises nothing.
        min_share: Part of all turns that a class gets while it waits, 0 to 1.
        most: Requests that may wait.

    Attributes:
        refused: How many were turned down, ever, by class.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        errors_of: ErrorsOf,
        urgency_of: Callable[[Scope], Urgency],
        min_share: Mapping[Priority, float],
        most: int,
    ) -> None:
        self._loop = loop
        self._errors_of = errors_of
        self._urgency_of = urgency_of
        self._intake = Intake[_Waiting](min_share, most)
        self._begun = 0.0  # in this round of the loop, in requests
        self._replies: dict[str, Rendered] = {}
        self.refused: Counter[Priority] = Counter()

    def enter(self, connection: Asked, exchange: Exchange) -> None:
        """Begin a request now or later."""
        begun = self._begun
        if begun < _PER_ROUND and not self._intake.waiting:
            if not begun:
                self._loop.call_soon(self._round)
            self._begin(connection, exchange)
            return
        priority, seconds = self._urgency_of(exchange.scope)
        now = self._loop.time()
        exchange.wait()
        self._intake.offer(_Waiting(connection, exchange, priority), priority, now + seconds, now)

    def _begin(self, connection: Asked, exchange: Exchange) -> None:
        self._begun += 1.0 if not exchange.length else 1.0 + exchange.length / _UNIT
        connection.begin(exchange)

    def _round(self) -> None:
        self._begun = 0.0
        intake = self._intake
        if not intake.waiting:
            return
        now = self._loop.time()
        for given_up in intake.give_up(now):
            if given_up.exchange.waits:
                self.refused[given_up.priority] += 1
                given_up.connection.turn_down(given_up.exchange, self._reply(given_up.exchange.scope["path"]))
        while self._begun < _PER_ROUND and (taken := intake.take(now)) is not None:
            if taken.exchange.waits:
                self._begin(taken.connection, taken.exchange)
        if self._begun:
            self._loop.call_soon(self._round)

    def _reply(self, path: str) -> Rendered:
        reply = self._replies.get(path)
        if reply is None:
            if len(self._replies) >= _SHOWN:
                self._replies.clear()
            busy = QueueFull(
                "the router is busy: more urgent requests take its time until this one would be too late; try again"
                " later, or have more routers (router.replicas)",
                1.0,
            )
            reply = self._replies[path] = self._errors_of(path)(busy)
        return reply
