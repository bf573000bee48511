"""The threads in which a replica's processor works: media become tensors, and tensors become answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, cast

from serve_app.errors import InferenceFailed, InvalidRequest, ServeAppError
from serve_app.payloads import EXPIRED, Failure, Media, Success, Tensors, Texts
from serve_app.processors.processor import Processor
from serve_app.replica.staged import Staged

_P = ParamSpec("_P")

logger = logging.getLogger(__name__)


class ProcessorPool:
    """Runs a processor in threads. Entries whose client sent tensors pass through as they are.

    Args:
        name: The model's name, for messages.
        processor: ``None`` for a model that takes tensors only.
        threads: Size of the pool.
    """

    def __init__(self, name: str, processor: Processor | None, threads: int) -> None:
        self._name = name
        self._processor = processor
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="processor")

    def close(self) -> None:
        """End the threads. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, work: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> Future[None]:
        """Have other work done in one of the threads. Raises ``RuntimeError`` after `close`."""
        return self._pool.submit(work, *args, **kwargs)

    async def preprocess(self, staged: Staged, media: Sequence[int]) -> None:
        """Fill in the tensors of the entries at these positions, which hold media or texts, or why there are none."""
        await self._in_pool(media, lambda index: self._preprocess_entry(staged, index))

    def _preprocess_entry(self, staged: Staged, index: int) -> None:
        payload = staged.entries[index].payload
        if index in staged.recalled:
            return
        if staged.deadlines[index] <= time.monotonic():
            staged.tensors[index] = EXPIRED
            return
        try:
            staged.tensors[index] = self._media_processor().preprocess(cast("Media | Texts", payload))
        except ServeAppError as error:
            staged.tensors[index] = Failure(error.code, error.message)
        except Exception:  # the seam to media libraries: the other entries are answered
            logger.exception("%s could not preprocess request %s", self._name, staged.entries[index].origin)
            staged.tensors[index] = Failure(
                InferenceFailed.code, f"model {self._name} failed to preprocess this request"
            )

    async def postprocess(self, staged: Staged) -> None:
        """Turn results into answers. An entry without a result was not run in time."""
        media = []
        for index, entry in enumerate(staged.entries):
            result = staged.results[index]
            if result is None:
                tensors = staged.tensors[index]
                staged.results[index] = tensors if isinstance(tensors, Failure) else EXPIRED
            elif isinstance(result, Success) and not isinstance(entry.payload, dict):
                media.append(index)
        if media:
            await self._in_pool(media, lambda index: self._postprocess_entry(staged, index))

    def _postprocess_entry(self, staged: Staged, index: int) -> None:
        payload = cast("Media | Texts", staged.entries[index].payload)
        result = cast("Success", staged.results[index])
        try:
            inputs = cast("Tensors", staged.tensors[index])
            staged.results[index] = Success(self._media_processor().postprocess(payload, result.value, inputs))
        except ServeAppError as error:
            staged.results[index] = Failure(error.code, error.message)
        except Exception:  # as in `_preprocess_entry`
            logger.exception("%s could not postprocess request %s", self._name, staged.entries[index].origin)
            staged.results[index] = Failure(
                InferenceFailed.code, f"model {self._name} failed to postprocess this request"
            )

    def _media_processor(self) -> Processor:
        if self._processor is None:
            raise InvalidRequest(f"model {self._name} takes tensors only")
        return self._processor

    async def _in_pool(self, indexes: Sequence[int], work: Callable[[int], None]) -> None:
        """Spread the work over the pool, one share per thread."""
        shares = [indexes[start :: self._threads] for start in range(self._threads)]
        await asyncio.gather(*(self._share(self._pool, share, work) for share in shares if share))

    @staticmethod
    async def _share(pool: Executor, indexes: Sequence[int], work: Callable[[int], None]) -> None:
        def run() -> None:
            for index in indexes:
                work(index)

        await asyncio.get_running_loop().run_in_executor(pool, run)
