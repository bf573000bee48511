"""The state of a model's files that all routers and replicas serve, and the register that holds it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from serve_app.errors import ConfigError, InvalidRequest, ServeAppError
from serve_app.payloads import Compute, Execution, Joinable

_FOLDERS: Final = re.compile(r"(?<![\w.~/-])/(?:[^/\s:'\"]+/)+")
"""The folders of an absolute path."""


class Agreed(Struct, frozen=True):
    """The agreed state of a model.

    Attributes:
        revision: Name of the state of its files; empty: the model is unloaded.
        version: The version of the model; ``None`` if it has none.
        executions: Cost of its batches at the replicas that have loaded it.
        joinable: Which requests may share runs there, by variant.
        not_warmed: Why it is not warmed up there; ``None`` if it is.
        described: Its description for clients, from `serve_app.composition.router.describe_revision`.
        compute: What its replicas compute with; ``None``: not reported.
    """

    revision: str = ""
    version: int | None = None
    executions: Sequence[Execution] = ()
    joinable: Mapping[str, Joinable] = {}
    not_warmed: str | None = None
    described: bytes = b""
    compute: Compute | None = None


class Told(Struct, frozen=True):
    """A replica's report of a loaded revision; attributes as of `Agreed`."""

    executions: Sequence[Execution] = ()
    joinable: Mapping[str, Joinable] = {}
    not_warmed: str | None = None
    compute: Compute | None = None


class Register(Protocol):
    """The agreed states: one place for all processes of an application."""

    async def read(self, model: str) -> Agreed | None:
        """The agreed state of a model; ``None``: nothing was changed since it was deployed."""

    async def write(self, model: str, agreed: Agreed) -> None:
        """Replace the agreed state."""


def not_loaded(model: str, error: ServeAppError) -> InvalidRequest:
    """The error for clients of a failed load: one line, without folders of the server."""
    problem = error.problems[0] if isinstance(error, ConfigError) else error.message
    problem = _FOLDERS.sub("", problem.partition("\n")[0])
    return InvalidRequest(problem if problem.startswith("model ") else f"model {model!r}: {problem}")


def encode_agreed(agreed: Agreed) -> bytes:
    """Encode a state for the register."""
    return msgspec.msgpack.encode(agreed)


def decode_agreed(content: bytes) -> Agreed:
    """Decode the result of `encode_agreed`."""
    return msgspec.msgpack.decode(content, type=Agreed)
