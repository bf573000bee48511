"""Chooses the CPU or the replica's GPU for a model."""

from __future__ import annotations

from typing import Literal, TypeAlias

from serve_app.errors import ConfigError

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
"""What a configuration may ask for."""


def resolve_device(requested: Device, gpu_available: bool, model: str) -> Literal["cpu", "cuda"]:
    """Choose the device.

    A backend must not guess: a process sees each GPU of its host even if it was assigned none.

    Args:
        gpu_available: Whether the cluster assigned a GPU, or a share of one, to this replica.

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
