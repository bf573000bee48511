"""What went wrong with a call to a replica, in this project's terms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from grpc import StatusCode
from grpc.aio import AioRpcError
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from serve_app.errors import ModelUnavailable
from serve_app.transport.send import ReplicaLost

_T = TypeVar("_T")

_GONE = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError)
"""Raised when the other side, or what it answered, is gone. Whether the bundle ran nobody knows."""

_CUT = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.ABORTED})
"""How gRPC says the same of calls that carry their payload."""


async def translate_errors(call: Callable[[], Awaitable[_T]], model: str, replica: str | None) -> _T:
    """Make a call to a replica, and raise what `translate_error` makes of what it raises."""
    try:
        return await call()
    except Exception as error:  # the seam to Ray
        failure = translate_error(error, model, replica)
    # Out here, since it may be a part of that error, and so in a cycle with it as its context.
    try:
        raise failure
    finally:
        del call, failure  # what they hold has this frame


def translate_error(error: Exception, model: str, replica: str | None) -> Exception:
    """Translate what a call to a replica raised.

    Args:
        error: As raised by Ray Serve's handle.
        model: The model, for the message.
        replica: Id of the replica that was called, or ``None``.

    Returns:
        `ReplicaLost`, a `ServeAppError`, or the exception itself where it is neither.
    """
    if isinstance(error, RayTaskError):
        # Its text is the replica's traceback, which is in the replica's log and must not reach a client.
        return translate_error(error.cause, model, replica) if isinstance(error.cause, Exception) else error
    if isinstance(error, _GONE):
        return ReplicaLost(f"replica {replica} died or cannot be reached ({type(error).__name__})")
    if isinstance(error, AioRpcError) and error.code() in _CUT:
        return ReplicaLost(f"the call to replica {replica} was cut ({error.code().name})")
    if isinstance(error, BackPressureError | DeploymentUnavailableError):
        return ModelUnavailable(f"model {model} cannot take requests now", 1.0)
    return error
