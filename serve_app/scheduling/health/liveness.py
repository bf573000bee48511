"""Whether a replica is alive: it sends data, or its event loop answers a ping.

Replicas are watched only while requests are in flight. Any data on the link counts. After a quarter of the time without
data the replica is pinged; its event loop answers while its session runs. Time counts in turns of a timer: if this
process itself stood still, only one turn has passed, and data that arrived meanwhile is read before the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

_TURNS: Final = 4


class Watch(NamedTuple):
    """Time-outs of replicas, and callbacks.

    Attributes:
        silence_s: After this time without data a replica is unresponsive.
        kill_s: After this time it is given up; ``None``: never.
        on_unresponsive: Called with the model and the replica.
        on_responsive: Called likewise, when an unresponsive one sends data again.
    """

    silence_s: float
    kill_s: float | None
    on_unresponsive: Callable[[str, str], None]
    on_responsive: Callable[[str, str], None]


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> object:
        """Cancel the call."""


class Liveness:
    """Watches one replica.

    Args:
        call_later: Schedules a call after so many seconds.
        in_flight: Whether requests are in flight.
        data_received: Whether any data has come since the last call.
        ask: Pings the replica.
        on_unresponsive: Called when it has sent no data for ``silence_s``.
        on_responsive: Called when it then sends data again.
        on_given_up: Called once after ``kill_s``.

    Attributes:
        at_rest: Whether the next request must be reported by `begin`.
    """

    def __init__(
        self,
        silence_s: float,
        kill_s: float | None,
        *,
        call_later: Callable[[float, Callable[[], None]], Timer],
        in_flight: Callable[[], bool],
        data_received: Callable[[], bool],
        ask: Callable[[], object],
        on_unresponsive: Callable[[], object],
        on_responsive: Callable[[], object],
        on_given_up: Callable[[], object],
    ) -> None:
        self._turn_s = silence_s / _TURNS
        self._last_turn = None if kill_s is None else max(_TURNS, round(kill_s / self._turn_s))
        self._in_flight = in_flight
        self._data_received = data_received
        self._ask = ask
        self._on_unresponsive = on_unresponsive
        self._on_responsive = on_responsive
        self._on_given_up = on_given_up
        self._call_later = call_later
        self._timer: Timer | None = None
        self._quiet = 0
        self.at_rest = True

    def __repr__(self) -> str:
        return f"<Liveness {'at rest' if self.at_rest else f'watching, {self._quiet} quiet turns'}>"

    def begin(self) -> None:
        """Start to watch: a request has been sent."""
        if self.at_rest:
            self.at_rest = False
            self._timer = self._call_later(self._turn_s, self._turn)

    def end(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.at_rest = True

    def _turn(self) -> None:
        self._timer = None
        self.at_rest = True
        if self._data_received():
            was, self._quiet = self._quiet, 0
            if was >= _TURNS:
                self._on_responsive()
        else:
            self._quiet += 1
            if self._quiet == 1:
                self._ask()
            if self._quiet == _TURNS:
                self._on_unresponsive()
            if self._quiet == self._last_turn:
                self._on_given_up()
        if self._in_flight():
            self.begin()
        else:
            self._quiet = 0
