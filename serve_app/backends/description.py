"""Describes a model's file before it runs: its tensors, and whether requests may share runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from serve_app.backends.kind import AnyKind, BackendOptions, ModelFile
from serve_app.backends.layout import NO_ROWS, Layout, ServedSignature, declared_shape, served
from serve_app.domain.settings import JoinSettings
from serve_app.errors import ConfigError
from serve_app.payloads import PROVEN, UNVERIFIED, EqualSizes, Joinable, ModelSignature


class Description(NamedTuple):
    """What is known of one build of a model before it is loaded.

    Attributes:
        signature: Tensors as served.
        fixed_rows: Rows of every run if the file fixes them.
        joinable: Whether requests may share runs. ``proven``: by the file; the experiment decides at load.
        streams: Whether answers come in parts.
    """

    signature: ModelSignature
    fixed_rows: int | None
    layout: Layout
    joinable: Joinable
    streams: bool = False


def describe_build(
    kind: AnyKind,
    model_file: Path,
    *,
    model: str,
    options: BackendOptions | None = None,
    settings: JoinSettings | None = None,
    exact: Description | None = None,
    on_gpu: bool = False,
) -> Description:
    """Read a model's file and derive whether requests may share runs.

    Args:
        options: The configured options, of the kind's type, if any.
        settings: The configured settings for sharing runs, if any.
        on_gpu: Whether its replicas have a share of a GPU, so that it need not run on the CPU.
        exact: Description of the exact model if this is a variant: both have the same signature for clients.

    Raises:
        ConfigError: The runtime is not installed, the file cannot be loaded, a tensor's type has no name in the
            protocol, or the configuration names an axis or a tensor that does not exist.
    """
    settings = settings or JoinSettings()
    if lacks := kind.lacks():
        raise ConfigError((f"model {model!r}: {lacks}",))
    file = kind.inspect(model_file, model, kind.options() if options is None else options)
    if file.cpu_fault and not on_gpu:
        raise ConfigError((file.cpu_fault,))
    rows_at = Layout(axes=_axes(file.signature, settings.axes or 0, model))
    if file.streams:
        alone = Joinable("dependent", "its answers come in parts, so each request has a run of its own", rows=False)
        return Description(file.signature, None, NO_ROWS, alone, streams=True)
    found = _judge(file, model, settings, rows_at)
    if exact is not None and found.rows and rows_at.axes and not exact.joinable.rows:
        # Clients send the exact model's tensors: rows are not moved for this build.
        reason = f"requests come as the exact model takes them, which has no rows: {exact.joinable.reason}"
        found = Joinable("whole", reason, rows=False)
    has_rows = found.rows or (exact is not None and exact.joinable.rows)
    if not has_rows:
        return Description(file.signature, None, NO_ROWS, found)
    shaped = served(file.signature, rows_at, model=model)
    return Description(shaped.signature, shaped.fixed_rows, rows_at, found._replace(rows=True))


def _judge(file: ModelFile, model: str, settings: JoinSettings, rows_at: Layout) -> Joinable:
    if not settings.join:
        return Joinable("off", "the configuration says batching: none", rows=False)
    problem = None
    shaped: ServedSignature | None = None
    try:
        shaped = served(file.signature, rows_at, model=model)
    except ConfigError as error:
        if settings.axes is not None:
            raise
        problem = error.problems[0].removeprefix(f"model {model!r}: ")
    if shaped is not None and settings.axes is None and (shaped.fixed_rows or 1) > 1:
        problem = f"the model's file fixes dimension 0 to {shaped.fixed_rows}; if it is rows, say batching.axis: 0"
        shaped = None
    if shaped is not None and shaped.fixed_rows == 1 and _one_row_out(file.signature, rows_at):
        return Joinable("exact", "the model's file fixes one row: each row is run by itself")
    proof = file.prove(rows_at.axes)
    if proof.independent and shaped is not None:
        return Joinable(PROVEN, proof.reason, equal_sizes=_served_axes(proof.equal_sizes, rows_at))
    reason = proof.reason if not proof.independent else problem or proof.reason
    if proof.advice:
        reason = f"{reason} ({proof.advice})"
    if settings.unverified:
        if shaped is None:
            raise ConfigError((f"model {model!r}: batching.unverified: allow needs rows to join, but {problem}",))
        return Joinable(UNVERIFIED, f"the configuration allows it, though {reason}")
    if problem is not None:
        return Joinable("whole", problem, rows=False)
    return Joinable("dependent" if proof.dependent else "unproven", reason, rows=False)


def _served_axes(alike: EqualSizes, rows_at: Layout) -> EqualSizes:
    """Convert axes of the file to axes of tensors with their rows in front."""
    return tuple(
        tuple((name, axis + 1 if axis < rows_at.axes.get(name, 0) else axis) for name, axis in group) for group in alike
    )


def _one_row_out(declared: ModelSignature, rows_at: Layout) -> bool:
    """Whether each output of a model of one row declares that row, too."""
    for spec in declared.outputs:
        axis, shape = rows_at.axes.get(spec.name, 0), declared_shape(spec)
        if len(shape) <= axis or shape[axis] != 1:
            return False
    return True


def _axes(declared: ModelSignature, given: int | Mapping[str, int], model: str) -> Mapping[str, int]:
    """The row axis of each tensor whose rows are not in front."""
    specs = {spec.name: spec for spec in (*declared.inputs, *declared.outputs)}
    axes = dict.fromkeys(specs, given) if isinstance(given, int) else dict(given)
    problems = []
    for name, axis in axes.items():
        if name not in specs:
            problems.append(f"names {name!r}, which is no input or output; there is {', '.join(map(repr, specs))}")
        elif axis and axis >= (dimensions := len(declared_shape(specs[name]))):
            problems.append(f"{axis} of {name!r}: it has {dimensions} dimensions, counted from 0")
    if problems:
        raise ConfigError(tuple(f"model {model!r}: batching.axis: {problem}" for problem in problems))
    return {name: axis for name, axis in axes.items() if axis}
