"""What there is to run on: nodes with cores, and GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ByteSize, TypeAdapter, ValidationError

from serve_app.errors import ConfigError

_MOST = 10_000
_GPUS = re.compile(r"(\d+)x(.+)")
_CPUS = re.compile(r"(?:(\d+)x)?(\d+)")


@dataclass(frozen=True, slots=True)
class Devices:
    """The cores and GPUs that a plan may use.

    Attributes:
        cores: Of a node.
        memory: Of a node, bytes.
        nodes: How many there are, all alike.
        gpus: Memory of each GPU, bytes.
    """

    cores: int
    memory: int
    nodes: int = 1
    gpus: tuple[int, ...] = ()

    @property
    def node_cores(self) -> int:
        """Cores of a node for replicas: one is left to the router, Serve and Ray, if there are several."""
        return max(1, self.cores - 1)

    @property
    def replica_cores(self) -> int:
        """The same of all nodes."""
        return self.nodes * self.node_cores


def read_cpus(text: str) -> tuple[int, int]:
    """Nodes and cores of each, from ``CORES`` or ``NODESxCORES``. Raises ConfigError."""
    found = _CPUS.fullmatch(text)
    nodes, cores = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if not (1 <= nodes <= _MOST and 1 <= cores <= _MOST):
        raise ConfigError((f"--cpus {text}: must be cores, or nodes x cores of each, e.g. 8 or 3x8",))
    return nodes, cores


def read_gpus(text: str) -> tuple[int, ...]:
    """Memory of each GPU, from ``NxMEMORY``. Raises ConfigError."""
    found = _GPUS.fullmatch(text)
    try:
        memory = TypeAdapter(ByteSize).validate_python(found[2]) if found else 0
    except ValidationError:
        memory = 0
    if found is None or memory < 1 or not 1 <= int(found[1]) <= _MOST:
        raise ConfigError((f"--gpus {text}: must be GPUs x memory of each, e.g. 2x80GiB",))
    return (int(memory),) * int(found[1])
