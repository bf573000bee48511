"""Checks configured samples of a model's inputs against its signature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from serve_app.backends.synthetic_inputs import has_rows
from serve_app.domain.settings import InputRule, SampleFile, SampleSettings
from serve_app.payloads import DTYPES, ModelSignature, Tensors, TensorSpec


def problems_of(settings: SampleSettings, signature: ModelSignature, *, rows: bool) -> list[str]:
    """Find configured samples that do not fit the model: place, expectation and remedy, one line each.

    Args:
        rows: Whether a variable first dimension is the rows of a batch.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    problems: list[str] = []
    for sample in settings.files:
        problems += [f"{sample.place}: {problem}" for problem in _sample_problems(sample.tensors, specs, rows=rows)]
    for name, rule in settings.rules.items():
        place = f"inputs.{name}"
        if name not in specs:
            problems.append(f"{place}: {_no_such_input(name, specs)}")
            continue
        problems += [f"{place}.{problem}" for problem in _rule_problems(rule, specs[name], rows=rows)]
        problems += [
            f"{place}: {sample.place} gives this input, too; leave one of them out"
            for sample in settings.files
            if name in sample.tensors
        ]
    return problems or list(_disagreements(settings.files, specs, rows=rows))


def _sample_problems(tensors: Tensors, specs: Mapping[str, TensorSpec], *, rows: bool) -> Iterator[str]:
    counts: dict[str, int] = {}
    for name, array in tensors.items():
        if name not in specs:
            yield _no_such_input(name, specs)
            continue
        spec = specs[name]
        if not _is_of(array.dtype, spec):
            told = "texts" if spec.datatype == "BYTES" else f"numpy's {DTYPES[spec.datatype]}"
            yield f"input {name!r} takes {spec.datatype} ({told}), got {array.dtype}; save it with that dtype"
        batched = has_rows(spec, rows=rows)
        if not _fits(array.shape, spec.shape):
            yield (
                f"input {name!r} has the shape {_shape(spec, rows=rows)}, got {list(array.shape)};"
                f" {'dimension 0 is rows' if batched else 'give it whole'}"
            )
        elif batched:
            counts[name] = len(array)
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        yield f"every input must have the same number of rows (dimension 0), found {found}"
    if not tensors:
        yield f"it holds no input; the model takes {_names(specs)}"


def _is_of(dtype: np.dtype[Any], spec: TensorSpec) -> bool:
    """Whether a file's array has an input's datatype. Numpy's files hold BF16 as two bytes without a type."""
    if spec.datatype == "BYTES":
        return dtype.kind in "OUS"
    return dtype == DTYPES[spec.datatype] or (spec.datatype == "BF16" and dtype.str == "|V2")


def _rule_problems(rule: InputRule, spec: TensorSpec, *, rows: bool) -> Iterator[str]:
    dtype = DTYPES[spec.datatype]
    takes = f"input {spec.name!r} takes {spec.datatype}"
    if rule.limits is not None and dtype.kind in "Ob":
        yield f"range: {takes}, which has no range; give values"
    else:
        for limit in rule.limits or ():
            if not _can_hold(dtype, limit):
                yield f"range: {takes}: {_words(dtype)}, got {limit!r}"
    for value in rule.values:
        if not _can_hold(dtype, value):
            yield f"values: {takes}: {_words(dtype)}, got {value!r}"
    batched = has_rows(spec, rows=rows)
    if rule.shape is not None and not _fits(rule.shape, spec.shape[1:] if batched else spec.shape):
        hint = "; leave the rows out" if batched else ""
        yield f"shape: input {spec.name!r} has the shape {_shape(spec, rows=rows)}, got {list(rule.shape)}{hint}"


def _disagreements(files: Sequence[SampleFile], specs: Mapping[str, TensorSpec], *, rows: bool) -> Iterator[str]:
    """What prevents samples from replacing each other or, with rows, from joining one batch."""
    for sample in files[1:]:
        first = files[0]
        if sample.tensors.keys() != first.tensors.keys():
            yield (
                f"{sample.place}: gives {_names(sample.tensors)}, but {first.place} {_names(first.tensors)};"
                " give the same inputs in all samples"
            )
            continue
        for name, array in sample.tensors.items():
            if not has_rows(specs[name], rows=rows):
                continue
            ours, theirs = list(array.shape[1:]), list(first.tensors[name].shape[1:])
            if ours != theirs:
                yield (
                    f"{sample.place}: a row of input {name!r} has the shape {ours}, and {theirs} in {first.place};"
                    " give all samples one shape"
                )


def _shape(spec: TensorSpec, *, rows: bool) -> str:
    sizes = ["any" if size < 0 else str(size) for size in spec.shape]
    if has_rows(spec, rows=rows):
        sizes[0] = "rows"
    return f"[{', '.join(sizes)}]"


def _fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    return len(shape) == len(expected) and all(
        size >= 1 if wanted < 0 else size == wanted for size, wanted in zip(shape, expected, strict=True)
    )


def _can_hold(dtype: np.dtype[Any], value: Any) -> bool:
    if dtype.kind == "O":
        return isinstance(value, str)
    if dtype.kind == "b" or isinstance(value, bool):
        return dtype.kind == "b" and isinstance(value, bool)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return isinstance(value, int) and bounds.min <= value <= bounds.max
    if not isinstance(value, int | float):
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float64(value).astype(dtype)))


def _words(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return f"whole numbers from {bounds.min} to {bounds.max}"
    return {"O": "texts (in quotes)", "b": "true or false"}.get(dtype.kind, "finite numbers that it can hold")


def _no_such_input(name: str, specs: Mapping[str, TensorSpec]) -> str:
    return f"the model has no input {name!r}; it takes {_names(specs)}"


def _names(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "none"
