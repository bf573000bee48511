"""Experiments with rows: the same ones alone and in company, run by ONNX Runtime and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import numpy_helper

Array = npt.NDArray[Any]

TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-9}
"""How far values may be apart, by data type, as a part of the largest."""


class Case(NamedTuple):
    """A model whose first dimensions are symbolic, and what its inputs may hold."""

    name: str
    model: Any
    samples: Mapping[str, Array]


class Finding(NamedTuple):
    """What an experiment saw.

    Attributes:
        comparisons: Rows that were compared, alone and in company.
        difference: The first that was not the same, in words; empty if there was none.
    """

    comparisons: int
    difference: str


@cache
def _backend_cases(kind: str) -> tuple[Any, ...]:
    import warnings

    import onnx.backend.test.loader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, while the cases are computed
        return tuple(onnx.backend.test.loader.load_model_tests(kind=kind))


def backend_cases(kinds: tuple[str, ...] = ("node",), *, every: int = 1) -> Iterator[Case]:
    """ONNX's own cases with symbolic rows: all inputs rows, and the first one alone with the others frozen.

    Args:
        kinds: As ONNX sorts them.
        every: Each so many-th case only, of a random order with a fixed seed.
    """
    for kind in kinds:
        cases = list(_backend_cases(kind))
        for case in Random(every).sample(cases, len(cases) // every):
            yield from _variants(case)


def _variants(case: Any) -> Iterator[Case]:
    if case.model is None and case.model_dir is None:
        return
    model = case.model or onnx.load(f"{case.model_dir}/model.onnx")
    inputs = [info for info in model.graph.input if info.name not in {t.name for t in model.graph.initializer}]
    samples = _samples(case, model, inputs)
    if not inputs or samples is None:
        return
    yield Case(f"{case.name}/all", symbolic(model), samples)
    if len(inputs) > 1:
        frozen = onnx.ModelProto()
        frozen.CopyFrom(model)
        first = inputs[0].name
        del frozen.graph.input[:]
        frozen.graph.input.append(inputs[0])
        for info in inputs[1:]:
            try:
                tensor = numpy_helper.from_array(samples[info.name], info.name)
            except (KeyError, ValueError, TypeError):
                return
            tensor.data_type = info.type.tensor_type.elem_type
            frozen.graph.initializer.append(tensor)
        yield Case(f"{case.name}/first", symbolic(frozen), {first: samples[first]})


def _samples(case: Any, model: Any, inputs: list[Any]) -> Mapping[str, Array] | None:
    sets = case.data_sets
    if sets is None:
        sets = [_stored(case.model_dir, len(inputs), [info.name for info in inputs])]
    if not sets or sets[0] is None:
        return None
    names = [info.name for info in model.graph.input][: len(sets[0][0])]
    found = dict(zip(names, sets[0][0], strict=False))
    if any(not isinstance(found.get(info.name), np.ndarray) or not found[info.name].ndim for info in inputs):
        return None
    return {info.name: found[info.name] for info in inputs}


def _stored(folder: str, count: int, names: list[str]) -> Any:
    from pathlib import Path

    arrays = []
    for place in range(count):
        tensor = onnx.TensorProto()
        file = Path(folder) / "test_data_set_0" / f"input_{place}.pb"
        if not file.exists():
            return None
        tensor.ParseFromString(file.read_bytes())
        arrays.append(numpy_helper.to_array(tensor))
    return (arrays, [])


def symbolic(model: Any) -> Any:
    """The model with the first dimension of inputs and outputs open, and of outputs nothing else declared."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    # What ONNX Runtime reads; nothing of a newer version of the format is in these models.
    copy.ir_version = min(copy.ir_version, 11)
    constants = {tensor.name for tensor in copy.graph.initializer}
    for info in copy.graph.input:
        dims = info.type.tensor_type.shape.dim
        if info.name not in constants and len(dims):
            dims[0].dim_param = "rows"
    for info in copy.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    del copy.graph.value_info[:]
    return copy


def experiment(case: Case, *, seed: int = 0, rounds: int = 3) -> Finding | None:
    """Run rows alone and among others; None where ONNX Runtime cannot run the model with one row at all."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(case.model.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception:  # whatever it lacks
        return None

    def run(rows: Mapping[str, Array]) -> list[Array] | None:
        try:
            found: list[Array] = session.run(None, dict(rows))
        except Exception:
            return None
        return found

    return compare(run, case.samples, seed=seed, rounds=rounds)


def compare(
    run: Callable[[Mapping[str, Array]], list[Array] | None], samples: Mapping[str, Array], *, seed: int, rounds: int
) -> Finding | None:
    """As `experiment`, of anything that runs."""
    random = np.random.default_rng(seed)
    compared = 0
    own = min(len(array) for array in samples.values())
    for turn in range(rounds):
        scale = (1, 100, 10)[turn % 3]
        count = int(random.integers(2, 6))
        if turn == 0 and own > 1 and len({len(array) for array in samples.values()}) == 1:
            pieces = [{name: array[row : row + 1] for name, array in samples.items()} for row in range(own)]
        else:
            pieces = [
                {name: _random_row(random, array, scale) for name, array in samples.items()} for _ in range(count)
            ]
        alone = [run(piece) for piece in pieces]
        keep = [place for place, answer in enumerate(alone) if answer is not None]
        if len(keep) < 2:
            continue
        order = [keep[place] for place in random.permutation(len(keep))]
        joined = run({name: np.concatenate([pieces[place][name] for place in order]) for name in samples})
        if joined is None:
            return Finding(compared + 1, "fails in company and not alone")
        for output, whole in enumerate(joined):
            for row, place in enumerate(order):
                answers = alone[place]
                assert answers is not None
                compared += 1
                difference = _difference(answers[output], whole, row, len(order))
                if difference:
                    return Finding(compared, f"output {output}, row {row} of {len(order)}: {difference}")
    return Finding(compared, "") if compared else None


def _random_row(random: np.random.Generator, sample: Array, scale: int) -> Array:
    shape = (1, *sample.shape[1:])
    kind = sample.dtype.kind
    if not sample.size:
        return np.zeros(shape, sample.dtype)
    if kind == "b":
        return np.asarray(random.integers(0, 2, shape), np.bool_)
    if kind in "iu":
        return random.integers(sample.min(), sample.max(), shape, sample.dtype, endpoint=True)
    if kind == "f" or sample.dtype.name == "bfloat16":
        values = random.standard_normal(shape) * scale
        if not np.any(sample.astype(np.float64) < 0):
            values = np.abs(values)
        return np.asarray(values, sample.dtype)
    return np.asarray(random.choice(sample.reshape(-1), shape), sample.dtype)


def _difference(alone: Any, whole: Any, row: int, count: int) -> str:
    if not isinstance(whole, np.ndarray) or not isinstance(alone, np.ndarray):
        return "is no tensor"
    if not whole.ndim or whole.shape != (count, *alone.shape[1:]) or alone.shape[:1] != (1,):
        return f"has shape {whole.shape} in company and {alone.shape} alone"
    one, other = alone[0], whole[row]
    tolerance = TOLERANCE.get(whole.dtype.name)
    if tolerance is None:
        return "" if np.array_equal(one, other) else f"{one!r} alone, {other!r} in company"
    one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.abs(np.concatenate([one.reshape(-1), other.reshape(-1)]))
    finite = finite[np.isfinite(finite)]
    largest = float(finite.max()) if finite.size else 0.0
    if np.allclose(one, other, rtol=0, atol=tolerance * largest, equal_nan=True):
        return ""
    return f"{one!r} alone, {other!r} in company"
