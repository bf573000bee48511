"""gRPC's standard health service: the whole server (empty name), the V2 service, and each model by name."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from grpc_health.v1 import health_pb2 as pb

from serve_app.api.grpc.call import GrpcCall, parse
from serve_app.domain.service import Administration, Inference
from serve_app.errors import ModelNotFound

_LIST: Final[Any] = pb
"""Has messages that its type stubs do not know."""

SERVING: Final = pb.HealthCheckResponse.SERVING
NOT_SERVING: Final = pb.HealthCheckResponse.NOT_SERVING
UNKNOWN_SERVICE: Final = pb.HealthCheckResponse.SERVICE_UNKNOWN

LOOK_EVERY_S: Final = 1.0
"""Longest delay of an unannounced change for watchers, seconds."""


class Health:
    """Answers the calls of the service.

    Args:
        names: Further services served here; each is as ready as the whole server.
        watch_s: How long the current call may watch, seconds.
    """

    def __init__(
        self,
        inference: Inference,
        administration: Administration,
        names: tuple[str, ...],
        watch_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._inference = inference
        self._administration = administration
        self._whole = frozenset({"", *names})
        self._watch_s = watch_s
        self._changed = asyncio.Event()
        self._closing = False
        self.unary = {"Check": self.check, "List": self.list}

    async def check(self, body: bytes, _: GrpcCall) -> bytes:
        """Whether a service or a model is ready."""
        name = parse(pb.HealthCheckRequest, body).service
        status = self.status(name)
        if status == UNKNOWN_SERVICE:
            raise ModelNotFound(f"there is no service and no model {name[:64]!r} here")
        return _answer(status).SerializeToString()

    async def list(self, body: bytes, _: GrpcCall) -> bytes:
        """The state of each service and model."""
        parse(_LIST.HealthListRequest, body)
        names = (*sorted(self._whole), *self._inference.models)
        statuses = {name: _answer(self.status(name)) for name in names}
        listed: bytes = _LIST.HealthListResponse(statuses=statuses).SerializeToString()
        return listed

    async def watch(self, body: bytes, _: GrpcCall) -> AsyncIterator[bytes]:
        """Yield the state of a service or model at each change, until the server closes or time is up."""
        name = parse(pb.HealthCheckRequest, body).service
        loop = asyncio.get_running_loop()
        until = loop.time() + self._watch_s()
        said: int | None = None
        while True:
            status = self.status(name)
            if status != said:
                yield _answer(status).SerializeToString()
                said = status
            left = until - loop.time()
            if self._closing or left <= 0.0:
                return
            try:
                async with asyncio.timeout(min(left, LOOK_EVERY_S)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def status(self, name: str) -> int:
        """The state of one service or model."""
        if self._closing:
            return NOT_SERVING
        if name in self._whole:
            return SERVING if self._administration.ready() else NOT_SERVING
        if name in self._inference.models:
            return SERVING if self._inference.model_ready(name) else NOT_SERVING
        return UNKNOWN_SERVICE

    def changed(self) -> None:
        """Notify watchers of a possible change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Report everything as not ready, and end all watches."""
        self._closing = True
        self.changed()


def _answer(status: Any) -> pb.HealthCheckResponse:
    return pb.HealthCheckResponse(status=status)
