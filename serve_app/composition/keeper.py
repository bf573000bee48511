"""Has a router serve of each model what is agreed on."""

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
"""How long the answers to what was sent before are waited for, seconds."""


class Keeper:
    """Keeps one router to what is agreed on. To be used in the router's event loop.

    Args:
        register: Where it is written down.
        deployed: By model, what it was deployed with, which counts while nothing is written down.
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
        """The state of a model's files as it is now, which could be agreed on. Raises ConfigError."""
        return await asyncio.to_thread(self._find, model)

    def _find(self, model: str) -> Agreed:
        revision = find_revision(self._models[model])
        revision.check_written()
        found = Agreed(revision.name, revision.version, described=describe_revision(self._config, revision))
        if revision.changed():
            raise ConfigError((f"model {model!r}: its files change at this moment; load it again",))
        return found

    async def prepare(self, model: str, agreed: Agreed) -> None:
        """Make of a revision what this router serves, to serve it as soon as it is agreed on.

        Raises:
            InvalidRequest: What is beside its files cannot be read.
        """
        if (prepared := self._prepared.get(model)) is not None and prepared.info.revision == agreed.revision:
            return
        routed = await asyncio.to_thread(self._route, model, agreed)
        if routed.info.fault:
            raise InvalidRequest(routed.info.fault)
        self._prepared[model] = routed

    async def settle(self, model: str) -> None:
        """Serve what is agreed on of a model from now on, and wait for what was sent before. Raises as `prepare`."""
        await self._settle(model)
        with contextlib.suppress(TimeoutError):  # a replica hangs, of which others have the care
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
        """Serve this of a model from the beginning, which is before anything is asked; or tell why it cannot be."""
        if agreed.revision:
            self._prepared[model] = self._route(model, agreed)
        self._turn_to(model, agreed)

    def retry(self) -> Awaitable[object]:
        """Try again to serve what could not be read, in the background: its files may have been away for a while.

        Returns:
            Ends when that is done.
        """
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.ensure_future(self._retry())
        return self._retrying

    async def _retry(self) -> None:
        """One model after the other: there may be many, and others are served meanwhile."""
        for model in tuple(self._router.models.faults):
            self.catch_up(model)
            await asyncio.wait([self._tasks[model]])

    def catch_up(self, model: str) -> None:
        """A replica does not have what this router takes for agreed on: settle, in the background."""
        if model not in self._tasks:
            task = asyncio.ensure_future(self._caught_up(model))
            self._tasks[model] = task
            task.add_done_callback(lambda _: self._tasks.pop(model))

    async def _caught_up(self, model: str) -> None:
        try:
            await self._settle(model)
        except Exception as error:  # it is tried again: with the next bundle that comes back, or `retry`
            if str(error) != self._router.models.faults.get(model):  # which is told already
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
