"""Servers of many models in little memory: what waits for a model, who makes room for it, and what runs.

``ModelMesh``, as in KServe's modelmesh and modelmesh-serving, as read there: each host has an LRU cache of loaded
models. A request goes to a host that has its model, or loads it, with the fewest requests; for a model that is nowhere,
to the host with the most free memory, else to the one whose least recently used model is the oldest. Requests wait for
the load in the order of their arrival. A model with more requests than a rate (2,000 per minute by default) is loaded
at one more host.

``Multiplexed``, as ``@serve.multiplexed`` of Ray Serve 2.60: each replica has an LRU cache of at most so many models.
The router prefers replicas that have the model, and has a request wait for room at one of them for a while
(``RAY_SERVE_MULTIPLEXED_MODEL_ID_MATCHING_TIMEOUT_S``, 1 s by default); else it takes one of those with the fewest
models. A replica takes ``max_ongoing_requests``; one that becomes free wakes the router, which is faster than Ray's
back-off.

``Swapping``, as llama-swap's groups: each model has a place that it shares with some others; one of them is loaded at a
time. A request for another has those that came before it end, then swaps.

All: one load and one execution at a time at a host; what is in use is not unloaded; where several requests of a model
wait, they run in one batch (``batched``) or one by one. With ``disconnect``, clients close the connection at the
deadline, and what has not begun by then does not run. None of them knows classes, deadlines or what a load takes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import ClassVar
from zlib import crc32

from benchmarks.scheduling.baselines.serial import Serial
from serve_app.scheduling.demand import ModelDemand
from serve_app_simulator.system import Execution, Loaded, Request, World

_RATE_S = 10.0


class PoolHost:
    """A host as these servers see it.

    Attributes:
        name: Its name.
        room: How many models may be loaded; all have the same size.
        resident: What runs each model that is loaded, the least recently used first.
        used_at: When each of them was used last, seconds.
        loading: The model that it loads.
        to_load: Models that wait for that, first come first served.
        waiting: Requests of each model, in the order of their arrival.
        runs: The model that it executes.
        busy: Whether it executes, or pauses after that.
        requests: Requests there that have not ended.
    """

    def __init__(self, name: str, room: int) -> None:
        self.name = name
        self.room = room
        self.resident: OrderedDict[str, str] = OrderedDict()
        self.used_at: dict[str, float] = {}
        self.loading: str | None = None
        self.to_load: deque[str] = deque()
        self.waiting: OrderedDict[str, deque[Request]] = OrderedDict()
        self.runs: str | None = None
        self.busy = False
        self.requests = 0

    @property
    def has_room(self) -> bool:
        """Whether one more model fits."""
        return len(self.resident) + (self.loading is not None) < self.room

    def has(self, model: str) -> bool:
        """Whether a model is loaded, or will be."""
        return model in self.resident or model == self.loading or model in self.to_load

    @property
    def oldest_s(self) -> float:
        """When its least recently used model was used, seconds."""
        return self.used_at[next(iter(self.resident))] if self.resident else -inf


class PoolSystem:
    """What these servers have in common; see `serve_app_simulator.system.System`.

    Args:
        batched: Whether requests of a model that wait run together.
        disconnect: Whether what has not begun at its deadline is dropped.
        room: Part of the memory of a host that is used for models, over 0 to 1.
    """

    name: ClassVar[str]

    def __init__(self, *, batched: bool = True, disconnect: bool = True, room: float = 1.0) -> None:
        self._batched = batched
        self._disconnect = disconnect
        self._room = room
        self.hosts: list[PoolHost] = []

    # ------------------------------------------------------------- as `System`

    def start(self, world: World) -> None:
        """See `System.start`."""
        self.world = world
        (pool,) = world.scenario.pools
        models = {model.scheduling.name: model.scheduling for model in world.scenario.models}
        self._max_rows = {name: settings.max_rows for name, settings in models.items()}
        nbytes = max(settings.resident_bytes for settings in models.values())
        room = max(1, int(self._room * (pool.scheduling.memory_bytes // nbytes)))
        self.hosts = [PoolHost(name, room) for name in world.hosts(pool.scheduling.name)]
        self._processor = Serial(world, world.overheads.router_s)

    def replicas(self, model: str, names: Sequence[str]) -> None:
        """See `System.replicas`: models of a pool have none."""

    def arrive(self, request: Request) -> None:
        """See `System.arrive`."""
        self._processor.take(partial(self.routed, request))

    def read_demand(self, model: str) -> ModelDemand:  # noqa: ARG002 - counts nothing
        """See `System.read_demand`."""
        return ModelDemand()

    def queued_rows(self, model: str) -> int:
        """See `System.queued_rows`."""
        return sum(len(host.waiting.get(model, ())) for host in self.hosts)

    # ---------------------------------------------------------- what differs

    def routed(self, request: Request) -> None:
        """A request is at the router."""
        raise NotImplementedError

    def victim(self, host: PoolHost, model: str) -> str | None:
        """Whom to unload for a model, where there is no room; ``None``: nobody now."""
        raise NotImplementedError

    def may_load(self, host: PoolHost, model: str) -> bool:  # noqa: ARG002 - for subclasses
        """Whether a model that is next may be loaded now, if there is room."""
        return host.has_room

    def ended(self, host: PoolHost) -> None:
        """Requests at a host have ended."""

    # ------------------------------------------------------------------ hosts

    def send(self, host: PoolHost, request: Request) -> None:
        """A request goes to a host."""
        host.requests += 1
        self.world.at(self.world.now + self.world.hop_s("send"), partial(self._arrived, host, request))

    def _arrived(self, host: PoolHost, request: Request) -> None:
        host.waiting.setdefault(request.model, deque()).append(request)
        if not host.has(request.model):
            host.to_load.append(request.model)
        self.serve(host)

    def serve(self, host: PoolHost) -> None:
        """Begin what can begin at a host: a load, a batch."""
        self._drop_late(host)
        if host.loading is None and host.to_load:
            self._load(host, host.to_load[0])
        if not host.busy:
            self._run(host)

    def _drop_late(self, host: PoolHost) -> None:
        if not self._disconnect:
            return
        now, dropped = self.world.now, 0
        for model in [model for model, queue in host.waiting.items() if any(r.deadline <= now for r in queue)]:
            queue = host.waiting[model]
            for request in [request for request in queue if request.deadline <= now]:
                self.world.drop(request)
                queue.remove(request)
                dropped += 1
            if not queue:
                del host.waiting[model]
                if model in host.to_load:
                    host.to_load.remove(model)
        if dropped:
            host.requests -= dropped
            self.ended(host)

    def _load(self, host: PoolHost, model: str) -> None:
        if not self.may_load(host, model):
            victim = self.victim(host, model)
            if victim is None:
                return
            del host.resident[victim]
            self.world.evict_member(victim, host.name)
            if victim in host.waiting:
                host.to_load.append(victim)
        host.to_load.popleft()
        host.loading = model
        self.world.load_member(model, host.name, partial(self._loaded, host, model))

    def _loaded(self, host: PoolHost, model: str, loaded: Loaded) -> None:
        host.loading = None
        host.resident[model] = loaded.replica
        host.used_at[model] = self.world.now
        self.serve(host)

    def _run(self, host: PoolHost) -> None:
        """Execute the requests of the model that has waited longest, of those that are loaded."""
        first: Request | None = None
        for model, queue in host.waiting.items():
            if model in host.resident and (first is None or queue[0].id < first.id):
                first = queue[0]
        if first is None:
            return
        model = first.model
        queue = host.waiting[model]
        batch = [queue.popleft() for _ in range(min(len(queue), self._max_rows[model] if self._batched else 1))]
        if not queue:
            del host.waiting[model]
        host.resident.move_to_end(model)
        host.used_at[model] = self.world.now
        host.busy, host.runs = True, model
        replica = host.resident[model]
        rows = sum([request.rows for request in batch])
        self.world.execute(model, replica, batch, rows, 0, partial(self._executed, host, replica, batch))

    def _executed(self, host: PoolHost, replica: str, batch: list[Request], execution: Execution) -> None:  # noqa: ARG002 - hosts do not fail
        for request in batch:
            self.world.answer(request)
        host.requests -= len(batch)
        host.runs = None
        self.world.at(self.world.ready_at(replica), partial(self._freed, host))
        self.ended(host)

    def _freed(self, host: PoolHost) -> None:
        host.busy = False
        self.serve(host)


class ModelMesh(PoolSystem):
    """KServe ModelMesh.

    Args:
        scale_up_rpm: Requests per minute of a model for which there is one more copy; ``inf``: never.
        options: See `PoolSystem`.
    """

    name = "modelmesh"

    def __init__(self, scale_up_rpm: float = 2000.0, **options: float) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._scale_up_per_s = scale_up_rpm / 60.0
        self._recent: dict[str, deque[float]] = {}

    def routed(self, request: Request) -> None:
        """See `PoolSystem.routed`."""
        having = [host for host in self.hosts if host.has(request.model)]
        others = [host for host in self.hosts if host not in having]
        if not having or (others and self._rate(request.model) > self._scale_up_per_s * len(having)):
            free = [host for host in others if host.has_room]
            host = min(free, key=_loaded_models) if free else min(others, key=_oldest)
        else:
            host = min(having, key=_requests)
        self.send(host, request)

    def victim(self, host: PoolHost, model: str) -> str | None:  # noqa: ARG002 - as the base says
        """See `PoolSystem.victim`: the least recently used."""
        return next((each for each in host.resident if each != host.runs), None)

    def _rate(self, model: str) -> float:
        recent = self._recent.setdefault(model, deque())
        recent.append(self.world.now)
        while recent[0] < self.world.now - _RATE_S:
            recent.popleft()
        return len(recent) / _RATE_S


class Multiplexed(PoolSystem):
    """Ray Serve with ``@serve.multiplexed``.

    Args:
        max_ongoing_requests: Of a replica.
        matching_timeout_s: How long a request waits for a replica that has its model.
        options: See `PoolSystem`.
    """

    name = "ray-multiplexed"

    def __init__(self, max_ongoing_requests: int = 100, matching_timeout_s: float = 1.0, **options: float) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._most = max_ongoing_requests
        self._matching_s = matching_timeout_s
        self._pending: deque[tuple[float, Request]] = deque()

    def routed(self, request: Request) -> None:
        """See `PoolSystem.routed`."""
        self._pending.append((self.world.now, request))
        self._route()

    def ended(self, host: PoolHost) -> None:  # noqa: ARG002 - any may take it now
        """See `PoolSystem.ended`."""
        self._route()

    def victim(self, host: PoolHost, model: str) -> str | None:  # noqa: ARG002 - as the base says
        """See `PoolSystem.victim`: the least recently used."""
        return next((each for each in host.resident if each != host.runs), None)

    def _route(self) -> None:
        free = [host for host in self.hosts if host.requests < self._most]
        left: deque[tuple[float, Request]] = deque()
        while self._pending and free:
            since, request = self._pending.popleft()
            if self._disconnect and request.deadline <= self.world.now:
                self.world.drop(request)
                continue
            having = [host for host in self.hosts if host.has(request.model)]
            matching = [host for host in having if host in free]
            if having and not matching and self.world.now < since + self._matching_s:
                left.append((since, request))
                continue
            host = min(matching, key=_requests) if matching else min(free, key=_loaded_models)
            self.send(host, request)
            free = [host for host in self.hosts if host.requests < self._most]
        left.extend(self._pending)
        self._pending = left


class Swapping(PoolSystem):
    """llama-swap.

    Args:
        places: Part of the places that a host has memory for, over 0 to 1.
        options: See `PoolSystem`.
    """

    name = "llama-swap"

    def __init__(self, places: float = 1.0, **options: float) -> None:
        super().__init__(**options, room=places)  # type: ignore[arg-type]
        self._places: dict[str, tuple[PoolHost, int]] = {}

    def routed(self, request: Request) -> None:
        """See `PoolSystem.routed`."""
        self.send(self._place(request.model)[0], request)

    def may_load(self, host: PoolHost, model: str) -> bool:
        """See `PoolSystem.may_load`: if nobody has its place."""
        return self._holder(host, model) is None

    def victim(self, host: PoolHost, model: str) -> str | None:
        """See `PoolSystem.victim`: who has its place, when all that came before has ended."""
        holder = self._holder(host, model)
        if holder is None or holder == host.runs:
            return None
        before = host.waiting.get(holder)
        wanted = host.waiting.get(model)
        return None if before and wanted and before[0].id < wanted[0].id else holder

    def _place(self, model: str) -> tuple[PoolHost, int]:
        found = self._places.get(model)
        if found is None:
            number = crc32(model.encode())
            host = self.hosts[number % len(self.hosts)]
            found = self._places[model] = host, number // len(self.hosts) % host.room
        return found

    def _holder(self, host: PoolHost, model: str) -> str | None:
        place = self._place(model)[1]
        return next((each for each in host.resident if self._place(each)[1] == place), None)


def _requests(host: PoolHost) -> int:
    return host.requests


def _loaded_models(host: PoolHost) -> int:
    return len(host.resident) + len(host.to_load) + (host.loading is not None)


def _oldest(host: PoolHost) -> float:
    return host.oldest_s
