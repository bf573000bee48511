"""How one ONNX model is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serve_app.backends.device import Device
from serve_app.backends.layout import ROWS_FIRST, Layout
from serve_app.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OnnxSettings:
    """How one model is run.

    Attributes:
        model: Its name, for messages.
        model_file: The ``.onnx`` file; weights kept outside it are looked for beside it.
        device: ``cuda`` insists on a GPU, ``auto`` takes one where the replica has one.
        gpu_available: Whether the cluster gave this replica a GPU, whole or in part.
        gpu_memory_bytes: Limit of the CUDA memory arenas, over all sessions; ``None`` for no limit.
        row_sizes: Numbers of rows that have a session of their own, ascending. Batches are filled up to the next one;
            larger ones are run in pieces of the largest. Empty: one session takes batches of any number of rows.
        only_for_convolutions: Use ``row_sizes`` only for a model with convolutions on CUDA whose memory is not limited.
            There it pays: ONNX Runtime prepares each convolution for the exact shape of its input, and again whenever
            that changes. A limit would have to be divided, and may then be too low for batches that fitted into it.
        intra_op_threads: Threads that compute one run, the calling one included: they share the work of one operator
            after the other. At least 1: ONNX Runtime's own choice would be every core of the host, in every replica.
        max_rows: Most rows of a batch, where that is known.
        tensorrt: ``True`` insists on TensorRT for the GPU, ``auto`` takes it where its libraries are.
        tensorrt_fp16: Let TensorRT compute in FP16.
        tensorrt_cache: Folder of TensorRT's engines; by default ``tensorrt`` beside the model's file.
        layout: Where the rows of its tensors are, or that they have none.
        among_others: Whether it is one of many models in one process, of which one runs at a time.
        tf32: Whether a GPU may round the inputs of FP32 products to TF32's 10 bits.
        disabled_optimizers: ONNX Runtime's optimizers that are left out.
    """

    model: str
    model_file: Path
    device: Device = "auto"
    gpu_available: bool = False
    gpu_memory_bytes: int | None = None
    row_sizes: tuple[int, ...] = ()
    only_for_convolutions: bool = False
    intra_op_threads: int = 1
    max_rows: int | None = None
    tensorrt: bool | Literal["auto"] = False
    tensorrt_fp16: bool = False
    tensorrt_cache: Path | None = None
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
