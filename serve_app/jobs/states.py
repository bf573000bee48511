"""The states of jobs, as a table, and of their items. What is not in the table cannot happen, and raises.

A job ends as a whole: in the moment in which the last of its items ends, or in which it is cancelled or expires. Items
that have not ended by then are in the state that `unended` says, without being written one by one: a job of a million
items is cancelled in one step.

An item is leased to a *session*: a router that tells the store again and again that it lives. It is PROCESSING then,
until it is COMPLETED or ends with an ERROR. A session that has not been heard of is over; its items are PENDING again,
and what it still brings is discarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Of a job, or of an item."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"


class JobEvent(StrEnum):
    """What happens to a job."""

    STARTED = "started"
    """The first of its items was leased."""
    DONE = "done"
    """The last item has ended, and none has failed."""
    FAILED = "failed"
    """The last item has ended, and some have failed."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Its deadline passed."""


ENDED: Final = frozenset({State.COMPLETED, State.ERROR, State.CANCELLED})
"""Nothing happens any more."""

JOB: Final[Mapping[tuple[State, JobEvent], State]] = {
    (State.PENDING, JobEvent.STARTED): State.PROCESSING,
    (State.PENDING, JobEvent.CANCELLED): State.CANCELLED,
    (State.PENDING, JobEvent.EXPIRED): State.ERROR,
    (State.PROCESSING, JobEvent.STARTED): State.PROCESSING,
    (State.PROCESSING, JobEvent.DONE): State.COMPLETED,
    (State.PROCESSING, JobEvent.FAILED): State.ERROR,
    (State.PROCESSING, JobEvent.CANCELLED): State.CANCELLED,
    (State.PROCESSING, JobEvent.EXPIRED): State.ERROR,
}


class IllegalTransition(ValueError):
    """This cannot happen in this state: a bug."""


def job_after(state: State, event: JobEvent) -> State:
    """The state of a job after something happened. Raises `IllegalTransition`."""
    try:
        return JOB[state, event]
    except KeyError:
        raise IllegalTransition(f"a job that is {state} cannot be {event}") from None


def unended(item: State, job: State) -> State:
    """The state of an item as it is shown: of a job that has ended, one that has not is as the job is."""
    return job if job in ENDED and item not in ENDED else item
