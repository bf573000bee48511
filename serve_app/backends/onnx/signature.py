"""The signature of an ONNX model: its tensors, in the words of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime

from serve_app.backends.layout import NO_ROWS, ROWS_FIRST, Layout
from serve_app.backends.onnx.failure import describe_failure
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


class SessionSignature(NamedTuple):
    """What a session says of its model.

    Attributes:
        signature: Of a model with rows, dimension 0 is ``-1`` everywhere, also where the file fixes it: it is run in
            pieces. An output whose rank the model does not declare is shown as ``(-1,)``. Without rows: as declared.
        fixed_rows: The number of rows that the model takes, or ``None`` when it takes any or has none.
    """

    signature: ModelSignature
    fixed_rows: int | None


def read_signature(model_file: Path, *, model: str, layout: Layout = ROWS_FIRST) -> ModelSignature:
    """Read the signature of a model that nothing serves yet; see `inspect_model`."""
    return inspect_model(model_file, model=model, layout=layout).signature


def inspect_model(model_file: Path, *, model: str, layout: Layout = ROWS_FIRST) -> SessionSignature:
    """Read what a model that nothing serves yet says of itself.

    Loads the file as cheaply as ONNX Runtime can: on the CPU, in one thread, without optimising the graph.

    Args:
        model_file: The ``.onnx`` file.
        model: The model's name, for the messages.
        layout: Where its rows are.

    Raises:
        ConfigError: As `open_session` and `signature_of`.
    """
    return signature_of(open_to_inspect(model_file, model=model), model=model, layout=layout)


def open_to_inspect(model_file: Path, *, model: str) -> Any:
    """Make a session as cheaply as ONNX Runtime can; see `inspect_model`.

    Raises:
        ConfigError: As `open_session`.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")
    return open_session(model_file, options, ["CPUExecutionProvider"], model=model)


def open_session(model_file: Path, options: Any, providers: Sequence[Any], *, model: str) -> Any:
    """Make an `onnxruntime.InferenceSession`.

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
        return onnxruntime.InferenceSession(model_file, options, providers=list(providers), enable_fallback=0)
    except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
        problem = f"model {model!r}: {model_file} cannot be loaded: {describe_failure(error)}"
        raise ConfigError((problem,)) from error


def signature_of(session: Any, *, model: str, layout: Layout = ROWS_FIRST) -> SessionSignature:
    """Read the signature from a session.

    Raises:
        ConfigError: A tensor is of a type that the protocol has no word for. Of a model with rows: it has no input, an
            input has no dimension for them, or the inputs disagree about their number. Every fault found is named.
    """
    problems: list[str] = []

    def report(kind: str, name: str, fault: str) -> None:
        problems.append(f"model {model!r}: {kind} {name!r} {fault}")

    found = (session.get_inputs(), session.get_outputs(), session.get_overridable_initializers())
    # A request with an optional input is run as it came: that input has the shape of the file, and no rows.
    inputs, outputs, optional = (
        tuple(_spec(kind, node, place, report) for node in nodes)
        for kind, nodes, place in zip(("input", "output", "input"), found, (layout, layout, NO_ROWS), strict=True)
    )
    fixed_rows = _fixed_rows(session.get_inputs(), layout, model, problems, report) if layout.rows else None
    if problems:
        raise ConfigError(tuple(problems))
    return SessionSignature(ModelSignature(inputs, outputs, optional), fixed_rows)


def _fixed_rows(
    nodes: Sequence[Any], layout: Layout, model: str, problems: list[str], report: Callable[[str, str, str], None]
) -> int | None:
    if not nodes:
        problems.append(f"model {model!r}: it takes no input, so requests have no rows")
    sizes: dict[str, int | None] = {}
    for node in nodes:
        axis = layout.axes.get(node.name, 0)
        if len(node.shape) > axis:
            sizes[node.name] = node.shape[axis] if isinstance(node.shape[axis], int) else None
        else:
            report(
                "input", node.name, f"has no declared dimension {axis}: every input must have one, which is its rows"
            )
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name!r} {'any' if size is None else size}" for name, size in sizes.items())
        problems.append(f"model {model!r}: dimension 0 of every input must be the same number of rows, found {found}")
    fixed_rows = next(iter(sizes.values()), None)
    if fixed_rows is not None and fixed_rows < 1:
        problems.append(f"model {model!r}: its inputs are fixed to {fixed_rows} rows")
    return fixed_rows


def _spec(kind: str, node: Any, layout: Layout, report: Callable[[str, str, str], None]) -> TensorSpec:
    datatype = _DATATYPES.get(node.type)
    if datatype is None:
        hint = "; convert the model with zipmap=False" if "map(" in node.type else ""
        report(kind, node.name, f"is of type {node.type}, which cannot be served{hint}")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)
    if layout.rows:
        axis = layout.axes.get(node.name, 0)
        return TensorSpec(node.name, datatype or "", (-1, *shape[:axis], *shape[axis + 1 :]), axis)
    return TensorSpec(node.name, datatype or "", shape)
