"""Where a model is to run: on the CPU, or on the GPU that its replica was given."""

from __future__ import annotations

from typing import Literal, TypeAlias

from serve_app.errors import ConfigError

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
"""What a configuration may ask for."""


def resolve_device(requested: Device, gpu_available: bool, model: str) -> Literal["cpu", "cuda"]:
    """Decide where to run.

    A backend must not guess: a process sees every GPU of its host even where it was given none.

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
