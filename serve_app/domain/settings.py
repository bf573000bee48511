"""Settings for the layers above: plain values, independent of their source."""

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
    """Selects the requests in the log.

    Attributes:
        sample: Fraction of the answered requests, 0 to 1.
        slow_s: Answered requests that took longer are always logged.
        lines_per_s: Most lines per second, and at once.
    """

    sample: float = 0.0
    slow_s: float = 1.0
    lines_per_s: float = 50.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of certificates.

    Attributes:
        certificate: PEM: the server's certificate, then those between it and the authority.
        key: PEM: the certificate's private key, not encrypted.
        client_ca: PEM: authorities of required client certificates; ``None``: none are required.
        minimum_version: The oldest version of TLS.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    minimum_version: Literal["1.2", "1.3"] = "1.2"

    def paths(self) -> tuple[Path, ...]:
        """All paths."""
        return (self.certificate, self.key) if self.client_ca is None else (self.certificate, self.key, self.client_ca)


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """A Redis server.

    Attributes:
        url: ``redis://``, ``rediss://`` or ``unix://``, without a password.
        username: ``None`` for the default user.
        password: ``None`` if the server requires none.
        ca_file: Certificates to check a ``rediss://`` server by; ``None`` for the system's.
        prefix: Of every key.
        write_s: Longest time to make a connection.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    prefix: str = "serve-app:"
    write_s: float = 1.0

    @property
    def place(self) -> str:
        """The server's address, without secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """Configuration of shared runs.

    Attributes:
        join: Whether requests may share runs at all.
        axes: The axis of the rows, of all tensors or by the name of each; ``None``: 0, unless the file fixes the size
            of that dimension to more than 1.
        unverified: Whether they may without proof.
        tolerance: Largest difference between shared and separate answers, relative to the largest value of the output;
            ``None`` for a default that depends on the datatype.
    """

    join: bool = True
    axes: int | Mapping[str, int] | None = None
    unverified: bool = False
    tolerance: float | None = None


class InputRule(NamedTuple):
    """Configuration of one input. At most one of ``limits`` and ``values``.

    Attributes:
        limits: Lowest and highest value, both included if the input holds integers.
        values: The values to choose from.
        shape: Its shape, without rows if it has them; ``None`` for the model's.
    """

    limits: tuple[float, float] | None = None
    values: tuple[Any, ...] = ()
    shape: tuple[int, ...] | None = None

    @property
    def says_values(self) -> bool:
        """Whether it restricts the values, and not only the shape."""
        return self.limits is not None or bool(self.values)


class SampleFile(NamedTuple):
    """A user's sample tensors.

    Attributes:
        place: Their source, for messages: ``samples[0] (ids.npz)``.
        tensors: Arrays by input name, all inputs of the model or some of them.
    """

    place: str
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """Configuration of a model's sample inputs.

    Attributes:
        files: Samples.
        rules: By input.
    """

    files: tuple[SampleFile, ...] = ()
    rules: Mapping[str, InputRule] = field(default_factory=lambda: MappingProxyType({}))
