"""How long a batch may block: what more urgent classes have lately asked of a device.

An execution cannot be interrupted. A request of a more urgent class that comes right after a batch has begun waits for
all of it, and is in time only if the batch was no longer than that request's budget less its own execution and
overhead. The tightest such slack of the last half to whole minute bounds the batches of the classes below: the blocking
term of non-preemptive scheduling (Jeffay, Stanat and Martel, RTSS 1991).
"""

from __future__ import annotations

from math import inf

from serve_app.scheduling.arrivals import ArrivalPattern
from serve_app.scheduling.entry import Priority

_ROTATE_S = 30.0
_TOLERATED = 0.2


class _Claim:
    __slots__ = ("arrivals", "current_s", "previous_s", "rotated")

    def __init__(self) -> None:
        self.arrivals = ArrivalPattern()
        self.current_s = inf
        self.previous_s = inf
        self.rotated = -inf

    def observe(self, slack_s: float, now: float) -> None:
        self.arrivals.observe(now)
        if now - self.rotated >= _ROTATE_S:
            self.rotate(now)
        self.current_s = min(self.current_s, slack_s)

    def rotate(self, now: float) -> None:
        if now - self.rotated >= _ROTATE_S:
            self.previous_s = self.current_s if now - self.rotated < 2 * _ROTATE_S else inf
            self.current_s = inf
            self.rotated = now


class Claims:
    """What the classes lately asked of one device."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims = {priority: _Claim() for priority in (Priority.HIGH, Priority.NORMAL)}

    def observe(self, priority: Priority, slack_s: float, now: float) -> None:
        """An entry was accepted.

        Args:
            priority: Its class.
            slack_s: Its budget less its own execution and overhead, seconds.
            now: Seconds.
        """
        claim = self._claims.get(priority)
        if claim is not None and slack_s > 0.0:
            claim.observe(slack_s, now)

    def rate(self, priority: Priority, now: float) -> float:
        """Rate of a class's arrivals, per second: the mean, or that of the last second if it is more."""
        arrivals = self._claims[priority].arrivals
        rate, recent = arrivals.rate, arrivals.recent_rate(now)
        return max(rate, recent)

    def bounds_s(self, now: float) -> tuple[float, float, float]:
        """Per class, the longest that a batch may take so that no class above is blocked too long; ``inf``: any."""
        bound = inf
        bounds = [inf]
        for claim in self._claims.values():
            claim.rotate(now)
            bound = min(bound, claim.current_s, claim.previous_s)
            bounds.append(bound)
        return bounds[0], bounds[1], bounds[2]

    def likely_blocks(self, priority: Priority, seconds: float, now: float) -> bool:
        """Whether an execution of this length, begun now, would probably block an entry of a class above too long.

        Looks at the arrivals of each class above: how likely one comes early enough during the execution that what is
        left of it then exceeds the class's slack. Over one in five counts as probable.
        """
        for above, claim in self._claims.items():
            if above >= priority:
                break
            slack = min(claim.current_s, claim.previous_s)
            if slack < seconds and claim.arrivals.probability_within(now, seconds - slack) > _TOLERATED:
                return True
        return False
