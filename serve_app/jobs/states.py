"""The states of jobs and items, as a table. Any other transition raises.

A job ends as a whole: when its last item ends, it is cancelled, or it expires. Its unended items then have the state of
`unended`, without a write for each: cancelling a million items is one step.

An item is leased to a *session*: a router that keeps reporting to the store. It is PROCESSING until COMPLETED or ERROR.
A silent session expires; its items become PENDING again, and its later outcomes are discarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """State of a job or an item."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"


class JobEvent(StrEnum):
    """An event of a job."""

    STARTED = "started"
    """The first of its items was leased."""
    DONE = "done"
    """The last item has ended, and none has failed."""
    FAILED = "failed"
    """The last item has ended, and some have failed."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Its deadline passed."""


ENDED: Final = frozenset({JobState.COMPLETED, JobState.ERROR, JobState.CANCELLED})
"""Nothing happens any more."""

JOB: Final[Mapping[tuple[JobState, JobEvent], JobState]] = {
    (JobState.PENDING, JobEvent.STARTED): JobState.PROCESSING,
    (JobState.PENDING, JobEvent.CANCELLED): JobState.CANCELLED,
    (JobState.PENDING, JobEvent.EXPIRED): JobState.ERROR,
    (JobState.PROCESSING, JobEvent.STARTED): JobState.PROCESSING,
    (JobState.PROCESSING, JobEvent.DONE): JobState.COMPLETED,
    (JobState.PROCESSING, JobEvent.FAILED): JobState.ERROR,
    (JobState.PROCESSING, JobEvent.CANCELLED): JobState.CANCELLED,
    (JobState.PROCESSING, JobEvent.EXPIRED): JobState.ERROR,
}


class IllegalTransition(ValueError):
    """An impossible transition: a bug."""


def job_after(state: JobState, event: JobEvent) -> JobState:
    """A job's state after an event. Raises `IllegalTransition`."""
    try:
        return JOB[state, event]
    except KeyError:
        raise IllegalTransition(f"a job that is {state} cannot be {event}") from None


def unended(item: JobState, job: JobState) -> JobState:
    """An item's shown state: unended items of an ended job have the job's."""
    return job if job in ENDED and item not in ENDED else item
