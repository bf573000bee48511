"""The whole server without Ray, on a real port: for clients that are tested as they are.

Scheduler, dispatcher, service, protocols and workers are the real ones; only the way from router to replica is a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runtime_harness import batch_same_turn, classes

from serve_app.inference.onnx import OnnxBackend, OnnxSettings
from serve_app.payloads import Bundle, BundleResult
from serve_app.protocols.http import create_app
from serve_app.protocols.http1 import Limits
from serve_app.protocols.listener import Listener, bind
from serve_app.protocols.service import ModelInfo, ModelServing
from serve_app.runtime.dispatcher import Dispatcher
from serve_app.runtime.metrics import RouterMetrics
from serve_app.runtime.service import Service
from serve_app.runtime.worker import Worker
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits

MAX_ROWS = 8
_TIMEOUTS = {Priority.HIGH: 10.0, Priority.NORMAL: 20.0, Priority.LOW: 30.0}


class LocalServer:
    """Serves ONNX models in the running event loop.

    Args:
        files: The models' files by name.
        labels: Class names of those that have any.

    Attributes:
        service: What is served.
    """

    def __init__(self, files: Mapping[str, Path], labels: Mapping[str, tuple[str, ...]]) -> None:
        backends = {name: OnnxBackend(OnnxSettings(name, path, device="cpu")) for name, path in files.items()}
        for backend in backends.values():
            backend.load()
        self._workers = {name: _worker(name, backend) for name, backend in backends.items()}
        infos = {
            name: ModelInfo(
                name=name,
                version="1",
                versions=("1",),
                task="tensors",
                signature=backend.signature,
                max_rows=MAX_ROWS,
                max_request_rows=64,
                default_timeout_s=_TIMEOUTS,
                labels=labels.get(name, ()),
                serving=ModelServing(device="cpu", queue_entries=dict.fromkeys(Priority, 1000)),
            )
            for name, backend in backends.items()
        }
        scheduler = Scheduler(
            [ModelScheduling(name, max_rows=MAX_ROWS, slo_s=1.0) for name in infos], classes(), ProcessLimits(10**9)
        )
        metrics = RouterMetrics(scheduler)
        dispatcher = Dispatcher(scheduler, self._send, metrics, 60.0)
        for name in infos:
            dispatcher.on_replicas(name, ["here"])

        async def page() -> str:
            return metrics.render()

        self.service = Service(
            models=infos,
            processors={},
            dispatcher=dispatcher,
            metrics=metrics,
            on_demand=frozenset(),
            metrics_page=page,
        )

    async def _send(self, model: str, bundle: Bundle, _: str | None, __: int) -> BundleResult:
        return await self._workers[model].run(bundle)

    def close(self) -> None:
        """Free the models."""
        for worker in self._workers.values():
            worker.close()


def _worker(name: str, backend: OnnxBackend) -> Worker:
    return Worker(
        name=name,
        backends={"": backend},
        processor=None,
        max_rows=MAX_ROWS,
        preprocess_threads=1,
        batch=batch_same_turn,
    )


@contextlib.contextmanager
def serving(files: Mapping[str, Path], labels: Mapping[str, tuple[str, ...]] | None = None) -> Iterator[str]:
    """Serve models from a thread of its own, until left. Gives ``host:port``."""
    started = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        stop = found["stop"] = asyncio.Event()
        found["loop"] = asyncio.get_running_loop()
        server = LocalServer(files, labels or {})
        listener = Listener(create_app(server.service), bind("127.0.0.1", 0), Limits())
        found["address"] = f"127.0.0.1:{listener.port}"
        await listener.start()
        started.set()
        try:
            await stop.wait()
        finally:
            await listener.close(5.0, grace_s=0.0)
            server.close()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            found["error"] = error
            raise
        finally:
            started.set()

    thread = threading.Thread(target=run, name="local-server")
    thread.start()
    started.wait()
    try:
        if "address" not in found:
            raise RuntimeError("the server did not start") from found.get("error")
        yield found["address"]
    finally:
        with contextlib.suppress(RuntimeError):  # its loop has ended already
            found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join()
