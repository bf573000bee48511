"""What may be read of a scheduler. Only the router's core (`serve_app.scheduling.core`) has the whole `Scheduler`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from serve_app.domain.priority import Priority
from serve_app.scheduling.admission import Bounds, drain_s, largest_tenant_queues, least_s, unknown_model
from serve_app.scheduling.batching.composition import execution_s
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.bundles import BundlesInFlight
from serve_app.scheduling.decisions import QueueLength, Rejection
from serve_app.scheduling.entry import EntryState
from serve_app.scheduling.health.breakers import Breakers
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.placement.devices import Device
from serve_app.scheduling.settings import ClassSettings, ProcessLimits
from serve_app.scheduling.silence import SilentReplicas

_RUNNING = EntryState.RUNNING
_PRIORITIES = tuple(Priority)


class SchedulerView:
    """The questions that a scheduler answers; none changes it. Arguments are those of `Scheduler`.

    Attributes:
        devices: Devices that models share, by name.
    """

    _silent: SilentReplicas

    def __init__(
        self, classes: Mapping[Priority, ClassSettings], limits: ProcessLimits, devices: Iterable[Device]
    ) -> None:
        missing = [priority.label for priority in _PRIORITIES if priority not in classes]
        if missing:
            raise ValueError(f"no settings for class {', '.join(missing)}")
        if sum(settings.min_share for settings in classes.values()) > 1.0 + 1e-9:
            raise ValueError("the classes' min_share must not exceed 1 in sum")
        self._bounds = Bounds(classes, limits)
        self._network_s = limits.network_s
        self.devices: Mapping[str, Device] = {device.name: device for device in devices}
        self._models: dict[str, ModelState] = {}
        self._device_of: dict[str, Device] = {}
        self._bundles = BundlesInFlight()

    def precheck(
        self, model: str, priority: Priority, nbytes: int, now: float, tenant: str = "", weight: float = 1.0
    ) -> Rejection | None:
        """Refuse early what would find no room, before its payload is decoded. Reserves nothing.

        Args:
            model: Name of the model.
            priority: The class asked for.
            nbytes: Bytes that the entry would hold.
            tenant: Whose it would be.
            weight: The tenant's weight.
        """
        known = self._models.get(model)
        if known is None:
            return unknown_model(model)
        breakers = known.breakers
        if breakers is not None and breakers.tripped and (refusal := breakers.precheck(now)) is not None:
            return refusal
        bounds = self._bounds
        if bounds.fits(priority, nbytes) or bounds.room(priority, nbytes) is not None:
            return None
        if not largest_tenant_queues(self._models, bounds, priority, nbytes, tenant, weight):
            return self._queue_full(known, priority, nbytes, now)
        return None

    def latency(self, model: str, variant: str = "") -> LatencyModel:
        """What predicts for the model or one of its variants, for reading; see `VariantLatency.of`."""
        return self._models[model].latencies.of(variant)

    def solo_s(self, model: str, rows: int, bucket: int, variant: str = "") -> float:
        """Predicted execution time of a request alone, seconds; 0.0 when unknown, or where there is no such model."""
        known = self._models.get(model)
        if known is None:
            return 0.0
        latency = known.latencies.of(variant) if variant else known.latencies.exact
        most = known.settings.max_rows
        return latency.predict(rows, bucket) if rows <= most else execution_s(latency, rows, bucket, most)

    def least_s(self, model: str, entries: int, *, exact: bool = False) -> float:
        """Predicted time until so many entries of one row are executed if nothing is ahead of them, seconds.

        See `scheduling.admission.least_s`; 0.0 where there is no such model.
        """
        known = self._models.get(model)
        return 0.0 if known is None else least_s(known, self._device_of[model], entries, exact=exact)

    @property
    def timeouts_s(self) -> Mapping[Priority, float]:
        """What the classes allow requests that name no deadline, seconds."""
        return self._bounds.timeouts_s

    def serves(self, model: str) -> bool:
        """Whether there is a model of that name."""
        return model in self._models

    def fallbacks(self, model: str) -> tuple[str, ...]:
        """The variants that may stand in for the exact model."""
        known = self._models.get(model)
        return () if known is None else known.settings.fallbacks

    def usable(self, model: str) -> int:
        """Replicas of the model that are listed and not held, whether they have a free slot or not."""
        known = self._models.get(model)
        return 0 if known is None else known.slots.usable

    def listed(self, model: str) -> int:
        """Replicas of the model that are listed, held ones included."""
        known = self._models.get(model)
        return 0 if known is None else len(known.slots.replicas)

    def load(self, model: str) -> int:
        """Rows queued and rows running at usable replicas, as far as they are waited for: what autoscaling counts.

        A tied entry counts once.
        """
        known = self._models[model]
        sent = [bundle for at in known.slots.bundles if (bundle := self._bundles.get(at)) is not None]
        running = {entry for bundle in sent for entry in bundle.entries if entry.state is _RUNNING}
        return known.queue.total.rows + sum([entry.rows for entry in running])

    def queue_lengths(self, model: str) -> dict[Priority, QueueLength]:
        """What each class of the model has queued."""
        return self._models[model].queue.lengths()

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """A JSON-able snapshot of every model by name.

        Returns:
            `ModelState.snapshot`, and ``silent_replicas`` (names).
        """
        return {
            name: model.snapshot()
            | {"silent_replicas": [str(r.name) for r in model.slots.replicas.values() if r in self._silent.replicas]}
            for name, model in self._models.items()
        }

    def device_of(self, model: str) -> str | None:
        """Name of the device that a model shares; ``None``: its replicas are its own, or there is no such model."""
        device = self._device_of.get(model)
        return None if device is None else device.name or None

    def device_snapshots(self) -> dict[str, dict[str, Any]]:
        """A JSON-able snapshot of every device that models share, by name."""
        return {name: device.snapshot() for name, device in self.devices.items()}

    def can_start(self, model: str) -> bool:
        """Whether a model's device itself can give it a place to run."""
        known = self._models.get(model)
        return known is not None and self._device_of[model].can_start(known)

    def breakers(self) -> dict[str, Breakers]:
        """The circuit breakers of every model that has them, by name, for reading."""
        return {name: model.breakers for name, model in self._models.items() if model.breakers is not None}

    def breaker_snapshot(self, model: str, now: float) -> dict[str, Any] | None:
        """A JSON-able snapshot of a model's circuit breakers and ejected replicas; ``None`` where it has none."""
        known = self._models[model]
        return None if known.breakers is None else known.breakers.snapshot(known.slots, now)

    def totals(self) -> dict[str, Any]:
        """A JSON-able snapshot of what the process's bounds are checked against, and the bundles in flight."""
        return {
            "bytes": self._bounds.nbytes,
            "bundles": len(self._bundles),
            "classes": {
                priority.label: {"entries": totals.entries, "bytes": totals.nbytes}
                for priority, totals in self._bounds.totals.items()
            },
        }

    def _queue_full(self, model: ModelState, priority: Priority, nbytes: int, now: float) -> Rejection:
        wait = drain_s(model, self._device_of[model.settings.name], priority, now)
        return self._bounds.queue_full(priority, nbytes, wait)
