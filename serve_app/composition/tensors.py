"""Checks configured names of outputs and axes of inputs against a model's signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Final

from serve_app.config.problems import hint, short_repr
from serve_app.config.tensors import Format, FormatByInput, Labels, LabelsByOutput
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature, TensorSpec
from serve_app.processors.model_folder import ModelFolder

DEFAULT_FILE: Final = "labels.txt"
"""Used if it lies beside a model without configured labels."""

NO_ORDER: Final = frozenset({"BOOL", "BYTES"})
"""Datatypes without highest values."""
_PICTURE_AXES: Final = 4


@dataclass(frozen=True, slots=True)
class OutputLabels:
    """Names for the values of outputs.

    Attributes:
        labels: By output: a name for each value of a row.
        files: By output: their file, if any.
        note: For operators; empty if there is none.
    """

    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def output_labels(
    given: Labels | LabelsByOutput | None, signature: ModelSignature, folder: ModelFolder
) -> OutputLabels:
    """Find the labels of a model's outputs.

    Args:
        given: The configuration's ``labels``: for the one output that they fit, or by output.

    Raises:
        ConfigError: A file is missing, an output is unknown, or labels and values of a row differ in number. One line
            per fault.
    """
    if given is None:
        return _default(signature, folder)
    if not isinstance(given, dict):
        names = read_labels(given, "labels", folder)
        specs = _fitting(names, signature)
        source = given if isinstance(given, str) else ""
        return OutputLabels({spec.name: names for spec in specs}, {spec.name: source for spec in specs if source})
    problems: list[str] = []
    labels: dict[str, tuple[str, ...]] = {}
    known = {spec.name: spec for spec in signature.outputs}
    for output, each in given.items():
        place = f"labels.{output}"
        try:
            labels[output] = read_labels(each, place, folder)
            _check(known.get(output), labels[output], place, tuple(known))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(tuple(problems))
    return OutputLabels(labels, {output: each for output, each in given.items() if isinstance(each, str)})


def input_formats(given: Format | FormatByInput | None, signature: ModelSignature) -> Mapping[str, Format]:
    """The order of the axes of inputs that hold pictures, by input.

    Args:
        given: The configuration's ``format``: of the one input that can be a picture, or by input.

    Raises:
        ConfigError: An input is unknown or has not four axes. One line per fault.
    """
    if given is None:
        return {}
    known = {spec.name: spec for spec in signature.inputs}
    if isinstance(given, str):
        pictures = [spec for spec in signature.inputs if len(spec.shape) == _PICTURE_AXES]
        if len(pictures) != 1:
            several = ", ".join(_described(spec) for spec in signature.inputs)
            advice = f"say which: {{name: {given}}}" if pictures else f"{given} is for rows of three axes"
            raise ConfigError((f"format: {len(pictures)} of the inputs can be pictures ({several}); {advice}",))
        return {pictures[0].name: given}
    problems = []
    for name in given:
        spec = known.get(name)
        if spec is None:
            problems.append(f"format.{name}: {_unknown('input', name, tuple(known))}")
        elif len(spec.shape) != _PICTURE_AXES:
            problems.append(
                f"format.{name}: {given[name]} is for rows of three axes, and the input is {_described(spec)}"
            )
    if problems:
        raise ConfigError(tuple(problems))
    return dict(given)


def _default(signature: ModelSignature, folder: ModelFolder) -> OutputLabels:
    if folder.find(DEFAULT_FILE) is None:
        return OutputLabels()
    names = read_labels(DEFAULT_FILE, "labels", folder)
    try:
        specs = _fitting(names, signature)
    except ConfigError as error:
        return OutputLabels(note=f"{DEFAULT_FILE} beside the model is not used: {error.problems[0]}")
    labelled = {spec.name: DEFAULT_FILE for spec in specs}
    note = f"{DEFAULT_FILE} beside the model names the values of {', '.join(labelled)}"
    return OutputLabels(dict.fromkeys(labelled, names), labelled, note)


def read_labels(given: Labels, place: str, folder: ModelFolder) -> tuple[str, ...]:
    """Configured names, or those in a file beside the model. Raises `ConfigError`."""
    if not isinstance(given, str):
        return given
    path = folder.find(given)
    if path is None:
        raise ConfigError((f"{place}: there is no file {given} beside the model",))
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError((f"{place}: {given} cannot be read: {type(error).__name__}",)) from None
    while lines and not lines[-1]:  # inside, an empty line is a value without a name
        lines.pop()
    if not lines:
        raise ConfigError((f"{place}: {given} holds no labels",))
    return tuple(lines)


def _fitting(names: tuple[str, ...], signature: ModelSignature) -> list[TensorSpec]:
    """The outputs that so many labels fit: by their number, or else those with rows of variable length."""
    if len(signature.outputs) == 1:
        _check(signature.outputs[0], names, "labels", ())
        return list(signature.outputs)
    ordered = [spec for spec in signature.outputs if spec.datatype not in NO_ORDER]
    fitting = [spec for spec in ordered if values_of_row(spec) == len(names)] or [
        spec for spec in ordered if values_of_row(spec) is None
    ]
    if not fitting:
        outputs = ", ".join(_described(spec) for spec in signature.outputs)
        raise ConfigError((f"labels: {len(names)} labels fit none of the outputs {outputs}",))
    return fitting


def _check(spec: TensorSpec | None, names: tuple[str, ...], place: str, known: tuple[str, ...]) -> None:
    if spec is None:
        output = place.partition(".")[2]
        raise ConfigError((f"{place}: {_unknown('output', output, known)}",))
    if spec.datatype in NO_ORDER:
        raise ConfigError((f"{place}: output {_described(spec)} has no highest values, and so no labels",))
    values = values_of_row(spec)
    if values not in {None, len(names)}:
        raise ConfigError((f"{place}: {len(names)} labels, but a row of output {spec.name} has {values} values",))


def values_of_row(spec: TensorSpec) -> int | None:
    """Values of a row; ``None`` if variable."""
    sizes = spec.shape[1:]
    return prod(sizes) if all(size > 0 for size in sizes) else None


def _unknown(what: str, name: str, known: tuple[str, ...]) -> str:
    return f"there is no {what} {short_repr(name)}; {hint(name, known)}"


def _described(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype}{list(spec.shape)}"
