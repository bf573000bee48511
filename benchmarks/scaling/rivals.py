"""Other ways to choose the number of replicas, over the same scheduler.

Sources: `ray.serve.autoscaling_policy` 2.60 for Ray Serve; for KEDA the horizontal pod autoscaler that it drives, with
its default behaviour (Kubernetes, "Horizontal Pod Autoscaling").
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from serve_app_simulator.scalers import FleetState

Floats = npt.NDArray[np.float64]

_ROUNDING_S = 1e-9


@dataclass
class RayServe:
    """Ray Serve's own policy: ongoing requests, averaged over 30 s, by a target; up after 30 s, down after 600 s."""

    minimum: int
    maximum: int
    target: float = 2.0
    look_back_s: float = 30.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _wanted: tuple[int, float] = (0, inf)

    def decide(self, state: FleetState) -> tuple[int, str]:
        """See `serve_app_simulator.scalers.Scaler`."""
        self._seen.append((state.now, state.load_rows - state.demand.turned_away_rows))
        while self._seen[0][0] <= state.now - self.look_back_s:
            self._seen.popleft()
        ongoing = sum(rows for _, rows in self._seen) / len(self._seen)
        wanted = max(self.minimum, min(self.maximum, ceil(ongoing / self.target)))
        direction = (wanted > state.target) - (wanted < state.target)
        if direction != self._wanted[0]:
            self._wanted = direction, state.now
        delay_s = self.upscale_delay_s if direction > 0 else self.downscale_delay_s
        if direction and state.now - self._wanted[1] >= delay_s - _ROUNDING_S:
            self._wanted = 0, inf
            return wanted, "ongoing"
        return state.target, "ongoing"


@dataclass
class Keda:
    """KEDA and the autoscaler that it drives: every 15 s, up at most to the double or by 4, down after 300 s.

    Args:
        per: What is counted: rows queued and running, or rows that arrive per second.
    """

    minimum: int
    maximum: int
    per: str
    target: float
    look_back_s: float = 30.0
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _advised: deque[tuple[float, int]] = field(default_factory=deque)
    _synced_at: float = -inf

    def decide(self, state: FleetState) -> tuple[int, str]:
        """See `serve_app_simulator.scalers.Scaler`."""
        self._seen.append((state.now, state.arrived_rows))
        while self._seen[0][0] <= state.now - self.look_back_s:
            self._seen.popleft()
        if state.now - self._synced_at < 15.0 - _ROUNDING_S:
            return state.target, self.per
        self._synced_at = state.now
        if self.per == "queue":
            metric = float(state.load_rows - state.demand.turned_away_rows)
        else:
            metric = sum(rows for _, rows in self._seen) / self.look_back_s
        wanted = ceil(metric / self.target)
        if abs(metric / (self.target * max(1, state.target)) - 1.0) <= 0.1:
            wanted = state.target
        self._advised.append((state.now, wanted))
        while self._advised[0][0] < state.now - 300.0:
            self._advised.popleft()
        wanted = max(advised for _, advised in self._advised) if wanted < state.target else wanted
        wanted = min(wanted, max(2 * state.target, state.target + 4))
        return max(self.minimum, min(self.maximum, wanted)), self.per


def losses(work: Floats, slack_s: float, step_s: float, slot_s: float, maximum: int) -> Floats:
    """Server-seconds lost in each slot, by a constant number of replicas, 1 to ``maximum``; of a fluid.

    Args:
        work: Server-seconds that arrive in each step.
        slack_s: How long they may wait.
    """
    per_slot = int(slot_s / step_s)
    slots = ceil(len(work) / per_slot)
    found = np.zeros((maximum, slots))
    for number in range(1, maximum + 1):
        waiting, most = 0.0, number * slack_s
        for at, arrived in enumerate(work):
            waiting = max(0.0, waiting + arrived - number * step_s)
            if waiting > most:
                found[number - 1, at // per_slot] += waiting - most
                waiting = most
    return found


def plan(lost: Floats, allowed: float) -> list[int]:
    """The cheapest numbers of replicas, at least 1 in each slot, that lose no more than ``allowed`` server-seconds.

    The loss of a slot falls ever less with each replica, so the one that saves most is added next.
    """
    numbers = np.zeros(lost.shape[1], dtype=int)
    total = float(lost[0].sum())
    while total > allowed:
        now = lost[numbers, np.arange(lost.shape[1])]
        more = np.minimum(numbers + 1, lost.shape[0] - 1)
        saved = now - lost[more, np.arange(lost.shape[1])]
        best = int(saved.argmax())
        if saved[best] <= 0.0:
            break
        numbers[best] += 1
        total -= float(saved[best])
    return [int(number) + 1 for number in numbers]
