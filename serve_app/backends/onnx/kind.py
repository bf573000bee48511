"""The kind ``onnx``: ONNX models, run by ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from rowproof.onnx_graph.proof import prove_rows
from rowproof.onnx_graph.skeleton import read_skeleton
from rowproof.result import RowProof
from serve_app.backends.backend import Backend
from serve_app.backends.kind import BackendKind, BackendOptions, BuildSettings, ModelFile
from serve_app.backends.onnx.backend import OnnxBackend
from serve_app.backends.onnx.ends import read_ends
from serve_app.backends.onnx.external_data import external_data
from serve_app.backends.onnx.settings import OnnxSettings
from serve_app.backends.onnx.signature import declared_by, open_to_inspect
from serve_app.backends.warm_up import spaced_rows
from serve_app.config.files import home
from serve_app.config.problems import Location, validation_error
from serve_app.payloads import ModelSignature, TensorSpec


class OnnxOptions(BackendOptions):
    """How ONNX Runtime runs a model."""

    tensorrt: Literal["auto"] | bool = False
    """Run with TensorRT on a GPU: `true` insists on it, `auto` takes it where its libraries are installed.

    It builds an engine at the first start, which can take minutes, and keeps it in `tensorrt_cache`.
    """

    tensorrt_fp16: bool = False
    """Let TensorRT compute in FP16: faster, and less exact."""

    tensorrt_cache: str | None = Field(default=None, min_length=1)
    """Folder for TensorRT's engines, relative to `SERVE_APP_HOME`; by default `tensorrt` beside the model's file."""

    @model_validator(mode="after")
    def _check(self) -> OnnxOptions:
        keys = () if self.tensorrt else ("tensorrt_fp16", "tensorrt_cache")
        faults: list[tuple[Location, str]] = [
            ((key,), "does nothing without tensorrt: true or auto") for key in keys if getattr(self, key)
        ]
        if faults:
            raise validation_error(faults)
        return self

    def faults(self, gpus: float) -> dict[str, str]:
        """TensorRT needs a GPU."""
        if self.tensorrt and gpus == 0:
            return {"tensorrt": "does nothing while resources.gpus is 0; set that, or leave it out"}
        return {}


def onnx_settings(build: BuildSettings, options: OnnxOptions) -> OnnxSettings:
    """Derive the settings of one backend."""
    sizes = build.row_sizes
    if sizes == "auto":
        sizes = () if build.max_rows is None else spaced_rows(build.max_rows)
    return OnnxSettings(
        model=build.model,
        model_file=build.model_file,
        device=build.device,
        gpu_available=build.gpu_available,
        gpu_memory_bytes=build.gpu_memory_bytes,
        row_sizes=() if sizes == "any" else sizes,
        only_for_convolutions=build.row_sizes == "auto",
        intra_op_threads=build.threads,
        max_rows=build.max_rows,
        tensorrt=options.tensorrt,
        tensorrt_fp16=options.tensorrt_fp16,
        tensorrt_cache=None if options.tensorrt_cache is None else home(os.environ) / options.tensorrt_cache,
        layout=build.layout,
        among_others=build.among_others,
        tf32=build.tf32,
    )


def _create(build: BuildSettings, options: OnnxOptions) -> Backend:
    return OnnxBackend(onnx_settings(build, options))


def _inspect(model_file: Path, model: str, _: OnnxOptions) -> ModelFile:
    declared = declared_by(open_to_inspect(model_file, model=model), model=model)
    return ModelFile(_with_ranks(declared, model_file), partial(_prove, model_file))


def _prove(model_file: Path, axes: Mapping[str, int]) -> RowProof:
    return prove_rows(model_file, axes=axes)


def _with_ranks(declared: ModelSignature, model_file: Path) -> ModelSignature:
    """Mark tensors whose rank the file does not declare: they look like scalars."""
    if all(spec.shape for spec in (*declared.inputs, *declared.outputs)):
        return declared
    graph = read_skeleton(model_file).graph
    ranked = {value.name for value in (*graph.input, *graph.output) if value.type.tensor_type.HasField("shape")}

    def marked(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(
            spec if spec.shape or spec.name in ranked else spec._replace(shape=(-1,), ranked=False) for spec in specs
        )

    return declared._replace(inputs=marked(declared.inputs), outputs=marked(declared.outputs))


ONNX = BackendKind(
    name="onnx",
    file="model.onnx",
    suffixes=(".onnx",),
    inspect=_inspect,
    create=_create,
    options=OnnxOptions,
    further_files=external_data,
    ends=read_ends,
    platform="onnxruntime_onnx",
    triton_name="onnxruntime",
    distributions=("onnxruntime", "onnxruntime-gpu"),
    concurrent=True,
)
"""The kind ``onnx``."""
