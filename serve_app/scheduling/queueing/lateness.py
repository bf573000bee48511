"""Messages to clients whose deadline nothing could meet."""

from __future__ import annotations

from typing import Final

from serve_app.domain.priority import Priority
from serve_app.scheduling.entry import Entry

_NAME_ONE: Final = "name a longer deadline (X-Timeout-Ms, parameters.timeout)"


def too_short(entry: Entry, solo_s: float, has_s: float) -> str:
    """The message that a deadline is too short whatever else the server has to do.

    Args:
        solo_s: Time of the request alone.
        has_s: Time that it may take.
    """
    allows = "this request allows" if entry.default_of is None else f"class {entry.default_of.label} allows"
    return f"the model takes about {shown_s(solo_s)} alone; {allows} {shown_s(has_s)}: {advice(entry.default_of)}"


def advice(default_of: Priority | None) -> str:
    """Advice on a deadline that is too short; of the class that gave it, or of the request."""
    return _NAME_ONE if default_of is None else f"{_NAME_ONE} or raise classes.{default_of.label}.timeout_ms"


def shown_s(seconds: float) -> str:
    """A duration for readers."""
    return f"{seconds:.0f} s" if seconds >= 10.0 else f"{max(0.0, seconds):.2g} s"
