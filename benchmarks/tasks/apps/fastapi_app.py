"""FastAPI with the fast parts: uvloop, httptools, orjson.

Without batches, everything runs inside the endpoint, without a thread. With them, a thread of a pool decodes, and one
runs all requests that came while the last run was going on. Two processes have a port each, over which the clients'
connections are dealt evenly: no balancer costs anything, and none is unfair.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from fastapi import FastAPI, Request, Response

from benchmarks.tasks.apps.work import MOST_REQUESTS, PATH, Row, Settings, Work


class Batcher:
    """Puts the requests that came during a run into the next one.

    Args:
        work: The model.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._decoders = ThreadPoolExecutor(2)
        self._runner = ThreadPoolExecutor(1)
        self._waiting: list[tuple[list[Row], asyncio.Future[list[Row]]]] = []
        self._running: asyncio.Task[None] | None = None

    async def answer(self, body: bytes) -> bytes:
        """The answer to one request."""
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._decoders, self._work.prepare, body)
        future: asyncio.Future[list[Row]] = loop.create_future()
        self._waiting.append((rows, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return self._work.answer(await future)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            taken, self._waiting = self._waiting[:MOST_REQUESTS], self._waiting[MOST_REQUESTS:]
            requests = [rows for rows, _ in taken]
            found = await loop.run_in_executor(self._runner, self._work.run_all, requests)
            for (_, future), outputs in zip(taken, found, strict=True):
                future.set_result(outputs)
        self._running = None


def build(settings: Settings) -> FastAPI:
    """The application."""
    app = FastAPI()
    for name, work in settings.work().items():
        app.post(PATH.format(name))(_batched(Batcher(work)) if settings.batches else _inline(work))
    return app


def _inline(work: Work):  # type: ignore[no-untyped-def]
    async def predict(request: Request) -> Response:
        outputs = work.run(work.prepare(await request.body()))
        return Response(work.answer(outputs), media_type="application/json")

    return predict


def _batched(batcher: Batcher):  # type: ignore[no-untyped-def]
    async def predict(request: Request) -> Response:
        return Response(await batcher.answer(await request.body()), media_type="application/json")

    return predict


def serve(settings: Settings, port: int) -> None:
    """Serve on one port until the process is ended."""
    options = {"loop": "uvloop", "http": "httptools", "access_log": False, "log_level": "warning"}
    uvicorn.run(build(settings), host="127.0.0.1", port=port, **options)


if __name__ == "__main__":
    told = Settings.from_command_line()
    for another in told.ports[1:]:
        multiprocessing.get_context("spawn").Process(target=serve, args=(told, another), daemon=True).start()
    serve(told, told.ports[0])
