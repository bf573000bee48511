"""Where the replicas of a plan run: nodes for models on the CPU, GPUs by the shares that Ray places them with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from serve_app_simulator.plan.costs import CUDA, Costed
from serve_app_simulator.plan.devices import Devices
from serve_app_simulator.plan.packing import USABLE, Device, Item, Packing, pack
from serve_app_simulator.plan.shares import CONTEXT_BYTES, Share, plan_for_ray


@dataclass(frozen=True, slots=True)
class Placement:
    """Which replicas run where.

    Attributes:
        placed: Models on each device by its name, one for every replica.
        shares: Of a GPU, by model.
        order: The models on GPUs as the configuration has to list them; empty: in any order.
        problems: By model, what does not fit, in a line with the remedy.
    """

    placed: Mapping[str, Sequence[str]]
    shares: Mapping[str, Share]
    order: tuple[str, ...]
    problems: Mapping[str, str]

    def count(self, model: str) -> int:
        """Replicas of a model that fit."""
        return sum(list(names).count(model) for names in self.placed.values())


def place(
    models: Sequence[Costed], replicas: Mapping[str, int], busy: Mapping[str, float], devices: Devices
) -> Placement:
    """Pack replicas onto devices.

    Args:
        replicas: By model.
        busy: Part of the time that each of its replicas executes, likewise.
    """

    def items(kind: str) -> list[Item]:
        return [
            Item(model.name, *_needs(model, busy[model.name], devices))
            for model in models
            for _ in range(replicas[model.name] if model.device == kind else 0)
        ]

    on_cpu, on_gpu = items("cpu"), items(CUDA)
    nodes = [Device(f"node {number + 1}", int(USABLE * devices.memory)) for number in range(devices.nodes)]
    cards = [Device(f"GPU {number}", int(USABLE * memory)) for number, memory in enumerate(devices.gpus)]
    by_shares, on_nodes = plan_for_ray(on_gpu, cards), pack(on_cpu, nodes)
    cores = ceil(sum(item.compute for item in on_cpu) * devices.node_cores)
    gpus = ceil(sum(item.compute for item in on_gpu))
    return Placement(
        _names(on_nodes) | _names(by_shares.packing),
        by_shares.shares,
        () if by_shares.any_order else tuple(by_shares.shares),
        _problems(on_nodes, f"about {cores} cores for replicas, such as --cpus {cores + 1}")
        | _problems(by_shares.packing, f"about {gpus} GPUs by their time"),
    )


def _needs(model: Costed, busy: float, devices: Devices) -> tuple[int, float]:
    """Memory of a replica, bytes, and its part of the device's time."""
    if model.device == CUDA:
        return model.memory + CONTEXT_BYTES, busy
    return model.memory, busy * model.threads / devices.node_cores


def _names(packing: Packing) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item, device in packing.placed:
        found.setdefault(device.name, []).append(item.model)
    return found


def _problems(packing: Packing, needed: str) -> dict[str, str]:
    reasons: dict[str, list[str]] = {}
    for item, reason in packing.left_out:
        reasons.setdefault(item.model, []).append(reason)
    return {
        model: f"{model}: {len(each)} more of its replicas would not fit: {each[0]}; in all the demand needs {needed}"
        for model, each in reasons.items()
    }
