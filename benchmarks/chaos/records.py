"""What became of every request, and what that says about the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

CLASSES = ("high", "normal", "low")


class End(StrEnum):
    """How a request ended, as its client saw it."""

    RIGHT = "right"
    """Answered, as ONNX Runtime in the harness's process answers."""

    WRONG = "wrong"
    """Answered otherwise."""

    REFUSED = "refused"
    """A clean error of the protocol, with a code."""

    CUT = "cut"
    """The connection ended without an answer."""

    UNREACHABLE = "unreachable"
    """There was no connection: nothing was sent."""

    HUNG = "hung"
    """None of these until the deadline and the grace after it had passed."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request.

    Attributes:
        sent_s: When it was sent, seconds from the start of the scenario.
        ended_s: When its client knew how it ended.
        model: Who was asked.
        client: Which kind of client asked.
        priority: Its class.
        timeout_s: Its deadline, from when it was sent.
        end: How it ended.
        code: Of an error; what was wrong with an answer.
    """

    sent_s: float
    ended_s: float
    model: str
    client: str
    priority: str
    timeout_s: float
    end: End
    code: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_s - self.sent_s

    @property
    def in_time(self) -> bool:
        """Whether it was answered rightly before its deadline."""
        return self.end is End.RIGHT and self.seconds <= self.timeout_s

    @property
    def failed(self) -> bool:
        """Whether it was accepted and came to nothing. What was refused with 429 was never accepted."""
        return self.end is not End.RIGHT and not (self.end is End.REFUSED and self.code in NOT_ACCEPTED)


NOT_ACCEPTED = frozenset({"queue_full", "rate_limited", "overloaded"})
"""Codes by which a server says at once that it will not do the work."""

LATE = frozenset({"deadline_exceeded", "client_deadline"})
"""Codes of requests whose time ran out."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Requests of one scenario, counted.

    Attributes:
        requests: All.
        right: Answered rightly.
        wrong: Answered wrongly.
        cut: Lost with their connection.
        unreachable: Never sent for want of a connection.
        hung: Without any end in time.
        refused: By code.
        high_in_time: Part of the class `high` that was answered rightly before its deadline; 1 where there was none.
        by_client: Failures (`Record.failed`) by kind of client.
    """

    requests: int
    right: int
    wrong: int
    cut: int
    unreachable: int
    hung: int
    refused: dict[str, int]
    high_in_time: float
    by_client: dict[str, int]


def summarize(records: Sequence[Record]) -> Summary:
    """Count."""
    ends = Counter(each.end for each in records)
    return Summary(
        requests=len(records),
        right=ends[End.RIGHT],
        wrong=ends[End.WRONG],
        cut=ends[End.CUT],
        unreachable=ends[End.UNREACHABLE],
        hung=ends[End.HUNG],
        refused=dict(Counter(each.code for each in records if each.end is End.REFUSED).most_common()),
        high_in_time=share_in_time(each for each in records if each.priority == "high"),
        by_client=dict(Counter(each.client for each in records if each.failed).most_common()),
    )


def share_in_time(records: Iterable[Record]) -> float:
    """Part of the requests that was answered rightly before its deadline; 1.0 of none."""
    found = [each.in_time for each in records]
    return sum(found) / len(found) if found else 1.0


def recovery_s(records: Sequence[Record], fault_s: float, until_s: float) -> float:
    """From a fault to the end of the last request that suffered from it, seconds; 0.0 where none did.

    Args:
        records: All of the scenario.
        fault_s: When the fault happened.
        until_s: When the next one did, or the scenario ended.
    """
    suffered = [
        each.ended_s for each in records if fault_s <= each.ended_s < until_s and (each.failed or not each.in_time)
    ]
    return max(suffered, default=fault_s) - fault_s


def rates(records: Sequence[Record], bin_s: float, until_s: float) -> dict[str, list[float]]:
    """Right answers per second by class, and under ``failed`` what came to nothing, in bins of so many seconds."""
    bins = max(1, int(until_s / bin_s) + 1)
    found = {name: [0.0] * bins for name in (*CLASSES, "failed")}
    for each in records:
        at = min(bins - 1, int(each.ended_s / bin_s))
        if each.end is End.RIGHT:
            found[each.priority][at] += 1 / bin_s
        elif each.failed:
            found["failed"][at] += 1 / bin_s
    return found
