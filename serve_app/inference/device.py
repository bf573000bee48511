"""Which execution providers a session is asked for, and whether it got them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

import onnxruntime

from serve_app.errors import ConfigError

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
"""What a configuration may ask for."""

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"


def resolve_device(requested: Device, gpu_available: bool, model: str) -> Literal["cpu", "cuda"]:
    """Decide what to ask ONNX Runtime for.

    ONNX Runtime must not guess: a process sees every GPU of its host even where it was given none, and the list of
    available providers only says what the wheel was built with.

    Args:
        requested: As configured.
        gpu_available: Whether the cluster gave this replica a GPU, whole or in part.
        model: The model's name, for the message.

    Raises:
        ConfigError: CUDA is required and the replica has no GPU.
    """
    if requested == "cpu" or (requested == "auto" and not gpu_available):
        return "cpu"
    if not gpu_available:
        raise ConfigError(
            (f"model {model!r}: device is cuda, but its replica was given no GPU: set resources.gpus above 0",)
        )
    return "cuda"


def providers_for(device: Literal["cpu", "cuda"], gpu_memory_bytes: int | None) -> list[Any]:
    """The providers to make a session with, in order of preference.

    Args:
        device: What `resolve_device` chose.
        gpu_memory_bytes: Limit of the CUDA memory arena; ``None`` for all of the GPU. The CUDA context and cuDNN's
            workspaces come on top of it.
    """
    if device == "cpu":
        return [_CPU]
    options = {
        # Ray narrows CUDA_VISIBLE_DEVICES to what the replica was given, so its GPU is always the first one.
        "device_id": "0",
        # The default doubles every extension, which wastes the memory of the replicas that share the GPU.
        "arena_extend_strategy": "kSameAsRequested",
        # The default benchmarks every algorithm again for each new number of rows: a stall at each.
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    if gpu_memory_bytes is not None:
        options["gpu_mem_limit"] = str(gpu_memory_bytes)
    return [(_CUDA, options), _CPU]


@cache
def preload_cuda() -> None:
    """Load the CUDA and cuDNN libraries of the installed NVIDIA wheels, once per process.

    Has to happen before the first session that asks for CUDA. Missing libraries are not an error here: the session
    then comes without CUDA, which `device_of` and the backend notice.
    """
    # "" means: the NVIDIA wheels first, then the system's path. The default would look into PyTorch before them.
    onnxruntime.preload_dlls(directory="")


def device_of(providers: Sequence[str]) -> Literal["cpu", "cuda"]:
    """Where a session with these providers runs. Only ``session.get_providers()`` tells the truth."""
    return "cuda" if _CUDA in providers else "cpu"
