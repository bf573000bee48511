"""What a session is asked for."""

from __future__ import annotations

from typing import Literal

import pytest

from serve_app.inference.device import Device, device_of, providers_for, resolve_device


@pytest.mark.parametrize(
    ("requested", "gpu_available", "expected"),
    [
        ("cpu", False, "cpu"),
        ("cpu", True, "cpu"),
        ("auto", False, "cpu"),
        ("auto", True, "cuda"),
        ("cuda", True, "cuda"),
    ],
)
def test_a_gpu_is_used_only_where_it_was_given(requested: Device, gpu_available: bool, expected: str) -> None:
    """What the host has does not count; what the replica was given does."""
    assert expected == resolve_device(requested, gpu_available, "m")


def test_the_cpu_is_asked_for_alone() -> None:
    """A replica without a GPU must not touch one that its process can see."""
    assert providers_for("cpu", 1 << 30) == ["CPUExecutionProvider"]


@pytest.mark.parametrize(("memory", "limit"), [(None, {}), (2 << 30, {"gpu_mem_limit": "2147483648"})])
def test_the_memory_limit_reaches_the_cuda_arena(memory: int | None, limit: dict[str, str]) -> None:
    """Replicas that share a GPU do not take each other's memory."""
    (name, options), fallback = providers_for("cuda", memory)

    assert (name, fallback) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert {
        "device_id": "0",
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        **limit,
    } == options


@pytest.mark.parametrize(
    ("providers", "expected"),
    [(["CPUExecutionProvider"], "cpu"), (["CUDAExecutionProvider", "CPUExecutionProvider"], "cuda")],
)
def test_the_device_is_what_the_session_got(providers: list[str], expected: Literal["cpu", "cuda"]) -> None:
    """A session that lists CUDA runs on it."""
    assert expected == device_of(providers)
