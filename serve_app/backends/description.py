"""What a model's file says before anything runs it: its tensors, and whether requests may share runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from serve_app.backends.layout import NO_ROWS, Layout
from serve_app.backends.onnx.signature import SessionSignature, open_to_inspect, signature_of
from serve_app.domain.settings import JoinSettings
from serve_app.errors import ConfigError
from serve_app.payloads import PROVEN, UNVERIFIED, Joinable, ModelSignature, TensorSpec


class Description(NamedTuple):
    """What is known of one build of a model before it is loaded to be served.

    Attributes:
        signature: Its tensors, as they are served.
        fixed_rows: Rows of every single run where the file fixes them.
        layout: Where its rows are.
        joinable: Whether requests may share runs. ``proven``: by the graph; the experiment decides when it is loaded.
    """

    signature: ModelSignature
    fixed_rows: int | None
    layout: Layout
    joinable: Joinable


def describe_build(
    model_file: Path, *, model: str, settings: JoinSettings | None = None, exact: Description | None = None
) -> Description:
    """Read a model's file, and decide by its graph whether requests may share runs.

    Args:
        model_file: The ``.onnx`` file.
        model: The model's name, for messages.
        settings: What the configuration says.
        exact: Of the exact model, where this is a variant of it: clients see one and the same signature.

    Raises:
        ConfigError: The file cannot be loaded, a tensor is of a type that the protocol has no word for, or the
            configuration names an axis or a tensor that there is not.
    """
    settings = settings or JoinSettings()
    session = open_to_inspect(model_file, model=model)
    declared = signature_of(session, model=model, layout=NO_ROWS)
    rows_at = Layout(axes=_axes(declared.signature, settings.axes or 0, model))
    found = _judge(model_file, session, model, settings, rows_at)
    if exact is not None and found.rows and rows_at.axes and not exact.joinable.rows:
        # Clients send what the exact model takes: nobody moves the rows for this build.
        reason = f"requests come as the exact model takes them, which has no rows: {exact.joinable.reason}"
        found = Joinable("whole", reason, rows=False)
    has_rows = found.rows or (exact is not None and exact.joinable.rows)
    if not has_rows:
        return Description(_with_ranks(declared.signature, model_file), None, NO_ROWS, found)
    shaped = signature_of(session, model=model, layout=rows_at)
    return Description(shaped.signature, shaped.fixed_rows, rows_at, found._replace(rows=True))


def _judge(model_file: Path, session: Any, model: str, settings: JoinSettings, rows_at: Layout) -> Joinable:
    if not settings.join:
        return Joinable("off", "the configuration says batching: none", rows=False)
    problem = None
    shaped: SessionSignature | None = None
    try:
        shaped = signature_of(session, model=model, layout=rows_at)
    except ConfigError as error:
        if settings.axes is not None:
            raise
        problem = error.problems[0].removeprefix(f"model {model!r}: ")
    if shaped is not None and settings.axes is None and (shaped.fixed_rows or 1) > 1:
        problem = f"the model's file fixes dimension 0 to {shaped.fixed_rows}; if it is rows, say batching.axis: 0"
        shaped = None
    if shaped is not None and shaped.fixed_rows == 1 and _one_row_out(session, rows_at):
        return Joinable("exact", "the model's file fixes one row: each row is run by itself")
    # ONNX's own package is needed here only, and not in the processes that run the model.
    from serve_app.backends.onnx.proof.proof import prove_rows  # noqa: PLC0415

    proof = prove_rows(model_file, axes=rows_at.axes or None)
    if proof.independent and shaped is not None:
        return Joinable(PROVEN, proof.reason)
    reason = proof.reason if not proof.independent else problem or proof.reason
    if settings.unverified:
        if shaped is None:
            raise ConfigError((f"model {model!r}: batching.unverified: allow needs rows to join, but {problem}",))
        return Joinable(UNVERIFIED, f"the configuration allows it, though {reason}")
    if problem is not None:
        return Joinable("whole", problem, rows=False)
    return Joinable("dependent" if proof.dependent else "unproven", reason, rows=False)


def _one_row_out(session: Any, rows_at: Layout) -> bool:
    """Whether every output of a model of one row declares that row, too."""
    for node in session.get_outputs():
        axis = rows_at.axes.get(node.name, 0)
        if len(node.shape) <= axis or node.shape[axis] != 1:
            return False
    return True


def _axes(signature: ModelSignature, given: int | Mapping[str, int], model: str) -> Mapping[str, int]:
    """The axis of every tensor whose rows are not in front."""
    specs = {spec.name: spec for spec in (*signature.inputs, *signature.outputs)}
    axes = dict.fromkeys(specs, given) if isinstance(given, int) else dict(given)
    problems = []
    for name, axis in axes.items():
        if name not in specs:
            problems.append(f"names {name!r}, which is no input or output; there is {', '.join(map(repr, specs))}")
        elif axis and axis >= len(specs[name].shape):
            problems.append(f"{axis} of {name!r}: it has {len(specs[name].shape)} dimensions, counted from 0")
    if problems:
        raise ConfigError(tuple(f"model {model!r}: batching.axis: {problem}" for problem in problems))
    return {name: axis for name, axis in axes.items() if axis}


def _with_ranks(signature: ModelSignature, model_file: Path) -> ModelSignature:
    """The signature with those tensors marked whose rank the file does not declare: they look like scalars."""
    if all(spec.shape for spec in (*signature.inputs, *signature.outputs)):
        return signature
    import onnx  # noqa: PLC0415 - as above

    graph = onnx.load(str(model_file), load_external_data=False).graph
    ranked = {value.name for value in (*graph.input, *graph.output) if value.type.tensor_type.HasField("shape")}

    def marked(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(
            spec if spec.shape or spec.name in ranked else spec._replace(shape=(-1,), ranked=False) for spec in specs
        )

    return signature._replace(inputs=marked(signature.inputs), outputs=marked(signature.outputs))
