"""Settings of one ONNX model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from serve_app.backends.device import Device
from serve_app.backends.layout import ROWS_FIRST, Layout
from serve_app.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OnnxSettings:
    """How to run one model.

    Attributes:
        model_file: Its external weights are looked up beside it.
        device: ``cuda`` requires a GPU, ``auto`` uses one if the replica has one.
        gpu_available: Whether the cluster assigned a GPU, or a share of one, to this replica.
        gpu_memory_bytes: Limit of the CUDA memory arenas of all sessions; ``None`` for no limit.
        row_sizes: Numbers of rows with a session of their own, ascending. Batches are filled up to the next; larger
            ones run in pieces of the largest. Empty: one session takes any number of rows.
        intra_op_threads: Threads of one run, the calling one included; they share one operator at a time. At least 1:
            ONNX Runtime's default would be every core of the host, in every replica.
        among_others: Whether many models share the process, of which one runs at a time.
        tf32: Whether a GPU may round inputs of FP32 products to TF32's 10 bits.
        disabled_optimizers: ONNX Runtime's optimizers to disable.
    """

    model: str
    model_file: Path
    device: Device = "auto"
    gpu_available: bool = False
    gpu_memory_bytes: int | None = None
    row_sizes: tuple[int, ...] = ()
    intra_op_threads: int = 1
    layout: Layout = ROWS_FIRST
    among_others: bool = False
    tf32: bool = True
    disabled_optimizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = [
            f"model {self.model!r}: {name} must be at least 1, not {value}"
            for name, value in (
                ("intra_op_threads", self.intra_op_threads),
                ("gpu_memory_bytes", 1 if self.gpu_memory_bytes is None else self.gpu_memory_bytes),
                *(("row_sizes", size) for size in self.row_sizes),
            )
            if value < 1
        ]
        if problems:
            raise ConfigError(tuple(problems))
