"""The router deployment: the ingress that every request goes through, and the only place where requests queue."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from serve_app.config import AppArgs, deployment_name
from serve_app.deployments.autoscaling import load_metric
from serve_app.deployments.faults import explained
from serve_app.deployments.grpc_ingress import answers_grpc
from serve_app.deployments.log import join_serve_log, request_log_file
from serve_app.deployments.model import IDENTITIES, JOINABLE, LINK, NOT_WARMED, WARM_UP
from serve_app.deployments.replica_directory import Replicas, directory
from serve_app.errors import ConfigError, InvalidRequest
from serve_app.payloads import Bundle, BundleResult, Execution, Joinable, Payload
from serve_app.processors.processor import Processor
from serve_app.protocols.body import ALIGNMENT, allocate
from serve_app.protocols.direct_ports import DirectPorts
from serve_app.protocols.grpc_app import GrpcApp
from serve_app.protocols.grpc_listener import GrpcLimits, GrpcListener
from serve_app.protocols.http import HttpSettings, create_app
from serve_app.protocols.http1 import Limits
from serve_app.protocols.listener import Listener, bind, within_open_files
from serve_app.protocols.request_log import RequestLog
from serve_app.protocols.service import Answer, ModelInfo, RequestOptions
from serve_app.protocols.tls import Certificates
from serve_app.runtime.arena import Arena
from serve_app.runtime.cache import ResponseCache
from serve_app.runtime.connection_metrics import ConnectionsCollector
from serve_app.runtime.dispatcher import Dispatcher
from serve_app.runtime.garbage import collect_seldom
from serve_app.runtime.key_metrics import KeysCollector
from serve_app.runtime.line_writer import LineWriter
from serve_app.runtime.links import Links
from serve_app.runtime.liveness import Watch
from serve_app.runtime.metrics import RouterMetrics, merge_pages
from serve_app.runtime.service import Service
from serve_app.runtime.statistics import Statistics
from serve_app.runtime.ties import TieTable
from serve_app.runtime.trail import Trails, configured_tracer
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)

_METRICS_WAIT_S = 2.0
"""How long metrics and statistics wait for the other routers, seconds."""

_OPEN_ANYWAY_S = 30.0
"""After so many seconds the direct ports are opened even if some model has no replica yet."""


@answers_grpc
class RouterDeployment:
    """One replica of the router.

    The class is not Serve's yet, so that Ray can ship it by name; `serve_app.app` makes a deployment of it.

    Args:
        config: The application's validated arguments.
        infos: Every model's description, by the model's name.
        handles: A handle to every model's deployment, by the model's name.
        priors: What batches of some models cost according to their profiles, by name. The warm-up of a replica replaces
            it.
        identities: By model and variant, of the models whose answers are kept.

    Attributes:
        grpc_app: Answers the calls that come by Serve's gRPC port.
    """

    def __init__(
        self,
        config: AppArgs,
        infos: Mapping[str, ModelInfo],
        handles: Mapping[str, DeploymentHandle[Any]],
        priors: Mapping[str, Sequence[Execution]],
        identities: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        join_serve_log()
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._model_of = {deployment_name(model): model for model in infos}
        self._node = ray.get_runtime_context().get_node_id()
        if (problem := config.haproxy_problem(os.environ)) is not None:
            logger.warning("Requests may wait in front of HAProxy, where no priority is known: %s", problem)
        self._arena = Arena(config.router.shared_memory) if Arena.supported() and config.router.shared_memory else None
        self._by_reference_above = config.router.by_reference_above
        models, groups = config.model_scheduling(), config.groups()
        scheduler = Scheduler(models.values(), config.class_settings(), config.process_limits(), groups)
        for model, prior in priors.items():
            scheduler.seed(model, prior)
        self._scheduler = scheduler
        self._metrics = RouterMetrics(scheduler)
        ties = TieTable() if Arena.supported() else None
        self._dispatcher = Dispatcher(
            scheduler, self._send, self._metrics, config.router.bundle_timeout_s, self._recall, ties
        )
        watch = Watch(
            config.router.replica_silence_s,
            config.router.replica_kill_s,
            self._dispatcher.on_silent,
            self._dispatcher.on_heard,
        )
        self._links = Links(ties, self._arena, self._on_link, watch)
        caches = config.cache_settings(identities)
        self._cache = None if caches is None else ResponseCache(caches, self._dispatcher, self._metrics)
        if self._cache is not None:
            self._cache.start()
        self._log_lines = self._request_log_writer()
        log = None
        if self._log_lines is not None:
            log = RequestLog(config.logging.settings(), self._log_lines, self._loop.call_later)
        tracer = configured_tracer()
        self._service = Service(
            models=infos,
            processors=_processors(config, infos),
            dispatcher=self._dispatcher,
            metrics=self._metrics,
            on_demand=frozenset(model.name for model in config.models if model.autoscaling.min_replicas == 0),
            metrics_page=self._metrics_page,
            scheduling=models,
            groups=groups,
            peer_statistics=self._peer_statistics,
            trails=None if log is None and tracer is None else Trails(log, tracer),
            cache=self._cache,
        )
        # `options` also makes the handle start listening for its replicas, before the first request needs them.
        self._by_value = {
            name: handle.options(
                method_name="run",
                _by_reference=False,
                request_serialization="pickle",
                response_serialization="pickle",
            )
            for name, handle in handles.items()
        }
        self._by_reference = {
            name: handle.options(method_name="run", _by_reference=True) for name, handle in handles.items()
        }
        router = config.router
        settings = HttpSettings(
            max_body=router.max_body,
            max_held_bytes=max(router.max_body, router.max_bytes // 2),
            inline_bytes=router.decode_aside_above,
            decode_threads=router.decode_threads,
            in_place_bytes=router.shared_memory // 2,  # the other half is for what has arrived
            send_request_id=False,  # Serve adds its own
            open_administration=router.open_administration,
            door="http",
        )
        self._keys = router.watched_keys(config.classes.levels())
        self._guard = None if self._keys is None else self._keys.guard
        if self._keys is not None:
            self._metrics.registry.register(KeysCollector(self._keys.guard))
            self._keys.start()
        self._app = create_app(self._service, settings, allocate=self._allocate, guard=self._guard, log=log)
        self.grpc_app = GrpcApp(
            self._service,
            self._app.bodies,
            self._guard,
            log,
            open_administration=router.open_administration,
            streams=router.grpc_streams,
            stream_idle_s=router.grpc_stream_idle_s,
            typed_answers=router.grpc_outputs == "as_inputs",
        )
        listeners = self._listener(settings, log), self._grpc_listener()
        self._direct = DirectPorts([each for each in listeners if each is not None])
        self._loop.call_later(_OPEN_ANYWAY_S, self._direct.open)
        directory.subscribe(self._on_replicas)
        collect_seldom()
        # Serve awaits this before it ends the router. On the instance, and not on the class: Python must not call it.
        self.__del__ = self._stop

    def _request_log_writer(self) -> LineWriter | None:
        """What writes the request log, if there is to be one and a place for it."""
        config = self._config.logging
        file = request_log_file(config.place(), _own_name) if config.requests else None
        return None if file is None else LineWriter(file, int(config.max_bytes), config.files - 1)

    def _listener(self, settings: HttpSettings, log: RequestLog | None) -> Listener | None:
        """Take the direct port. It is opened when the models can take work: other routers may be serving on it."""
        router = self._config.router
        if router.direct_port is None:
            return None
        try:
            sock = bind(router.direct_host, router.direct_port)
        except OSError as error:
            raise _cannot_listen("direct_port", router.direct_host, router.direct_port, error) from error
        direct = replace(settings, send_request_id=True, door="direct-http")
        app = create_app(self._service, direct, self._app.bodies, guard=self._guard, log=log)
        limits = Limits(
            connections=within_open_files(
                router.connections, 0 if router.direct_grpc_port is None else router.grpc_connections
            ),
            connections_per_client=router.connections_per_client,
            requests=self._config.ongoing_requests,
        )
        listener = Listener(app, sock, limits, self._certificates("http/1.1"))
        self._metrics.registry.register(ConnectionsCollector(listener))
        return listener

    def _certificates(self, alpn: str) -> Certificates | None:
        if self._config.router.tls is None:
            return None
        problems = self._config.tls_problems()
        if problems:
            raise ConfigError(problems)
        return Certificates(self._config.router.tls.files(), alpn)

    def _grpc_listener(self) -> GrpcListener | None:
        """As `_listener`, for gRPC."""
        router = self._config.router
        if router.direct_grpc_port is None:
            return None
        limits = GrpcLimits(
            max_message=router.max_body,
            calls=self._config.ongoing_requests,
            connections=within_open_files(
                router.grpc_connections, 0 if router.direct_port is None else router.connections
            ),
            arriving=max(16, 2 * router.max_bytes // router.max_body),
            keepalive_s=router.grpc_keepalive_s,
            client_ping_s=router.grpc_client_ping_s,
        )
        try:
            return GrpcListener(
                self.grpc_app, router.direct_host, router.direct_grpc_port, limits, self._certificates("h2")
            )
        except OSError as error:
            raise _cannot_listen("direct_grpc_port", router.direct_host, router.direct_grpc_port, error) from error

    async def _stop(self) -> None:
        """Answer what came by the direct ports, of which Serve knows nothing, and end the links."""
        await self._close_direct(self._config.router.drain_timeout_s)
        if self._keys is not None:
            self._keys.close()
        self._links.close()
        if self._cache is not None:
            await self._cache.close()
        if self._log_lines is not None:
            await asyncio.to_thread(self._log_lines.close)

    async def drain(self, limit_s: float) -> int:
        """Be ready no more, answer what was accepted, and refuse what comes after that. Called when all is to end.

        Args:
            limit_s: After so many seconds, what is not answered is left to its fate.

        Returns:
            How many requests that is.
        """
        loop, until = self._loop, self._loop.time() + limit_s
        self._service.stop_being_ready()
        await self._close_direct(limit_s)
        return await self._service.finish(max(0.0, until - loop.time()))

    async def _close_direct(self, limit_s: float) -> None:
        if self._config.router.direct_grpc_port is None:
            self.grpc_app.close()  # else that port does it, once its clients know that they should go elsewhere
        await self._direct.close(limit_s)

    def __serve_build_asgi_app__(self) -> Any:
        """Give the HTTP application. Called by Serve after ``__init__``."""
        app = self._app

        async def ingress(scope: Any, receive: Any, send: Any) -> None:
            # Serve takes a plain function for an ASGI application; an object it would look at more closely.
            await app(scope, receive, send)

        return ingress

    async def infer(
        self,
        model: str,
        payload: Payload,
        priority: str = "normal",
        timeout_ms: float | None = None,
        variant: str = "",
        fallback: bool = True,
        cacheable: bool = True,
    ) -> Answer:
        """Answer a request of another Serve application: the same queue and promises as over HTTP, and no API key.

        Args:
            model: Name of the model.
            payload: Tensors by name, or `serve_app.payloads.Media` or `Texts`.
            priority: ``high``, ``normal`` or ``low``.
            timeout_ms: Deadline, milliseconds from now; ``None`` for the class's default.
            variant: Name of the model's variant to run; empty for the exact model.
            fallback: Whether one of the model's fallbacks may answer where the exact model would be too late.
            cacheable: Whether the answer may come from, and go to, the response cache.

        Raises:
            ServeAppError: As `serve_app.errors` says.
        """
        try:
            priority_class = Priority[priority.upper()]
        except KeyError:
            raise InvalidRequest(f"priority is {priority!r}; expected high, normal or low") from None
        if variant and variant not in self._service.find(model).variants:
            raise InvalidRequest(f"model {model!r} has no variant {variant[:64]!r}")
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        options = RequestOptions(priority_class, timeout_s, variant=variant, fallback=fallback, cacheable=cacheable)
        return await self._service.submit(model, payload, options)

    def check_health(self) -> None:
        """Fail when the scheduler has, or a direct port does not open: Serve then replaces this router."""
        if self._dispatcher.broken:
            raise RuntimeError("the scheduler failed; its traceback is in this replica's log")
        if self._direct.fault:
            raise RuntimeError(self._direct.fault)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Rows queued and running per model, for the application's autoscaling policy."""
        return {load_metric(model.deployment): float(self._scheduler.load(model.name)) for model in self._config.models}

    async def render_metrics(self) -> tuple[str, str]:
        """This router's name and its page of metrics."""
        return serve.get_replica_context().replica_id.unique_id, self._metrics.render()

    async def own_statistics(self) -> tuple[str, dict[str, Statistics]]:
        """This router's name and the statistics of its models."""
        statistics = {model: self._service.statistics(model) for model in self._service.models}
        return serve.get_replica_context().replica_id.unique_id, statistics

    async def _metrics_page(self) -> str:
        name, own = await self.render_metrics()
        if self._config.router.replicas == 1:
            return own
        return merge_pages({**await self._others("render_metrics"), name: own}.items())

    async def _peer_statistics(self) -> Sequence[Mapping[str, Statistics]]:
        return [] if self._config.router.replicas == 1 else list((await self._others("own_statistics")).values())

    async def _others(self, method: str) -> dict[str, Any]:
        """What the other routers answer to a method that gives a router's name and something of it, by that name."""
        context = serve.get_replica_context()
        peers = serve.get_deployment_handle(context.deployment, context.app_name)
        try:
            answers = await peers.broadcast(method).results_async(timeout_s=_METRICS_WAIT_S, return_exceptions=True)
        except TimeoutError:
            answers = []
        # A router that is starting, stopping or stuck is left out, and what is made of it shows a gap.
        others = dict(answer for answer in answers if not isinstance(answer, BaseException))
        others.pop(context.replica_id.unique_id, None)
        return others

    async def _send(self, model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:
        result: BundleResult
        if (link := self._links.find(replica)) is not None:
            result = await link.call(bundle)
        else:
            handles = self._by_reference if nbytes > self._by_reference_above else self._by_value
            result = await explained(lambda: handles[model].remote(bundle, replica=replica), model, replica)
        if result.joinable is not None:
            self._service.on_joinable(model, result.joinable)
        return result

    def _recall(self, bundle: Bundle, replica: str | None, positions: Sequence[int]) -> None:
        # A call by Serve's handle cannot be asked for a part of it: what it carries runs.
        if (link := self._links.find(replica)) is not None:
            link.recall(bundle, positions)

    def _allocate(self, nbytes: int, aligned_at: int) -> memoryview:
        """Memory for a large body: where replicas can read it, as long as there is room."""
        before = -aligned_at % ALIGNMENT
        block = None if self._arena is None else self._arena.allocate(before + nbytes)
        return allocate(nbytes, aligned_at) if block is None else block.data[before:]

    def _on_link(self, model: str, replica: str, up: bool) -> None:
        if up:
            logger.info("Bundles for replica %s travel by a link", replica)
        self._dispatcher.on_linked(model, replica, linked=up)

    def _on_replicas(self, deployment: str, replicas: Replicas) -> None:
        # May come from the handle's own thread.
        if (model := self._model_of.get(deployment)) is not None:
            self._loop.call_soon_threadsafe(self._take_replicas, model, replicas)

    def _take_replicas(self, model: str, replicas: Replicas) -> None:
        addresses: dict[str, str] = {}
        for replica, metadata in replicas.items():
            self._scheduler.seed(model, (Execution(*point) for point in metadata.get(WARM_UP, ())))
            verdicts = metadata.get(JOINABLE, {})
            self._service.on_joinable(model, {variant: Joinable(*told) for variant, told in verdicts.items()})
            node, address = metadata.get(LINK, (None, None))
            if node == self._node:
                addresses[replica] = address
        if self._cache is not None:
            self._cache.on_replicas(model, [metadata.get(IDENTITIES, {}) for metadata in replicas.values()])
        self._service.on_warm_up(model, [metadata.get(NOT_WARMED) for metadata in replicas.values()])
        self._links.update(model, addresses)
        self._dispatcher.on_replicas(model, list(replicas))
        for replica in addresses:
            if self._links.find(replica) is not None:
                self._dispatcher.on_linked(model, replica, linked=True)
        self.grpc_app.changed()
        if self._service.ready():
            self._direct.open()


def _own_name() -> str:
    context = serve.get_replica_context()
    return f"{context.app_name}_{context.deployment}_{context.replica_id.unique_id}"


def _cannot_listen(setting: str, host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError((f"args.router.{setting}: cannot listen on {host}:{port}: {error}",))


def _processors(config: AppArgs, infos: Mapping[str, ModelInfo]) -> dict[str, Processor]:
    """The processor of every model that takes media: here they only price requests."""
    processors: dict[str, Processor] = {}
    for model in config.models:
        if model.processor is not None:
            processor = model.make_processor(infos[model.name].signature, model.locations()[""])
            assert processor is not None
            processors[model.name] = processor
    return processors
