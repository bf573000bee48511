"""What a session is asked for."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.backends.device import Device, resolve_device
from serve_app.backends.onnx.device import (
    device_of,
    divide_memory,
    lacks_device,
    providers_for,
)


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
        "use_tf32": "1",
        **limit,
    } == options


def test_products_can_be_kept_from_tf32() -> None:
    """At a cost: they are slower then."""
    (_, options), _ = providers_for("cuda", None, tf32=False)
    assert "0" == options["use_tf32"]


@pytest.mark.parametrize(
    ("providers", "expected"),
    [(["CPUExecutionProvider"], "cpu"), (["CUDAExecutionProvider", "CPUExecutionProvider"], "cuda")],
)
def test_the_device_is_what_the_session_got(providers: list[str], expected: Literal["cpu", "cuda"]) -> None:
    """A session that lists CUDA runs on it."""
    assert expected == device_of(providers)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError('x.h:187 Parse Failed to parse provider option "device_id": no CUDA-capable device'), True),
        (RuntimeError("CUDA failure 2: out of memory"), False),
        (None, False),
    ],
)
def test_a_missing_device_is_told_from_other_faults(error: Exception | None, expected: bool) -> None:
    """A model that does not fit into its memory must not move to the CPU."""
    assert expected == lacks_device(error)


def test_sessions_get_their_weights_and_memory_by_rows() -> None:
    """An eighth of the largest batch is added to each, for what does not shrink with it."""
    assert divide_memory(1000 + 3 * 200, 200, (1, 8, 32)) == [200 + 94, 200 + 226, 200 + 679]


@given(
    sizes=st.lists(st.integers(1, 1024), min_size=1, max_size=8),
    weights=st.integers(0, 1 << 40),
    spare=st.integers(0, 1 << 40),
)
def test_a_divided_limit_is_kept(sizes: list[int], weights: int, spare: int) -> None:
    """The parts are limits that ONNX Runtime takes, and stay within the whole even where it is far too low."""
    total = len(sizes) + spare

    parts = divide_memory(total, weights, sizes)

    assert len(parts) == len(sizes)
    assert min(parts) >= 1
    assert sum(parts) <= total
