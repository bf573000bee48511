"""Loads models whose files have changed: one router of an application polls them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable

from serve_app.errors import ModelUnavailable, ServeAppError
from serve_app.router.administration import Loading

logger = logging.getLogger(__name__)

Look = Callable[[str], Awaitable[Hashable | None]]
"""A fingerprint of a model's files, without reading them; ``None``: something is missing."""


class Watcher:
    """Loads a model if its files have changed and then looked the same twice, so not while a file is being written.

    Args:
        loading: Loads a model. Files with unchanged contents have no effect.
        look: Fingerprints its files.
        models: The watched models at present.
        interval_s: Between two polls.
        elected: Whether this router polls at present.
    """

    def __init__(
        self,
        loading: Loading,
        look: Look,
        models: Callable[[], Iterable[str]],
        interval_s: float,
        elected: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loading = loading
        self._look = look
        self._models = models
        self._interval_s = interval_s
        self._elected = elected
        self._seen: dict[str, Hashable | None] = {}
        self._done: dict[str, Hashable] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """End. A load in progress goes on."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if self._elected():
                await self.poll()

    async def poll(self) -> None:
        """Look at all models once, and load those that have changed and settled."""
        models = list(self._models())
        for gone in self._seen.keys() - set(models):
            del self._seen[gone]
            self._done.pop(gone, None)
        for model in models:
            try:
                await self._poll(model)
            except Exception:  # one model's files must not keep the others from being watched
                logger.exception("The files of model %s cannot be watched", model)

    async def _poll(self, model: str) -> None:
        state = await self._look(model)
        before, self._seen[model] = self._seen.get(model), state
        if state is None or state != before or self._done.get(model) == state:
            return
        try:
            told = await self._loading.load(model)
        except ModelUnavailable as error:
            logger.warning("Model %s: %s; it is tried again", model, error.message)
            return
        except ServeAppError as error:
            logger.error("Model %s: its changed files cannot be served: %s", model, error.message)  # noqa: TRY400
        else:
            if told.before != told.after:
                logger.info("Model %s: its changed files are served", model)
        self._done[model] = state
