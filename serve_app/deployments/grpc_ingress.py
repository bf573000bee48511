"""The gRPC calls on Ray Serve's own port: Serve looks for methods of the ingress that are named as the calls.

Serve hands a message on as it came, since `serve_app.api.grpc_app.add_to_server` tells it not to parse any; that
also means that it need not pickle messages where it carries them between processes. Of an answer it wants to be able to
serialize it. A call without a method would end as UNKNOWN, so every call has one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeVar

from serve_app.api.grpc.call import Context
from serve_app.api.grpc_app import RPCS, GrpcApp, Rpc


class HasGrpcApp(Protocol):
    """A deployment that answers gRPC calls."""

    grpc_app: GrpcApp


_D = TypeVar("_D", bound=type[HasGrpcApp])


class Serialized(bytes):
    """A message that is serialized already."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - as protobuf's messages call it
        """The message."""
        return bytes(self)


def answers_grpc(deployment: _D) -> _D:
    """Give a deployment's class a method for every call."""
    for rpc in RPCS:
        setattr(deployment, rpc.name, _method(rpc))
    return deployment


def _method(rpc: Rpc) -> Callable[..., Any]:
    name = rpc.name

    # Serve passes the context to those who have an argument of this name.
    async def unary(self: HasGrpcApp, request: bytes, grpc_context: Context) -> Serialized:
        return Serialized(await self.grpc_app.unary(name, request, grpc_context))

    async def stream(
        self: HasGrpcApp, request: bytes | AsyncIterator[bytes], grpc_context: Context
    ) -> AsyncIterator[Serialized]:
        async for answer in self.grpc_app.stream(name, request, grpc_context):
            yield Serialized(answer)

    method: Callable[..., Any] = stream if rpc.streams else unary
    method.__name__ = name
    return method
