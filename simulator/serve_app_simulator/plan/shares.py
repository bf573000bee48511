"""Shares of a GPU with which Ray places replicas as planned.

Ray has one number for each replica, `resources.gpus`, in steps of 0.0001. It places a replica on the GPU of its node
with the least left of what suffices (best fit: `NodeResourceInstanceSet::TryAllocate` in
src/ray/common/scheduling/resource_instance_set.cc), in the order in which replicas start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from serve_app_simulator.plan.packing import TOLERANCE, Device, Item, Packing, Room, as_packing, cost, pack

CONTEXT_BYTES: Final = 850 << 20
"""What a replica needs on top of its `gpu_memory`: a CUDA context, one for each process, and the workspaces of cuDNN.

Measured on an H200 with ONNX Runtime (docs/benchmarks/gpu.md, "The memory limit").
"""
_STEPS: Final = 10_000
_MEMORY_WEIGHTS: Final = (0.2, 0.5, 0.8)
"""First guesses of the search for shares: weights of a replica's memory; the rest is the weight of its time."""
_ROUNDS: Final = 60
_PACE: Final = 0.2
_SLOWER: Final = 0.95
"""Rounds for each guess, the part by which the first changes a share, and what each further one does with this part."""


@dataclass(frozen=True, slots=True)
class Share:
    """A model's `resources.gpus`, and its `resources.gpu_memory` in bytes."""

    gpus: float
    gpu_memory: int


@dataclass(frozen=True, slots=True)
class RayPlan:
    """What Ray places where, and by which shares.

    Attributes:
        shares: Of each model that has a replica, in the order for the configuration: the largest first.
        any_order: Whether no device is exceeded in whichever order replicas start, also after failures; some may wait.
            Otherwise a device may be exceeded if they start in another order than that of the configuration.
    """

    packing: Packing
    shares: Mapping[str, Share]
    any_order: bool


def fraction(item: Item, device: Device) -> float:
    """The part of a device that a replica occupies: the larger of memory and time, rounded up as Ray counts."""
    return _steps(item, device) / _STEPS


def _steps(item: Item, device: Device) -> int:
    return max(1, -(-item.memory * _STEPS // max(1, device.memory)), ceil(item.compute * _STEPS - 1e-6))


def plan_for_ray(items: Iterable[Item], devices: Iterable[Device]) -> RayPlan:
    """Place replicas as Ray does, with shares that keep each device within memory and time.

    Shares equal to `fraction` do so in any order, but waste what one dimension leaves of the other. Where replicas
    would wait with these, smaller shares are searched that place more of them. Ray does not spread the replicas of a
    model.

    Args:
        devices: Of one node. Ray does not tell its GPUs apart, so each counts as the smallest.

    Raises:
        ValueError: Two devices have the same name, or a replica's memory is not above `CONTEXT_BYTES`.
    """
    devices = sorted(devices, key=lambda device: device.name)
    least = min((device.memory for device in devices), default=0)
    devices = [replace(device, memory=least) for device in devices]
    packing = pack(items, devices)
    kept = [item for item, _ in packing.placed]
    memory: dict[str, int] = {}
    whole: dict[str, int] = {}
    for item, device in packing.placed:
        if item.memory <= CONTEXT_BYTES:
            raise ValueError(f"a replica of {item.model!r} has no memory but for its context: add CONTEXT_BYTES to it")
        memory[item.model] = max(memory.get(item.model, 0), item.memory)
        whole[item.model] = max(whole.get(item.model, 0), _steps(item, device))
    steps_of, (rooms, waiting) = _search(kept, whole, devices)
    left_out = [*packing.left_out, *((item, _reason(whole[item.model])) for item in waiting)]
    placed = {item.model for room in rooms for item in room.items}
    shares = {
        model: Share(steps_of[model] / _STEPS, memory[model] - CONTEXT_BYTES)
        for model in _decreasing(steps_of)
        if model in placed
    }
    return RayPlan(as_packing(rooms, left_out), shares, all(steps_of[model] >= whole[model] for model in placed))


def _search(
    items: Sequence[Item], whole: Mapping[str, int], devices: Sequence[Device]
) -> tuple[dict[str, int], tuple[list[Room], list[Item]]]:
    """Find shares with which best fit exceeds no device and leaves few replicas waiting, from several first guesses."""
    chosen, best = dict(whole), _best_fit(items, whole, devices)
    for weight in _MEMORY_WEIGHTS:
        tried = {
            item.model: _STEPS * (weight * item.memory / devices[0].memory + (1 - weight) * item.compute)
            for item in items
        }
        for number in range(_ROUNDS):
            if not best[1]:
                return chosen, best
            steps_of = {model: min(_STEPS, max(1, int(steps))) for model, steps in tried.items()}
            found = _best_fit(items, steps_of, devices)
            if not any(map(_is_exceeded, found[0])) and cost(found)[:2] < cost(best)[:2]:
                chosen, best = steps_of, found
            _change(tried, *found, _PACE * _SLOWER**number)
    return chosen, best


def _change(tried: dict[str, float], rooms: Iterable[Room], waiting: Sequence[Item], pace: float) -> None:
    """Let shares on exceeded devices grow, and shrink the others while replicas wait."""
    for room in rooms:
        factor = 1 + pace if _is_exceeded(room) else 1 - pace / 2 if waiting else 1.0
        for model in {item.model for item in room.items}:
            tried[model] *= factor
    for model in {item.model for item in waiting}:
        tried[model] *= 1 - pace


def _is_exceeded(room: Room) -> bool:
    return room.memory < 0 or room.compute < -TOLERANCE


def _decreasing(shares: Mapping[str, int]) -> list[str]:
    return sorted(shares, key=lambda model: (-shares[model], model))


def _best_fit(
    items: Sequence[Item], shares: Mapping[str, int], devices: Iterable[Device]
) -> tuple[list[Room], list[Item]]:
    """What Ray places where by these shares, and what waits."""
    rooms, waiting = [Room(device) for device in devices], []
    left = [_STEPS] * len(rooms)
    for model in _decreasing(shares):
        for item in (item for item in items if item.model == model):
            fitting = [at for at, steps in enumerate(left) if steps >= shares[model]]
            if fitting:
                chosen = min(fitting, key=lambda at: left[at])
                left[chosen] -= shares[model]
                rooms[chosen].add(item)
            else:
                waiting.append(item)
    return rooms, waiting


def _reason(steps: int) -> str:
    return (
        f"no GPU has {steps / _STEPS:g} left, the larger of the replica's memory and time, which Ray reserves: add a"
        " device, plan fewer replicas, or smaller ones"
    )
