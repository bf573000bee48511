"""Settings of a replica's resources."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from serve_app.config.problems import Location, validation_error
from serve_app.config.values import Cpus, Positive, Section, Size


class ResourcesConfig(Section):
    """What each replica of a model runs on."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cuda` needs a GPU and fails without one; `auto` takes its GPU share where the cluster has GPUs, else the CPU."""

    gpus: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    """Share of one GPU that Ray reserves per replica. Shares are not isolated: set `gpu_memory` too."""

    gpu_memory: Size | None = None
    """Limit of a replica's memory arenas on the GPU, over all its variants; by default none.

    The CUDA context and cuDNN's workspaces come on top of it.
    """

    tf32: bool = True
    """Let a GPU compute products of FP32 in TF32, which keeps 10 bits of the fraction: faster, and less exact."""

    row_sizes: Literal["auto", "any"] | Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)] = "auto"
    """Numbers of rows that batches are filled up to, each with a session and a copy of the weights on the device.

    `auto`: none, but on a GPU where a replica measures at its start that runs are slow as soon as batches differ in
    their rows, as convolutions are. It takes 16 sizes at most, so that filling up adds at most 15% to a run, and fewer
    and smaller ones where these do not fit into `gpu_memory`, which is divided among them. `any`: none. Or a list of
    powers of two, and perhaps `batching.max_rows`.
    """

    cpus: Cpus = 0.25
    """CPUs that Ray reserves per replica. It reserves only: nothing enforces it."""

    memory_limit: Size | None = None
    """Memory of the host that a replica may hold; above it the health check fails, and the replica is replaced.

    It finishes its work first. What it shares with others, such as `router.transport.shared_memory`, does not count.
    """

    threads: Literal["auto"] | Positive = "auto"
    """Threads that compute one run on the CPU, the calling one included: in replicas, in the proof that requests may
    share runs, and in `serve-app profile`. Every variant has as many.

    `auto`: all cores where a replica measures at its start that this makes a run 1.2 times as fast, and that several
    `instances` do not gain more; otherwise 1, as for every model that is not of ONNX Runtime on the CPU.
    """

    instances: Literal["auto"] | Positive = "auto"
    """Batches that a replica runs at once on the CPU, on one session. One for a model that is not of ONNX Runtime, or
    of a pool.

    `auto`: as many as there are cores, 8 at most, where a replica measures at its start that they do 1.3 times the rows
    of one at a time, and a run takes 2 ms or more; otherwise 1.
    """

    preprocess_threads: Positive = 2
    """Threads that decode and convert media while the session runs."""

    @property
    def chosen_sizes(self) -> tuple[int, ...]:
        """The row sizes, if any are configured or were measured."""
        return () if isinstance(self.row_sizes, str) else self.row_sizes

    @property
    def session_threads(self) -> int:
        """Threads of a session before any measurement."""
        return 1 if self.threads == "auto" else self.threads

    @model_validator(mode="after")
    def _check(self) -> ResourcesConfig:
        faults: list[tuple[Location, str]] = []
        if self.device == "cuda" and self.gpus == 0:
            faults.append((("gpus",), "must be more than 0 with device: cuda, e.g. 0.25"))
        if self.device == "cpu" and self.gpus > 0:
            faults.append((("gpus",), f"must be 0 with device: cpu, got {self.gpus:g}"))
        if self.gpu_memory is not None and self.gpus == 0:
            faults.append((("gpu_memory",), "limits nothing while gpus is 0; set gpus, or leave gpu_memory out"))
        if faults:
            raise validation_error(faults)
        return self
