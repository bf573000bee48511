"""Other ways to choose the number of replicas, over the same scheduler.

Sources: `ray.serve.autoscaling_policy` 2.60 for Ray Serve; for KEDA the horizontal pod autoscaler that it drives, with
its default behaviour (Kubernetes, "Horizontal Pod Autoscaling").
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from benchmarks.scheduling.conditions import MAX_ROWS
from serve_app_simulator.scalers import FleetState
from serve_app_simulator.scenario import Curve

Floats = npt.NDArray[np.float64]

_ROUNDING_S = 1e-9


@dataclass
class RayServe:
    """Ray Serve's own policy: requests queued and running, averaged, by a target; it scales after a delay.

    By default it scales up after 30 s and down after 600 s, which is too slow for the loads here.
    """

    minimum: int
    maximum: int
    target: float
    downscale_delay_s: float
    look_back_s: float = 30.0
    upscale_delay_s: float = 0.0
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
    """KEDA and the autoscaler that it drives: every 15 s, up at most to the double or by 4, down after a window.

    Args:
        per: What is counted: rows queued and running now, or rows that arrive per second.
        downscale_window_s: The autoscaler's stabilization window; 300 s by default.
        look_back_s: Over which arrivals are averaged.
    """

    per: str
    minimum: int
    maximum: int
    target: float
    downscale_window_s: float
    look_back_s: float = 15.0
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
            metric = sum(rows for _, rows in self._seen) / min(self.look_back_s, state.now)
        wanted = ceil(metric / self.target)
        if abs(metric / (self.target * max(1, state.target)) - 1.0) <= 0.1:
            wanted = state.target
        self._advised.append((state.now, wanted))
        while self._advised[0][0] < state.now - self.downscale_window_s:
            self._advised.popleft()
        if wanted < state.target:
            wanted = min(state.target, max(advised for _, advised in self._advised))
        wanted = min(wanted, max(2 * state.target, state.target + 4))
        return max(self.minimum, min(self.maximum, wanted)), self.per


def losses(
    arrivals: Floats, rows: int, curve: Curve, budget_s: float, seconds: float, slot_s: float, maximum: int
) -> Floats:
    """Requests that are late in each slot, by a constant number of replicas, 1 to ``maximum``.

    Every replica that is free takes the first requests, as many as end before the first one's deadline. What cannot be
    in time alone is dropped.

    Args:
        arrivals: Times, ascending.
        rows: Of each request.
        budget_s: Time from an arrival to the end of its batch.
        seconds: Length of the run.
    """
    found = np.zeros((maximum, ceil(seconds / slot_s)))
    most = MAX_ROWS // rows
    costs = [curve(rows * count, 0) for count in range(1, most + 1)]
    times = arrivals.tolist()
    for number in range(1, maximum + 1):
        free, waiting, at = [0.0] * number, deque[float](), 0
        while at < len(times) or waiting:
            now = heappop(free)
            if not waiting:
                now = max(now, times[at])
            while at < len(times) and times[at] <= now:
                waiting.append(times[at])
                at += 1
            while waiting and waiting[0] + budget_s < now + costs[0]:
                found[number - 1, int(waiting.popleft() / slot_s)] += 1
            if not waiting:
                heappush(free, now)
                continue
            count = max(1, min(len(waiting), bisect_right(costs, waiting[0] + budget_s - now)))
            for _ in range(count):
                waiting.popleft()
            heappush(free, now + costs[count - 1])
    return found


def plan(lost: Floats, allowed: float) -> list[int]:
    """The cheapest numbers of replicas, at least 1 in each slot, with which no more than ``allowed`` requests are late.

    The loss of a slot falls ever less with each replica, so the one that saves most is added next. This is no strict
    bound: shorter slots, and work carried over from a slot to the next, can save a little more.
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
