"""Settings as the layers above take them: plain values, whoever makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from serve_app.payloads import Tensors


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Which requests get a line.

    Attributes:
        sample: Part of the answered requests, 0 to 1.
        slow_s: Answered requests that took longer always do, seconds.
        lines_per_s: Most lines per second, and at once.
    """

    sample: float = 0.0
    slow_s: float = 1.0
    lines_per_s: float = 50.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificates are.

    Attributes:
        certificate: PEM: the server's certificate, then those between it and the authority.
        key: PEM: the certificate's private key, not encrypted.
        client_ca: PEM: the authorities whose certificates clients must show; ``None`` where they need none.
        minimum_version: The oldest version of TLS that is spoken.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    minimum_version: Literal["1.2", "1.3"] = "1.2"

    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.certificate, self.key) if self.client_ca is None else (self.certificate, self.key, self.client_ca)


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """A Redis server.

    Attributes:
        url: ``redis://``, ``rediss://`` or ``unix://``, without a password.
        username: Of the server's user; ``None`` for the default one.
        password: Its password; ``None`` where the server asks for none.
        ca_file: Certificates to check a ``rediss://`` server by; ``None`` for the system's.
        prefix: Of every key.
        write_s: How long a new connection may take.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    prefix: str = "serve-app:"
    write_s: float = 1.0

    @property
    def place(self) -> str:
        """Where the server is, without anything secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """What the configuration says of sharing runs.

    Attributes:
        join: Whether requests may share runs at all.
        axes: The axis of the rows, of all tensors or by the name of each; ``None``: 0, unless the file fixes the size
            of that dimension to more than 1.
        unverified: Whether they may without proof.
        tolerance: Largest difference that sharing may make to an answer, relative to the largest value of its output;
            ``None`` for a default that depends on the datatype.
    """

    join: bool = True
    axes: int | Mapping[str, int] | None = None
    unverified: bool = False
    tolerance: float | None = None


class InputRule(NamedTuple):
    """What is configured of one input. At most one of ``limits`` and ``values``.

    Attributes:
        limits: Lowest and highest value, both included where the input holds integers.
        values: The values to choose from.
        shape: Its shape, without rows where it has them; ``None`` for the model's.
    """

    limits: tuple[float, float] | None = None
    values: tuple[Any, ...] = ()
    shape: tuple[int, ...] | None = None

    @property
    def says_values(self) -> bool:
        """Whether it tells what the input holds, and not only of which shape it is."""
        return self.limits is not None or bool(self.values)


class SampleFile(NamedTuple):
    """Tensors as a user gave them.

    Attributes:
        place: Where they were given, for messages: ``samples[0] (ids.npz)``.
        tensors: Arrays by input name, all inputs of the model or some of them.
    """

    place: str
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """What is configured of a model's inputs.

    Attributes:
        files: Samples.
        rules: By input, what its values are.
    """

    files: tuple[SampleFile, ...] = ()
    rules: Mapping[str, InputRule] = field(default_factory=lambda: MappingProxyType({}))
