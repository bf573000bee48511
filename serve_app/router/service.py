"""The service behind every protocol: looks models up, prices requests, and hands them to the dispatcher."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from math import inf
from time import monotonic
from types import MappingProxyType
from typing import Any, Protocol

from msgspec.structs import replace

from serve_app.domain.agreed import Told
from serve_app.domain.service import (
    Answer,
    Loaded,
    ModelInfo,
    RequestOptions,
    reloaded_model,
    unknown_model,
    unknown_version,
    unloaded_model,
)
from serve_app.domain.traffic import Asker, Table, TableChange, Traffic, described, model_of, newest_last
from serve_app.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    ServeAppError,
    Unsupported,
)
from serve_app.payloads import PROVEN, UNVERIFIED, Joinable, Payload, StreamLimits, payload_bytes
from serve_app.router.cache.response_cache import ResponseCache
from serve_app.router.dispatcher import Dispatcher, Work, refused
from serve_app.router.in_work import InWork, shutting_down
from serve_app.router.lateness import DEFAULT_EXECUTIONS, default_timeout_s, read_too_long
from serve_app.router.parts import PartQueue, Streams
from serve_app.router.served import Served, care_of, cost_of, informed, may_join
from serve_app.router.settings import ReplicaReport, RoutedModel, StreamSettings
from serve_app.router.shadow import SHADOW_TENANT, SHADOW_WEIGHT, Shadows
from serve_app.router.traffic import Tell, TrafficStore, TrafficTables, Versions
from serve_app.scheduling.entry import EXACT_ONLY, Entry, Priority
from serve_app.telemetry.metrics import CONTENT_TYPE, RouterMetrics
from serve_app.telemetry.statistics import Statistics, describe, total
from serve_app.telemetry.trace import RequestTrace, RequestTraces, origin_of
from serve_app.telemetry.traffic_metrics import TrafficReading

_NORMAL = Priority.NORMAL
_NOTHING_KNOWN = Joinable(PROVEN, "")
_WITHOUT_WORK = frozenset({"hit", "shared"})
"""What `Answer.cache` says of answers that were not executed for the request that got them."""


class Loading(Protocol):
    """Loads and unloads models, in all routers and replicas; see `InferenceService`."""

    async def load(self, model: str) -> Loaded:
        """See `InferenceService.load`."""

    async def unload(self, model: str) -> Loaded:
        """See `InferenceService.unload`."""


class Service:
    """Implements `serve_app.domain.service.InferenceService` over one dispatcher.

    Args:
        dispatcher: Runs entries.
        metrics: What the dispatcher's observer counted.
        metrics_page: Renders the metrics of all routers.
        peer_statistics: Asks every other router for its statistics: those of its models, by name.
        traces: Follow every request, for the log and for traces.
        cache: Answers what was asked before; ``None``: no model has one.
        traffic_store: Keeps how requests are spread over versions; ``None``: it lasts as long as this service.
        tell_traffic: Tells every other router how; ``None``: there are none.
        repository: Loads and unloads models; ``None``: they stay as they are.
        load_faults: By member of a pool, why its last load failed; without those that did not.
        streams: How much of answers in parts may wait for their readers; ``None``: the defaults.

    Attributes:
        tables: The models that are served in several versions.
    """

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        metrics_page: Callable[[], Awaitable[str]],
        peer_statistics: Callable[[], Awaitable[Sequence[Mapping[str, Statistics]]]] | None = None,
        traces: RequestTraces | None = None,
        cache: ResponseCache | None = None,
        traffic_store: TrafficStore | None = None,
        tell_traffic: Tell | None = None,
        repository: Loading | None = None,
        load_faults: Mapping[str, str] = MappingProxyType({}),
        streams: StreamSettings | None = None,
    ) -> None:
        streams = streams or StreamSettings()
        self._streams = Streams(streams.all_bytes)
        self._stream_limits = StreamLimits(inf, streams.parts, streams.nbytes, streams.reader_s)
        self._repository = repository
        self._load_faults = load_faults
        self._unloaded: dict[str, ModelInfo] = {}
        self._models: dict[str, ModelInfo] = {}
        self._served: dict[str, Served] = {}
        self._unverified: set[str] = set()  # of which a build's requests share runs without proof
        self._dispatcher = dispatcher
        self._scheduler = dispatcher.scheduler
        self._metrics = metrics
        self._metrics_page = metrics_page
        self._peer_statistics = peer_statistics or _no_peers
        self._cache = cache
        self._traces = traces
        self.tables = TrafficTables(traffic_store, tell_traffic, self._publish)
        self._shadows = Shadows(self._has_room, self._submit, metrics.shadowed)
        self._more_status: dict[str, Callable[[], Any]] = {}
        self._in_work = InWork()
        self._ending = False  # not ready any more, though what comes is still answered

    def add_status(self, name: str, read: Callable[[], Any]) -> None:
        """Show something more in `status`, under a name of its own."""
        self._more_status[name] = read

    def add_model(self, model: RoutedModel) -> None:
        """Serve one more model, or one more version of one. The dispatcher must know it."""
        cache = None if self._cache is None or model.cache is None else self._cache.add_model(model.name, model.cache)
        info, versions = model.info, None
        if info.key:
            versions = self.tables.add(info.name, info.version, info.key, model.traffic or Traffic())
        self._served[model.name] = Served(model, cache, versions)
        self._unloaded.pop(model.name, None)
        self._show(self._served[model.name])

    def swap_model(self, model: RoutedModel) -> None:
        """Serve another state of a model's files, of which `ModelInfo.takes_as` holds. What waits is answered by it."""
        served = self._served[model.name]
        if self._cache is not None and model.cache is not None:
            self._cache.remove_model(model.name)
            served.cache = self._cache.add_model(model.name, model.cache)
        served.take(model)
        self._show(served)

    def _show(self, served: Served) -> None:
        """Have `models` show what is known of a model now."""
        if served.versions is None:
            self._models[served.info.name] = served.info
        else:
            self._publish(served.versions)
        key, verdicts = served.info.key or served.info.name, served.info.joinable.values()
        if any(verdict.verdict == UNVERIFIED for verdict in verdicts):
            self._unverified.add(key)
        else:
            self._unverified.discard(key)

    def remove_model(self, model: str, *, unloaded: bool = False) -> Awaitable[None]:
        """Serve a model, or a version of one, no more.

        Args:
            model: Its name.
            unloaded: Whether it can be loaded again, so that its name is still known.

        Returns:
            Waits until its requests have ended.

        Raises:
            ModelNotFound: No such model.
        """
        if model not in self._served:
            raise self._unknown(model)
        served = self._served.pop(model)
        info = served.info
        if unloaded:
            self._unloaded[model] = info
        if served.versions is None or self.tables.remove(info.name, info.version, keep=unloaded) is None:
            del self._models[info.name]
        else:
            self._publish(served.versions)
        self._unverified.discard(model)
        if self._cache is not None:
            self._cache.remove_model(model)
        return served.ended()

    def _publish(self, versions: Versions) -> None:
        """Show a model with several versions as its stable one, and each of these with the others."""
        for key in versions.keys.values():
            served = self._served[key]
            if served.info.versions != versions.versions:
                info = served.info._replace(versions=versions.versions)
                served.info = served.infos[info.revision] = info
        self._models[versions.name] = self._served[versions.stable].info

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """Every model by name, in the order in which they came; of several versions the stable one."""
        return self._models

    @property
    def keys(self) -> Sequence[str]:
        """What everything is called that has replicas of its own: models, and versions of those that have several."""
        return tuple(self._served)

    def revision_of(self, key: str) -> str:
        """Which state of its files a model, or one of several versions, is served from; empty: it is not served."""
        served = self._served.get(key)
        return "" if served is None else served.info.revision

    @property
    def faults(self) -> Mapping[str, str]:
        """Why models, or versions of them, cannot be served, as `ModelInfo.fault` of those that have one."""
        return {key: served.info.fault for key, served in self._served.items() if served.info.fault}

    @property
    def unloaded(self) -> Mapping[str, Sequence[ModelInfo]]:
        """The models that were unloaded, by name, as they were last served; of several versions those."""
        found: dict[str, list[ModelInfo]] = {}
        for info in self._unloaded.values():
            found.setdefault(info.name, []).append(info)
        return found

    async def load(self, model: str) -> Loaded:
        """Have a model served from its files as they are now; see `InferenceService.load`."""
        keys, repository = self._changeable(model)
        return await _changed(model, keys, repository.load)

    async def unload(self, model: str) -> Loaded:
        """Serve a model no more, until it is loaded again; see `InferenceService.unload`."""
        keys, repository = self._changeable(model)
        return await _changed(model, keys, repository.unload)

    def _changeable(self, model: str) -> tuple[Sequence[str], Loading]:
        """What a model has replicas as, served or not, the newest version last; and what loads it."""
        infos = [*(served.info for served in self._served.values()), *self._unloaded.values()]
        keys = {info.version: info.key or info.name for info in infos if info.name == model}
        if not keys:
            raise unknown_model(model, self._models)
        pools = {served.pool for key in keys.values() if (served := self._served.get(key)) is not None}
        if (pool := next(filter(None, pools), None)) is not None:
            raise Unsupported(f"model {model!r} is a member of pool {pool!r}, which loads it when requests come for it")
        if self._repository is None:
            raise Unsupported("this server loads models when it starts, and keeps them")
        return [keys[version] for version in newest_last(tuple(keys))], self._repository

    def _unknown(self, model: str) -> ModelNotFound:
        name = model_of(model)
        if name not in self._models and name in self.unloaded:
            return unloaded_model(name)
        return unknown_model(model, self._models)

    def find(self, model: str, version: str | None = None) -> ModelInfo:
        """The model of that name, and the version of that number or alias; by default the stable one.

        Raises:
            ModelNotFound: There is none; the message names what there is.
        """
        info = self._models.get(model)
        if info is None:
            raise self._unknown(model)
        if version is None:
            return info
        aliases: Sequence[str] = ()
        if info.key:
            versions = self.tables.models[model]
            if (key := versions.key_of(version)) is not None:
                return self._served[key].info
            aliases = versions.aliases
        elif version in info.versions:
            return info
        raise unknown_version(info, version, aliases)

    def choose(self, model: str, asker: Asker) -> ModelInfo:
        """The version that answers who names none: by the table, or the stable one where that one has no replica.

        Raises:
            ModelNotFound: No such model.
        """
        versions = self.tables.models.get(model)
        if versions is None:
            return self.find(model)
        served = self._served[versions.choose(asker)]
        if not self._can_work(served):
            served = self._served[versions.stable]
        return served.info

    def traffic(self, model: str) -> Mapping[str, Any]:
        """How requests are spread over the versions of a model; see `described`. Of one version there are no aliases.

        Raises:
            ModelNotFound: No such model.
        """
        info = self.find(model)
        if not info.key:
            only = Table(Traffic(weights={info.version: 100.0}))
            return {**described(model, only, info.versions), "aliases": {}}
        versions = self.tables.models[model]
        return described(model, versions.table, versions.versions)

    async def change_traffic(self, model: str, change: TableChange) -> Mapping[str, Any]:
        """Spread them otherwise from now on; see `TrafficTables.change`.

        Raises:
            ModelNotFound: No such model.
            InvalidRequest: It is served in one version, or as ``change`` raises it.
            ModelUnavailable: It cannot be stored.
        """
        info = self.find(model)
        if not info.key:
            raise InvalidRequest(
                f"model {model!r} is served in one version; set versions in its configuration to serve several"
            )
        await self.tables.change(self.tables.models[model], change)
        return self.traffic(model)

    def traffic_readings(self) -> Mapping[str, TrafficReading]:
        """The same for metrics, by model."""
        told = {}
        for model, versions in self.tables.models.items():
            shares = dict(versions.shares)
            told[model] = TrafficReading(
                versions.table.revision, {key: shares.get(version, 0.0) for version, key in versions.keys.items()}
            )
        return told

    def _keys_of(self, model: str) -> tuple[str, ...]:
        """What a model has replicas as: itself, or its versions. Raises `ModelNotFound`."""
        if model in self._served:
            return (model,)
        if (versions := self.tables.models.get(model)) is None:
            raise self._unknown(model)
        return tuple(versions.keys.values())

    def precheck(
        self, model: str, priority: Priority | None, nbytes: int, tenant: str = "", weight: float = 1.0
    ) -> None:
        """Refuse early what has no room, before its payload is decoded.

        Of a model with a cache only the payload tells whether room is needed.

        Raises:
            ModelNotFound: No such model.
            QueueFull: Its class has no room.
            ModelUnavailable: Its circuit breakers are open, or it cannot be served.
        """
        served = self._served.get(model)
        if served is None:
            raise self._unknown(model)
        if self._in_work.closed:
            raise shutting_down()
        if served.info.fault:
            raise ModelUnavailable(served.info.fault)
        if served.cache is not None:
            return
        priority = priority or _NORMAL
        rejection = self._scheduler.precheck(model, priority, nbytes, monotonic(), tenant, weight)
        if rejection is not None:
            self._metrics.rejected(model, priority, rejection.code)
            raise refused(rejection)

    def refused(self, model: str, code: str) -> None:
        """Count a request that was refused before it came to the scheduler. Names of no model are counted as one."""
        self._metrics.refused(model if model in self._models else "", code)

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """Schedule, run and answer one request. Cancelling it cancels the work.

        Raises:
            ServeAppError: As `serve_app.errors` says.
        """
        served = self._begin(model)
        try:
            return await self._answer(served, model, payload, options)
        finally:
            self._ended(served)

    def _begin(self, model: str) -> Served:
        """A request for this model is in work, until `_ended`."""
        if self._in_work.closed:
            raise shutting_down()
        served = self._served.get(model)
        if served is None:
            raise self._unknown(model)
        if served.info.fault:
            raise ModelUnavailable(served.info.fault)
        self._in_work.count += 1
        served.in_work += 1
        return served

    def _ended(self, served: Served) -> None:
        served.in_work -= 1
        if served.left is not None and not served.in_work:
            served.left.set()
        work = self._in_work
        work.count -= 1
        if work.closed and not work.count:
            work.none_left()

    async def _answer(self, served: Served, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """As `submit`, of a request that is in work."""
        cache = served.cache
        if served.info.streams:
            answer = await self._only_part(served, payload, options)
        elif cache is None or not options.cacheable:
            answer = await self._submit(model, payload, options)
        else:
            if not options.nbytes:
                options = replace(options, nbytes=payload_bytes(payload))
            answer = await cache.answer(self._timeout_s(served, payload, options), payload, options, self._submit)
            answer = self._with_proof(served, answer)
            if self._traces is not None and answer.cache in _WITHOUT_WORK:
                self._traces.answered_from_cache(served.info, options, answer)
        answer = informed(served, answer, options)
        if served.versions is None:
            return answer
        if not served.info.streams:
            self._shadow(served, served.versions, payload, options, answer)
        return replace(answer, version=served.info.version)

    async def _only_part(self, served: Served, payload: Payload, options: RequestOptions) -> Answer:
        """The answer of a model that answers in parts, if it is one part."""
        async with aclosing(self._stream(served, payload, options, whole=True)) as parts:
            only, *_ = [part async for part in parts]
        return only

    async def _stream(
        self, served: Served, payload: Payload, options: RequestOptions, *, whole: bool = False
    ) -> AsyncGenerator[Answer, None]:
        """As `stream`, of a model that answers in parts; ``whole``: in one, in time."""
        entry = self._entry(served, payload, options)
        seconds = served.info.stream_timeout_s  # it keeps a replica, and what was loaded before a reload, for no longer
        if options.stream_timeout_s is not None:
            seconds = min(seconds, options.stream_timeout_s)
        if whole:
            seconds = min(seconds, entry.deadline - entry.arrival)
        queue = PartQueue(self._streams, self._stream_limits._replace(seconds=seconds), whole=whole)
        entry.payload.parts = queue
        entry.answer_by = entry.arrival + seconds
        entry.deadline = min(entry.deadline, entry.answer_by)
        if not entry.variant:
            entry.batch_key = EXACT_ONLY  # a fallback cannot take over when the first part is late
        trace = self._follow(served, entry, options)
        first: Answer | None = None
        try:
            async with aclosing(self._dispatcher.stream(entry)) as parts:
                async for part in parts:
                    first = first or part
                    yield part
        except ServeAppError as error:
            error.counted = True  # by the dispatcher's observer
            if trace is not None:
                trace.failed(error, queue.count)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            if trace is not None:
                trace.cancelled(queue.count)
            raise
        finally:
            del entry  # see `_submit`
        if trace is not None:
            trace.streamed(first, queue.count)

    async def stream(self, model: str, payload: Payload, options: RequestOptions) -> AsyncGenerator[Answer, None]:
        """Schedule, run and answer one request in parts; see `InferenceService.stream`.

        Raises:
            ServeAppError: As `serve_app.errors` says.
        """
        served = self._begin(model)
        try:
            if not served.info.streams:
                answer = await self._answer(served, model, payload, options)
                yield answer
                return
            async with aclosing(self._stream(served, payload, options)) as parts:
                async for part in parts:
                    part = informed(served, part, options)  # noqa: PLW2901
                    yield part if served.versions is None else replace(part, version=served.info.version)
        finally:
            self._ended(served)

    def _shadow(
        self, served: Served, versions: Versions, payload: Payload, options: RequestOptions, answer: Answer
    ) -> None:
        """Have another version run a copy of what was executed, if one is to be compared with this one."""
        if versions.shadow is None or self._ending or answer.cache in _WITHOUT_WORK:
            return
        settings, version = versions.shadow
        if version == served.info.version or random.random() * 100.0 >= settings.share:  # noqa: S311 - no secret
            return
        key = versions.keys[version]
        other = self._served[key].info
        if (
            other.fault
            or other.signature.inputs != served.info.signature.inputs
            or answer.variant not in ("", *other.variants)  # the exact model has no name
        ):
            self._metrics.shadowed(key, "failed")
            return
        if not options.nbytes:
            options = replace(options, nbytes=payload_bytes(payload))
        self._shadows.start(key, payload, options, answer, settings.tolerance)

    def _has_room(self, key: str, nbytes: int) -> bool:
        """Whether class ``low`` takes a shadow request now."""
        return self._scheduler.precheck(key, Priority.LOW, nbytes, monotonic(), SHADOW_TENANT, SHADOW_WEIGHT) is None

    async def _submit(
        self, model: str, payload: Payload, options: RequestOptions, queued: Callable[[Entry], None] | None = None
    ) -> Answer:
        """As `submit`, past the cache; ``queued`` is told the entry that the request becomes."""
        served = self._served.get(model)
        if served is None:
            raise self._unknown(model)
        entry = self._entry(served, payload, options)
        trace = self._follow(served, entry, options)
        try:
            answer = await self._dispatcher.submit(entry, queued)
        except ServeAppError as error:
            error.counted = True  # by the dispatcher's observer
            if trace is not None:
                trace.failed(error)
            raise
        except asyncio.CancelledError:
            if trace is not None:
                trace.cancelled()
            raise
        finally:
            del entry  # an error's traceback keeps this frame, and the entry keeps the error: a cycle
        if model in self._unverified:
            answer = self._with_proof(served, answer)
        if trace is not None:
            trace.answered(answer)
        return answer

    def _entry(self, served: Served, payload: Payload, options: RequestOptions) -> Entry:
        """Make the scheduler's entry of a request: its class, rows, cost bucket and deadline.

        Raises:
            ModelUnavailable: The request was made for a state of the model that takes other tensors.
            InvalidRequest: The payload does not fit the model, or is too large.
            DeadlineExceeded: Reading the request took longer than it may take.
        """
        info = served.info
        if options.revision != info.revision and options.revision and options.revision not in served.infos:
            raise reloaded_model(served.key)
        priority, timeout_s = options.priority or _NORMAL, options.timeout_s
        rows, bucket = cost_of(info, served.processor, payload)
        if rows > info.max_request_rows:
            raise InvalidRequest(
                f"the request has {rows} rows; model {served.key} takes at most {info.max_request_rows} in one request"
            )
        default_of = None
        if timeout_s is None:
            timeout_s, default_of = self._default_s(info, priority, rows, bucket, options), priority
        now = monotonic()
        return Entry(
            0,
            served.key,
            priority,
            now,
            now + timeout_s,
            rows,
            bucket,
            options.nbytes or payload_bytes(payload),
            Work(payload, options.variant),
            options.variant,
            exact=not options.fallback,
            default_of=default_of,
            tenant=options.tenant,
            weight=options.weight,
            spent_s=options.spent_s,
        )

    def _follow(self, served: Served, entry: Entry, options: RequestOptions) -> RequestTrace | None:
        """Start the request's trace, if any, and write its origin into the entry."""
        if self._traces is None:
            entry.payload.origin = origin_of(options)
            return None
        trace = RequestTrace(self._traces, served.info, entry.priority, entry.rows, options)
        entry.payload.origin = trace.origin
        return trace

    @staticmethod
    def _with_proof(served: Served, answer: Answer) -> Answer:
        """An answer that says whether it may have shared a run without proof, whoever it was executed for."""
        verdict = served.info.joinable.get(answer.variant, _NOTHING_KNOWN).verdict
        return answer if answer.unverified or verdict != UNVERIFIED else replace(answer, unverified=True)

    def on_joinable(self, model: str, verdicts: Mapping[str, Joinable]) -> None:
        """Take what a replica says of which requests may share runs. Of several replicas the most careful counts.

        What the cache holds of a build whose requests no longer share runs is not used again: it may be wrong.

        Args:
            model: The model.
            verdicts: By variant.
        """
        served = self._served.get(model)
        if served is None:
            return
        info = served.info
        known = dict(info.joinable)
        for variant, verdict in verdicts.items():
            before = known.get(variant)
            if before is None or before.verdict == PROVEN or care_of(verdict) > care_of(before):
                known[variant] = verdict
        if known == info.joinable:
            return
        served.info = info._replace(joinable=known)
        self._show(served)
        cache = served.cache
        for variant, verdict in known.items():
            self._scheduler.set_joins(model, variant, joins=may_join(verdict))
            if cache is not None and may_join(info.joinable.get(variant, _NOTHING_KNOWN)) and not may_join(verdict):
                cache.forget(variant)

    def least_s(self, model: str, entries: int, options: RequestOptions) -> float:
        """Predicted time until so many requests of one row are answered on an idle server, at least, seconds.

        Args:
            model: Its name, or the key of one of several versions.
            entries: How many.
            options: How they want to be treated.

        Returns:
            0.0 where nothing is known of it, and where the answers may be in its cache.
        """
        served = self._served.get(model)
        if served is None or (served.cache is not None and options.cacheable and not options.fresh):
            return 0.0
        return self._scheduler.least_s(model, entries, exact=not options.fallback)

    def live(self) -> bool:
        """Whether this process works at all: whoever can ask has had an answer from its event loop."""
        return not self._dispatcher.broken

    def ready(self) -> bool:
        """Whether every model that should be running can take work, and this router will go on taking it."""
        return all(self._keeps_ready(model) for model in self._models)

    def _keeps_ready(self, model: str) -> bool:
        """Whether this model is no reason to take the server out of service: of a pool's members, its hosts count.

        Nor is one that cannot be served: the others are.
        """
        served = self._served.get(model)
        if self._models[model].fault or (served is not None and served.pool and self._scheduler.hosts(served.pool)):
            return not self._ending and not self._dispatcher.broken
        return self.model_ready(model)

    def model_ready(self, model: str) -> bool:
        """Whether this model can take work; a model that starts on demand can, unless the router itself cannot.

        One with several versions can where the stable one can: others must not take a server out of service.

        Raises:
            ModelNotFound: No such model.
        """
        served = self._served.get(model)
        if served is None:
            served = self._served[self.find(model).key]
        return not self._ending and not self._dispatcher.broken and self._can_work(served)

    def _can_work(self, served: Served) -> bool:
        scheduler = self._scheduler
        if served.info.fault:
            return False
        return served.on_demand or scheduler.usable(served.key) > 0 or scheduler.can_load(served.key)

    def stop_being_ready(self) -> None:
        """Say that no more work should be sent here, though what comes is still done."""
        self._ending = True

    async def close(self) -> None:
        """End what no client waits for."""
        self.tables.close()
        await self._shadows.close()

    async def finish(self, limit_s: float) -> int:
        """Refuse what comes from now on, and wait until what was taken is answered.

        Args:
            limit_s: For how long at most, seconds.

        Returns:
            How many requests are left then.
        """
        self._ending = True
        return await self._in_work.finish(limit_s)

    def on_warm_up(self, model: str, told: Sequence[Told | ReplicaReport]) -> None:
        """Learn what a model's replicas measured at their start, and how many rows their batches may have.

        Args:
            model: Its name.
            told: What each replica has told.
        """
        reason = next((each.not_warmed for each in told if each.not_warmed is not None), None)
        found: dict[str, Any] = {}
        if told:
            found["warm_up"] = {"warmed": True} if reason is None else {"warmed": False, "reason": reason}
        if (compute := next((each.compute for each in told if each.compute is not None), None)) is not None:
            found["compute"] = compute._asdict()
            if compute.max_rows:
                self._scheduler.set_rows(model, compute.max_rows)
        self._served[model].warm_up = found

    def status(self) -> Mapping[str, Any]:
        """A snapshot of the models, JSON-able.

        Returns:
            ``ready`` and by name ``models``. Of each: ``task``, ``version`` and ``ready``; how it is scheduled
            (``policy``, and where it has them ``fallbacks``, ``device_group`` and ``pool``); what `Scheduler.snapshot`
            tells of its queues, replicas (of a member of a pool, the hosts that have loaded it) and predictions; and
            its circuit breakers as ``breaker``, ``None`` where it has none. ``load_fault`` is why its last load failed,
            or why it cannot be served.
            Where there are pools, ``pools`` has what `Scheduler.pools` tells.
            ``understood`` is what was read from a model's folder, and where: `serve_app.domain.facts.Fact`.
            ``warm_up`` of a model with replicas tells whether they are ``warmed``, and else the ``reason``; ``compute``
            what one of them computes with: ``threads``, ``instances`` and the ``reason``. ``cache``
            of a model that has one, and of the router, tell what `ModelCache.status` and `ResponseCache.status` do.
            ``jobs`` is there where there are jobs; see `serve_app.jobs.jobs.Jobs.status`.
            Each of several versions of a model is shown by itself, and ``traffic`` shows how requests are spread over
            them, by model.
        """
        snapshot, now = self._scheduler.snapshot(), self._dispatcher.now()
        faults = {**self._load_faults, **self.faults}
        shared = {} if self._cache is None else self._cache.status()
        return {
            "ready": self.ready(),
            **({"pools": self._scheduler.pools()} if self._scheduler.has_pools else {}),
            **({"cache": shared} if shared else {}),
            **{name: read() for name, read in self._more_status.items()},
            **({"traffic": {name: self.traffic(name) for name in self.tables.models}} if self.tables.models else {}),
            "models": {
                name: {
                    "task": served.info.task,
                    "version": served.info.version,
                    **({"revision": served.info.revision} if served.info.revision else {}),
                    "ready": self.model_ready(name),
                    **served.scheduling,
                    **({"understood": [fact._asdict() for fact in served.info.facts]} if served.info.facts else {}),
                    "joinable": {variant: verdict._asdict() for variant, verdict in served.info.joinable.items()},
                    **snapshot[name],
                    **served.warm_up,
                    **({"load_fault": faults[name]} if name in faults else {}),
                    "breaker": self._scheduler.breaker_snapshot(name, now),
                    **({} if served.cache is None else {"cache": served.cache.status()}),
                }
                for name, served in self._served.items()
            },
        }

    def statistics(self, model: str) -> Mapping[str, Any]:
        """Cumulative counters of one model in this router, in the V2 statistics extension's terms.

        Args:
            model: Its name, or the key of one of several versions.

        Raises:
            ModelNotFound: No such model.
        """
        served = self._served.get(model)
        if served is None:
            raise self._unknown(model)
        return describe(served.info, self._metrics.statistics(model), self._dispatcher.now())

    async def total_statistics(self, models: Iterable[str]) -> Sequence[Mapping[str, Any]]:
        """As `statistics`, for several models, over all routers: of each all versions, if it has several.

        Raises:
            ModelNotFound: No such model.
        """
        names = [key for model in models for key in self._keys_of(model)]
        routers = [{name: self.statistics(name) for name in names}, *await self._peer_statistics()]
        return [total([router[name] for router in routers if name in router]) for name in names]

    async def metrics(self) -> tuple[bytes, str]:
        """The metrics page of all routers in Prometheus' text format, and its content type."""
        page = await self._metrics_page()
        return page.encode(), CONTENT_TYPE

    def _timeout_s(self, served: Served, payload: Payload, options: RequestOptions) -> float:
        """Seconds that a request has left: of the deadline that it names, or of its default."""
        if options.timeout_s is not None:
            return options.timeout_s
        return self._default_s(
            served.info, options.priority or _NORMAL, *cost_of(served.info, served.processor, payload), options
        )

    def _default_s(self, info: ModelInfo, priority: Priority, rows: int, bucket: int, options: RequestOptions) -> float:
        """Seconds that are left of the default deadline: of what the class allows, or of more for a slow model.

        Raises:
            DeadlineExceeded: None are.
        """
        solo_s = self._scheduler.solo_s(info.key or info.name, rows, bucket, options.variant)
        allowed_s = info.default_timeout_s[priority]
        if DEFAULT_EXECUTIONS * solo_s > allowed_s:  # of few: a call for every request would be felt
            allowed_s = default_timeout_s(allowed_s, solo_s)
        left = allowed_s - options.spent_s
        if left <= 0.0:
            raise DeadlineExceeded(read_too_long(priority, allowed_s))
        return left


async def _changed(model: str, keys: Sequence[str], change: Callable[[str], Awaitable[Loaded]]) -> Loaded:
    """Load or unload all versions of a model, one after the other, whether whoever asked waits for it or leaves."""

    async def in_turn() -> Sequence[Loaded]:
        return [await change(key) for key in keys]

    told = await asyncio.shield(asyncio.ensure_future(in_turn()))
    return Loaded(
        model,
        told[0].state,
        ",".join(each.version for each in told if each.version),
        ",".join(each.before for each in told if each.before),
        ",".join(each.after for each in told if each.after),
        sum(each.replicas for each in told),
    )


async def _no_peers() -> Sequence[Mapping[str, Statistics]]:
    return ()
