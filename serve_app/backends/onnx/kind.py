"""The kind ``onnx``: ONNX models, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import model_validator

from rowproof.onnx_graph.proof import prove_rows
from rowproof.onnx_graph.skeleton import read_skeleton
from rowproof.result import RowProof
from serve_app.backends.backend import Backend
from serve_app.backends.kind import BackendKind, BackendOptions, BuildSettings, ModelFile
from serve_app.backends.onnx.backend import OnnxBackend
from serve_app.backends.onnx.device import lacks_cuda
from serve_app.backends.onnx.ends import read_ends
from serve_app.backends.onnx.external_data import external_data
from serve_app.backends.onnx.settings import OnnxSettings
from serve_app.backends.onnx.signature import declared_by, declared_in, lacks_kernel, open_to_inspect
from serve_app.config.problems import validation_error
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature, TensorSpec

_NO_OPTIONS: Final = (
    "unknown key; onnx has none, and its execution providers are CPUExecutionProvider and CUDAExecutionProvider:"
    " resources.device chooses one"
)


class OnnxOptions(BackendOptions):
    """No options: `resources` says all that ONNX Runtime needs."""

    @model_validator(mode="before")
    @classmethod
    def _check(cls, given: Any) -> Any:
        if given and isinstance(given, Mapping):
            raise validation_error([((str(key),), _NO_OPTIONS) for key in given])
        return given


def onnx_settings(build: BuildSettings) -> OnnxSettings:
    """Derive the settings of one backend."""
    return OnnxSettings(
        model=build.model,
        model_file=build.model_file,
        device=build.device,
        gpu_available=build.gpu_available,
        gpu_memory_bytes=build.gpu_memory_bytes,
        row_sizes=build.row_sizes,
        intra_op_threads=build.threads,
        layout=build.layout,
        among_others=build.among_others,
        tf32=build.tf32,
    )


def _create(build: BuildSettings, _: OnnxOptions) -> Backend:
    return OnnxBackend(onnx_settings(build))


def _inspect(model_file: Path, model: str, _: OnnxOptions) -> ModelFile:
    fault = ""
    try:
        declared = declared_by(open_to_inspect(model_file, model=model), model=model)
    except ConfigError as error:
        if not lacks_kernel(error):
            raise
        declared, fault = declared_in(model_file, model=model), error.problems[0]
    return ModelFile(_with_ranks(declared, model_file), partial(_prove, model_file), cpu_fault=fault)


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
    lacks_cuda=lacks_cuda,
)
"""The kind ``onnx``."""
