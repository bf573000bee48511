"""Loads and unloads models in all routers and replicas of an application, in two steps: prepare, then agree.

    UNLOADED ──load──> LOADING ──> SWAPPING ──> READY ──load──> LOADING ...
                          │           │           └──unload──> SWAPPING ──> UNLOADED
                          └─ not all have it: as before, with the fault

All processes prepare first: replicas load the new revision beside the present one, and routers read its description. If
all can, the revision is written to the register, which is the moment from which later starters use it. Then routers
name it in their bundles, and when all do, replicas close the previous one. So nothing has to be undone, and a process
that misses a step finds its result in the register.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Final, Protocol

from serve_app.domain.agreed import Agreed, Register, Told, not_loaded
from serve_app.domain.service import Loaded
from serve_app.errors import ServeAppError
from serve_app.router.served import care_of

logger = logging.getLogger(__name__)

RENEW_S: Final = 5.0
"""How often replicas are notified that a load goes on, seconds."""


class LoadState(Enum):
    """State of a model during changes."""

    READY = "ready"
    """The agreed revision is served."""

    LOADING = "loading"
    """Another revision is being prepared; the present one is served, if there is one."""

    SWAPPING = "swapping"
    """Another revision is agreed on, and processes turn to it."""

    UNLOADED = "unloaded"
    """Nothing is served."""


class Fleet(Protocol):
    """The routers and replicas of an application, as one of its routers reaches them."""

    async def find(self, model: str) -> Agreed:
        """Find the present state of a model's files. Raises ConfigError."""

    async def prepare(self, model: str, found: Agreed, claim: str) -> Sequence[Told]:
        """Have every replica and router prepare a revision. Returns the replicas' reports.

        One that dies meanwhile does not count: its successor reads the register. If none is left, it is unknown whether
        the revision can be loaded.

        Args:
            found: The revision.
            claim: Names the load: replicas keep the prepared revision until every load that wants it gives it up.

        Raises:
            ServeAppError: One cannot, or not in time, or none has.
        """

    async def renew(self, model: str, claim: str) -> None:
        """Notify every replica that a load goes on. Raises ServeAppError if one does not hear it in time."""

    async def settle_routers(self, model: str) -> None:
        """Have every router turn to the agreed revision. Raises ServeAppError if one does not in time."""

    async def settle_replicas(self, model: str, given_up: str | None = None) -> int:
        """Have every replica turn to the agreed revision. Returns how many have; raises as `settle_routers`.

        Args:
            given_up: The claim of a load that does not go on.
        """


class Repository:
    """Implements `serve_app.router.service.Loading`.

    Changes of a model are made one at a time. Of two routers that change the same model at once, replicas let one go
    on.

    Args:
        fleet: Routers and replicas to change.
        register: Holds the agreed revisions.
        deployed: By model, the revision that it was deployed with.
    """

    def __init__(self, fleet: Fleet, register: Register, deployed: Mapping[str, Agreed]) -> None:
        self._fleet = fleet
        self._register = register
        self._deployed = deployed
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._states: dict[str, LoadState] = {}
        self.faults: dict[str, str] = {}
        """By model, why the last change failed, if it did."""

    def state(self, model: str) -> LoadState:
        """State of the model as far as this router has changed it."""
        return self._states.get(model, LoadState.READY)

    async def agreed(self, model: str) -> Agreed:
        """The agreed revision of a model."""
        return await self._register.read(model) or self._deployed[model]

    async def load(self, model: str) -> Loaded:
        """Load a model; as `serve_app.domain.service.Administration.load`."""
        # The client may leave: the change is completed all the same.
        return await asyncio.shield(asyncio.ensure_future(self._load(model)))

    async def unload(self, model: str) -> Loaded:
        """Unload a model; as `serve_app.domain.service.Administration.unload`."""
        return await asyncio.shield(asyncio.ensure_future(self._unload(model)))

    async def resume(self, model: str) -> None:
        """Complete a change whose router may have died before its end."""
        try:
            await self._settle(model)
        except ServeAppError as error:  # a router that misses it is corrected with its next bundle
            logger.warning("Model %s: %s", model, error.message)

    async def _load(self, model: str) -> Loaded:
        async with self._changing[model]:
            before = await self.agreed(model)
            at_rest = LoadState.READY if before.revision else LoadState.UNLOADED
            try:
                found = await self._find(model)
                if found.revision == before.revision:
                    await self._settle(model)  # the router that wrote it may have died before all had turned to it
                    self.faults.pop(model, None)
                    return Loaded(model, "READY", _version(before), before.revision, before.revision, 0)
                self._states[model] = LoadState.LOADING
                async with self._claimed(model) as claim:
                    told = await self._fleet.prepare(model, found, claim)
                    after = merged(found, told)
                    await self._agree(model, after)
            except ServeAppError as error:
                self._states[model] = at_rest
                self.faults[model] = error.message
                logger.warning("Model %s: not loaded, and served as before: %s", model, error.message)
                raise
            replicas = await self._turn(model, LoadState.READY)
            logger.info("Model %s: loaded revision %s after %s", model, after.revision, before.revision or "none")
            return Loaded(model, "READY", _version(after), before.revision, after.revision, replicas)

    async def _unload(self, model: str) -> Loaded:
        async with self._changing[model]:
            before = await self.agreed(model)
            replicas = 0
            if not before.revision:
                await self._settle(model)  # as in a load
            else:
                await self._agree(model, Agreed())
                replicas = await self._turn(model, LoadState.UNLOADED)
                logger.info("Model %s: unloaded revision %s", model, before.revision)
            return Loaded(model, "UNAVAILABLE", "", before.revision, "", replicas)

    async def _find(self, model: str) -> Agreed:
        try:
            return await self._fleet.find(model)
        except ServeAppError as error:
            logger.warning("Model %s: %s", model, error)
            raise not_loaded(model, error) from None

    @asynccontextmanager
    async def _claimed(self, model: str) -> AsyncIterator[str]:
        """The claim of a load, which replicas keep until it has ended. They drop the revision if the load fails."""
        claim = uuid.uuid4().hex
        renewing = asyncio.ensure_future(self._renew(model, claim))
        try:
            yield claim
        except ServeAppError:
            await self._undo(model, claim)
            raise
        finally:
            renewing.cancel()

    async def _renew(self, model: str, claim: str) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self._fleet.renew(model, claim)
            except Exception as error:  # it is tried again
                logger.warning("Model %s: not all replicas know that its load goes on: %s", model, error)

    async def _agree(self, model: str, agreed: Agreed) -> None:
        self._states[model] = LoadState.SWAPPING
        await self._register.write(model, agreed)
        self.faults.pop(model, None)

    async def _turn(self, model: str, then: LoadState) -> int:
        try:
            return await self._settle(model)
        except ServeAppError as error:
            self.faults[model] = error.message
            raise
        finally:
            self._states[model] = then

    async def _settle(self, model: str) -> int:
        await self._fleet.settle_routers(model)
        return await self._fleet.settle_replicas(model)

    async def _undo(self, model: str, claim: str) -> None:
        """Have replicas drop the prepared revision, unless another load wants it."""
        try:
            await self._fleet.settle_replicas(model, claim)
        except ServeAppError as error:  # they drop it by themselves, later
            logger.warning("Model %s: %s", model, error.message)


def merged(found: Agreed, told: Sequence[Told]) -> Agreed:
    """A revision with the replicas' reports. The most careful report on sharing runs counts."""
    joinable = dict(told[0].joinable) if told else {}
    for other in told[1:]:
        for name, verdict in other.joinable.items():
            joinable[name] = max(joinable.get(name, verdict), verdict, key=care_of)
    return Agreed(
        found.revision,
        found.version,
        [execution for each in told[:1] for execution in each.executions],
        joinable,
        next((each.not_warmed for each in told if each.not_warmed is not None), None),
        found.described,
        next((each.compute for each in told), None),
    )


def _version(agreed: Agreed) -> str:
    return str(agreed.version or 1)
