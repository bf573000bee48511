"""Messages between the policy and the hosts of a pool: orders to hosts, and events of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from serve_app.scheduling.decisions import Rejection


class Load(NamedTuple):
    """Load a member. Its memory is reserved.

    A host ends every load by exactly one of `MemberLoaded` and `LoadFailed`, unless it is not listed any more.

    Attributes:
        nbytes: Reserved bytes.
        expected_s: Usual duration.
        urgent: Whether requests of class `high` wait for it, so that it need not yield the processor to runs.
    """

    model: str
    host: str
    nbytes: int
    expected_s: float
    urgent: bool = False


class Eviction(NamedTuple):
    """Unload a member without bundles in flight there. A host keeps the order, so later orders find the room."""

    model: str
    host: str


Order = Load | Eviction


class HostsListed(NamedTuple):
    """The present list of hosts. A new one has nothing loaded.

    Bundles in flight at one that vanished may still be answered or fail.
    """

    hosts: Collection[str]


class MemberLoaded(NamedTuple):
    """A host has loaded a member, which may run there from now on. An unknown load is undone.

    Attributes:
        seconds: Duration of the load.
        nbytes: Memory that it holds there; 0: not measured.
    """

    model: str
    host: str
    seconds: float
    nbytes: int


class LoadFailed(NamedTuple):
    """A host could not load a member: it is not loaded anywhere for 1 s, doubled at every failure up to 30 s.

    Attributes:
        refusal: Why it cannot be loaded anywhere: clients whose requests wait for it, or come until the next try, get
            it. ``None``: it may be the host; requests go on waiting.
    """

    model: str
    host: str
    refusal: Rejection | None = None


class MemberMissing(NamedTuple):
    """A host does not have a member that was loaded there, and had no order to unload it."""

    model: str
    host: str
