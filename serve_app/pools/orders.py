"""Carries out the orders of pools' devices: has hosts load and unload members.

Orders of one host are sent one after the other, with the evictions before a load in the same call. A host whose call is
lost, or takes too long, is suspended for a while, and then taken over anew, which empties it. So the scheduler's state
of that host is right, whatever became of the call. A host taken over by another router is treated alike, as its
predecessor may do while a redeploy replaces it. A router that ends takes over no new hosts.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import uuid
from collections import deque
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf, nextafter
from typing import Any, Final, Protocol

from serve_app.domain.agreed import Told
from serve_app.domain.hosting import ChangeHost, LoadOutcome, Owner
from serve_app.errors import ModelUnavailable
from serve_app.pools.policy.messages import Eviction, Load, Order
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Rejection
from serve_app.transport.send import ReplicaLost

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0
"""Suspension of a host whose call was lost, or that another router has taken over, seconds."""


@dataclass(frozen=True, slots=True)
class RoutedPool:
    """A pool's settings in a router.

    Attributes:
        scheduling: For the scheduler.
        load_timeout_s: Longest load.
    """

    scheduling: Pool
    load_timeout_s: float = 60.0


class Events(Protocol):
    """Receives the results of orders."""

    def hosts_listed(self, pool: str, hosts: Collection[str]) -> None:
        """Set the hosts that take orders."""

    def member_loaded(self, pool: str, model: str, host: str, outcome: LoadOutcome, told: Told) -> None:
        """Record that a host has loaded a member."""

    def member_failed(self, pool: str, model: str, host: str, refusal: Rejection) -> None:
        """Record that a host cannot load a member, for a reason of the member. Its clients get the refusal."""


class _Host:
    """A host that this router has taken over.

    Attributes:
        owner: The claim.
        orders: Pending orders.
        worker: Sends the orders; ``None`` while there are none.
        loads: Loads under way that do not wait for each other.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.orders: deque[Order] = deque()
        self.worker: asyncio.Task[None] | None = None
        self.loads: set[asyncio.Task[None]] = set()


class _Pool:
    """A router's state of a pool.

    Attributes:
        loads: Concurrent loads of a host.
        load_timeout_s: Longest load.
        reported: All hosts.
        hosts: Those that take orders.
        suspended: Those left alone for a while.
    """

    def __init__(self, settings: RoutedPool) -> None:
        self.loads = settings.scheduling.loads
        self.load_timeout_s = settings.load_timeout_s
        self.reported: frozenset[str] = frozenset()
        self.hosts: dict[str, _Host] = {}
        self.suspended: dict[str, asyncio.TimerHandle] = {}


class Pools:
    """The hosts of all pools of one router. To be used in its event loop.

    Args:
        change: The way to hosts.
        events: Receives the results of orders.
    """

    def __init__(
        self,
        pools: Sequence[RoutedPool],
        change: ChangeHost,
        events: Events,
    ) -> None:
        self._pools = {pool.scheduling.name: _Pool(pool) for pool in pools}
        self._members: dict[str, str] = {}
        self._change = change
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.Context()
        self._latest = 0.0  # of all known claims, also of other routers, seconds since the epoch
        self._claims = True
        self.faults: dict[str, str] = {}
        """By member, why its last load failed, if it did."""

    def add_member(self, model: str, pool: str) -> None:
        """Add a member to a pool. The device orders its evictions when it leaves."""
        self._members[model] = pool

    def on_hosts(self, pool: str, hosts: Collection[str]) -> None:
        """Replace the list of a pool's hosts."""
        known = self._pools[pool]
        known.reported = frozenset(hosts)
        for host in known.suspended.keys() - known.reported:
            known.suspended.pop(host).cancel()
        self._list(pool)

    def on_lost(self, pool: str, host: str) -> None:
        """Suspend a host that cannot be reached: it, or its connection, may be dead."""
        known = self._pools[pool]
        if host in known.hosts:
            known.suspended[host] = self._loop.call_later(_AGAIN_S, self._resume, pool, host)
            self._list(pool)

    def stop_claiming(self) -> None:
        """Take over no new host, since this router ends and a successor follows.

        A suspended host is still taken over again: without any, accepted requests would wait for their deadlines.
        """
        self._claims = False

    def _claim(self) -> Owner:
        """A claim later than all known ones, whatever this machine's clock says."""
        self._latest = max(datetime.now(UTC).timestamp(), nextafter(self._latest, inf))
        return Owner(self._latest, uuid.uuid4().hex)

    def _resume(self, pool: str, host: str) -> None:
        self._pools[pool].suspended.pop(host, None)
        self._list(pool, host)

    def _list(self, pool: str, again: str = "") -> None:
        """Report the hosts that take orders, without those that do not: one that comes ``again`` is a new one."""
        known = self._pools[pool]
        present = known.reported - known.suspended.keys()
        for name in known.hosts.keys() - present:
            gone = known.hosts.pop(name)
            for task in (gone.worker, *gone.loads):
                if task is not None:
                    task.cancel()
        for name in sorted(present - known.hosts.keys()):
            if self._claims or name == again:
                known.hosts[name] = _Host(self._claim())
        self._events.hosts_listed(pool, tuple(known.hosts))

    def carry_out(self, order: Order) -> None:
        """Queue an order for a host, as a `serve_app.scheduling.core.CarryOut`. A host keeps their order."""
        pool = self._members[order.model]
        host = self._pools[pool].hosts[order.host]
        host.orders.append(order)
        if host.worker is None:
            host.worker = self._start(self._work(pool, order.host, host))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # An empty context: Serve would otherwise tie it to the request whose turn it happens to be.
        return self._loop.create_task(work, context=self._context.copy())

    async def _work(self, pool: str, name: str, host: _Host) -> None:
        alone = self._pools[pool].loads == 1
        try:
            while host.orders:
                evicted: list[str] = []
                while host.orders and isinstance(host.orders[0], Eviction):
                    evicted.append(host.orders.popleft().model)
                load = host.orders.popleft() if host.orders else None
                if alone or load is None:
                    await self._send(pool, name, host, evicted, load)
                    continue
                if evicted:
                    await self._send(pool, name, host, evicted, None)
                task = self._start(self._send(pool, name, host, (), load))
                host.loads.add(task)
                task.add_done_callback(host.loads.discard)
        finally:
            host.worker = None

    async def _send(self, pool: str, name: str, host: _Host, evicted: Sequence[str], load: Order | None) -> None:
        known = self._pools[pool]
        model = "" if load is None else load.model
        urgent = isinstance(load, Load) and load.urgent
        try:
            async with asyncio.timeout(known.load_timeout_s):
                outcome = await self._change(pool, name, host.owner, evicted, model, urgent)
        except TimeoutError:
            logger.warning("Host %s of pool %s did not answer within %g s", name, pool, known.load_timeout_s)
        except ReplicaLost as lost:
            logger.warning("Host %s of pool %s is lost: %s", name, pool, lost)
        except Exception:  # whatever the way to the host raises, it is taken over anew
            logger.exception("Host %s of pool %s cannot be told what to load", name, pool)
        else:
            if known.hosts.get(name) is not host:
                return
            if not outcome.superseded:
                if model:
                    self._end(pool, model, name, outcome)
                return
            self._latest = max(self._latest, outcome.superseded)
            if not self._claims:
                if model:
                    self._refuse(pool, model, name, outcome.fault)
                return
            logger.warning("Host %s of pool %s: another router has it, and it is taken over anew", name, pool)
        if known.hosts.get(name) is host:
            host.orders.clear()
            # In the next turn, since it ends this task as well.
            self._loop.call_soon(self._lose, pool, name, host)

    def _lose(self, pool: str, name: str, host: _Host) -> None:
        if self._pools[pool].hosts.get(name) is host:
            self.on_lost(pool, name)

    def _end(self, pool: str, model: str, host: str, outcome: LoadOutcome) -> None:
        if outcome.told is not None:
            self.faults.pop(model, None)
            self._events.member_loaded(pool, model, host, outcome, outcome.told)
            return
        if self.faults.get(model) != outcome.fault:
            self.faults[model] = outcome.fault
            logger.error("Model %s of pool %s cannot be loaded: %s", model, pool, outcome.fault)
        self._refuse(pool, model, host, outcome.fault)

    def _refuse(self, pool: str, model: str, host: str, fault: str) -> None:
        self._events.member_failed(pool, model, host, Rejection(ModelUnavailable.code, fault))

    def close(self) -> None:
        """Stop sending orders."""
        for known in self._pools.values():
            for timer in known.suspended.values():
                timer.cancel()
            known.suspended.clear()
            for host in known.hosts.values():
                for task in (host.worker, *host.loads):
                    if task is not None:
                        task.cancel()
            known.hosts.clear()
