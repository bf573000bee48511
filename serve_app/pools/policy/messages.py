"""Between the policy and the hosts of a pool: orders to hosts, and events of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from serve_app.scheduling.decisions import Rejection


class Load(NamedTuple):
    """Load a member. Its memory is reserved.

    A host ends every load by exactly one of `MemberLoaded` and `LoadFailed`, unless it is not listed any more.

    Attributes:
        nbytes: What is reserved, bytes.
        expected_s: How long it usually takes, seconds.
        urgent: Whether requests of class `high` wait for it, so that it need not leave the processor to what runs.
    """

    model: str
    host: str
    nbytes: int
    expected_s: float
    urgent: bool = False


class Eviction(NamedTuple):
    """Unload a member, of which nothing is in flight there. A host keeps the order: what follows finds the room."""

    model: str
    host: str


Order = Load | Eviction


class HostsListed(NamedTuple):
    """These are the hosts now. One that is new has nothing loaded.

    What was in flight at one that vanished may still be answered or fail.
    """

    hosts: Collection[str]


class MemberLoaded(NamedTuple):
    """A host has loaded a member: from now on it may run there. A load that is not known any more is undone.

    Attributes:
        seconds: How long it took.
        nbytes: What it holds there, bytes; 0: not measured.
    """

    model: str
    host: str
    seconds: float
    nbytes: int


class LoadFailed(NamedTuple):
    """A host could not load a member: it is not loaded anywhere for 1 s, doubled at every failure up to 30 s.

    Attributes:
        refusal: Why it cannot be loaded anywhere: clients whose requests wait for it, or come until it is tried again,
            get it. ``None``: it may be the host; what waits for it goes on waiting.
    """

    model: str
    host: str
    refusal: Rejection | None = None


class MemberMissing(NamedTuple):
    """A host does not have a member that was loaded there, and had no order to unload it."""

    model: str
    host: str
