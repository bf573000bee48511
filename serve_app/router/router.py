"""A router, put together: scheduler, dispatcher, links, caches, protocols and ports of one process."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import ChainMap, Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from serve_app.api.grpc_app import GrpcApp
from serve_app.api.grpc_listener import GrpcListener
from serve_app.api.http_app import HttpApp, create_app
from serve_app.api.urgency import HeadUrgency
from serve_app.domain.agreed import Told
from serve_app.domain.hosting import ChangeHost, LoadOutcome, Owner
from serve_app.domain.options import levels_of
from serve_app.domain.service import Inference, reloaded_model, unknown_model, unloaded_model
from serve_app.domain.versions import model_of
from serve_app.errors import ServeAppError
from serve_app.http.body import ALIGNMENT, allocate
from serve_app.http.listener import Listener
from serve_app.http.tls import Certificates
from serve_app.http.turns import Turns
from serve_app.payloads import STALE, Bundle, BundleResult, Failure
from serve_app.router.administration import Loading, RouterAdministration
from serve_app.router.direct_ports import DirectPorts, address_of, listen_grpc, listen_http
from serve_app.router.dispatcher import Dispatcher
from serve_app.router.inference import RouterInference
from serve_app.router.models import Models
from serve_app.router.part import PartContext, RouterPart
from serve_app.router.served import may_join
from serve_app.router.settings import ReplicaReport, RoutedModel, RouterSettings
from serve_app.router.versions import VersionsContext, VersionStore, VersionTables
from serve_app.scheduling.decisions import Rejection
from serve_app.scheduling.demand import ModelDemand
from serve_app.scheduling.health.liveness import Watch
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.view import SchedulerView
from serve_app.telemetry.connection_metrics import CONNECTIONS, TURNS
from serve_app.telemetry.key_metrics import KEYS
from serve_app.telemetry.line_writer import LineWriter
from serve_app.telemetry.metrics import RouterMetrics, merge_pages
from serve_app.telemetry.readings import Readings
from serve_app.telemetry.request_log import RequestLog
from serve_app.telemetry.scheduler_metrics import DEVICES
from serve_app.telemetry.statistics import Statistics
from serve_app.telemetry.trace import RequestTraces, configured_tracer
from serve_app.transport.arena import Arena
from serve_app.transport.links import Links
from serve_app.transport.send import Call, Done, ReplicaLost, awaiting
from serve_app.transport.ties import TieTable

logger = logging.getLogger(__name__)

OPEN_ANYWAY_S: Final = 30.0
"""After this time the ports are opened even if some model has no replica yet, seconds."""


async def _no_way(
    pool: str, host: str, _owner: Owner, _evicted: Sequence[str], _load: str, _urgent: bool
) -> LoadOutcome:
    raise ReplicaLost(f"there is no way to host {host} of pool {pool}", reached=False)


class Peers(Protocol):
    """The other routers of the application. One that does not answer in time is left out."""

    @property
    def alone(self) -> bool:
        """Whether no other has reported lately, if one is enough."""

    def own_name(self) -> str:
        """The name of this router among them."""

    async def pages(self) -> Mapping[str, str]:
        """Metrics pages, by name."""

    async def statistics(self) -> Sequence[Mapping[str, Statistics]]:
        """Statistics of their models, by model."""

    async def tell_traffic(self, model: str, origin: str, table: bytes) -> None:
        """Call `Router.on_traffic` on each."""


class Router:
    """One router process. It is made in its event loop; `start` binds its ports.

    Its host starts it, lists the replicas (`on_replicas`), and closes it. Bundles travel by links to replicas with an
    address, and by ``call`` to others.

    Args:
        call: The way to replicas without a link.
        peers: The other routers of the application; ``None``: there are none.
        version_store: Keeps the split of requests over versions; ``None``: it lasts as long as the router.
        loading: Loads and unloads models; ``None``: they stay as they are.
        change_host: The way to processes that models share; by default there is none.
        on_stale: Called with a model if a replica does not have the requested revision of it.

    Attributes:
        inference: For APIs' requests: the models, and pipelines of them.
        administration: For operators' APIs.
        app: Answers HTTP requests from a server in front: an ASGI application.
        grpc: Answers gRPC calls from a server in front.
    """

    def __init__(
        self,
        settings: RouterSettings,
        call: Call,
        peers: Peers | None = None,
        version_store: VersionStore | None = None,
        *,
        loading: Loading | None = None,
        change_host: ChangeHost = _no_way,
        on_stale: Callable[[str], None] | None = None,
    ) -> None:
        self._on_stale = on_stale
        self._routed: dict[str, RoutedModel] = {}
        self._reports: dict[str, Mapping[str, ReplicaReport]] = {}
        self._under_way: Counter[tuple[str, str]] = Counter()  # bundles by model and the revision that they name
        self._one_ended = asyncio.Event()
        self._settings = settings
        self._by_call = awaiting(call)
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._arena = Arena(settings.shared_memory) if Arena.supported() and settings.shared_memory else None
        scheduler = Scheduler((), settings.classes, settings.limits, [make() for make in settings.devices])
        self._scheduler: SchedulerView = scheduler
        self.metrics = RouterMetrics(self._scheduler, settings.named_members)
        ties = TieTable() if Arena.supported() else None
        self._dispatcher = Dispatcher(
            scheduler,
            self._send,
            self.metrics,
            settings.bundle_timeout_s,
            self._recall,
            ties,
            self._revision_for,
            self._carry_out,
        )
        watch = Watch(
            settings.replica_silence_s, settings.replica_kill_s, self._on_unresponsive, self._dispatcher.on_responsive
        )
        self._links = Links(ties, self._arena, self._on_link, watch)
        self._caches = settings.make_caches and settings.make_caches(self._dispatcher, self.metrics)
        self._log_lines, self._log = _open_log(settings, self._loop)
        tracer = configured_tracer()
        self._traces = None if self._log is None and tracer is None else RequestTraces(self._log, tracer)
        self.models = Models(self._dispatcher, self._caches)
        self._inference = RouterInference(self.models, self._dispatcher, self.metrics, self._traces, settings.streams)
        self.models.versions = self._make_versions(version_store)
        self.inference: Inference = self._inference
        self._parts = self._make_parts(change_host)
        self._hosts = {device: part for part in self._parts for device in part.devices()}
        self.administration = RouterAdministration(
            self.models,
            self.inference,
            self._dispatcher,
            self.metrics,
            self._metrics_page,
            None if peers is None else peers.statistics,
            loading,
            ChainMap(*[part.load_faults for part in self._parts]),  # type: ignore[arg-type] # it is only read
        )
        self._removals: set[asyncio.Task[None]] = set()
        self._guard = None if settings.keys is None else settings.keys.guard
        self._turns = self._make_turns()
        self.app = self._http_app()
        self.grpc = self._grpc_app()
        self._http_listener: Listener | None = None
        self._grpc_listener: GrpcListener | None = None
        self._ports = DirectPorts(())
        self._show_parts()
        for model in settings.models:
            self._take(model)

    def start(self) -> None:
        """Bind the router's own ports, and start background work: the file of keys, jobs.

        The ports are opened when the models can take work: other routers may be serving on them.

        Raises:
            ConfigError: A port cannot be had, or a certificate cannot be used.
        """
        settings = self._settings
        if settings.keys is not None:
            settings.keys.start()
        certificates = None if settings.tls is None else Certificates(settings.tls)
        if settings.http_port is not None:
            self._http_listener = http = listen_http(settings.http_port, self.app, certificates, self._turns)
            self.metrics.registry.register(Readings(CONNECTIONS, lambda: http))
        if settings.grpc_port is not None:
            self._grpc_listener = listen_grpc(settings.grpc_port, self.grpc, certificates)
        listeners = self._http_listener, self._grpc_listener
        self._ports = DirectPorts([each for each in listeners if each is not None])
        self._loop.call_later(OPEN_ANYWAY_S, self._ports.open)
        for part in self._parts:
            part.start()

    def _open_if_ready(self) -> None:
        if self.administration.ready():
            self._ports.open()

    def _make_versions(self, store: VersionStore | None) -> VersionTables | None:
        if self._settings.make_versions is None:
            return None
        return self._settings.make_versions(
            VersionsContext(
                store=store,
                tell=None if self._peers is None else self._peers.tell_traffic,
                changed=self.models.publish,
                info_of=lambda key: self.models.served[key].info,
                execute=self._inference.execute,
                scheduler=self._scheduler,
                metrics=self.metrics,
            )
        )

    def _make_parts(self, change_host: ChangeHost) -> Sequence[RouterPart]:
        parts = []
        for make in self._settings.parts:
            context = PartContext(
                inference=self.inference,
                scheduler=self._scheduler,
                dispatcher=self._dispatcher,
                take_told=self._take_told,
                is_linked=lambda replica: self._links.find(replica) is not None,
                change_host=change_host,
                changed=self._changed,
                solo_s=self._scheduler.solo_s,
                least_s=self._inference.least_s,
                registry=self.metrics.registry,
                traces=self._traces,
                versions=self.models.versions,
            )
            parts.append(part := make(context))
            self.inference = part.inference() or self.inference
        return parts

    def _show_parts(self) -> None:
        """Register the metrics, status and statistics of the parts."""
        register, administration = self.metrics.registry.register, self.administration
        for part in self._parts:
            if part.name:
                administration.add_status(part.name, part.status)
            for name, read in part.statistics().items():
                administration.add_statistics(name, read)
            for collector in part.collectors():
                register(collector)
        if (guard := self._guard) is not None:
            register(Readings(KEYS, lambda: guard))
        register(Readings(DEVICES, lambda: {k: of.warm_up for k, of in self.models.served.items()}, self.metrics.names))
        register(Readings(TURNS, lambda: self._turns))

    def _make_turns(self) -> Turns:
        settings, classes = self._settings, self._settings.classes
        urgency_of = HeadUrgency(
            {priority: limits.timeout_s for priority, limits in classes.items()},
            levels_of(model.info for model in settings.models),
            self._guard,
        )
        return Turns(self._loop, urgency_of, {priority: limits.min_share for priority, limits in classes.items()})

    def _http_app(self) -> HttpApp:
        """The HTTP application; the server in front adds the request's id itself."""
        settings = replace(self._settings.http, send_request_id=False, listener="http")
        return create_app(
            self.inference,
            self.administration,
            settings,
            allocate=self._allocate,
            guard=self._guard,
            log=self._log,
            more=[part.routes for part in self._parts],
            turns=self._turns,
        )

    def _grpc_app(self) -> GrpcApp:
        grpc = self._settings.grpc
        return GrpcApp(
            self.inference,
            self.administration,
            self.app.bodies,
            self._guard,
            self._log,
            open_administration=grpc.open_administration,
            streams=grpc.streams,
            stream_idle_s=grpc.stream_idle_s,
            typed_answers=grpc.typed_answers,
            turns=self._turns,
        )

    # ---------------------------------------------------------------- ports

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of its own for HTTP, or ``None``."""
        return address_of(self._settings.http_port, self._http_listener)

    @property
    def grpc_address(self) -> tuple[str, int] | None:
        """Host and port of its own for gRPC, or ``None``."""
        return address_of(self._settings.grpc_port, self._grpc_listener)

    async def opened(self) -> None:
        """Open its own ports, whether models can take work or not, and wait until they are open."""
        self._ports.open()
        await self._ports.opened()

    # --------------------------------------------------------------- models

    def add_model(self, model: RoutedModel) -> None:
        """Add a model. It has no replica until `on_replicas`.

        A model under the name of a removed one is new: nothing kept or measured of the other counts.

        Raises:
            ValueError: There is a model of that name.
            KeyError: There is no such shared device.
        """
        self._take(model)
        self.grpc.changed()

    def _take(self, model: RoutedModel) -> None:
        known = self.models.by_name.get(model.info.name)
        if known is not None and not (known.key and model.info.key):
            raise ValueError(f"there is a model {model.info.name!r} already")
        self._dispatcher.add_model(model.scheduling, model.pool)
        if model.pool is not None:
            self._hosts[model.pool].add_model(model.name, model.pool)
            self.metrics.names.add_member(model.name)
        self._dispatcher.learn(model.name, model.prior)
        self.models.add(model)
        self._routed[model.name] = model

    def settle_model(self, model: RoutedModel | None, name: str, told: Told | None = None) -> None:
        """Serve a model from another state of its files, with its present replicas.

        Waiting entries run on it. If it takes or gives other tensors, they are refused and may be retried; entries in
        flight are answered.

        Args:
            model: The new state; ``None``: it is unloaded.
            told: The replicas' report of this state.
        """
        before = self._routed.get(name)
        if model is None:
            if before is not None:
                self._remove(name, refusal=_rejection(unloaded_model(name)), unloaded=True)
            return
        if before is not None and model.info.revision == before.info.revision and not before.info.fault:
            return
        if before is not None and model.info.takes_as(before.info):
            self._routed[name] = model
            self.models.swap(model)
            joins = {variant: may_join(verdict) for variant, verdict in model.info.joinable.items()}
            self._dispatcher.learn(name, model.prior, joins)
        else:
            if before is not None:
                self._remove(name, refusal=_rejection(reloaded_model(name)), unloaded=True)
            self._take(model)
        if told is not None:
            self._take_told(name, told)
        logger.info("Model %s is served from revision %s now", name, model.info.revision)
        if model.pool is None:
            self.on_replicas(name, self._reports.get(name, {}))

    async def turned(self, model: str) -> None:
        """Wait until no bundle in flight names another revision of a model than the present one.

        Replicas may close those then.
        """
        while True:
            routed = self._routed.get(model)
            present = ("", "" if routed is None else routed.info.revision)
            if not any(name == model and revision not in present for name, revision in self._under_way):
                return
            self._one_ended.clear()
            await self._one_ended.wait()

    def _end_under_way(self, model: str, revision: str) -> None:
        self._under_way[model, revision] -= 1
        if not self._under_way[model, revision]:
            del self._under_way[model, revision]
            self._one_ended.set()

    def _revision_for(self, model: str, replica: str | None) -> str:
        """The revision that a bundle names; empty for a replica of another deployment, which ends soon."""
        routed = self._routed.get(model)
        report = self._reports.get(model, {}).get(replica or "")
        if routed is None or report is None or not routed.base or report.base != routed.base:
            return ""
        self._under_way[model, routed.info.revision] += 1
        return routed.info.revision

    def remove_model(self, name: str, successor: str | None = None) -> asyncio.Task[None]:
        """Remove a model.

        New requests are answered as for an unknown name. Queued entries move to the successor, or are refused with
        `ModelNotFound`; those in flight are answered. In the end its series are no longer shown.

        Args:
            successor: Another model that gets the queued entries. It must take and give the same tensors; entries for a
                variant that it does not have are refused.

        Returns:
            Ends when none of its entries is under way. Shield it from being cancelled.

        Raises:
            ModelNotFound: There is no model of one of these names.
            ValueError: It is to be its own successor.
        """
        for named in (name, *(() if successor is None else (successor,))):
            if named not in self.models.keys:
                raise unknown_model(named, self.models.by_name)
        if successor == name:
            raise ValueError(f"model {name} cannot be its own successor")
        self._reports.pop(name, None)
        return self._remove(name, successor)

    def _remove(
        self, name: str, successor: str | None = None, refusal: Rejection | None = None, *, unloaded: bool = False
    ) -> asyncio.Task[None]:
        del self._routed[name]
        served = self.models.remove(name, unloaded=unloaded)
        sent = self._dispatcher.remove_model(name, successor, refusal)
        self._links.update(name, {})  # they end when what they carry is answered
        self.grpc.changed()
        self._open_if_ready()
        task = self._loop.create_task(self._forget(name, sent, served), context=contextvars.Context())
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        return task

    async def _forget(self, name: str, *ends: Awaitable[None]) -> None:
        for end in ends:
            await end
        if name not in self.models.keys:
            self.metrics.forget(name)
            if self._caches is not None:
                self._caches.forget(name)
        if model_of(name) not in self.models.by_name:
            self.metrics.forget(model_of(name))  # what was refused before its version was known

    # -------------------------------------------------------------- traffic

    def restore_traffic(self) -> None:
        """Restore the splits set at run time, once all models are there. Reads the store: blocks."""
        if (versions := self.models.versions) is not None:
            versions.restore()
            versions.start()

    def on_traffic(self, model: str, origin: str, table: bytes) -> None:
        """Apply another router's table of traffic, as of `Peers.tell_traffic`."""
        if self.models.versions is not None:
            self.models.versions.told(model, origin, table)

    # ------------------------------------------------------------- replicas

    def on_replicas(self, model: str, replicas: Mapping[str, ReplicaReport]) -> None:
        """Replace the list of a model's replicas, by name. Its own ports open when every model has some.

        Call it in the router's event loop. Unknown models are ignored.
        """
        self._reports[model] = replicas
        if (routed := self._routed.get(model)) is None:
            return
        revision, base = routed.info.revision, routed.base
        # What one told of another revision, before it got this one, is of no use.
        telling = [report for report in replicas.values() if report.base != base or report.revision == revision]
        for report in telling:
            self._dispatcher.learn(model, report.executions)
            self.models.on_joinable(model, report.joinable)
        addresses = {name: report.address for name, report in replicas.items() if report.address is not None}
        # Those that are told which revision to run answer by no other.
        if self._caches is not None:
            self._caches.on_replicas(
                model, [report.identities for report in replicas.values() if not base or report.base != base]
            )
        if telling or not replicas:
            self.models.on_warm_up(model, telling)
        self._links.update(model, addresses)
        self._dispatcher.on_replicas(model, list(replicas))
        for name in addresses:
            if self._links.find(name) is not None:
                self._dispatcher.on_linked(model, name, linked=True)
        self.grpc.changed()
        self._open_if_ready()

    def _take_told(self, model: str, told: Told) -> None:
        """Apply a process's report of a model that it can run now."""
        if model in self._routed:
            self._dispatcher.learn(model, told.executions)
            self.models.on_joinable(model, told.joinable)
            self.models.on_warm_up(model, [told])

    # ------------------------------------------------------- shared devices

    def on_hosts(self, device: str, hosts: Mapping[str, ReplicaReport]) -> None:
        """Replace the list of a shared device's processes, by name. Otherwise as `on_replicas`."""
        addresses = {name: report.address for name, report in hosts.items() if report.address is not None}
        self._links.update(device, addresses)
        self._hosts[device].on_hosts(device, list(hosts))

    def _carry_out(self, order: Any) -> None:
        for part in self._parts:
            part.carry_out(order)

    def _changed(self) -> None:
        """Open the ports if models have become ready."""
        self.grpc.changed()
        self._open_if_ready()

    def _on_unresponsive(self, model: str, replica: str) -> None:
        if (part := self._hosts.get(model)) is not None:
            part.on_unresponsive(model, replica)
        else:
            self._dispatcher.on_unresponsive(model, replica)

    def _send(
        self, model: str, bundle: Bundle, replica: str | None, nbytes: int, done: Done
    ) -> Callable[[], object] | None:
        came = partial(self._came, model, bundle, replica, done)
        link = self._links.find(replica)
        if link is None:
            return self._by_call(model, bundle, replica, nbytes, came)
        try:
            link.send(bundle, came)
        except Exception as error:  # what cannot be encoded is these entries' fault alone
            self._loop.call_soon(came, error, context=contextvars.Context())
        return None

    def _came(
        self, model: str, bundle: Bundle, replica: str | None, done: Done, result: BundleResult | BaseException
    ) -> None:
        """Handle a bundle's result."""
        if bundle.revision:
            self._end_under_way(model, bundle.revision)
        if not isinstance(result, BaseException):
            try:
                result = self._seen(model, bundle, replica, result)
            except Exception as error:  # a bug; its entries are answered all the same
                result = error
        done(result)

    def _seen(
        self, model: str, bundle: Bundle, replica: str | None, result: BundleResult
    ) -> BundleResult | ReplicaLost:
        """Check a result. Returns `ReplicaLost` if the replica did not have the model or the revision."""
        if result.results and isinstance(first := result.results[0], Failure) and first.code == STALE.code:
            if bundle.model:
                device = self._scheduler.device_of(model)
                if device is not None and replica is not None:
                    self._hosts[device].on_missing(device, model, replica)
                return ReplicaLost(f"host {replica} has not loaded {model}", reached=False)
            if self._on_stale is not None:
                self._on_stale(model)
            return ReplicaLost(f"replica {replica} does not have revision {bundle.revision}", reached=False)
        routed = self._routed.get(model) if result.joinable is not None else None
        if result.joinable is not None and routed is not None and bundle.revision in ("", routed.info.revision):
            self.models.on_joinable(model, result.joinable)
        return result

    def _recall(self, bundle: Bundle, replica: str | None, positions: Sequence[int]) -> None:
        # What went the caller's way cannot be asked for in parts: it runs.
        if (link := self._links.find(replica)) is not None:
            link.recall(bundle, positions)

    def _on_link(self, model: str, replica: str, up: bool) -> None:
        if up:
            logger.info("Bundles for replica %s travel by a link", replica)
        if (part := self._hosts.get(model)) is not None:
            part.on_link(model, replica, up=up)
        else:
            self._dispatcher.on_linked(model, replica, linked=up)

    def _allocate(self, nbytes: int, aligned_at: int) -> memoryview:
        """Memory for a large body, readable by replicas as long as there is room."""
        before = -aligned_at % ALIGNMENT
        block = None if self._arena is None else self._arena.allocate(before + nbytes)
        return allocate(nbytes, aligned_at) if block is None else block.data[before:]

    # ------------------------------------------------------------ questions

    def check_health(self) -> None:
        """Raise RuntimeError if the scheduler has failed, or a port does not open: a new router is needed."""
        if self._dispatcher.broken:
            raise RuntimeError("the scheduler failed; its traceback is in this replica's log")
        if self._ports.fault:
            raise RuntimeError(self._ports.fault)

    def load(self, model: str) -> int:
        """Rows of a model queued and running; 0 for an unknown model."""
        return self._scheduler.load(model) if model in self._routed else 0

    def read_demand(self, model: str) -> ModelDemand:
        """What was asked of a model since the last call; nothing of an unknown model."""
        return self._dispatcher.read_demand(model)

    async def _metrics_page(self) -> str:
        own = self.metrics.render()
        if self._peers is None or self._peers.alone:
            return own
        # Also where none of them answers: series keep their labels.
        return merge_pages({**await self._peers.pages(), self._peers.own_name(): own}.items())

    def share(self, routers: int, excess: float) -> None:
        """Set the number of routers that share the work.

        Args:
            routers: This one included.
            excess: Fraction of this router's own connections that others should have, 0 to 1.
        """
        if self._guard is not None:
            self._guard.share(routers)
        if excess and self._http_listener is not None:
            self._http_listener.let_go(excess)

    # ------------------------------------------------------------------ end

    async def drain(self, limit_s: float) -> int:
        """Stop being ready, answer accepted requests, and refuse later ones. Called before the end.

        Args:
            limit_s: Longest wait, seconds.

        Returns:
            Number of requests left without an answer.
        """
        loop, until = self._loop, self._loop.time() + limit_s
        self.models.ending = True
        for part in self._parts:
            await part.stop()
        await self._close_ports(limit_s)
        left = 0
        for part in reversed(self._parts):  # while what they ask of others is still taken
            left += await part.finish(max(0.0, until - loop.time()))
        return left + await self._inference.finish(max(0.0, until - loop.time()))

    async def close(self, limit_s: float, grace_s: float = 1.0) -> None:
        """Answer requests of its own ports, and release everything. No replica changes may be reported any more.

        Args:
            limit_s: Longest wait before connections are cut.
            grace_s: Lifetime of connections without a request.
        """
        for part in self._parts:
            await part.stop()
        await self._close_ports(limit_s, grace_s)
        for part in reversed(self._parts):
            await part.close()
        if self._settings.keys is not None:
            self._settings.keys.close()
        self._links.close()
        if self._arena is not None:
            self._arena.close()
        if self._log_lines is not None:
            await asyncio.to_thread(self._log_lines.close)

    async def _close_ports(self, limit_s: float, grace_s: float = 1.0) -> None:
        if self._grpc_listener is None:
            self.grpc.close()  # else that port does it, once its clients know that they should go elsewhere
        await self._ports.close(limit_s, grace_s)


def _open_log(settings: RouterSettings, loop: asyncio.AbstractEventLoop) -> tuple[LineWriter | None, RequestLog | None]:
    if (file := settings.log_file) is None:
        return None, None
    lines = LineWriter(file.path, file.max_bytes, file.backups)
    return lines, RequestLog(settings.log, lines, loop.call_later)


def _rejection(error: ServeAppError) -> Rejection:
    return Rejection(error.code, error.message, error.retry_after_s)
