"""Shares a cluster's room among models that ask for more replicas than it holds.

Replicas are handed out one by one, each to the model for which it saves the most weighted deadlines for its part of the
scarce resources (the greedy rule for a knapsack). A model's first replicas save the most: the k-th saves what is needed
beyond k-1 others.

A replica that moves to another model saves nothing while it starts. So replicas move only after as much was missed as
those that are given away save during two starts, there and back: noise in the demand moves few, idle ones move at once
(one rents before one buys; Karlin et al., "Competitive snoopy caching", 1988).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from serve_app.domain.priority import Priority

WEIGHTS: Final[Mapping[Priority, float]] = {Priority.HIGH: 4.0, Priority.NORMAL: 2.0, Priority.LOW: 1.0}
"""Of a request that is in time."""
_ROUNDING: Final = 1e-9
_SPARE: Final = 1e-6
"""Value of a replica beyond what the demand needs, e.g. one that is held."""
_MOVES: Final = 2.0


class Claim(NamedTuple):
    """What a model asks for.

    Attributes:
        minimum: Fewest replicas, which it gets whatever room there is.
        held: Replicas that it has.
        needed: Replicas that the demand needs, a fraction.
        value: Weighted requests per second that it is asked.
        needs: Resources of one replica, by name; each over 0.
        start_s: Time of a start.
    """

    replicas: int
    minimum: int
    held: int
    needed: float
    value: float
    needs: Mapping[str, float]
    start_s: float = 0.0

    def saved_by(self, number: int) -> float:
        """Weighted requests per second that are in time by the replica of this number, from 1."""
        part = max(0.0, min(self.needed, number) - (number - 1)) / self.needed if self.needed else 0.0
        return self.value * part + _SPARE

    def saved_by_all(self, number: int) -> float:
        """Weighted requests per second that are in time by so many replicas."""
        return sum([self.saved_by(each) for each in range(1, number + 1)])


class SharedRoom:
    """Decides which models get the room, again and again; see the module."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._missed = 0.0  # weighted requests that would have been in time by the better numbers
        self._decided_at: float | None = None

    def decide(self, claims: Mapping[str, Claim], room: Mapping[str, float], now: float) -> dict[str, int]:
        """Replicas of each model, at most as many as it asks for; see `share` for the room."""
        passed_s = 0.0 if self._decided_at is None else now - self._decided_at
        self._decided_at = now
        kept = share(claims, room, {name: self._numbers.get(name, claim.held) for name, claim in claims.items()})
        best = share(claims, room)
        gains = [claim.saved_by_all(best[name]) - claim.saved_by_all(kept[name]) for name, claim in claims.items()]
        self._missed = self._missed + missed * passed_s if (missed := sum(gains)) > 0.0 else 0.0
        start_s = max([claim.start_s for name, claim in claims.items() if best[name] > kept[name]], default=0.0)
        if self._missed >= _MOVES * start_s * sum([-gain for gain in gains if gain < 0.0]):
            kept, self._missed = best, 0.0
        self._numbers = kept
        return kept


def share(
    claims: Mapping[str, Claim], room: Mapping[str, float], kept: Mapping[str, int] = MappingProxyType({})
) -> dict[str, int]:
    """Replicas of each model, at most as many as it asks for.

    Args:
        room: Resources for these models, by name, each over 0. A resource that is not named has no limit.
        kept: Replicas that models get before others save more, as far as there is room.
    """
    left = dict(room)
    numbers = dict.fromkeys(claims, 0)

    def fits(claim: Claim) -> bool:
        return all(amount <= left.get(resource, amount) + _ROUNDING for resource, amount in claim.needs.items())

    def worth(name: str) -> float:
        claim = claims[name]
        part = max([amount / room[resource] for resource, amount in claim.needs.items() if resource in room], default=1)
        return claim.saved_by(numbers[name] + 1) / part

    def take(name: str) -> None:
        numbers[name] += 1
        for resource, amount in claims[name].needs.items():
            if resource in left:
                left[resource] -= amount

    for name, claim in claims.items():
        for _ in range(min(claim.minimum, claim.replicas)):
            take(name)
    for name, claim in claims.items():
        while numbers[name] < min(kept.get(name, 0), claim.replicas) and fits(claim):
            take(name)
    while asking := [name for name, claim in claims.items() if numbers[name] < claim.replicas and fits(claim)]:
        take(max(asking, key=worth))
    return numbers
