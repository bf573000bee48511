"""Pools as a part of a router."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from prometheus_client.registry import Collector

from serve_app.domain.agreed import Told
from serve_app.domain.hosting import LoadOutcome
from serve_app.pools.metrics import POOLS
from serve_app.pools.orders import Pools, RoutedPool
from serve_app.pools.policy.device import PoolDevice
from serve_app.pools.policy.messages import HostsListed, LoadFailed, MemberLoaded, MemberMissing, Order
from serve_app.router.part import PartContext, RouterPart
from serve_app.scheduling.decisions import Rejection
from serve_app.telemetry.readings import Readings
from serve_app.telemetry.series import Histogram

_LOAD_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class PoolsPart(RouterPart):
    """Carries out the orders of the pools' devices, and reports the results to them.

    Args:
        pools: The scheduler has a `PoolDevice` of each, by its name.
    """

    name: ClassVar = "pools"

    def __init__(self, pools: Sequence[RoutedPool], context: PartContext) -> None:
        self._context = context
        self._names = tuple(pool.scheduling.name for pool in pools)
        self._pools = Pools(pools, context.change_host, self)
        self._loads = Histogram(
            "serve_app_pool_load_seconds", "One load of a member of a pool.", ("pool",), _LOAD_BUCKETS
        )

    # ---------------------------------------------------------------- as a part

    def devices(self) -> Collection[str]:
        """The pools' names."""
        return self._names

    def collectors(self) -> Iterable[Collector]:
        """Metrics of loads, and of hosts' contents."""
        return self._loads, Readings(POOLS, self._context.scheduler.device_snapshots)

    def status(self) -> Mapping[str, Any]:
        """The status of the pools: `Scheduler.device_snapshots`."""
        return self._context.scheduler.device_snapshots()

    @property
    def load_faults(self) -> Mapping[str, str]:
        """By member, why its last load failed."""
        return self._pools.faults

    def add_model(self, model: str, device: str) -> None:
        """Add a member to a pool."""
        self._pools.add_member(model, device)

    def carry_out(self, order: Order) -> None:
        """Queue an order for a host."""
        self._pools.carry_out(order)

    def on_hosts(self, device: str, hosts: Collection[str]) -> None:
        """Replace the list of a pool's hosts."""
        self._pools.on_hosts(device, hosts)

    def on_link(self, device: str, host: str, *, up: bool) -> None:
        """Record a host's connection, or its loss, after which the host is taken over anew."""
        if not up:
            self._pools.on_lost(device, host)
            return
        for member in self._device(device).resident(host):
            self._context.dispatcher.on_linked(member, host, linked=True)

    def on_unresponsive(self, device: str, host: str) -> None:
        """Try a host's bundles elsewhere, and send it nothing more until it is taken over anew."""
        for member in self._device(device).in_use(host):
            self._context.dispatcher.on_unresponsive(member, host)
        self._pools.on_lost(device, host)

    def on_missing(self, device: str, model: str, host: str) -> None:
        """Record that a host does not have a member that was loaded there."""
        self._context.dispatcher.on_device_event(device, MemberMissing(model, host))

    async def stop(self) -> None:
        """Take over no new host."""
        self._pools.stop_claiming()

    async def close(self) -> None:
        """Stop sending orders."""
        self._pools.close()

    def _device(self, pool: str) -> PoolDevice:
        device = self._context.scheduler.devices[pool]
        assert isinstance(device, PoolDevice)
        return device

    # ---------------------------------------------------------------- events of the hosts

    def hosts_listed(self, pool: str, hosts: Collection[str]) -> None:
        """Report the hosts to the pool's device."""
        self._context.dispatcher.on_device_event(pool, HostsListed(hosts))
        self._context.changed()

    def member_loaded(self, pool: str, model: str, host: str, outcome: LoadOutcome, told: Told) -> None:
        """Report a load to the pool's device."""
        context = self._context
        self._loads.of(pool).observe(outcome.seconds)
        context.take_told(model, told)
        context.dispatcher.on_device_event(pool, MemberLoaded(model, host, outcome.seconds, outcome.nbytes))
        context.dispatcher.tell_slowness(model)
        if context.is_linked(host):
            context.dispatcher.on_linked(model, host, linked=True)

    def member_failed(self, pool: str, model: str, host: str, refusal: Rejection) -> None:
        """Report a failed load to the pool's device."""
        self._context.dispatcher.on_device_event(pool, LoadFailed(model, host, refusal))
