"""Tracks a replica's revisions of a model, and which one runs a bundle. Pure: no clock, no I/O, no threads.

    LOADING ──> CANDIDATE ──> CURRENT ──> RETIRED ──> (closed)
       │            │  ^                   ^   │
       └─ failed    │  └─ wanted again ────────┘
                    └─ not agreed on ──────┘

A bundle runs wholly on the revision that it names, or nowhere; without a name, on the current one. A revision with
bundles is closed when the last has ended.
"""

from __future__ import annotations

from enum import Enum


class Place(Enum):
    """The state of a revision in its replica."""

    CANDIDATE = "candidate"
    """Loaded, and runs what names it; not agreed on yet."""

    CURRENT = "current"
    """Agreed on."""

    RETIRED = "retired"
    """Takes nothing more; closed when what it has is done."""


class RevisionTable:
    """The revisions of one replica, by name.

    Args:
        current: The first one; ``None``: the model is unloaded.

    Attributes:
        loading: The loading one, or empty.
    """

    def __init__(self, current: str | None) -> None:
        self._places: dict[str, Place] = {} if current is None else {current: Place.CURRENT}
        self._running: dict[str, int] = {}
        self.loading = ""

    def __repr__(self) -> str:
        return f"<RevisionTable { ({name: place.value for name, place in self._places.items()}) }>"

    def __contains__(self, name: str) -> bool:
        return self._places.get(name, Place.RETIRED) is not Place.RETIRED

    @property
    def current(self) -> str | None:
        """The agreed revision, if any."""
        return next(iter(self.at(Place.CURRENT)), None)

    def at(self, place: Place) -> list[str]:
        """The revisions in a state."""
        return [name for name, here in self._places.items() if here is place]

    def begin(self, name: str) -> bool:
        """Begin to load a revision. Returns whether that is allowed: one loads at a time, and one candidate is kept."""
        if self.loading or self.at(Place.CANDIDATE) or name in self._places:
            return False
        self.loading = name
        return True

    def revive(self, name: str) -> bool:
        """Make a retired revision, which still has bundles, a candidate again. Returns whether it is one now."""
        if self._places.get(name) is not Place.RETIRED or self.loading or self.at(Place.CANDIDATE):
            return False
        self._places[name] = Place.CANDIDATE
        return True

    def loaded(self) -> None:
        """Record that the load has succeeded."""
        self._places[self.loading] = Place.CANDIDATE
        self.loading = ""

    def failed(self) -> None:
        """Record that the load has failed."""
        self.loading = ""

    def take(self, named: str) -> str | None:
        """Assign a bundle to a revision. ``None``: it is not here, and the bundle returns to its router."""
        name = named or self.current
        if name is None or name not in self:
            return None
        self._running[name] = self._running.get(name, 0) + 1
        return name

    def end(self, name: str) -> bool:
        """End a bundle from `take`. Returns whether to close the revision now."""
        self._running[name] -= 1
        return self._forget_idle(name)

    def agree(self, name: str) -> list[str]:
        """Serve this present revision, or none if empty. Returns revisions to close now."""
        assert not name or name in self, name
        for other in self._places:
            self._places[other] = Place.CURRENT if other == name else Place.RETIRED
        return [other for other in list(self._places) if self._forget_idle(other)]

    def _forget_idle(self, name: str) -> bool:
        if self._places[name] is not Place.RETIRED or self._running.get(name):
            return False
        del self._places[name]
        self._running.pop(name, None)
        return True
