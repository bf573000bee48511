"""Default deadlines, and messages about missed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app.domain.priority import Priority
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.queueing.lateness import advice, shown_s, too_short

DEFAULT_EXECUTIONS: Final = 4
"""A request that names no deadline may take so many times what its execution alone is predicted to take, where that is
more than its class allows: a model that is slower than its class would otherwise never answer."""


def default_timeout_s(class_timeout_s: float, solo_s: float) -> float:
    """Default deadline of a request, seconds after its arrival.

    Args:
        class_timeout_s: Of its class.
        solo_s: Predicted execution of this request alone; 0.0 if unknown.
    """
    return max(class_timeout_s, DEFAULT_EXECUTIONS * solo_s)


def too_late(what: str, entry: Entry, solo_s: float) -> str:
    """The message for a missed deadline, with advice.

    Args:
        what: The fate of the request, a clause without its end.
        solo_s: Its time alone, seconds; 0.0 if unknown.
    """
    allowed_s = entry.allowed_s
    if solo_s > entry.deadline - entry.arrival:
        return f"{what}: {too_short(entry, solo_s, allowed_s)}"
    if entry.default_of is None:
        return f"{what}; send it with a longer timeout or a higher priority"
    label = entry.default_of.label
    return (
        f"{what}; the request names no deadline, and class {label} gives it {shown_s(allowed_s)}:"
        f" {advice(entry.default_of)}"
    )


def passed(entry: Entry) -> str:
    """The fate of a request that was not answered in time, for `too_late`."""
    return f"the deadline of {entry.allowed_s * 1000:.0f} ms passed before the answer was ready"


def given_up(entry: Entry) -> str:
    """The fate of a request that could not be in time, for `too_late`."""
    return f"the deadline of {entry.allowed_s * 1000:.0f} ms could not be met any more, so the request was not executed"


def read_too_long(priority: Priority, allowed_s: float) -> str:
    """The message if reading a request without a deadline took all the time of its class."""
    return (
        f"the deadline passed while the request was read; it names none, and class {priority.label} gives it"
        f" {shown_s(allowed_s)}: {advice(priority)}"
    )


def slower_than_classes(model: str, solo_s: float, timeouts_s: Mapping[Priority, float]) -> str | None:
    """The message if a model takes longer than classes allow, with advice; ``None`` if it does not.

    Args:
        solo_s: Time of its cheapest request alone, seconds.
        timeouts_s: Default deadline per class.
    """
    short = {priority.label: allowed for priority, allowed in timeouts_s.items() if solo_s > allowed}
    if not short:
        return None
    allowed = ", ".join(f"{label} {shown_s(seconds)}" for label, seconds in short.items())
    keys = ", ".join(f"classes.{label}.timeout_ms" for label in short)
    return (
        f"model {model} takes about {shown_s(solo_s)} for one row alone, longer than classes allow by default"
        f" ({allowed}): requests that name no deadline get {DEFAULT_EXECUTIONS} times what they are predicted to take"
        f" instead; raise {keys} to say how long they may take"
    )
