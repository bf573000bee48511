"""A pool's host: the process that loads and unloads members on its router's orders, and runs their bundles.

    change    unload these members, then load that one; the next change begins when this one has unloaded
    run       a bundle of a member that is loaded, one batch at a time over all members

A host has one owner, the router that decides what it loads. A router with a later claim takes it over empty: members of
the previous owner are unloaded first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec import Struct

from serve_app.domain.agreed import Told, not_loaded
from serve_app.domain.hosting import LoadOutcome, Owner
from serve_app.errors import ServeAppError
from serve_app.payloads import STALE, Bundle, BundleResult
from serve_app.replica.process_memory import own_memory
from serve_app.replica.worker import Worker

logger = logging.getLogger(__name__)

_DRAIN_S: Final = 30.0
"""Longest wait for bundles of a member to unload, seconds. Its router has none there."""

_YIELDS: Final = 10
"""Niceness of loads relative to runs: on one shared core they get a tenth of it. With an equal part, runs would take
twice as long beside a load; with a much smaller one, a busy host would never load anything.
"""

_MOST_COPIES: Final = 4
_SPARE_BYTES: Final = 1024**2
"""A member's measured size counts up to a multiple of its files plus this much, since the measurement includes other
allocations of the same time.
"""


class LoadedMember(Struct, frozen=True):
    """A loaded member.

    Attributes:
        told: Facts for its router.
        file_bytes: Bytes of its files, the least that it holds.
    """

    worker: Worker
    told: Told
    file_bytes: int


Load = Callable[[str], LoadedMember]
"""Loads a member of this name. Runs in a thread. Raises ConfigError."""


class _Member:
    """A loaded member.

    Attributes:
        outcome: Of its load.
        bundles: Number of running bundles.
        idle: Set while none runs.
    """

    def __init__(self, worker: Worker, outcome: LoadOutcome) -> None:
        self.worker = worker
        self.outcome = outcome
        self.bundles = 0
        self.idle = asyncio.Event()
        self.idle.set()


class PoolHost:
    """One process of a pool.

    Args:
        measure: Bytes that this process holds.
        yields: Whether non-urgent loads have a lower CPU priority than runs. Threads that a load starts, and that later
            run batches, would inherit it.
    """

    def __init__(self, pool: str, load: Load, measure: Callable[[], int] = own_memory, *, yields: bool = False) -> None:
        self._pool = pool
        self._load = load
        self._measure = measure
        self._owner = Owner(0.0, "")
        self._members: dict[str, _Member] = {}
        self._loading: dict[str, asyncio.Task[LoadOutcome]] = {}
        self._began: dict[str, float] = {}
        self._held: dict[str, int] = {}  # least measured size of each member
        self._faults: set[tuple[str, str]] = set()
        self._order = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._yielding = ThreadPoolExecutor(thread_name_prefix="load", initializer=_yield) if yields else None

    def __repr__(self) -> str:
        return f"<PoolHost of {self._pool}: {len(self._members)} loaded, {len(self._loading)} being loaded>"

    @property
    def resident(self) -> Collection[str]:
        """The loaded members."""
        return self._members.keys()

    @property
    def resident_bytes(self) -> int:
        """Their measured total memory."""
        return sum(member.outcome.nbytes for member in self._members.values())

    # ----------------------------------------------------------------- bundles

    async def run(self, bundle: Bundle) -> BundleResult:
        """Run one bundle on the member that it names, as `Worker.run`. Without that member, nothing runs."""
        member = self._members.get(bundle.model)
        if member is None:
            return BundleResult([STALE] * len(bundle.entries), [], 0.0, 0.0, 0.0)
        member.bundles += 1
        member.idle.clear()
        try:
            return await member.worker.run(bundle)
        finally:
            member.bundles -= 1
            if not member.bundles:
                member.idle.set()

    def recall(self, bundle: Bundle) -> None:
        """Recall entries, as `Worker.recall`."""
        if (member := self._members.get(bundle.model)) is not None:
            member.worker.recall(bundle)

    # ----------------------------------------------------------------- changes

    async def change(
        self, owner: Owner, evicted: Sequence[str], load: str = "", *, urgent: bool = False
    ) -> LoadOutcome:
        """Unload members, then load one.

        Args:
            owner: The ordering router.
            evicted: Members to unload; absent ones are ignored.
            load: The member to load, or empty. A loaded one returns its existing outcome.
            urgent: Whether the load keeps its CPU priority, since requests of class `high` wait for it.

        Returns:
            The outcome of the load. Without one it is empty, unless another router has taken over.
        """
        async with self._order:
            if owner.since < self._owner.since:
                fault = f"pool {self._pool}: another router has taken this host over"
                return LoadOutcome(fault=fault, superseded=self._owner.since)
            if owner != self._owner:
                self._owner = owner
                evicted = (*self._members, *self._loading)
            for name in evicted:
                await self._unload(name)
            if not load:
                return LoadOutcome()
            if (member := self._members.get(load)) is not None:
                return member.outcome
            task = self._loading.get(load)
            if task is None:
                task = self._loading[load] = asyncio.ensure_future(self._bring_in(load, urgent=urgent))
        # The caller may be cancelled; the work still completes.
        return await asyncio.shield(task)

    async def _bring_in(self, name: str, *, urgent: bool) -> LoadOutcome:
        began = self._began[name] = time.monotonic()
        before = self._measure()
        try:
            # Nothing can take a thread's niceness from it again, so that there are threads of both kinds.
            threads = None if urgent else self._yielding
            loaded = await asyncio.get_running_loop().run_in_executor(threads, self._load, name)
        except ServeAppError as error:
            self._log_fault_once(name, str(error))
            return LoadOutcome(time.monotonic() - began, fault=not_loaded(name, error).message)
        except Exception as error:  # a backend may raise anything
            self._log_fault_once(name, repr(error), error)
            fault = f"model {name!r} cannot be loaded: {type(error).__name__}"
            return LoadOutcome(time.monotonic() - began, fault=fault)
        finally:
            del self._began[name], self._loading[name]
        most = _MOST_COPIES * loaded.file_bytes + _SPARE_BYTES
        measured = min(max(self._measure() - before, loaded.file_bytes, 1), most)
        self._held[name] = min(measured, self._held.get(name, measured))
        outcome = LoadOutcome(time.monotonic() - began, self._held[name], loaded.told)
        self._members[name] = _Member(loaded.worker, outcome)
        logger.debug("%s: %s is loaded (%.0f ms, %d bytes)", self._pool, name, 1e3 * outcome.seconds, outcome.nbytes)
        return outcome

    def _log_fault_once(self, name: str, fault: str, error: Exception | None = None) -> None:
        """Log a member's fault once: requests repeat the attempt."""
        if (name, fault) not in self._faults:
            self._faults.add((name, fault))
            logger.error("%s: member %s cannot be loaded: %s", self._pool, name, fault, exc_info=error)

    async def _unload(self, name: str) -> None:
        """Unload a member once its bundles are answered."""
        if (task := self._loading.get(name)) is not None:
            await asyncio.wait([task])
        member = self._members.pop(name, None)
        if member is None:
            return
        if member.bundles:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    await member.idle.wait()
        await asyncio.to_thread(member.worker.close)

    # ------------------------------------------------------------------ health

    def check(self) -> None:
        """Unload members that fail on inputs that they could run at first: their router loads them again.

        Call it periodically in the event loop.
        """
        for name, member in self._members.items():
            if member.worker.failing or member.worker.broken:
                logger.error("%s: member %s fails on an input that it could run at first: unloaded", self._pool, name)
                task = asyncio.ensure_future(self._give_up(name, member))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _give_up(self, name: str, member: _Member) -> None:
        async with self._order:
            if self._members.get(name) is member:
                await self._unload(name)

    def stalled_s(self) -> float:
        """The maximum of `Worker.stalled_s` over members."""
        return max([member.worker.stalled_s() for member in tuple(self._members.values())], default=0.0)

    def calls_stalled_s(self) -> float:
        """The maximum of `Worker.calls_stalled_s` over members."""
        return max([member.worker.calls_stalled_s() for member in tuple(self._members.values())], default=0.0)

    def stuck_calls(self, limit_s: float) -> int:
        """The sum of `Worker.stuck_calls` over members."""
        return sum([member.worker.stuck_calls(limit_s) for member in tuple(self._members.values())])

    def loads_for_s(self) -> float:
        """Duration of the longest present load, seconds."""
        return time.monotonic() - min(tuple(self._began.values()), default=time.monotonic())

    def close(self) -> None:
        """Free threads and sessions. Idempotent."""
        for member in self._members.values():
            member.worker.close()
        self._members.clear()
        if self._yielding is not None:
            self._yielding.shutdown(wait=False)


def _yield() -> None:
    """Lower this thread's CPU priority."""
    if sys.platform == "linux":  # elsewhere, niceness is a process's
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _YIELDS)
