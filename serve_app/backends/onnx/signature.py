"""Reads an ONNX model's signature, with the Open Inference Protocol's types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime

from rowproof.onnx_graph.skeleton import read_skeleton
from serve_app.backends.layout import ROWS_FIRST, Layout, ServedSignature, served
from serve_app.backends.onnx.failure import describe_failure
from serve_app.backends.onnx.outline import outline
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature, TensorSpec

_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}


def read_signature(model_file: Path, *, model: str, layout: Layout = ROWS_FIRST) -> ModelSignature:
    """`inspect_model`'s signature."""
    return inspect_model(model_file, model=model, layout=layout).signature


def inspect_model(model_file: Path, *, model: str, layout: Layout = ROWS_FIRST) -> ServedSignature:
    """Read the signature of a model that is not loaded.

    Loads the file as cheaply as ONNX Runtime can: on the CPU, in one thread, without optimizing the graph.
    """
    return signature_of(open_to_inspect(model_file, model=model), model=model, layout=layout)


def open_to_inspect(model_file: Path, *, model: str) -> Any:
    """Make a session as cheaply as possible, for inspection only. Raises what `open_session` raises."""
    with suppress(OSError), outline(model_file) as found:
        if found is not None:
            model_bytes, folder = found
            options = _to_inspect()
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
            with suppress(Exception):  # then the whole file tells what is wrong
                return onnxruntime.InferenceSession(model_bytes, options, providers=["CPUExecutionProvider"])
    return open_session(model_file, _to_inspect(), ["CPUExecutionProvider"], model=model)


def _to_inspect() -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def open_session(
    model_file: Path, options: Any, providers: Sequence[Any], *, model: str, without: Sequence[str] = ()
) -> Any:
    """Make an `onnxruntime.InferenceSession`, without some of its optimizers.

    Raises:
        ConfigError: The file is missing, unreadable, or not a model that ONNX Runtime can run.
    """
    try:
        with model_file.open("rb"):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError((f"model {model!r}: cannot read {model_file}: {reason}",)) from error
    try:
        # Without `enable_fallback=0` a fault of a provider is printed and the session silently moves to the CPU, at
        # construction and in the middle of a run.
        return onnxruntime.InferenceSession(
            model_file, options, providers=list(providers), enable_fallback=0, disabled_optimizers=list(without)
        )
    except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
        problem = f"model {model!r}: {model_file} cannot be loaded: {describe_failure(error)}"
        raise ConfigError((problem,)) from error


def signature_of(session: Any, *, model: str, layout: Layout = ROWS_FIRST) -> ServedSignature:
    """Read the signature from a session. Raises what `declared_by` and `served` raise."""
    return served(declared_by(session, model=model), layout, model=model)


def declared_by(session: Any, *, model: str) -> ModelSignature:
    """The tensors of a session with their declared shapes; ``()`` also if no rank is declared.

    Raises:
        ConfigError: A tensor's type has no name in the protocol. Lists all faults.
    """
    return _declared(session.get_inputs(), session.get_outputs(), session.get_overridable_initializers(), model)


def _declared(inputs: Iterable[Any], outputs: Iterable[Any], optional: Iterable[Any], model: str) -> ModelSignature:
    problems: list[str] = []
    taken, given, initial = (
        tuple(_spec(kind, node, problems) for node in nodes)
        for kind, nodes in (("input", inputs), ("output", outputs), ("input", optional))
    )
    if problems:
        raise ConfigError(tuple(f"model {model!r}: {problem}" for problem in problems))
    return ModelSignature(taken, given, initial)


def lacks_kernel(error: ConfigError) -> bool:
    """Whether a session could not be made since no kernel runs an operator there: the CPU has few for BF16."""
    return "Could not find an implementation for" in str(error.__cause__)


def declared_in(model_file: Path, *, model: str) -> ModelSignature:
    """The tensors that a file declares, for a model without a session on the CPU. Raises as `declared_by` does."""
    from onnx import TensorProto  # noqa: PLC0415 - a process that serves needs none

    graph = read_skeleton(model_file).graph
    initial = {tensor.name for tensor in graph.initializer}

    def nodes(values: Iterable[Any]) -> list[Any]:
        return [
            SimpleNamespace(
                name=value.name,
                type=f"tensor({TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()})",
                shape=[
                    size.dim_value if size.HasField("dim_value") else -1 for size in value.type.tensor_type.shape.dim
                ],
            )
            for value in values
        ]

    inputs = [value for value in graph.input if value.name not in initial]
    optional = [value for value in graph.input if value.name in initial]
    return _declared(nodes(inputs), nodes(graph.output), nodes(optional), model)


def _spec(kind: str, node: Any, problems: list[str]) -> TensorSpec:
    datatype = _DATATYPES.get(node.type)
    if datatype is None:
        hint = "; convert the model with zipmap=False" if "map(" in node.type else ""
        problems.append(f"{kind} {node.name!r} is of type {node.type}, which cannot be served{hint}")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)
    return TensorSpec(node.name, datatype or "", shape)
