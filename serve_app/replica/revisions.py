"""The revisions of a model in a replica: the served one, and temporarily the next beside it.

    prepare   load a revision beside the present one, within the memory that there is; it runs what names it
    settle    serve what is agreed on, and close the rest when it has answered what it has

The agreement is read, not sent: a replica that starts late or has missed a call reaches the same state by settling. It
settles on request, when a bundle names an unknown revision, and periodically.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from serve_app.backends.memory import give_memory_back
from serve_app.domain.agreed import Agreed, Told, not_loaded
from serve_app.errors import ConfigError, InvalidRequest, ModelUnavailable, ServeAppError
from serve_app.payloads import STALE, Bundle, BundleResult
from serve_app.replica.process_memory import memory_problem
from serve_app.replica.revision_table import Place, RevisionTable
from serve_app.replica.worker import Worker

logger = logging.getLogger(__name__)

LEASE_S: Final = 30.0
"""How long a revision that was loaded may wait to be agreed on, seconds: who asked for it, and renews this, may have
died."""

_DRAIN_S: Final = 30.0
"""How long it is waited for the answers of a revision that is served no more, seconds."""


class Hosted(Struct, frozen=True):
    """A loaded revision.

    Attributes:
        told: Facts for routers.
        release: Frees its other resources, such as files.
    """

    name: str
    worker: Worker
    told: Told
    release: Callable[[], None]

    def close(self) -> None:
        """Free its resources; see `Worker.close`. Idempotent. May take seconds."""
        try:
            self.worker.close()
        finally:
            self.release()


Load = Callable[[str, int | None], Hosted]
"""Loads the revision of this name and version. Runs in a thread. Raises ConfigError."""

Weigh = Callable[[str, int | None], int]
"""Bytes of memory that a revision is expected to take. Runs in a thread. Raises ConfigError."""


Forget = Callable[[str], None]
"""Gives up what is kept of revisions but this one, which is agreed on, and those that a process has loaded. Runs in a
thread. Empty: none is agreed on."""


class Revisions:
    """The revisions that a replica runs bundles on.

    Args:
        first: The first one; ``None``: the model is unloaded.
        base: The deployed revision, served until another is agreed.
        load: Loads a revision.
        weigh: Estimates a load's memory.
        agreed: Reads the agreement; ``None``: unchanged since the deployment.
        forget: Frees stored data of others.
        memory_limit: Bytes for the process; ``None``: the machine's.
        lease_s: How long a loaded revision may wait for agreement, seconds.
    """

    def __init__(
        self,
        model: str,
        first: Hosted | None,
        base: Agreed,
        load: Load,
        weigh: Weigh,
        agreed: Callable[[], Awaitable[Agreed | None]],
        forget: Forget,
        memory_limit: int | None = None,
        *,
        lease_s: float = LEASE_S,
    ) -> None:
        self._model = model
        self._base = base
        self._load, self._weigh, self._agreed, self._forget = load, weigh, agreed, forget
        self._memory_limit = memory_limit
        self._lease_s = lease_s
        self._table = RevisionTable(None if first is None else first.name)
        self._hosted: dict[str, Hosted] = {} if first is None else {first.name: first}
        self._settling = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._drained = asyncio.Event()  # nothing is retired, or being closed
        self._drained.set()
        self._lease_until = 0.0
        self._claims: set[str] = set()  # of the loads that want the candidate, or what is being loaded
        self._bringing: asyncio.Task[Told] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._catching_up = False

    def __repr__(self) -> str:
        return f"<Revisions of {self._model}: {self._table!r}>"

    @property
    def current(self) -> str | None:
        """Name of the served revision; ``None``: the model is unloaded."""
        return self._table.current

    @property
    def cores(self) -> int:
        """The most cores of its runs."""
        used = [hosted.told.compute for hosted in self._hosted.values()]
        return max([each.threads * each.instances for each in used if each is not None], default=1)

    # ----------------------------------------------------------------- bundles

    async def run(self, bundle: Bundle) -> BundleResult:
        """Run one bundle on the revision that it names; see `Worker.run`. Without that revision, nothing runs."""
        name = self._table.take(bundle.revision)
        if name is None:
            if bundle.entries:
                self._catch_up()
            return BundleResult([STALE] * len(bundle.entries), [], 0.0, 0.0, 0.0)
        try:
            return await self._hosted[name].worker.run(bundle)
        finally:
            if self._table.end(name):
                self._close(name)

    def recall(self, bundle: Bundle) -> None:
        """Recall entries; see `Worker.recall`."""
        for hosted in self._hosted.values():
            hosted.worker.recall(bundle)  # one that does not have it ignores it

    # ----------------------------------------------------------------- changes

    async def prepare(self, name: str, version: int | None = None, claim: str = "") -> Told:
        """Load a revision beside the present one.

        Args:
            claim: Id of the requesting load. Several may request one revision.

        Raises:
            InvalidRequest: It cannot be loaded, or memory is insufficient.
            ModelUnavailable: Another one is loading, or waits for agreement.
        """
        if self._table.at(Place.CANDIDATE) and not self._leased():
            await self._settle_candidate()
        if name in self._table:
            self._claim(claim)
            return self._hosted[name].told
        if self._table.revive(name):
            self._claim(claim)
            return self._hosted[name].told
        if self._table.begin(name):
            self._claims.clear()
            self._bringing = asyncio.ensure_future(self._bring_in(name, version))
        elif self._table.loading != name:
            raise ModelUnavailable(f"model {self._model}: another load is under way", 1.0)
        assert self._bringing is not None
        self._claim(claim)
        # The caller may be cancelled; the work still completes.
        return await asyncio.shield(self._bringing)

    def renew(self, claim: str) -> None:
        """Keep the load of this claim alive. Call it more often than every `LEASE_S`."""
        if claim in self._claims:
            self._claim(claim)

    def _claim(self, claim: str) -> None:
        self._claims.add(claim)
        self._lease_until = time.monotonic() + self._lease_s

    async def _bring_in(self, name: str, version: int | None) -> Told:
        began = time.monotonic()
        try:
            if self._closing:
                await asyncio.wait(self._closing, timeout=_DRAIN_S)  # there is room for one beside the present one
            self._check_room(name, await asyncio.to_thread(self._weigh, name, version))
            hosted = await asyncio.to_thread(self._load, name, version)
            try:
                self._check_room(name, 0)
            except InvalidRequest:
                await asyncio.to_thread(hosted.close)
                raise
        except ConfigError as error:
            self._table.failed()
            logger.warning("%s: revision %s cannot be loaded: %s", self._model, name, error)
            raise not_loaded(self._model, error) from None
        except (ServeAppError, asyncio.CancelledError):
            self._table.failed()
            raise
        except BaseException as error:  # a backend may raise anything
            self._table.failed()
            logger.exception("%s: revision %s cannot be loaded", self._model, name)
            raise InvalidRequest(
                f"model {self._model!r}: revision {name} cannot be loaded: {type(error).__name__}"
            ) from None
        finally:
            if self._table.loading == "":
                await asyncio.to_thread(give_memory_back)
        self._table.loaded()
        self._hosted[name] = hosted
        self._lease_until = time.monotonic() + self._lease_s
        logger.info("%s: revision %s is loaded (%.1f s)", self._model, name, time.monotonic() - began)
        return hosted.told

    def _check_room(self, name: str, nbytes: int) -> None:
        if (problem := memory_problem(nbytes, self._memory_limit)) is not None:
            raise InvalidRequest(f"model {self._model!r}: revision {name} {problem}")

    async def settle(self, given_up: str | None = None) -> str:
        """Serve the agreed revision, and close the previous one once it is idle. Raises what `prepare` raises.

        Args:
            given_up: The claim of an abandoned load. Its revision is dropped unless another load claims it.

        Returns:
            The revision's name; empty: the model is unloaded.
        """
        async with self._settling:
            agreed = await self._agreed() or self._base
            name = agreed.revision
            if given_up is not None:
                self._claims.discard(given_up)
            if name and name not in self._table:
                self._drop_candidates()  # there is room for one beside the present one
                await self.prepare(name, agreed.version)
            if name != (self.current or ""):
                self._agree(name)
            elif not self._claims or not self._leased():
                self._drop_candidates()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self._drained.wait()
        await asyncio.to_thread(self._forget, self.current or "")
        return name

    def check(self) -> None:
        """Compare with the agreement, in the background. Call it periodically in the event loop."""
        if not self._table.loading:
            self._catch_up()

    def _leased(self) -> bool:
        return time.monotonic() < self._lease_until

    def _catch_up(self) -> None:
        if not self._catching_up:
            self._catching_up = True
            task = asyncio.ensure_future(self._caught_up())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _caught_up(self) -> None:
        try:
            await self.settle()
        except Exception as error:  # it is tried again with the next bundle, and the next check
            logger.warning("%s: this replica could not settle: %s", self._model, error)
        finally:
            self._catching_up = False

    async def _settle_candidate(self) -> None:
        """Drop an unclaimed candidate, or serve it if it was agreed and this replica missed the call."""
        async with self._settling:
            agreed = await self._agreed() or self._base
            if agreed.revision in self._table.at(Place.CANDIDATE):
                self._agree(agreed.revision)
            elif not self._leased():
                self._drop_candidates()

    def _drop_candidates(self) -> None:
        if dropped := self._table.at(Place.CANDIDATE):
            logger.info("%s: revision %s was not agreed on", self._model, dropped[0])
            self._agree(self.current or "")

    def _agree(self, name: str) -> None:
        if name != (self.current or ""):
            logger.info("%s: revision %s is served now, after %s", self._model, name or "none", self.current)
        if not self._table.loading:
            self._claims.clear()
        idle = self._table.agree(name)
        self._drained.clear()
        for other in idle:
            self._close(other)
        self._note_drained()

    def _close(self, name: str) -> None:
        task = asyncio.ensure_future(self._closed(self._hosted.pop(name)))
        self._closing.add(task)
        task.add_done_callback(self._on_closed)

    async def _closed(self, hosted: Hosted) -> None:
        """Close a revision in a thread, since it may wait for a run or a process to end."""
        try:
            await asyncio.to_thread(hosted.close)
        except Exception:  # a backend may raise anything
            logger.exception("%s: revision %s could not be closed", self._model, hosted.name)
        del hosted  # and with it its memory
        await asyncio.to_thread(give_memory_back)

    def _on_closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        self._note_drained()

    def _note_drained(self) -> None:
        if not self._closing and not self._table.at(Place.RETIRED):
            self._drained.set()

    # ------------------------------------------------------------------ health

    def stalled_s(self) -> float:
        """The maximum of `Worker.stalled_s` over revisions."""
        return max([hosted.worker.stalled_s() for hosted in tuple(self._hosted.values())], default=0.0)

    def calls_stalled_s(self) -> float:
        """The maximum of `Worker.calls_stalled_s` over revisions."""
        return max([hosted.worker.calls_stalled_s() for hosted in tuple(self._hosted.values())], default=0.0)

    def stuck_calls(self, limit_s: float) -> int:
        """The sum of `Worker.stuck_calls` over revisions."""
        return sum([hosted.worker.stuck_calls(limit_s) for hosted in tuple(self._hosted.values())])

    @property
    def verified(self) -> tuple[int, int]:
        """`Worker.verified` of the served revision."""
        current = self._table.current
        return (0, 0) if current is None else self._hosted[current].worker.verified

    @property
    def failing(self) -> bool:
        """Whether a revision is failing; see `Worker.failing`."""
        return any(hosted.worker.failing for hosted in tuple(self._hosted.values()))

    @property
    def broken(self) -> bool:
        """Whether a revision is broken; see `Worker.broken`."""
        return any(hosted.worker.broken for hosted in tuple(self._hosted.values()))

    async def close(self) -> None:
        """Free threads and sessions. Idempotent."""
        await asyncio.gather(*[asyncio.to_thread(hosted.close) for hosted in self._hosted.values()], *self._closing)
