"""Devices: what may run next where models share a GPU or CPU cores, and when.

Every model belongs to one `Device`. The simple case is a model on its own: then the device adds nothing to the model's
slots. Models of a group contend for what they compute on, so their bundles go one after the other (``concurrency`` at
a time): which one is next is decided over all of them, by class and slack, and a long bundle of a lower class is cut
short or held back when an urgent one is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from serve_app.scheduling.claims import Claims
from serve_app.scheduling.composition import Room, compose, execution_s
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.model_state import Candidate, ModelState
from serve_app.scheduling.overhead import Overhead
from serve_app.scheduling.settings import DeviceGroup
from serve_app.scheduling.shares import Shares
from serve_app.scheduling.slots import Replica

_LATENESS_S = 0.001
"""How late timers are until that was measured."""
_HOLD = 0.25
"""A bundle that is held back is looked at again after this part of its predicted time."""
_LOOSE = 2.0
"""A head with more slack than this many of the executions before it leaves some for whoever just misses its bundle."""


class NextBundle(NamedTuple):
    """A bundle that was taken from a queue, and where it goes."""

    model: ModelState
    replica: Replica
    entries: list[Entry]
    rows: int
    bucket: int
    variant: str
    predicted_s: float


class _Running:
    """A bundle on a shared device."""

    __slots__ = ("end", "nbytes", "predicted_s")

    def __init__(self, predicted_s: float, end: float, nbytes: int) -> None:
        self.predicted_s = predicted_s
        self.end = end
        self.nbytes = nbytes


class Device:
    """What one model, or a group of them, computes on.

    Args:
        models: The members.
        min_share: Guaranteed share per class, over all members.
        group: The group, or ``None`` for a single model.

    Attributes:
        models: The members.
        shares: The classes' credits.
        claims: What the classes lately asked.
        lateness: How late `next_bundle` is asked again: timers are.
        concurrency: Executions at once over all members; 0 where only the replicas' slots limit them.
        open_at: When the latest `next_bundle` wants to be asked again if nothing else happens, seconds; ``inf``: never.
    """

    __slots__ = (
        "_gap_end",
        "_held_since",
        "_memory_bytes",
        "_running",
        "claims",
        "concurrency",
        "lateness",
        "models",
        "open_at",
        "shares",
    )

    def __init__(
        self, models: list[ModelState], min_share: Mapping[Priority, float], group: DeviceGroup | None = None
    ) -> None:
        self.models = models
        self.shares = Shares(min_share)
        self.claims = Claims()
        self.open_at = inf
        self.lateness = Overhead(_LATENESS_S)
        self._gap_end = inf
        self._held_since: float | None = None
        self.concurrency = 0 if group is None else group.concurrency
        resident = sum(model.settings.resident_bytes for model in models)
        self._memory_bytes = group.memory_bytes - resident if group is not None and group.memory_bytes else 0
        self._running: dict[int, _Running] = {}

    def earliest_start(self, now: float) -> float:
        """When the device is predicted to have room for one more execution; ``now`` when it has."""
        if not self.concurrency or len(self._running) < self.concurrency:
            return now
        ends = sorted(running.end for running in self._running.values())
        return max(now, ends[len(ends) - self.concurrency])

    def launched(self, bundle_id: int, following: NextBundle, now: float) -> None:
        """A bundle was sent. One that only wakes a model up computes nothing yet."""
        if self.concurrency and following.replica.name is not None:
            begin = self.earliest_start(now)
            nbytes = min(following.rows, following.model.settings.max_rows) * following.model.settings.bytes_per_row
            self._running[bundle_id] = _Running(following.predicted_s, begin + following.predicted_s, nbytes)

    def ended(self, bundle_id: int, now: float) -> None:
        """A bundle was answered, failed, or was given up."""
        if bundle_id not in self._running:
            return
        ran = list(self._running).index(bundle_id) < self.concurrency
        del self._running[bundle_id]
        if ran and len(self._running) >= self.concurrency:
            # The first that was staged begins now.
            begun = list(self._running.values())[self.concurrency - 1]
            begun.end = now + begun.predicted_s

    def next_bundle(self, now: float, given_up: list[Entry]) -> NextBundle | None:
        """Take the next bundle from a queue, for a replica with a free slot; ``None`` when nothing goes now.

        Expired entries must have been taken out before. The caller takes the slot.

        Args:
            now: Seconds.
            given_up: Receives the entries that are not worth executing any more. The caller ends them.
        """
        if self.open_at <= now:
            self.lateness.observe(now - self.open_at)
        while True:
            self.open_at = inf
            begin = self._begin(now) if self.concurrency else now
            if begin == inf:
                return None
            found = (model.candidate(now, self.shares) for model in self.models if model.queue)
            candidates = [candidate for candidate in found if candidate is not None]
            if not candidates:
                return None
            if len(candidates) > 1:
                candidates = self._paid(candidates)
                candidates.sort(key=_urgency)
            before = len(given_up)
            following = self._first_of(candidates, begin, now, given_up)
            if following is not None or len(given_up) == before:
                return following
            # Everything that was looked at is given up: look again at what is left.

    def _paid(self, candidates: list[Candidate]) -> list[Candidate]:
        """Let those go first whose class is not the most urgent of all members, and has credit for a full batch."""
        most_urgent = min(candidate.priority for candidate in candidates)
        shares = self.shares
        return [
            candidate._replace(paid=True)
            if candidate.priority > most_urgent
            and shares.covers(candidate.priority, max(candidate.alone_s, candidate.model.full_s(candidate.head)))
            else candidate
            for candidate in candidates
        ]

    def _first_of(
        self, candidates: list[Candidate], begin: float, now: float, given_up: list[Entry]
    ) -> NextBundle | None:
        """Try the candidates in order, each as long as it is not in the way of one before it that waits."""
        waiting = _classes(candidates)
        self._gap_end = inf
        before = len(given_up)
        for candidate in candidates:
            following = self._try(candidate, waiting, begin, now, given_up)
            if following is not None or len(given_up) > before:
                return following
        return None

    def _try(
        self,
        candidate: Candidate,
        waiting: list[Priority],
        begin: float,
        now: float,
        given_up: list[Entry],
    ) -> NextBundle | None:
        model, priority, head, paid = candidate.model, candidate.priority, candidate.head, candidate.paid
        replica, settings, latencies = candidate.replica, model.settings, model.latencies
        overhead_s = model.overhead.seconds
        start = max(now, replica.busy_until, begin)
        if start > now and not model.policy.stages_early:
            send_at = start - self._lead_s(candidate)
            if now < send_at:
                self.open_at = min(self.open_at, send_at)
                return None
        slack_from = start + overhead_s + replica.riders_s
        alone = candidate.alone_s
        if start + alone > self._gap_end:
            return None  # a more urgent one waits, and this would be in its way
        longest_s = _ANY
        second_start = model.slots.second_start(replica, now)
        if self.concurrency or second_start - now > 0.0:
            longest_s = self.claims.bounds_s(now)
            longest = longest_s[priority - 1]
            if not self.concurrency and second_start - now <= longest:
                longest_s = _ANY
            elif not paid and self.concurrency and alone > longest and self.claims.likely_blocks(priority, alone, now):
                if self._held_since is not None:
                    self.shares.held_back(priority, min(alone, now - self._held_since))
                self._held_since = now
                self.open_at = min(self.open_at, now + _HOLD * alone)
                return None
            if self._gap_end < inf:
                gap_s = self._gap_end - start
                longest_s = (min(gap_s, longest_s[0]), min(gap_s, longest_s[1]), min(gap_s, longest_s[2]))
        if candidate.spare_s < inf:
            longest_s = (longest_s[0], min(candidate.spare_s, longest_s[1]), min(candidate.spare_s, longest_s[2]))
        most = replica.most_rows(settings.max_rows)
        if self._memory_bytes and settings.bytes_per_row:
            free = self._memory_bytes - sum(running.nbytes for running in self._running.values())
            fitting = free // settings.bytes_per_row
            if fitting < min(head.rows, settings.max_rows):
                return None  # when something that runs has ended
            most = min(most, fitting)
        if head.attempts == 0 and not paid:
            late_s = self.lateness.seconds
            opens = model.opens_at(candidate, slack_from + late_s, min(most, settings.max_rows), now)
            if opens > now:
                self.open_at = min(self.open_at, opens)
                self._gap_end = min(self._gap_end, opens)
                return None
        if head.attempts:
            model.queue.retry[priority - 1].pop()
            entries, rows, bucket, variant = [head], head.rows, head.bucket, head.variant
        else:
            room = Room(slack_from, second_start + overhead_s + replica.riders_s, most, longest_s, candidate.owed)
            composition = compose(model.queue, priority, settings, latencies, room)
            given_up += composition.given_up
            entries, rows, bucket, variant = composition[:4]
            if not entries:
                return None
        predicted = replica.riders_s + execution_s(latencies.of(variant), rows, bucket, settings.max_rows)
        riders = _riders(entries, rows, priority) if len(entries) > 1 else ()
        self._held_since = None
        self.shares.dispatched(predicted, waiting, priority, riders, paid=paid)
        return NextBundle(model, replica, entries, rows, bucket, variant, predicted)

    def _lead_s(self, candidate: Candidate) -> float:
        """How long before its predicted begin a bundle is sent to a busy replica, seconds."""
        if self.concurrency:
            return 0.0  # it would not wait at a gate but take from what still runs
        model, replica = candidate.model, candidate.replica
        if replica.share < 1.0:
            # Where other routers send too, what is at the gate early shares their batches.
            return 0.5 * model.overhead.seconds
        running_s = replica.last_s
        if candidate.slack_s < _LOOSE * running_s:
            return self.lateness.seconds
        # Predictions are high quantiles: most executions end before, and the session would wait for this bundle. What
        # comes while it is under way is in time with the next one.
        return self.lateness.seconds + model.earliness.part * running_s

    def _begin(self, now: float) -> float:
        """When a shared device can begin one more bundle; ``inf`` when one is staged behind every running one."""
        if len(self._running) >= 2 * self.concurrency:
            return inf
        return self.earliest_start(now)


def _urgency(candidate: Candidate) -> tuple[bool, Priority, float]:
    return not candidate.paid, candidate.priority, candidate.slack_s


def _classes(candidates: list[Candidate]) -> list[Priority]:
    if len(candidates) == 1:
        return candidates[0].ready
    return sorted({priority for candidate in candidates for priority in candidate.ready})


def _riders(entries: list[Entry], rows: int, chosen: Priority) -> list[tuple[Priority, float]]:
    """The classes other than ``chosen`` in a bundle, with their parts of its rows."""
    riding: dict[Priority, int] = {}
    for entry in entries:
        if entry.priority is not chosen:
            riding[entry.priority] = riding.get(entry.priority, 0) + entry.rows
    return [(priority, part / rows) for priority, part in riding.items()]


_ANY = (inf, inf, inf)
