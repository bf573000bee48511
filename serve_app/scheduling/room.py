"""Shares a cluster's room among models that ask for more replicas than it holds.

Replicas are handed out one by one, each to the model for which it saves the most weighted deadlines for its part of the
scarce resources (the greedy rule for a knapsack). A model's first replicas save the most: the k-th saves what is needed
beyond k-1 others. A replica that is there already counts a quarter more, or two models that are worth about the same
would pass one to and fro, and each start costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from serve_app.domain.priority import Priority

WEIGHTS: Final[Mapping[Priority, float]] = {Priority.HIGH: 4.0, Priority.NORMAL: 2.0, Priority.LOW: 1.0}
"""Of a request that is in time."""
_KEPT: Final = 1.25
_ROUNDING: Final = 1e-9
_SPARE: Final = 1e-6
"""Value of a replica beyond what the demand needs, e.g. one that is held."""


class Claim(NamedTuple):
    """What a model asks for.

    Attributes:
        minimum: Fewest replicas, which it gets whatever room there is.
        held: Replicas that it has.
        needed: Replicas that the demand needs, a fraction.
        value: Weighted requests per second that it is asked.
        needs: Resources of one replica, by name; each over 0.
    """

    replicas: int
    minimum: int
    held: int
    needed: float
    value: float
    needs: Mapping[str, float]

    def saved_by(self, number: int) -> float:
        """Weighted requests per second that are in time by the replica of this number, from 1."""
        part = max(0.0, min(self.needed, number) - (number - 1)) / self.needed if self.needed else 0.0
        return (self.value * part + _SPARE) * (_KEPT if number <= self.held else 1.0)


def share(claims: Mapping[str, Claim], room: Mapping[str, float]) -> dict[str, int]:
    """Replicas of each model, at most as many as it asks for.

    Args:
        room: Resources for these models, by name, each over 0. A resource that is not named has no limit.
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
    while asking := [name for name, claim in claims.items() if numbers[name] < claim.replicas and fits(claim)]:
        take(max(asking, key=worth))
    return numbers
