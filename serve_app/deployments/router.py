"""The router deployment: the ingress that every request goes through, and the only place where requests queue."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import ray
from msgspec.structs import replace
from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from serve_app import wings
from serve_app.composition import router_settings
from serve_app.composition.keeper import Keeper
from serve_app.composition.look import look_at
from serve_app.config.args import AppArgs
from serve_app.config.names import ROUTER, deployment_name
from serve_app.deployments.autoscaling import (
    BUSY,
    CORES,
    IDLE_CORES,
    demand_metrics,
    load_metrics,
    need_metrics,
)
from serve_app.deployments.garbage import tune_garbage_collection
from serve_app.deployments.grpc_ingress import answers_grpc
from serve_app.deployments.log import join_serve_log, request_log_file
from serve_app.deployments.model import BASE, COMPUTE, IDENTITIES, JOINABLE, LINK, NOT_WARMED, REVISION, WARM_UP
from serve_app.deployments.ray_errors import translate_error, translate_errors
from serve_app.deployments.register import ClusterRegister, read_sizings
from serve_app.deployments.replica_directory import Replicas, directory
from serve_app.domain.agreed import Agreed, Told
from serve_app.domain.hosting import LoadOutcome, Owner
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.domain.versions import Asker
from serve_app.errors import ConfigError, InvalidRequest, ModelUnavailable
from serve_app.payloads import Bundle, BundleResult, Compute, Execution, Joinable, Payload
from serve_app.replica.cores import CoreMeter, available_cores
from serve_app.router.repository import RENEW_S, Repository
from serve_app.router.router import Router
from serve_app.router.settings import ReplicaReport
from serve_app.router.siblings import Siblings
from serve_app.router.watch import Watcher
from serve_app.telemetry.statistics import Statistics
from serve_app.transport.send import ReplicaLost

logger = logging.getLogger(__name__)

_RETRY_EVERY = 12
"""Every so many health checks a router tries again to serve what it could not read."""

_SIZINGS_EVERY = 5
"""Every so many reports a router reads why models have as many replicas as they have."""

_METRICS_WAIT_S = 2.0
"""How long metrics and statistics wait for the other routers, seconds."""

_SETTLE_S = 60.0
"""How long routers and replicas may take to turn to what is agreed on, seconds. The answers of what was served before
are waited for."""


@answers_grpc
class RouterDeployment:
    """One replica of the router: a `Router` as Ray Serve runs it.

    The class is not Serve's yet, so that Ray can ship it by name; `serve_app.app` makes a deployment of it.

    Args:
        config: The application's validated arguments.
        infos: Every model's description, by the model's name.
        handles: A handle to every deployment, by the name of the model or the pool.
        priors: What batches of some models cost according to their profiles, by name. The warm-up of a replica replaces
            it.
        identities: By model and variant, of the models whose answers are kept.
        deployed: By model, the revision that it is deployed with.

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
        deployed: Mapping[str, Agreed] = MappingProxyType({}),
    ) -> None:
        join_serve_log()
        self._loop = asyncio.get_running_loop()
        self._models = {model.name: model.deployment for model in config.models if model.pool is None}
        self._follow_demand = frozenset(model.name for model in config.models if model.autoscaling.follows_demand)
        self._pools = frozenset(model.pool for model in config.models if model.pool is not None)
        self._handle_of = {model.name: model.pool or model.name for model in config.models}
        self._model_of = {deployment_name(name): name for name in (*self._models, *self._pools)}
        self._node, self._needs = ray.get_runtime_context().get_node_id(), _needs(config)
        self._drain_timeout_s = config.router.drain_timeout_s
        self._by_reference_above = config.router.transport.by_reference_above
        if (problem := config.haproxy_problem(os.environ)) is not None:
            logger.warning("Requests may queue in front of HAProxy, where priorities have no effect: %s", problem)
        # `options` also makes the handle start listening for its replicas, before the first request needs them.
        self._by_value = {name: _by_value(handle, "run") for name, handle in handles.items()}
        self._by_reference = {
            name: handle.options(method_name="run", _by_reference=True) for name, handle in handles.items()
        }
        self._changes = {pool: _by_value(handles[pool], "change") for pool in self._pools}
        log_file = request_log_file(config.logging.place(), _log_name) if config.logging.requests else None
        register = ClusterRegister({model: agreed.revision for model, agreed in deployed.items()})
        # A member of a pool stays as it was deployed.
        changed = _changed({model: agreed for model, agreed in deployed.items() if model in self._models}, register)
        settings = router_settings(
            config, infos, priors=priors, identities=identities, log_file=log_file, deployed=deployed, changed=changed
        )
        faults = tuple(model.info.fault for model in settings.models if model.info.fault)
        if faults and not register.was_routed():  # the first router of a deployment: whoever deploys is to see them
            raise ConfigError(faults)
        self._peers = peers = None if config.most_routers() == 1 else _Peers(config.router.fewest, self._node)
        self._meter, self._threads = CoreMeter(), 1 + config.router.transport.decode_threads
        self._tells: set[asyncio.Task[None]] = set()
        fleet = _Fleet(config, handles, lambda: self._keeper, peers)
        repository = Repository(fleet, register, deployed)
        self._router = Router(
            settings,
            self._call,
            peers,
            next((make(_own_application) for make in wings.hooks("deployment", "version_store")), None),
            loading=repository,
            change_host=self._change_host,
            on_stale=self._on_stale,
        )
        self._router.start()
        self._router.restore_traffic()  # while all versions are there: tables belong to those that were deployed
        self._keeper = Keeper(config, self._router, register, deployed)
        self._resumed: list[asyncio.Task[None]] = []
        for model, agreed in changed.items():
            self._keeper.begin(model, agreed)
            self._resumed.append(self._loop.create_task(repository.resume(model)))
        if deployed:
            register.note_routed()
        self._router.administration.add_status("scaling", self._scaling)
        self._checks, self._reports, self._sizings = itertools.count(1), itertools.count(), ""
        self.grpc_app = self._router.grpc
        self._watcher = self._watch(config, repository) if config.repository.watch else None
        directory.subscribe(self._on_replicas)
        tune_garbage_collection()
        # Serve awaits this before it ends the router. On the instance, and not on the class: Python must not call it.
        self.__del__ = self._stop

    def _watch(self, config: AppArgs, repository: Repository) -> Watcher:
        """Load models whose files change."""
        models = {model.name: model for model in config.models}
        watcher = Watcher(
            repository,
            lambda model: asyncio.to_thread(look_at, models[model]),
            lambda: [key for key in self._router.models.keys if key in self._models],
            config.repository.interval_s,
            _is_first,
        )
        watcher.start()
        return watcher

    async def _stop(self) -> None:
        """Answer what came by the direct ports, of which Serve knows nothing, and end the links."""
        if self._watcher is not None:
            self._watcher.close()
        await self._router.close(self._drain_timeout_s)

    async def drain(self, limit_s: float) -> int:
        """See `Router.drain`."""
        return await self._router.drain(limit_s)

    def _scaling(self) -> Mapping[str, Any] | None:
        """Why models have as many replicas as they have, by deployment."""
        return json.loads(self._sizings) if self._sizings else None

    def __serve_build_asgi_app__(self) -> Any:
        """Give the HTTP application. Called by Serve after ``__init__``."""
        app = self._router.app

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
        version: str = "",
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
            version: The version to run, or an alias; empty: whichever answers requests that name none.

        Raises:
            ServeAppError: As `serve_app.errors` says.
        """
        service = self._router.inference
        try:
            priority_class = Priority[priority.upper()]
        except KeyError:
            raise InvalidRequest(f"priority is {priority!r}; expected high, normal or low") from None
        info = service.find(model, version or None)
        if info.key and not version:
            info = service.choose(model, Asker())
        if variant and variant not in info.variants:
            raise InvalidRequest(f"model {model!r} has no variant {variant[:64]!r}")
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        options = RequestOptions(priority_class, timeout_s, variant=variant, fallback=fallback, cacheable=cacheable)
        return await service.submit(info.key or info.name, payload, options)

    def check_health(self) -> None:
        """Fail when the scheduler has, or a direct port does not open: Serve then replaces this router."""
        if next(self._checks) % _RETRY_EVERY == 0:
            self._loop.call_soon_threadsafe(self._keeper.retry)
        self._router.check_health()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The demand for each model and how busy this process is, for the application's autoscaling policy."""
        busy, idle = self._meter.read(self._threads)
        if (peers := self._peers) is not None:
            now = self._loop.time()
            self._router.share(peers.siblings.number(now), peers.siblings.excess(busy, now))
            if peers.siblings.tells(now):
                self._tells.add(task := self._loop.create_task(peers.tell_busy(busy)))
                task.add_done_callback(self._tells.discard)
        reported = {BUSY: busy, IDLE_CORES: idle, CORES: float(available_cores()), **self._needs}
        for model, deployment in self._models.items():
            demand = self._router.read_demand(model)
            if model in self._follow_demand:
                reported |= demand_metrics(deployment, demand)
            else:
                reported |= load_metrics(deployment, self._router.load(model), demand)
        if self._follow_demand and next(self._reports) % _SIZINGS_EVERY == 0:
            self._sizings = await asyncio.to_thread(read_sizings)
        return reported

    async def on_busy(self, origin: str, node: str, busy: float) -> tuple[str, None]:
        """Take what another router tells about itself. Gives this router's name."""
        if self._peers is not None and origin != _own_name():
            self._peers.siblings.hear(origin, node, busy, self._loop.time())
        return _own_name(), None

    async def render_metrics(self) -> tuple[str, str]:
        """This router's name and its page of metrics."""
        return _own_name(), self._router.metrics.render()

    async def own_statistics(self) -> tuple[str, dict[str, Statistics]]:
        """This router's name and the statistics of its models."""
        return _own_name(), self._router.administration.all_statistics()

    async def on_traffic(self, model: str, origin: str, table: bytes) -> tuple[str, None]:
        """Take what another router tells of the traffic of a model. Gives this router's name."""
        self._router.on_traffic(model, origin, table)
        return _own_name(), None

    async def prepare_model(self, model: str, agreed: Agreed) -> None:
        """See `Keeper.prepare`."""
        await self._keeper.prepare(model, agreed)

    async def settle_model(self, model: str) -> None:
        """See `Keeper.settle`."""
        await self._keeper.settle(model)

    def _on_stale(self, model: str) -> None:
        self._keeper.catch_up(model)

    async def _call(self, model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:
        """The way of a bundle to a replica without a link: by Serve's handle."""
        handles = self._by_reference if nbytes > self._by_reference_above else self._by_value
        handle = handles[self._handle_of[model]]
        sent = bundle if bundle.parts is None else replace(bundle, parts=None)  # they come together, with the result
        result: BundleResult = await translate_errors(lambda: handle.remote(sent, replica=replica), model, replica)
        return result

    async def _change_host(
        self, pool: str, host: str, owner: Owner, evicted: Sequence[str], load: str, urgent: bool
    ) -> LoadOutcome:
        """The way of orders to a host of a pool."""
        handle = self._changes[pool]
        outcome: LoadOutcome = await translate_errors(
            lambda: handle.remote(owner, list(evicted), load, urgent, replica=host), pool, host
        )
        return outcome

    def _on_replicas(self, deployment: str, replicas: Replicas) -> None:
        # May come from the handle's own thread.
        if (model := self._model_of.get(deployment)) is not None:
            self._loop.call_soon_threadsafe(self._take_replicas, model, replicas)

    def _take_replicas(self, model: str, replicas: Replicas) -> None:
        reports = {replica: self._report(told) for replica, told in replicas.items()}
        if model in self._pools:
            self._router.on_hosts(model, reports)
        else:
            self._router.on_replicas(model, reports)

    def _report(self, metadata: Mapping[str, Any]) -> ReplicaReport:
        node, address = metadata.get(LINK, (None, None))
        return ReplicaReport(
            executions=[Execution(*point) for point in metadata.get(WARM_UP, ())],
            joinable={variant: Joinable(*told) for variant, told in metadata.get(JOINABLE, {}).items()},
            not_warmed=metadata.get(NOT_WARMED),
            identities=metadata.get(IDENTITIES, {}),
            address=address if node == self._node else None,
            base=metadata.get(BASE, ""),
            revision=metadata.get(REVISION, ""),
            compute=Compute(*metadata[COMPUTE]) if COMPUTE in metadata else None,
        )


class _Peers:
    """The other replicas of this deployment; see `serve_app.router.router.Peers`.

    Args:
        fewest: How many routers there are at least.
        node: That of this router.
    """

    def __init__(self, fewest: int, node: str) -> None:
        self._node = node
        self.siblings = Siblings(fewest, node)

    @property
    def alone(self) -> bool:
        """See the class."""
        return self.siblings.number(asyncio.get_running_loop().time()) == 1

    async def tell_busy(self, busy: float) -> None:
        """Tell all routers how busy this one is, 0 to 1. Who does not hear it hears the next."""
        await self._broadcast("on_busy", _own_name(), self._node, busy)

    def own_name(self) -> str:
        """See the class."""
        return _own_name()

    async def pages(self) -> Mapping[str, str]:
        """See the class."""
        return await self._ask("render_metrics")

    async def statistics(self) -> Sequence[Mapping[str, Statistics]]:
        """See the class."""
        return list((await self._ask("own_statistics")).values())

    async def tell_traffic(self, model: str, origin: str, table: bytes) -> None:
        """See the class. Who does not hear it looks for it later."""
        await self._ask("on_traffic", model, origin, table)

    async def change(self, method: str, *args: Any, limit_s: float) -> None:
        """Call a method of all routers, this one included. Raises what one raises, or `ModelUnavailable` in time."""
        _answers(await _ask_all(_routers(), method, *args, limit_s=limit_s), method)

    async def _ask(self, method: str, *args: Any) -> dict[str, Any]:
        """As `_broadcast`; nobody is asked where no other router is known."""
        return {} if self.alone else await self._broadcast(method, *args)

    async def _broadcast(self, method: str, *args: Any) -> dict[str, Any]:
        """What the other routers answer to a method that gives a router's name and something of it, by that name."""
        try:
            answers = (
                await _routers()
                .broadcast(method, *args)
                .results_async(timeout_s=_METRICS_WAIT_S, return_exceptions=True)
            )
        except (TimeoutError, DeploymentUnavailableError):
            answers = []
        # A router that is starting, stopping or stuck is left out, and what is made of it shows a gap.
        others = dict(answer for answer in answers if not isinstance(answer, BaseException))
        others.pop(_own_name(), None)
        return others


class _Fleet:
    """The routers and replicas of this application; see `serve_app.router.repository.Fleet`.

    Args:
        config: The application's arguments.
        handles: A handle to every model's deployment, by the model's name.
        keeper: Keeps this router to what is agreed on.
        peers: All routers; ``None``: there is this one only.
    """

    def __init__(
        self,
        config: AppArgs,
        handles: Mapping[str, DeploymentHandle[Any]],
        keeper: Callable[[], Keeper],
        peers: _Peers | None,
    ) -> None:
        self._limit_s = config.repository.load_timeout_s
        self._always_there = {model.name for model in config.models if model.autoscaling.min_replicas}
        self._handles = handles
        self._keeper = keeper
        self._peers = peers

    async def find(self, model: str) -> Agreed:
        """See the class."""
        return await self._keeper().find(model)

    async def prepare(self, model: str, found: Agreed, claim: str) -> Sequence[Told]:
        """See the class."""
        if self._peers is None:
            await self._keeper().prepare(model, found)
        else:
            await self._peers.change("prepare_model", model, found, limit_s=self._limit_s)
        asked = (self._handles[model], "prepare", found.revision, found.version, claim)
        answers = await _ask_all(*asked, limit_s=self._limit_s)
        told: list[Told] = _answers(answers, model)
        if not told and (answers or model in self._always_there):
            # What may have killed them must not be what their successors start with.
            raise ModelUnavailable(f"model {model}: no replica is there that has loaded it, or all have died", 1.0)
        return told

    async def renew(self, model: str, claim: str) -> None:
        """See the class."""
        await _ask_all(self._handles[model], "renew", claim, limit_s=RENEW_S)

    async def settle_routers(self, model: str) -> None:
        """See the class."""
        if self._peers is None:
            await self._keeper().settle(model)
        else:
            await self._peers.change("settle_model", model, limit_s=_SETTLE_S)

    async def settle_replicas(self, model: str, given_up: str | None = None) -> int:
        """See the class. Those count that are there when it is asked, and have not died before they could answer."""
        return len(_answers(await _ask_all(self._handles[model], "settle", given_up, limit_s=_SETTLE_S), model))


def _needs(config: AppArgs) -> dict[str, float]:
    """What replicas of each deployment need, as metrics."""
    found = need_metrics(ROUTER, config.router.cpus)
    for model in config.models:
        if model.pool is None:
            found |= need_metrics(model.deployment, model.resources.cpus, model.resources.gpus)
    for pool in config.pools:
        found |= need_metrics(deployment_name(pool.name), pool.cpus)
    return found


def _answers(answers: Sequence[Any], what: str) -> list[Any]:
    """What was answered, without those who have died. Raises what another has raised."""
    found = []
    for answer in answers:
        if not isinstance(answer, BaseException):
            found.append(answer)
        elif isinstance(answer, Exception) and not isinstance(
            error := translate_error(answer, what, None), ReplicaLost
        ):
            raise error
    return found


async def _ask_all(handle: DeploymentHandle[Any], method: str, *args: Any, limit_s: float) -> list[Any]:
    """What all replicas of a deployment answer, or raise; nothing where there are none.

    Raises:
        ModelUnavailable: One has not answered in time.
    """
    try:
        answers: list[Any] = await handle.broadcast(method, *args).results_async(
            timeout_s=limit_s, return_exceptions=True
        )
    except DeploymentUnavailableError:
        return []
    except TimeoutError:
        raise ModelUnavailable(
            f"not all replicas of {handle.deployment_name} have answered within {limit_s:g} s"
        ) from None
    return answers


def _routers() -> DeploymentHandle[Any]:
    context = serve.get_replica_context()
    return serve.get_deployment_handle(context.deployment, context.app_name)


def _own_name() -> str:
    return str(serve.get_replica_context().replica_id.unique_id)


def _own_application() -> str:
    return str(serve.get_replica_context().app_name)


def _is_first() -> bool:
    """Whether this is the router that does what one does for all: Serve ranks them, anew when one is replaced."""
    rank = serve.get_replica_context().rank
    return rank is None or rank.rank == 0


def _log_name() -> str:
    context = serve.get_replica_context()
    return f"{context.app_name}_{context.deployment}_{context.replica_id.unique_id}"


def _by_value(handle: DeploymentHandle[Any], method: str) -> DeploymentHandle[Any]:
    """A handle whose arguments and answers travel in the call."""
    return handle.options(
        method_name=method, _by_reference=False, request_serialization="pickle", response_serialization="pickle"
    )


def _changed(deployed: Mapping[str, Agreed], register: ClusterRegister) -> dict[str, Agreed]:
    """Models of which another revision was agreed on than the deployed one."""
    agreed = {model: register.read_now(model) for model in deployed}
    return {
        model: found
        for model, found in agreed.items()
        if found is not None and found.revision != deployed[model].revision
    }
