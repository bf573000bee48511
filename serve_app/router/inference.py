"""Inference in a router: prechecks requests, makes their entries, and answers them by the dispatcher or the cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from math import inf
from time import monotonic
from typing import Final

from msgspec.structs import replace

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions, reloaded_model
from serve_app.domain.versions import Asker
from serve_app.errors import DeadlineExceeded, InvalidRequest, ModelUnavailable, ServeAppError
from serve_app.payloads import PROVEN, UNVERIFIED, Joinable, Payload, StreamLimits, payload_bytes
from serve_app.router.dispatcher import Dispatcher, Work, refused
from serve_app.router.in_work import InWork, shutting_down
from serve_app.router.lateness import DEFAULT_EXECUTIONS, default_timeout_s, read_too_long
from serve_app.router.models import Models
from serve_app.router.parts import PartQueue, Streams
from serve_app.router.served import Served, cost_of, informed
from serve_app.router.settings import StreamSettings
from serve_app.scheduling.entry import EXACT_ONLY, Entry
from serve_app.telemetry.metrics import RouterMetrics
from serve_app.telemetry.trace import RequestTrace, RequestTraces, origin_of

_NORMAL: Final = Priority.NORMAL
_NOTHING_KNOWN: Final = Joinable(PROVEN, "")
_WITHOUT_WORK: Final = frozenset({"hit", "shared"})
"""Values of `Answer.cache` that mean that the request caused no execution."""


class RouterInference:
    """Implements `serve_app.domain.service.Inference` for the models of one router.

    Args:
        dispatcher: Runs entries.
        metrics: Counts refusals.
        traces: Record every request, for the log and for traces; ``None``: neither is wanted.
        streams: Bounds of waiting parts; ``None``: the defaults.

    Attributes:
        find: `Models.find` itself, since another call would slow down every request.
        models: `Models.by_name`.
    """

    def __init__(
        self,
        models: Models,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        traces: RequestTraces | None = None,
        streams: StreamSettings | None = None,
    ) -> None:
        streams = streams or StreamSettings()
        self._registry = models
        self._served = models.served
        self._dispatcher = dispatcher
        self._scheduler = dispatcher.scheduler
        self._metrics = metrics
        self._traces = traces
        self._streams = Streams(streams.all_bytes)
        self._stream_limits = StreamLimits(inf, streams.parts, streams.nbytes, streams.reader_s)
        self._in_work = InWork()
        self.find = models.find
        self.models: Mapping[str, ModelInfo] = models.by_name

    @property
    def unloaded(self) -> Mapping[str, Sequence[ModelInfo]]:
        """Unloaded models by name, as they were last served; of several versions all."""
        return self._registry.unloaded

    def choose(self, model: str, asker: Asker) -> ModelInfo:
        """Choose the version for a request that names none: by the table, or the stable one if that has no replica.

        Raises:
            ModelNotFound: No such model.
        """
        tables = self._registry.versions
        if tables is None or (versions := tables.models.get(model)) is None:
            return self.find(model)
        served = self._served[versions.choose(asker)]
        if not self._registry.can_work(served):
            served = self._served[versions.stable]
        return served.info

    def model_ready(self, model: str) -> bool:
        """Whether this model can take work. One that starts on demand can, unless the router itself cannot.

        Of several versions the stable one counts: others must not take a server out of service.

        Raises:
            ModelNotFound: No such model.
        """
        served = self._served.get(model)
        if served is None:
            served = self._served[self.find(model).key]
        return not self._registry.ending and not self._dispatcher.broken and self._registry.can_work(served)

    def precheck(
        self, model: str, priority: Priority | None, nbytes: int, tenant: str = "", weight: float = 1.0
    ) -> None:
        """Refuse a request that has no room, before its payload is decoded.

        For a model with a cache only the payload shows whether room is needed.

        Raises:
            ModelNotFound: No such model.
            QueueFull: Its class has no room.
            ModelUnavailable: Its circuit breakers are open, or it cannot be served.
        """
        served = self._served.get(model)
        if served is None:
            raise self._registry.unknown(model)
        if self._in_work.closed:
            raise shutting_down()
        if served.info.fault:
            raise ModelUnavailable(served.info.fault)
        if served.cache is not None:
            return
        priority = priority or _NORMAL
        rejection = self._scheduler.precheck(model, priority, nbytes, monotonic(), tenant, weight)
        if rejection is not None:
            self._dispatcher.on_turned_away(model, priority)
            self._metrics.rejected(model, priority, rejection.code)
            raise refused(rejection)

    def refused(self, model: str, code: str) -> None:
        """Count a request refused before it reached the scheduler. Unknown model names count as one."""
        self._metrics.refused(model if model in self._registry.by_name else "", code)

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """Schedule, run and answer one request. Raises `ServeAppError`. Cancelling it cancels the work."""
        served = self._begin(model)
        try:
            cache = served.cache
            if served.info.streams:
                answer = await self._only_part(served, payload, options)
            elif cache is None or not options.cacheable:
                answer = await self.execute(model, payload, options)
            else:
                if not options.nbytes:
                    options = replace(options, nbytes=payload_bytes(payload))
                answer = await cache.answer(self._timeout_s(served, payload, options), payload, options, self.execute)
                answer = self._with_proof(served, answer)
                if self._traces is not None and answer.cache in _WITHOUT_WORK:
                    self._traces.answered_from_cache(served.info, options, answer)
            answer = informed(served, answer, options)
            if served.versions is None:
                return answer
            if not (served.info.streams or self._registry.ending or answer.cache in _WITHOUT_WORK):
                served.versions.answered(served.info, payload, options, answer)
            return replace(answer, version=served.info.version)
        finally:
            self._ended(served)

    async def stream(self, model: str, payload: Payload, options: RequestOptions) -> AsyncGenerator[Answer, None]:
        """Schedule, run and answer one request in parts; as `Inference.stream`. Raises `ServeAppError`."""
        if (known := self._served.get(model)) is not None and not known.info.streams:
            yield await self.submit(model, payload, options)
            return
        served = self._begin(model)
        try:
            async with aclosing(self._stream(served, payload, options)) as parts:
                async for part in parts:
                    part = informed(served, part, options)  # noqa: PLW2901
                    yield part if served.versions is None else replace(part, version=served.info.version)
        finally:
            self._ended(served)

    def least_s(self, model: str, entries: int, options: RequestOptions) -> float:
        """Lower bound of the time until so many requests of one row are answered on an idle server, seconds.

        Args:
            model: Its name, or the key of one of several versions.

        Returns:
            0.0 if unknown, or if the answers may be cached.
        """
        served = self._served.get(model)
        if served is None or (served.cache is not None and options.cacheable and not options.fresh):
            return 0.0
        return self._scheduler.least_s(model, entries, exact=not options.fallback)

    async def finish(self, limit_s: float) -> int:
        """Refuse new requests, and wait at most ``limit_s`` for those accepted.

        Returns:
            Number of requests left.
        """
        self._registry.ending = True
        return await self._in_work.finish(limit_s)

    def _begin(self, model: str) -> Served:
        """Count a request in, until `_ended`."""
        if self._in_work.closed:
            raise shutting_down()
        served = self._served.get(model)
        if served is None:
            raise self._registry.unknown(model)
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

    async def _only_part(self, served: Served, payload: Payload, options: RequestOptions) -> Answer:
        """The answer of a streaming model, if it is one part."""
        async with aclosing(self._stream(served, payload, options, whole=True)) as parts:
            only, *_ = [part async for part in parts]
        return only

    async def _stream(
        self, served: Served, payload: Payload, options: RequestOptions, *, whole: bool = False
    ) -> AsyncGenerator[Answer, None]:
        """Answer a request to a streaming model; ``whole``: as one part, in time."""
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
            del entry  # see `execute`
        if trace is not None:
            trace.streamed(first, queue.count)

    async def execute(
        self, model: str, payload: Payload, options: RequestOptions, queued: Callable[[Entry], None] | None = None
    ) -> Answer:
        """Answer a request past the cache; ``queued`` is called with its entry."""
        served = self._served.get(model)
        if served is None:
            raise self._registry.unknown(model)
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
        if model in self._registry.unverified:
            answer = self._with_proof(served, answer)
        if trace is not None:
            trace.answered(answer)
        return answer

    def _entry(self, served: Served, payload: Payload, options: RequestOptions) -> Entry:
        """Make the scheduler's entry of a request: its class, rows, cost bucket and deadline.

        Raises:
            ModelUnavailable: The request was made for a state of the model that takes other tensors.
            InvalidRequest: The payload does not fit the model, or is too large.
            DeadlineExceeded: Reading the request took longer than allowed.
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
            attributes=options.attributes,
            spent_s=options.spent_s,
        )

    def _timeout_s(self, served: Served, payload: Payload, options: RequestOptions) -> float:
        """Seconds left of a request's own or default deadline."""
        if options.timeout_s is not None:
            return options.timeout_s
        return self._default_s(
            served.info, options.priority or _NORMAL, *cost_of(served.info, served.processor, payload), options
        )

    def _default_s(self, info: ModelInfo, priority: Priority, rows: int, bucket: int, options: RequestOptions) -> float:
        """Seconds left of the default deadline: that of the class, or a longer one for a slow model.

        Raises:
            DeadlineExceeded: None are left.
        """
        solo_s = self._scheduler.solo_s(info.key or info.name, rows, bucket, options.variant)
        allowed_s = info.default_timeout_s[priority]
        if DEFAULT_EXECUTIONS * solo_s > allowed_s:  # of few: a call for every request would be felt
            allowed_s = default_timeout_s(allowed_s, solo_s)
        left = allowed_s - options.spent_s
        if left <= 0.0:
            raise DeadlineExceeded(read_too_long(priority, allowed_s))
        return left

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
        """An answer marked as unverified if it may have shared a run without proof, for any request."""
        verdict = served.info.joinable.get(answer.variant, _NOTHING_KNOWN).verdict
        return answer if answer.unverified or verdict != UNVERIFIED else replace(answer, unverified=True)
