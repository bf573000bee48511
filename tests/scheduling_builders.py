"""Entries and schedulers for tests, with settings that a test names only where they matter to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from serve_app.domain.priority import Priority
from serve_app.payloads import RequestAttributes
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.gate import Gate
from serve_app.scheduling.placement.devices import Device
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits

if TYPE_CHECKING:
    from serve_app.pools.policy.settings import Pool

Policy = Literal["auto", "eager"]

_ids = itertools.count(1)

HIGH, NORMAL, LOW = Priority

AFFINE = [(rows, 0, 0.005 + 0.001 * rows) for rows in (1, 2, 4, 8, 16, 32)]
"""A warm-up profile: 5 ms fixed and 1 ms per row."""


def make_entry(
    priority: Priority = NORMAL,
    deadline: float = 10.0,
    *,
    model: str = "m",
    rows: int = 1,
    bucket: int = 0,
    nbytes: int = 0,
    arrival: float = 0.0,
    variant: str = "",
    exact: bool = False,
    default_of: Priority | None = None,
    tenant: str = "",
    answer_by: float = 0.0,
    background: bool = False,
) -> Entry:
    """An entry with an id of its own; ids ascend."""
    return Entry(
        next(_ids),
        model,
        priority,
        arrival,
        deadline,
        rows,
        bucket,
        nbytes,
        variant=variant,
        exact=exact,
        default_of=default_of,
        attributes=RequestAttributes(tenant, background=background),
        answer_by=answer_by,
    )


def make_class(
    *,
    entries: int = 1000,
    nbytes: int = 10**9,
    overflow: Literal["reject", "demote"] = "reject",
    min_share: float = 0.0,
) -> ClassSettings:
    """Settings of one class, roomy unless said otherwise."""
    return ClassSettings(entries, nbytes, timeout_s=10.0, overflow=overflow, min_share=min_share)


def make_scheduler(
    *,
    models: Iterable[str | ModelScheduling] = ("m",),
    pool: Pool | None = None,
    max_rows: int = 32,
    slo_s: float = 0.1,
    window: int = 2,
    policy: Policy = "auto",
    fallbacks: tuple[str, ...] = (),
    high: ClassSettings | None = None,
    normal: ClassSettings | None = None,
    low: ClassSettings | None = None,
    limits: ProcessLimits | None = None,
    replicas: Iterable[str] = ("a",),
    profile: Iterable[tuple[int, int, float]] = (),
) -> Scheduler:
    """A scheduler whose models have the given replicas and warm-up profile at time 0.

    A model that is given by name has the settings given here; others bring their own. Members of a pool are loaded at
    every replica, which is a host then.
    """
    given = [
        ModelScheduling(model, max_rows, slo_s, window, policy, fallbacks) if isinstance(model, str) else model
        for model in models
    ]
    classes = {HIGH: high or make_class(), NORMAL: normal or make_class(), LOW: low or make_class()}
    members = () if pool is None else pool.models
    given = [replace(model, resident_bytes=1) if model.name in members else model for model in given]
    limits = limits or ProcessLimits(total_bytes=10**12, network_s=0.002)
    devices: list[Device] = []
    if pool is not None:
        from serve_app.pools.policy.device import PoolDevice

        devices.append(PoolDevice(pool, classes))
    scheduler = Scheduler(given, classes, limits, devices)
    for model in given:
        if model.name not in members:
            scheduler.on_replicas(model.name, list(replicas), 0.0)
        scheduler.seed(model.name, [(*point, "") for point in profile])
    load_everywhere(scheduler, list(replicas))
    return scheduler


def load_everywhere(scheduler: Scheduler, hosts: Sequence[str], now: float = 0.0) -> None:
    """Have every member of every pool loaded at all of these hosts, which are its only ones."""
    for name, device in scheduler.devices.items():
        from serve_app.pools.policy.device import PoolDevice
        from serve_app.pools.policy.messages import HostsListed, MemberLoaded

        assert isinstance(device, PoolDevice)
        scheduler.on_device_event(name, HostsListed(hosts), now)
        for member in device.residency.members.values():
            for host in hosts:
                if host not in member.hosts:
                    device.residency.begin(member, device.residency.hosts[host], (), now)
                    scheduler.on_device_event(name, MemberLoaded(member.name, host, 0.1, 0), now)


def accept(scheduler: Scheduler, *entries: Entry, now: float = 0.0) -> list[Entry]:
    """Let entries arrive; each must be accepted."""
    for entry in entries:
        assert scheduler.on_arrival(entry, now) is None, entry
    return list(entries)


def queued_rows(scheduler: Scheduler, model: str = "m") -> dict[str, Any]:
    """Rows queued per class label."""
    return {priority.label: length.rows for priority, length in scheduler.queue_lengths(model).items()}


def used_to_rows(scheduler: Scheduler, rows: int, model: str = "m", now: float = 0.0) -> None:
    """Let a model have run batches of twice so many rows, so that up to so many travel together from now on."""
    accept(scheduler, make_entry(model=model, deadline=now + 10.0, arrival=now), now=now)
    (sent,) = scheduler.decide(now).dispatches
    scheduler.on_done(sent.bundle_id, [(2 * rows, 0, 0.0, "")] * 100, now)


def make_gate(
    *entries: Entry,
    max_rows: int = 32,
    slo_s: float = 10.0,
    policy: Policy = "eager",
    fallbacks: tuple[str, ...] = (),
    share: float = 0.0,
    planned: bool = False,
    in_burst: bool = False,
    profile: Iterable[tuple[int, int, float]] = AFFINE,
    now: float = 0.0,
    instances: int = 1,
    timer_s: float = 0.0,
    **settings: Any,
) -> Gate:
    """A gate where these wait, whose predictions hold; the classes below ``high`` have the same guaranteed share.

    ``in_burst``: for four seconds requests have come in rows of sixteen, 0.5 ms apart, the last of them just now, so
    that with ``auto`` a batch waits.
    """
    model = ModelScheduling("m", max_rows, slo_s, policy=policy, fallbacks=fallbacks, **settings)
    gate = Gate(model, {HIGH: 0.0, NORMAL: share, LOW: share}, planned=planned, timer_s=timer_s, instances=instances)
    gate.seed([(*point, "") for point in profile])
    for step in range(64 if in_burst else 0):
        gate.add(one := make_entry(), now - (63 - step) // 16 - 0.0005 * (16 - step % 16))
        gate.remove(one)
    for entry in entries:
        gate.add(entry, now)
    return gate
