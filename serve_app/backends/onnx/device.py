"""Chooses a session's execution providers, and checks which it got."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import onnxruntime

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"


def providers_for(device: Literal["cpu", "cuda"], gpu_memory_bytes: int | None, *, tf32: bool = True) -> list[Any]:
    """The providers for a session, in order of preference.

    Args:
        device: From `serve_app.backends.device.resolve_device`.
        gpu_memory_bytes: Limit of the CUDA memory arena; ``None`` for no limit. The CUDA context and cuDNN's workspaces
            are not counted.
        tf32: Whether FP32 products may be computed in TF32.
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
        "use_tf32": str(int(tf32)),
    }
    if gpu_memory_bytes is not None:
        options["gpu_mem_limit"] = str(gpu_memory_bytes)
    return [(_CUDA, options), _CPU]


@cache
def preload_cuda() -> None:
    """Load the CUDA and cuDNN libraries of the installed NVIDIA wheels, once per process.

    Must precede the first session that asks for CUDA. Missing libraries are no error here: the session then comes
    without CUDA, which `device_of` and the backend notice.
    """
    # "" means: the NVIDIA wheels first, then the system's path. The default would look into PyTorch before them.
    onnxruntime.preload_dlls(directory="")


def lacks_device(error: BaseException | None) -> bool:
    """Whether making a session failed because CUDA has no visible device, e.g. a hidden or lost one.

    ONNX Runtime looks for the device while it reads the provider's options, before the model. A later failure, such as
    a model larger than its memory limit, is a fault to report, not to work around.
    """
    return error is not None and 'Failed to parse provider option "device_id"' in str(error)


def lacks_cuda() -> str:
    """Why the installed ONNX Runtime cannot use CUDA; empty if its build can."""
    if _CUDA in onnxruntime.get_available_providers():
        return ""
    return "the installed onnxruntime is built without CUDA: install onnxruntime-gpu, or set resources.device to cpu"


def device_of(providers: Sequence[str]) -> Literal["cpu", "cuda"]:
    """The device of a session with these providers. Only ``session.get_providers()`` is reliable."""
    return "cuda" if _CUDA in providers else "cpu"


def divide_memory(total_bytes: int, weight_bytes: int, row_sizes: Sequence[int]) -> list[int]:
    """Divide a memory limit among the sessions for different numbers of rows.

    Each gets its copy of the weights. The rest is divided by rows plus an eighth of the largest number: workspaces
    hardly shrink with the batch.

    Args:
        weight_bytes: Of one copy.

    Returns:
        A limit for each, at least 1; their sum is at most the total, if that is one byte each or more.
    """
    left = max(total_bytes - weight_bytes * len(row_sizes), 0)
    weights = min(weight_bytes, total_bytes // len(row_sizes))
    least = max(row_sizes) / 8
    whole = sum(rows + least for rows in row_sizes)
    parts = [weights + int(left * (rows + least) / whole) for rows in row_sizes]
    while 0 in parts and max(parts) > 1:
        parts[parts.index(max(parts))] -= 1
        parts[parts.index(0)] = 1
    return [max(1, part) for part in parts]
