"""Has a router serve the agreed state of each model."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Final

from serve_app.composition.revision import find_revision
from serve_app.composition.router import describe_revision, route_revision
from serve_app.config.args import AppArgs
from serve_app.domain.agreed import Agreed, Register, Told
from serve_app.errors import ConfigError, InvalidRequest
from serve_app.router.router import Router
from serve_app.router.settings import RoutedModel

_log = logging.getLogger(__name__)

_TURN_S: Final = 30.0
"""Longest wait for answers to earlier bundles, seconds."""


class Keeper:
    """Keeps one router at the agreed states. To be used in the router's event loop.

    Args:
        register: Holds the agreed states.
        deployed: By model, the state that it was deployed with, used while the register has none.
    """

    def __init__(self, config: AppArgs, router: Router, register: Register, deployed: Mapping[str, Agreed]) -> None:
        self._config = config
        self._models = {model.name: model for model in config.models}
        self._router = router
        self._register = register
        self._deployed = deployed
        self._prepared: dict[str, RoutedModel] = {}
        self._settling: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._retrying: asyncio.Task[None] | None = None

    async def find(self, model: str) -> Agreed:
        """The present state of a model's files. Raises ConfigError."""
        return await asyncio.to_thread(self._find, model)

    def _find(self, model: str) -> Agreed:
        revision = find_revision(self._models[model])
        revision.check_written()
        found = Agreed(revision.name, revision.version, described=describe_revision(self._config, revision))
        if revision.changed():
            raise ConfigError((f"model {model!r}: its files change at this moment; load it again",))
        return found

    async def prepare(self, model: str, agreed: Agreed) -> None:
        """Prepare a revision, to serve it as soon as it is agreed on.

        Raises:
            InvalidRequest: A file beside the model cannot be read.
        """
        if (prepared := self._prepared.get(model)) is not None and prepared.info.revision == agreed.revision:
            return
        routed = await asyncio.to_thread(self._route, model, agreed)
        if routed.info.fault:
            raise InvalidRequest(routed.info.fault)
        self._prepared[model] = routed

    async def settle(self, model: str) -> None:
        """Serve the agreed state of a model, and wait for earlier bundles. Raises as `prepare`."""
        await self._settle(model)
        with contextlib.suppress(TimeoutError):  # a replica hangs, which is handled elsewhere
            async with asyncio.timeout(_TURN_S):
                await self._router.turned(model)

    async def _settle(self, model: str) -> None:
        async with self._settling[model]:
            agreed = await self._register.read(model) or self._deployed[model]
            models = self._router.models
            if agreed.revision == models.revision_of(model) and model not in models.faults:
                return
            if agreed.revision:
                await self.prepare(model, agreed)
            self._turn_to(model, agreed)

    def begin(self, model: str, agreed: Agreed) -> None:
        """Serve this state from the start, before any request; or record why it cannot be served."""
        if agreed.revision:
            self._prepared[model] = self._route(model, agreed)
        self._turn_to(model, agreed)

    def retry(self) -> Awaitable[object]:
        """Retry unreadable states, in the background: their files may have been away for a while.

        Returns:
            Ends with that.
        """
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.ensure_future(self._retry())
        return self._retrying

    async def _retry(self) -> None:
        """Retry one model after the other: there may be many, and others are served meanwhile."""
        for model in tuple(self._router.models.faults):
            self.catch_up(model)
            await asyncio.wait([self._tasks[model]])

    def catch_up(self, model: str) -> None:
        """Settle in the background, since a replica does not have this router's state."""
        if model not in self._tasks:
            task = asyncio.ensure_future(self._caught_up(model))
            self._tasks[model] = task
            task.add_done_callback(lambda _: self._tasks.pop(model))

    async def _caught_up(self, model: str) -> None:
        try:
            await self._settle(model)
        except Exception as error:  # it is tried again: with the next bundle that comes back, or `retry`
            if str(error) != self._router.models.faults.get(model):  # reported already
                _log.warning("Model %s: this router could not settle: %s", model, error)

    def _turn_to(self, model: str, agreed: Agreed) -> None:
        if not agreed.revision:
            self._router.settle_model(None, model)
            return
        told = None
        if agreed.joinable:
            told = Told(agreed.executions, agreed.joinable, agreed.not_warmed, agreed.compute)
        self._router.settle_model(self._prepared.pop(model), model, told)

    def _route(self, model: str, agreed: Agreed) -> RoutedModel:
        routed = route_revision(self._models[model], agreed)
        return replace(routed, base=self._deployed[model].revision)
