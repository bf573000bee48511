"""Places replicas on GPUs: vector bin packing in two dimensions, memory and time of the device.

Best fit decreasing (Panigrahy et al., Heuristics for Vector Bin Packing, 2011) with several orders of the replicas.
Those left out come first in the next try (Joslin and Clements, Squeaky Wheel Optimization, 1999).
``python -m benchmarks.packing`` compares the result with that of an exact solver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import add
from typing import Final, TypeAlias

USABLE: Final = 0.7
"""Part of a device's memory that a plan uses. The rest is for fragmentation, growing arenas and other processes."""
TOLERANCE: Final = 1e-9
"""Rounding errors of a sum of shares."""
_GIB: Final = 1 << 30
_SIZES: Final[tuple[Callable[[float, float], float], ...]] = (max, add, lambda memory, _: memory, lambda _, time: time)
"""What items are ordered by: functions of their part of a device's memory and of its time."""
_ROUNDS: Final = 6
"""Fillings for each order; more gain nothing."""


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """What one replica needs: bytes on the device, its CUDA context included, and a share of the device's time."""

    model: str
    memory: int
    compute: float


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """A GPU, and the bytes of it that replicas may use: `USABLE` of its memory."""

    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Packing:
    """Which replica runs where.

    Attributes:
        left_out: Replicas without a device, each with the cause and the remedy in one line.
        free: Bytes and share of the time that are left, by name of the device.
    """

    placed: tuple[tuple[Item, Device], ...]
    left_out: tuple[tuple[Item, str], ...]
    free: Mapping[str, tuple[int, float]]


@dataclass(slots=True)
class Room:
    """What is left of a device, and what is on it."""

    device: Device
    memory: int = field(init=False)
    compute: float = 1.0
    items: list[Item] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = self.device.memory

    @property
    def slack(self) -> float:
        """The parts of memory and time that are left, added up."""
        return self.memory / max(1, self.device.memory) + self.compute

    def add(self, item: Item) -> None:
        """Place the item here."""
        self.memory -= item.memory
        self.compute -= item.compute
        self.items.append(item)


_Filled: TypeAlias = tuple[list[Room], list[Item]]
"""Devices with what is on them, and what is left out."""


def pack(items: Iterable[Item], devices: Iterable[Device]) -> Packing:
    """Place replicas so that few models have none, and few replicas are left out.

    Among the placements that are equal in both, the one with the fewest replicas beside another of their model is
    chosen: the loss of a device then leaves the model up.

    Raises:
        ValueError: Two devices have the same name.
    """
    devices = sorted(devices)
    if len({device.name for device in devices}) < len(devices):
        raise ValueError("two devices have the same name: give each its own, such as node/index")
    orders = _orders(items, max((device.memory for device in devices), default=0) or 1)
    rooms, left_out = min((_repair(order, devices, spread) for order in orders for spread in (True, False)), key=cost)
    return as_packing(rooms, ((item, _reason(item, rooms)) for item in left_out))


def as_packing(rooms: Sequence[Room], left_out: Iterable[tuple[Item, str]]) -> Packing:
    """Sort what is placed and left out by model."""
    placed = sorted((item, room.device) for room in rooms for item in room.items)
    free = {room.device.name: (room.memory, max(0.0, round(room.compute, 9))) for room in rooms}
    return Packing(tuple(placed), tuple(sorted(left_out)), dict(sorted(free.items())))


def _orders(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """Decreasing and increasing by each of `_SIZES`, and the same with one replica of each model first."""
    ranks: Counter[str] = Counter()
    ranked = []
    for item in sorted(items):
        ranked.append((ranks[item.model], item))
        ranks[item.model] += 1
    for by_rank, size in product((0, 1), _SIZES):
        order = sorted((by_rank * rank, -size(item.memory / most, item.compute), item) for rank, item in ranked)
        yield [item for *_, item in order]
        yield [item for *_, item in reversed(order)]


def _repair(order: list[Item], devices: Sequence[Device], spread: bool) -> _Filled:
    """Fill again with those first that were left out, the best of `_ROUNDS`."""
    best = found = _fill(order, devices, spread)
    for _ in range(_ROUNDS - 1):
        if not found[1]:
            break
        order = [*found[1], *(Counter(order) - Counter(found[1])).elements()]
        found = _fill(order, devices, spread)
        best = min(best, found, key=cost)
    return best


def _fill(order: Iterable[Item], devices: Iterable[Device], spread: bool) -> _Filled:
    """Give each item the device with the least left, or first of all with the fewest replicas of its model."""
    rooms = [Room(device) for device in devices]
    left_out = []
    for item in order:
        fitting = [each for each in rooms if item.memory <= each.memory and item.compute <= each.compute + TOLERANCE]
        if fitting:
            beside = [sum(spread and other.model == item.model for other in room.items) for room in fitting]
            min(zip(beside, fitting, strict=True), key=lambda pair: (pair[0], pair[1].slack))[1].add(item)
        else:
            left_out.append(item)
    return rooms, left_out


def cost(filled: _Filled) -> tuple[int, int, int]:
    """Models without a replica, replicas left out, and replicas beside another one of their model."""
    rooms, left_out = filled
    running = {item.model for room in rooms for item in room.items}
    beside = sum(len(room.items) - len({item.model for item in room.items}) for room in rooms)
    return len({item.model for item in left_out} - running), len(left_out), beside


def _reason(item: Item, rooms: Sequence[Room]) -> str:
    if not rooms:
        return "there is no device: add one"
    memory, largest = f"{item.memory / _GIB:.3g} GiB", max(room.device.memory for room in rooms)
    if item.memory > largest:
        return f"a replica needs {memory}, and no device has more than {largest / _GIB:.3g} usable: take larger devices"
    if item.compute > 1 + TOLERANCE:
        return f"a replica needs {item.compute:.0%} of a device's time: plan more replicas, each with less of the load"
    most = max(rooms, key=lambda room: room.slack)
    return (
        f"a replica needs {memory} and {item.compute:.0%} of the time, and {most.device.name}, where the most is left,"
        f" has {most.memory / _GIB:.3g} GiB and {max(0.0, most.compute):.0%}: add a device, or plan fewer replicas"
    )
