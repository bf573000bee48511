"""The response cache: answers that were given before, in front of the queues.

Off unless a model's configuration turns it on. What is found needs no room in a queue, no replica and no device. What
is not found is executed once for all that ask for it at the same time (`serve_app.cache.single_flight`). Only
answers are kept, never errors, and only those that anybody would have got who asks for the same: none of a fallback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, NamedTuple

from msgspec.structs import replace

from serve_app.cache.key import CacheKeys
from serve_app.cache.metrics import CacheMetrics
from serve_app.cache.settings import CacheSettings
from serve_app.cache.single_flight import Caller, Lead, SingleFlight, is_plain
from serve_app.cache.store import CacheStore
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, RequestOptions
from serve_app.errors import DeadlineExceeded, ServeAppError
from serve_app.payloads import Payload
from serve_app.router.answer_cache import ModelCacheSettings, Submit
from serve_app.router.dispatcher import Dispatcher
from serve_app.telemetry.metrics import RouterMetrics


class ResponseCache:
    """The caches of all models that have one, in one router.

    Args:
        dispatcher: Runs what is not found.
        metrics: Counts how requests ended.
    """

    def __init__(self, settings: CacheSettings, dispatcher: Dispatcher, metrics: RouterMetrics) -> None:
        self._metrics = metrics
        self._counts: CacheMetrics | None = None
        self._flights = SingleFlight(dispatcher.end_early, settings.max_followers, settings.follower_bytes)
        self._hashing = Hashing(settings.offload_above, settings.threads, settings.follower_bytes)
        self._models: dict[str, ModelResponseCache] = {}
        self._stores: dict[str, CacheStore] = {}

    def add_model(self, model: str, settings: ModelCacheSettings) -> ModelResponseCache:
        """Make the cache of one more model. It is empty, whatever was kept under this name before."""
        if self._counts is None:
            self._counts = CacheMetrics(self._metrics.names)
            self._counts.register(self._metrics.registry, self._stores)
        cache = ModelResponseCache(
            model, settings, monotonic, self._flights, self._hashing, self._metrics, self._counts
        )
        self._models[model], self._stores[model] = cache, cache.store
        return cache

    def remove_model(self, model: str) -> None:
        """Drop what is kept of a model; who waits for its answers still gets them."""
        if (cache := self._models.pop(model, None)) is not None:
            cache.trusted = False  # what is under way may be answered by another state of the model
            del self._stores[model]

    def forget(self, model: str) -> None:
        """Drop a removed model's series."""
        if self._counts is not None and model not in self._models:
            self._counts.answers.forget(model)

    def of(self, model: str) -> ModelResponseCache | None:
        """The cache of a model, ``None`` where it has none."""
        return self._models.get(model)

    def on_replicas(self, model: str, identities: Iterable[Mapping[str, str]]) -> None:
        """Take note of what the replicas of a model that are within reach say that they run."""
        if (cache := self._models.get(model)) is not None:
            cache.trusted = all(running == cache.identities for running in identities)


class ModelResponseCache:
    """The cache of one model.

    Attributes:
        identities: What the keys say that replicas run, by variant.
        store: Its answers in this process.
        trusted: Whether all replicas run what the keys say. While others are within reach, as during a redeploy,
            nothing is stored.
    """

    def __init__(
        self,
        model: str,
        settings: ModelCacheSettings,
        clock: Callable[[], float],
        flights: SingleFlight,
        hashing: Hashing,
        metrics: RouterMetrics,
        counts: CacheMetrics,
    ) -> None:
        self._model = model
        self._ttl_s = settings.ttl_s
        self._revision = settings.revision
        self.identities = settings.identities
        self._keys = CacheKeys(model, settings.identities)
        self._apart: set[str] = set()
        self._clock = clock
        self._flights = flights
        self._hashing = hashing
        self._metrics = metrics
        self._counts = {result: counts.answers.of(model, result) for result in ("hit", "miss", "shared")}
        self.store = CacheStore(settings.max_bytes, clock)
        self.trusted = True

    def forget(self, variant: str) -> None:
        """Use nothing again of what was kept of a variant: its requests shared runs until now.

        What is being executed is answered, and not kept for others.
        """
        self._apart.add(variant)
        apart = {name: f"{self.identities[name]} alone" for name in self._apart.intersection(self.identities)}
        self._keys = CacheKeys(self._model, {**self.identities, **apart})

    async def answer(self, timeout_s: float, payload: Payload, options: RequestOptions, submit: Submit) -> Answer:
        """Answer one request from the cache, by the same one in flight, or by ``submit``.

        Args:
            timeout_s: How long that may take, seconds.
            submit: Has it executed.

        Raises:
            ServeAppError: As `serve_app.errors` says.
        """
        arrival = self._clock()
        priority = options.priority or Priority.NORMAL
        if self._hashing.is_short(options.nbytes):
            key = self._keys.key(payload, options.variant)
        else:
            key = await self._key_aside(payload, options, priority, arrival + timeout_s)
        if key is None:
            return await submit(self._model, payload, options)
        request = _CachedRequest(
            key, Caller(priority, arrival, arrival + timeout_s, options.nbytes), payload, options, submit
        )
        try:
            if options.fresh:
                return self._counted(await self._execute(request, None), request, shared=False)
            stored = self.store.get(key)
            if stored is not None:
                return self._counted(self._hit(stored.value, options.variant), request, shared=False)
            answer, shared = await self._flights.answer(
                (key, options.fallback), request.caller, options.variant, lambda lead: self._lead(request, lead)
            )
        except ServeAppError as error:
            self._refused(priority, error)
            raise
        return self._counted(answer, request, shared=shared)

    async def _key_aside(
        self, payload: Payload, options: RequestOptions, priority: Priority, deadline: float
    ) -> bytes | None:
        try:
            return await self._hashing.aside(self._keys.key, payload, options.variant, options.nbytes, deadline)
        except DeadlineExceeded as error:
            self._refused(priority, error)
            raise

    def _refused(self, priority: Priority, error: ServeAppError) -> None:
        if not error.counted:
            self._metrics.rejected(self._model, priority, error.code)
            error.counted = True

    async def _lead(self, request: _CachedRequest, lead: Lead) -> Answer:
        return lead.early or await self._execute(request, lead)

    async def _execute(self, request: _CachedRequest, lead: Lead | None) -> Answer:
        key, caller, payload, options, submit = request
        trusted, began = self.trusted, self._clock()
        if caller.deadline <= began:
            raise _too_late()
        if options.timeout_s is None:  # what its deadline is, and that it named none, is said again
            left = replace(options, spent_s=options.spent_s + began - caller.arrival)
        else:
            left = replace(options, timeout_s=caller.deadline - began)
        answer = await submit(self._model, payload, left, None if lead is None else lead.queued)
        if lead is not None and lead.early is not None:
            return answer
        ended = self._clock()
        if trusted and self.trusted and is_plain(answer, options.variant):
            self.store.put(key, answer.value, self._ttl_s)
        self._metrics.cache_missed(self._model, began - caller.arrival + self._clock() - ended)
        return replace(answer, cache="miss")

    def _counted(self, answer: Answer, request: _CachedRequest, *, shared: bool) -> Answer:
        """The answer as this request gets it: its own class and times."""
        caller = request.caller
        result = "shared" if shared and answer.cache != "hit" else answer.cache
        self._counts[result].value += 1
        total_s = self._clock() - caller.arrival
        if result == "miss":  # counted as answered when it was
            return replace(answer, total_s=total_s, timeout_s=caller.deadline - caller.arrival)
        # Who shares an answer has waited for it all the time.
        waited_s = total_s if shared else 0.0
        self._metrics.answered_from_cache(
            self._model, caller.priority, caller.arrival, waited_s, total_s, hit=result == "hit"
        )
        timeout_s = caller.deadline - caller.arrival
        return Answer(
            answer.value,
            caller.priority,
            waited_s,
            total_s,
            answer.variant,
            timeout_s,
            cache=result,
            revision=answer.revision,
        )

    def _hit(self, value: Any, variant: str) -> Answer:
        return Answer(value, Priority.NORMAL, 0.0, 0.0, variant, cache="hit", revision=self._revision)

    def status(self) -> dict[str, int]:
        """What it holds and what it was good for, JSON-able."""
        counts = {name: count.value for name, count in self._counts.items()}
        return {
            "hits": counts["hit"],
            "misses": counts["miss"],
            "shared": counts["shared"],
            "entries": len(self.store),
            "bytes": self.store.nbytes,
            "evictions": self.store.evictions,
        }


class _CachedRequest(NamedTuple):
    key: bytes
    caller: Caller
    payload: Payload
    options: RequestOptions
    submit: Submit


class Hashing:
    """Hashes large payloads outside the event loop, a bounded number of them at once.

    Args:
        offload_above: Payloads of more bytes are large.
        threads: Most that are at once, those included whose request has left meanwhile.
        max_bytes: Most bytes that requests hold while they wait for their keys, unless one alone holds more.
    """

    def __init__(self, offload_above: int, threads: int, max_bytes: int) -> None:
        self._aside_above = offload_above
        self._max_bytes = max_bytes
        self._nbytes = 0
        self._threads = asyncio.Semaphore(threads)

    def is_short(self, nbytes: int) -> bool:
        """Whether a payload is hashed sooner than handed to a thread."""
        return nbytes <= self._aside_above

    async def aside(
        self,
        make: Callable[[Payload, str], bytes | None],
        payload: Payload,
        variant: str,
        nbytes: int,
        deadline: float,
    ) -> bytes | None:
        """The key of a large payload; ``None`` where it has none, or where too much waits for one already.

        Args:
            make: Makes it, in a thread.
            payload: Its first argument.
            variant: Its second.
            nbytes: Bytes that the request holds.
            deadline: On the router's monotonic clock, seconds.

        Raises:
            DeadlineExceeded: There was none until then.
        """
        if self._nbytes and self._nbytes + nbytes > self._max_bytes:
            return None
        self._nbytes += nbytes
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await self._threads.acquire()
                making = asyncio.get_running_loop().run_in_executor(None, make, payload, variant)
                making.add_done_callback(lambda _: self._threads.release())
                try:
                    return await asyncio.shield(making)  # nobody can end the thread, whose place is taken until then
                finally:
                    del making  # its error's traceback has this frame
        except TimeoutError:
            raise _too_late() from None
        finally:
            self._nbytes -= nbytes


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("the deadline passed during the cache lookup; use a longer timeout")
