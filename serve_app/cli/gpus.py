"""Checks whether a configuration's GPUs are there, and whether its replicas fit into their memory."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from serve_app.composition.model import find_files
from serve_app.config.args import AppArgs
from serve_app.config.model import ModelConfig

GPU_DEVICES: Final = "nvidia[0-9]*"
"""What stands in ``/dev`` for each NVIDIA device."""
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_TOLD: Final = 5
"""Most models listed by name."""
_GIB: Final = 1 << 30


@dataclass(slots=True)
class _Card:
    """A GPU: what is left of it for Ray to give away, and the memory of each model's replicas on it, bytes."""

    number: int
    memory: int
    left: float = 1.0
    taken: Counter[str] = field(default_factory=Counter)


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA device."""
    return any(Path("/dev").glob(GPU_DEVICES))


def gpu_memories(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Memory of each GPU that is visible here, bytes, by nvidia-smi; empty if it is not here or does not answer."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    if (visible := environ.get(_VISIBLE)) is not None:
        command.append(f"--id={visible}")
    try:
        done = subprocess.run(  # noqa: S603 - a command of ours
            command, capture_output=True, text=True, check=True, timeout=30
        )
        return tuple(int(line) << 20 for line in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def gpu_problem(args: AppArgs, *, has_gpu: bool) -> str | None:
    """The models that would wait for a missing GPU, in one line, if any.

    Ray would wait for ever for a machine with a GPU. Models with device ``auto`` then run on the CPU.

    Args:
        has_gpu: Whether this machine has one.
    """
    names = [model.name for model in args.models if model.resources.device == "cuda"]
    if has_gpu or not names:
        return None
    return (
        f"this machine has no GPU, which is asked for by {_listed(names)}: set resources.device to auto, which takes"
        " the CPU where there is no GPU, or to cpu (in a config.pbtxt: kind KIND_AUTO or KIND_CPU of instance_group)"
    )


def without_cuda(models: Iterable[ModelConfig], device: Literal["auto", "cuda"]) -> Iterator[str]:
    """Say which models of this device cannot run on their GPU, by the runtimes that are installed here; one line each.

    Args:
        models: Their files are here.
    """
    for model in models:
        asks = model.resources.device == device and model.resources.gpus
        if asks and (lacks := find_files(model)[""].kind.lacks_cuda()):
            yield f"model {model.name!r}: its share of a GPU cannot be used: {lacks}"


def gpu_memory_problems(args: AppArgs, memories: Sequence[int]) -> tuple[str, ...]:
    """Find GPUs on which replicas do not fit, one line each.

    Replicas are placed as Ray does: each on the GPU that has the least left of what suffices. First come those that
    start, then those that autoscaling may add, as far as there is room. Contexts of CUDA are not counted.

    Args:
        memories: Of the GPUs of this machine, bytes; empty: unknown.
    """
    if not memories:
        return ()
    cards = [_Card(number, memory) for number, memory in enumerate(memories)]
    waiting = []
    for started in (True, False):
        for model in (model for model in args.models if model.resources.gpus):
            first, most = (
                model.most_versions * each for each in (model.autoscaling.start_replicas, model.most_replicas)
            )
            placed = [_place(model, cards) for _ in range(first if started else most - first)]
            if started and not all(placed):
                waiting.append(model.name)
    problems = [_too_much(card) for card in cards if card.taken.total() > card.memory]
    if waiting:
        problems.append(
            f"replicas of {_listed(waiting)} would wait for a GPU for ever: the resources.gpus of all replicas do not"
            f" fit on those of this machine ({len(cards)}); lower them, or the numbers of replicas"
        )
    return tuple(problems)


def unchecked_memory(args: AppArgs, memories: Sequence[int]) -> Iterator[str]:
    """Say that the memory of GPUs is not checked, if that is so."""
    names = [model.name for model in args.models if model.resources.gpu_memory is not None]
    if names and not memories:
        yield f"the resources.gpu_memory of {_listed(names)} is not checked: nvidia-smi tells of no GPU here"


def _place(model: ModelConfig, cards: Sequence[_Card]) -> bool:
    """Place a replica on a card, if there is one for it."""
    share = model.resources.gpus
    fitting = [card for card in cards if card.left >= share]
    if fitting:
        card = min(fitting, key=lambda card: card.left)
        card.left = round(card.left - share, 4)  # the precision of Ray's resources
        card.taken[model.name] += int(model.resources.gpu_memory or 0)
    return bool(fitting)


def _too_much(card: _Card) -> str:
    parts = ", ".join(f"{name} {taken / _GIB:.3g}" for name, taken in card.taken.most_common(_TOLD))
    return (
        f"GPU {card.number} has {card.memory / _GIB:.3g} GiB, and the resources.gpu_memory of replicas that would share"
        f" it add up to {card.taken.total() / _GIB:.3g} GiB ({parts}): lower it, or raise resources.gpus, so that fewer"
        " share a GPU"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD} more" if len(names) > _TOLD else "")
