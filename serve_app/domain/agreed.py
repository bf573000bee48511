"""Which state of a model's files all routers and replicas serve: what they agree on, and where that is written down."""

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
    """What is agreed on of a model.

    Attributes:
        revision: Name of the state of its files; empty: the model is unloaded.
        version: Which version of the model that is; ``None`` where it has none.
        executions: What its batches cost at the replicas that have loaded it.
        joinable: Which requests may share runs there, by variant.
        not_warmed: Why it is not warmed up there; ``None`` where it is.
        described: What clients are told of it, as `serve_app.composition.router.describe_revision` has written it.
        compute: What its replicas compute with; ``None``: none has told.
    """

    revision: str = ""
    version: int | None = None
    executions: Sequence[Execution] = ()
    joinable: Mapping[str, Joinable] = {}
    not_warmed: str | None = None
    described: bytes = b""
    compute: Compute | None = None


class Told(Struct, frozen=True):
    """What a replica tells of a revision that it has loaded; attributes as of `Agreed`."""

    executions: Sequence[Execution] = ()
    joinable: Mapping[str, Joinable] = {}
    not_warmed: str | None = None
    compute: Compute | None = None


class Register(Protocol):
    """Where it is written down what is agreed on: one place for all processes of an application."""

    async def read(self, model: str) -> Agreed | None:
        """What is agreed on of a model; ``None``: nothing was changed since it was deployed."""

    async def write(self, model: str, agreed: Agreed) -> None:
        """Agree on this from now on."""


def not_loaded(model: str, error: ServeAppError) -> InvalidRequest:
    """What whoever wants a model loaded is told of why it cannot be: one line, without folders of the server."""
    problem = error.problems[0] if isinstance(error, ConfigError) else error.message
    problem = _FOLDERS.sub("", problem.partition("\n")[0])
    return InvalidRequest(problem if problem.startswith("model ") else f"model {model!r}: {problem}")


def encode_agreed(agreed: Agreed) -> bytes:
    """As bytes, to be written down."""
    return msgspec.msgpack.encode(agreed)


def decode_agreed(content: bytes) -> Agreed:
    """What `encode_agreed` has made bytes of."""
    return msgspec.msgpack.decode(content, type=Agreed)
