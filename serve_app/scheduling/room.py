"""Shares a cluster's room among models that ask for more replicas than it holds.

Replicas are handed out one by one, each to the model for which it saves the most weighted deadlines for its part of the
scarce resources (the greedy rule for a knapsack). A model's first replicas save the most: the k-th saves what is needed
beyond k-1 others.

Which model has which replicas is kept from one decision to the next, since a replica that moves saves nothing while it
starts. For each model that asks for more, a sum grows by the requests that its next replica would save, and falls by
those that the cheapest replica of another model saves which would make room for it. Noise adds up to little. The
replica moves when the sum exceeds its savings in its present place during two starts, there and back (one rents before
one buys; Karlin et al., "Competitive snoopy caching", 1988). One that is idle moves after a sixth of a start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heappush
from math import ceil, inf
from types import MappingProxyType
from typing import Final, NamedTuple

from serve_app.domain.priority import Priority

WEIGHTS: Final[Mapping[Priority, float]] = {Priority.HIGH: 4.0, Priority.NORMAL: 2.0, Priority.LOW: 1.0}
"""Of a request that is in time."""
_MOVES: Final = 2.0
_IDLE: Final = 1.0 / 6.0  # of a start
_ROUNDING: Final = 1e-9
_SPARE: Final = 1e-6
"""Value of a replica beyond what the demand needs, e.g. one that is held."""
_FIRST: Final = 1e-3
"""Value of a model's first replica beside what the demand needs: work in the background has no requests."""
_LEAST: Final = 1e-6
_LONGEST_S: Final = 5.0
"""A decision counts for no longer than this, whatever the clock says."""


class Claim(NamedTuple):
    """What a model asks for.

    Attributes:
        minimum: Fewest replicas, which it gets whatever room there is.
        target: Replicas decided on before, for a model that has not asked yet.
        needed: Replicas that the demand needs, a fraction.
        value: Weighted requests per second that it is asked.
        needs: Resources of one replica, by name; each over 0.
        start_s: Time of a start.
    """

    replicas: int
    minimum: int
    target: int
    needed: float
    value: float
    needs: Mapping[str, float]
    start_s: float

    def saved_by(self, number: int) -> float:
        """Weighted requests per second that are in time by the replica of this number, from 1."""
        part = max(0.0, min(self.needed, number) - (number - 1)) / self.needed if self.needed else 0.0
        return self.value * part + (_FIRST if number == 1 else _SPARE)


class SharedRoom:
    """Decides which models get the room, again and again; see the module."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._missed: dict[str, float] = {}  # by model, weighted requests
        self._decided_at: float | None = None

    def decide(
        self,
        claims: Mapping[str, Claim],
        room: Mapping[str, float],
        now: float,
        others: Collection[tuple[int, Mapping[str, float]]] = (),
    ) -> dict[str, int]:
        """Replicas of each model, at most as many as it asks for. Asked at equal intervals, of about a second.

        Args:
            room: Resources for all models, by name. A resource that is not named has no limit.
            others: Replicas of models that share nothing, and what each of them needs.
        """
        passed_s = 0.0 if self._decided_at is None else min(max(0.0, now - self._decided_at), _LONGEST_S)
        self._decided_at = now
        left = {
            name: max(_LEAST, amount - sum([number * needs.get(name, 0.0) for number, needs in others]))
            for name, amount in room.items()
        }
        kept = {name: self._numbers.get(name, claim.target) for name, claim in claims.items()}
        numbers = share(claims, left, kept)
        asking = [name for name, claim in claims.items() if numbers[name] < claim.replicas]
        self._missed = {name: self._missed.get(name, 0.0) for name in asking}
        cheapest = _by_loss(claims, numbers) if asking else []
        free = {resource: amount - _used(claims, numbers, resource) for resource, amount in left.items()}
        for name in asking:
            claim = claims[name]
            giver, given, loss = _giver(name, cheapest, claims, numbers, free)
            gain = claim.saved_by(numbers[name] + 1) - loss if given else 0.0
            missed = self._missed[name] = max(0.0, self._missed[name] + gain * passed_s)
            if gain > 0.0 and missed >= claim.start_s * max(_MOVES * loss, _IDLE * gain):
                numbers[giver] -= given
                numbers[name] += 1
                self._missed[name] = 0.0
                cheapest = _by_loss(claims, numbers)
                free = {resource: amount - _used(claims, numbers, resource) for resource, amount in left.items()}
        self._numbers |= numbers
        return numbers


def _by_loss(claims: Mapping[str, Claim], numbers: Mapping[str, int]) -> list[tuple[float, str]]:
    """Models that have more than their minimum, by what is lost without their last replica."""
    return sorted(
        [(claim.saved_by(numbers[name]), name) for name, claim in claims.items() if numbers[name] > claim.minimum]
    )


def _giver(
    asking: str,
    cheapest: Collection[tuple[float, str]],
    claims: Mapping[str, Claim],
    numbers: Mapping[str, int],
    free: Mapping[str, float],
) -> tuple[str, int, float]:
    """Which model makes room for one more replica of another, by how many replicas, at the least loss."""
    lacking = {
        resource: amount - free[resource]
        for resource, amount in claims[asking].needs.items()
        if resource in free and amount > free[resource] + _ROUNDING
    }
    best = asking, 0, inf
    for of_last, name in cheapest if lacking else ():
        if of_last >= best[2]:  # more replicas lose more
            break
        claim = claims[name]
        if name == asking or not all(claim.needs.get(resource) for resource in lacking):
            continue
        given = max([ceil(amount / claim.needs[resource] - _ROUNDING) for resource, amount in lacking.items()])
        if given > numbers[name] - claim.minimum:
            continue
        loss = sum([claim.saved_by(numbers[name] - place) for place in range(given)])
        if loss < best[2]:
            best = name, given, loss
    return best


def _used(claims: Mapping[str, Claim], numbers: Mapping[str, int], resource: str) -> float:
    return sum([numbers[name] * claim.needs.get(resource, 0.0) for name, claim in claims.items()])


def share(
    claims: Mapping[str, Claim], room: Mapping[str, float], kept: Mapping[str, int] = MappingProxyType({})
) -> dict[str, int]:
    """Replicas of each model, at most as many as it asks for.

    Args:
        room: Resources for these models, by name, each over 0. A resource that is not named has no limit.
        kept: Replicas that are handed out before others.
    """
    asked = {name: claim.replicas for name, claim in claims.items()}
    if all(_used(claims, asked, resource) <= amount + _ROUNDING for resource, amount in room.items()):
        return asked
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
    for most in ({name: min(kept.get(name, 0), number) for name, number in asked.items()}, asked):
        # The next replica of a model saves no more than the one before, and what does not fit never will.
        heap = [(-worth(name), place, name) for place, name in enumerate(claims) if numbers[name] < most[name]]
        heapify(heap)
        while heap:
            _, place, name = heappop(heap)
            if fits(claims[name]):
                take(name)
                if numbers[name] < most[name]:
                    heappush(heap, (-worth(name), place, name))
    return numbers
