"""Which execution providers a session is asked for, and whether it got them."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Literal

import onnxruntime

from serve_app.payloads import ModelSignature

TENSORRT = "TensorrtExecutionProvider"
"""Name of TensorRT's execution provider."""

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_TENSORRT_LIBRARY = "libnvinfer.so.10"
# Ray narrows CUDA_VISIBLE_DEVICES to what the replica was given, so its GPU is always the first one.
_FIRST_GPU = {"device_id": "0"}


def providers_for(device: Literal["cpu", "cuda"], gpu_memory_bytes: int | None, *, tf32: bool = True) -> list[Any]:
    """The providers to make a session with, in order of preference.

    Args:
        device: What `serve_app.backends.device.resolve_device` chose.
        gpu_memory_bytes: Limit of the CUDA memory arena; ``None`` for all of the GPU. The CUDA context and cuDNN's
            workspaces come on top of it.
        tf32: Whether products of FP32 may be computed in TF32.
    """
    if device == "cpu":
        return [_CPU]
    options = {
        **_FIRST_GPU,
        # The default doubles every extension, which wastes the memory of the replicas that share the GPU.
        "arena_extend_strategy": "kSameAsRequested",
        # The default benchmarks every algorithm again for each new number of rows: a stall at each.
        "cudnn_conv_algo_search": "HEURISTIC",
        "use_tf32": str(int(tf32)),
    }
    if gpu_memory_bytes is not None:
        options["gpu_mem_limit"] = str(gpu_memory_bytes)
    return [(_CUDA, options), _CPU]


def tensorrt_provider(gpu_memory_bytes: int | None, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """TensorRT's provider and its options. What it cannot run goes to the next provider, which must be CUDA's.

    Args:
        gpu_memory_bytes: Limit of the workspace that its engines may take; ``None`` for TensorRT's own.
        options: More of them, e.g. `tensorrt_profile`.
    """
    # Building engines takes minutes: they are kept, and so is what was learnt about the GPU's kernels.
    chosen = {**_FIRST_GPU, "trt_engine_cache_enable": "1", "trt_timing_cache_enable": "1", **options}
    if gpu_memory_bytes is not None:
        chosen["trt_max_workspace_size"] = str(gpu_memory_bytes)
    return TENSORRT, chosen


def tensorrt_profile(signature: ModelSignature, max_rows: int | None) -> dict[str, str]:
    """The shapes that TensorRT builds its engine for: 1 to ``max_rows`` rows, best at the most.

    Empty where other axes vary too, or the most rows are not known: the engine is then built for the shapes that come,
    and again whenever they go beyond. The warm-up runs the smallest and the largest first.
    """
    if max_rows is None or any(-1 in spec.shape[1:] for spec in signature.inputs):
        return {}

    def shapes(rows: int) -> str:
        return ",".join(f"{spec.name}:{'x'.join(map(str, (rows, *spec.shape[1:])))}" for spec in signature.inputs)

    return {
        "trt_profile_min_shapes": shapes(1),
        "trt_profile_opt_shapes": shapes(max_rows),
        "trt_profile_max_shapes": shapes(max_rows),
    }


@cache
def preload_tensorrt() -> bool:
    """Load TensorRT's libraries, once per process; whether they are there.

    ONNX Runtime names its provider as available wherever the wheel was built with it, and fails without the libraries.
    """
    with suppress(ImportError):
        importlib.import_module("tensorrt")  # NVIDIA's wheel keeps them off the path and loads them itself
    try:
        ctypes.CDLL(_TENSORRT_LIBRARY)
    except OSError:
        return False
    return True


@cache
def preload_cuda() -> None:
    """Load the CUDA and cuDNN libraries of the installed NVIDIA wheels, once per process.

    Has to happen before the first session that asks for CUDA. Missing libraries are not an error here: the session
    then comes without CUDA, which `device_of` and the backend notice.
    """
    # "" means: the NVIDIA wheels first, then the system's path. The default would look into PyTorch before them.
    onnxruntime.preload_dlls(directory="")


def lacks_device(error: BaseException | None) -> bool:
    """Whether making a session failed because CUDA is there and shows no device, e.g. a hidden or a lost one.

    ONNX Runtime looks for the device while it reads the provider's options, before it reads the model. Anything that
    goes wrong later, such as a model larger than its memory limit, is a fault to report and nothing to work around.
    """
    return error is not None and 'Failed to parse provider option "device_id"' in str(error)


def device_of(providers: Sequence[str]) -> Literal["cpu", "cuda"]:
    """Where a session with these providers runs. Only ``session.get_providers()`` tells the truth."""
    return "cuda" if _CUDA in providers else "cpu"


def has_cuda_convolutions(session: Any) -> bool:
    """Whether a session executes convolutions on CUDA. It must have been told to record what it executes where."""
    return any(
        "Conv" in node.op_type
        for assigned in session.get_provider_graph_assignment_info()
        if assigned.ep_name == _CUDA
        for node in assigned.get_nodes()
    )


def divide_memory(total_bytes: int, weight_bytes: int, row_sizes: Sequence[int]) -> list[int]:
    """Divide a memory limit among the sessions for different numbers of rows.

    Each gets its copy of the weights. The rest goes by rows, with an eighth of the largest number added to each:
    workspaces hardly shrink with the batch.

    Args:
        total_bytes: The limit.
        weight_bytes: What one copy of the weights takes.
        row_sizes: Rows of each session.

    Returns:
        A limit for each, at least 1; together no more than the total, where that is one byte for each or more.
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
