"""When the next request is likely to come: the hazard rate of the gaps between arrivals, learned online.

Gaps fall into bins whose edges double, from 0.1 ms to 1.6 s; the last has no upper edge. For every bin the number of
gaps that ended in it, over the time that gaps spent in it, is the rate at which the next request comes once this much
time has passed since the last one (the life-table estimate of a hazard rate; Cutler and Ederer, J. Chronic Diseases
8, 1958). Poisson arrivals have the same rate in every bin; a burst shows as a high rate in the first ones. Old gaps
fade: counts are halved every 512 arrivals.
"""

from __future__ import annotations

from math import exp, frexp, inf

_SHORTEST_S = 1e-4
_BINS = 16
_EDGES = tuple(_SHORTEST_S * 2.0**exponent for exponent in range(_BINS - 1))
"""Upper edges of all bins but the last, which has none."""
_LOWER = (0.0, *_EDGES)
_WIDTHS = tuple(upper - lower for lower, upper in zip(_LOWER, _EDGES, strict=False))
_REFRESH_EVERY = 32
_HALVE_EVERY = 512
_FEW = 32
_FIRST_BINS = 4
_BURSTY = 3.0


class ArrivalPattern:
    """The gaps between one model's arrivals.

    Args:
        memory_s: Time constant of `recent_rate`.

    Attributes:
        last: Time of the latest request, or ``None``.
        rate: Mean rate, requests per second; 0.0 until enough were seen.
    """

    __slots__ = ("_counts", "_memory_s", "_rates", "_recent", "_seen", "_sums", "last", "rate")

    def __init__(self, memory_s: float = 1.0) -> None:
        self.last: float | None = None
        self.rate = 0.0
        self._memory_s = memory_s
        self._recent = 0.0
        self._counts = [0.0] * _BINS
        self._sums = [0.0] * _BINS
        self._seen = 0
        self._rates: list[float] = []

    def observe(self, now: float) -> None:
        """Record a request."""
        last = self.last
        self.last = now
        if last is None:
            self._recent = 1.0
            return
        gap = max(0.0, now - last)
        self._recent = 1.0 + (self._recent * exp(-gap / self._memory_s) if gap else self._recent)
        if not gap:
            return  # same bundle: no information about the next arrival
        # The exponent of gap / shortest is the bin: (0, 1] -> 0, (1, 2] -> 1 and so on.
        at = 0 if gap <= _SHORTEST_S else min(_BINS - 1, frexp(gap / _SHORTEST_S)[1])
        self._counts[at] += 1.0
        self._sums[at] += gap
        self._seen += 1
        if self._seen % _REFRESH_EVERY == 0:
            self._refresh()

    def recent_rate(self, now: float) -> float:
        """Rate over the last ``memory_s`` seconds, exponentially weighted, requests per second."""
        if self.last is None:
            return 0.0
        if now <= self.last:
            return self._recent / self._memory_s
        return self._recent * exp((self.last - now) / self._memory_s) / self._memory_s

    @property
    def in_bursts(self) -> bool:
        """Whether requests come much faster right after one than on average, unlike Poisson arrivals."""
        return bool(self._rates) and max(self._rates[:_FIRST_BINS]) > _BURSTY * self.rate

    def worth_waiting_until(self, now: float, saves_s: float) -> float:
        """Until when to wait for the next request, seconds; in the past if waiting does not pay.

        Waiting costs a second per second, and saves ``saves_s`` when a request comes. The best time to give up has the
        largest expected gain. Hazards need not fall from bin to bin, since requests that are read one after the other
        never come in some of them.
        """
        last = self.last
        if last is None:
            return -inf
        until, best = -inf, 0.0
        begin, waited_s, none_yet = now - last, 0.0, 1.0
        for hazard, edge in zip(self._rates, _EDGES, strict=False):
            if edge <= begin:
                continue
            width, begin = edge - begin, edge
            none_later = none_yet * exp(-hazard * width)
            waited_s += (none_yet - none_later) / hazard if hazard > 0.0 else none_yet * width
            none_yet = none_later
            gain = saves_s * (1.0 - none_yet) - waited_s
            if gain > best:
                until, best = last + edge, gain
            if waited_s > saves_s:
                break
        return until

    def probability_within(self, now: float, horizon_s: float) -> float:
        """Probability that a request comes in the next ``horizon_s`` seconds.

        Until enough were seen, the recent ones count as Poisson.
        """
        if self.last is None or not self._rates:
            return 1.0 - exp(-self.recent_rate(now) * horizon_s)
        left = max(0.0, now - self.last)
        survivors = self._gaps_over(left)
        if survivors < 1.0:
            # Longer than nearly every gap so far: fall back on the mean rate.
            return min(1.0, self.rate * horizon_s)
        return 1.0 - self._gaps_over(left + horizon_s) / survivors

    def _gaps_over(self, seconds: float) -> float:
        """Number of longer gaps, with each bin's gaps spread evenly over it."""
        over = 0.0
        for at in range(_BINS - 1, -1, -1):
            lower = _LOWER[at]
            if seconds <= lower:
                over += self._counts[at]
                continue
            count = self._counts[at]
            if count:
                upper = _EDGES[at] if at < _BINS - 1 else 2.0 * self._sums[at] / count - lower
                if upper > seconds:
                    over += count * (upper - seconds) / (upper - lower)
            break
        return over

    def _refresh(self) -> None:
        counts, sums = self._counts, self._sums
        total = sum(counts)
        time = sum(sums)
        self.rate = total / time if time > 0.0 else 0.0
        if total >= _FEW:
            rates = []
            later = total
            for at in range(_BINS - 1):
                later -= counts[at]
                at_risk = later * _WIDTHS[at] + sums[at] - counts[at] * _LOWER[at]
                rates.append(counts[at] / at_risk if at_risk > 0.0 else (inf if counts[at] else 0.0))
            self._rates = rates
        if self._seen % _HALVE_EVERY == 0:
            self._counts = [count / 2.0 for count in counts]
            self._sums = [seconds / 2.0 for seconds in sums]
