"""A part of a router: a wing's addition, made with the router and closed with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from serve_app.api.gateway import Gateway
from serve_app.api.routes import ApiRoutes, Find
from serve_app.domain.agreed import Told
from serve_app.domain.hosting import ChangeHost
from serve_app.domain.service import Inference, RequestOptions
from serve_app.router.dispatcher import Dispatcher
from serve_app.router.versions import VersionTables
from serve_app.scheduling.view import SchedulerView
from serve_app.telemetry.trace import RequestTraces


@dataclass(frozen=True, slots=True, kw_only=True)
class PartContext:
    """Services of the router for a part.

    Attributes:
        inference: The models, with additions of earlier parts.
        scheduler: Read only.
        dispatcher: Takes events.
        take_told: Receives a process's report of a model that it can run now.
        is_linked: Whether bundles for a process travel by a link.
        change_host: The way to processes that load models on order.
        changed: To be called when models may have become ready.
        solo_s: Predicted execution of so many rows of a cost bucket of a model alone, seconds; 0.0: unknown.
        least_s: Lower bound of the time until so many requests of one row are answered, seconds; 0.0: unknown.
        registry: Of metrics.
        traces: Record every request; ``None``: none is recorded.
        versions: The tables of models with several versions; ``None``: no model has several.
    """

    inference: Inference
    scheduler: SchedulerView
    dispatcher: Dispatcher
    take_told: Callable[[str, Told], None]
    is_linked: Callable[[str], bool]
    change_host: ChangeHost
    changed: Callable[[], None]
    solo_s: Callable[[str, int, int], float]
    least_s: Callable[[str, int, RequestOptions], float]
    registry: CollectorRegistry
    traces: RequestTraces | None
    versions: VersionTables | None = None


class RouterPart:
    """A part of a router. Every method does nothing by default.

    Attributes:
        name: Of its place on ``/status``; empty: it has none.
    """

    name: ClassVar[str] = ""

    def inference(self) -> Inference | None:
        """The replacement of `PartContext.inference`; ``None``: none."""

    def routes(self, gateway: Gateway, find: Find) -> ApiRoutes:  # noqa: ARG002
        """Routes over HTTP; ``find`` looks routes up once the application is made."""
        return ApiRoutes(())

    def collectors(self) -> Iterable[Collector]:
        """Metrics to register."""
        return ()

    def status(self) -> Mapping[str, Any] | None:
        """Its place on ``/status``; ``None``: left out."""
        return None

    def statistics(self) -> Mapping[str, Callable[[], Mapping[str, Any]]]:
        """Readers of statistics for names that it adds to the models."""
        return {}

    # ---------------------------------------------------------------- devices that models share

    def devices(self) -> Collection[str]:
        """Names of the scheduler's devices whose processes it manages."""
        return ()

    @property
    def load_faults(self) -> Mapping[str, str]:
        """By model, why its last load in such a process failed."""
        return {}

    def add_model(self, model: str, device: str) -> None:
        """Add a model to one of its devices."""

    def carry_out(self, order: Any) -> None:
        """Carry out an order of one of its devices, as a `serve_app.scheduling.core.CarryOut`."""

    def on_hosts(self, device: str, hosts: Collection[str]) -> None:
        """Replace the list of a device's processes."""

    def on_link(self, device: str, host: str, *, up: bool) -> None:
        """Record that the connection to a process is there, or lost."""

    def on_unresponsive(self, device: str, host: str) -> None:
        """Record that a process sends no data."""

    def on_missing(self, device: str, model: str, host: str) -> None:
        """Record that a process does not have a model that was loaded there."""

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Start background work. Called when the routes are there."""

    async def stop(self) -> None:
        """End background work. Called before the ports close."""

    async def finish(self, limit_s: float) -> int:  # noqa: ARG002
        """Refuse new requests, and wait at most ``limit_s`` for those accepted.

        Returns:
            Number of requests left.
        """
        return 0

    async def close(self) -> None:
        """Release everything. Called when the ports are closed."""


MakePart = Callable[[PartContext], RouterPart]
"""Makes a part in the event loop of its router."""
