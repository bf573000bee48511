"""What of a run would end late: the replica's own predictions, and whom they leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from serve_app.scheduling.composition import execution_s
from serve_app.scheduling.latency import LatencyModel

_QUANTILE = 0.5
_ALONE_PROBE_S = 1.0
_PART_PROBE_S = 10.0


class Due(NamedTuple):
    """An entry that is about to run.

    Attributes:
        deadline: On the replica's monotonic clock, seconds.
        rows: Its rows.
        bucket: Its cost bucket. Entries of different buckets run one after the other.
    """

    deadline: float
    rows: int
    bucket: int = 0


class Foresight:
    """What of a run can end in time, by what this replica's own executions took.

    It predicts the median: an entry is left out when it is more likely late than not. So that a prediction that has
    become wrong is corrected, a run is executed whole once in a while: after 1 s in which everything was left out, or
    after 10 s in which something always was.

    Args:
        max_rows: Most rows in a batch.
    """

    __slots__ = ("_latencies", "_max_rows", "_ran_at", "_whole_at")

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._latencies: dict[str, LatencyModel] = {}
        self._whole_at: dict[str, float] = {}
        self._ran_at: dict[str, float] = {}

    def seed(self, points: Sequence[tuple[int, int, float, str]]) -> None:
        """Take a warm-up profile: ``(rows, bucket, seconds, variant)`` of each execution."""
        for variant in dict.fromkeys(point[3] for point in points):
            self._of(variant).seed(point[:3] for point in points if point[3] == variant)

    def observe(self, rows: int, bucket: int, seconds: float, variant: str) -> None:
        """Learn from one execution; see `LatencyModel.observe`."""
        self._of(variant).observe(rows, bucket, seconds)

    def seconds(self, rows: int, bucket: int, variant: str) -> float:
        """Predicted execution time, in pieces where there are more rows than a batch holds; 0.0 when unknown."""
        latency = self._latencies.get(variant)
        if latency is None:
            return 0.0
        return execution_s(latency, rows, bucket, self._max_rows)

    def late(self, entries: Sequence[Due], variant: str, now: float) -> list[int]:
        """Which entries of a run that begins now to leave out, so that all others end in time.

        Those that could not be in time alone go first. Then, as long as the run ends after a deadline, the one with
        the earliest goes: it would be late, and without it the others end earlier.

        Args:
            entries: Of the run.
            variant: What they run on.
            now: Seconds.

        Returns:
            Positions in ``entries``; none while nothing is known of the variant, and when it is time to run the whole.
        """
        left_out = self._left_out(entries, variant, now)
        if not left_out:
            self._whole_at[variant] = self._ran_at[variant] = now
            return left_out
        nothing_runs = len(left_out) == len(entries)
        patience, since = (_ALONE_PROBE_S, self._ran_at) if nothing_runs else (_PART_PROBE_S, self._whole_at)
        if now - since.setdefault(variant, now) >= patience:
            self._whole_at[variant] = self._ran_at[variant] = now
            return []
        if not nothing_runs:
            self._ran_at[variant] = now
        return left_out

    def _left_out(self, entries: Sequence[Due], variant: str, now: float) -> list[int]:
        rows: dict[int, int] = {}
        hopeless: list[int] = []
        staying: list[int] = []
        for position, entry in enumerate(entries):
            if now + self.seconds(entry.rows, entry.bucket, variant) > entry.deadline:
                hopeless.append(position)
            else:
                staying.append(position)
                rows[entry.bucket] = rows.get(entry.bucket, 0) + entry.rows
        staying.sort(key=lambda position: entries[position].deadline)
        for kept_from, position in enumerate(staying):
            end = now + sum(self.seconds(count, bucket, variant) for bucket, count in rows.items() if count)
            tightest = entries[position]
            if end <= tightest.deadline:
                return hopeless + staying[:kept_from]
            rows[tightest.bucket] -= tightest.rows
        return hopeless + staying

    def _of(self, variant: str) -> LatencyModel:
        return self._latencies.setdefault(variant, LatencyModel(_QUANTILE))
