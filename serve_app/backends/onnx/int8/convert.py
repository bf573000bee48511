"""Converts any ONNX model to 8 bits: ``serve-app convert --int8``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve_app.backends.onnx.failure import describe_failure
from serve_app.backends.onnx.int8.comparison import Deviation, dependence, deviations
from serve_app.backends.onnx.int8.samples import read_samples
from serve_app.backends.onnx.signature import inspect_model
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature, Tensors

_MOST_IN_ONE_FILE = 1 << 30  # bytes; a protobuf message ends at 2 GiB
_MOST_DEPENDENCE = 0.01
"""Part of the largest value by which neighbours may move a row more than in the original: the same neighbour can tip an
original's last digit, and that a rounding to 8 bits, but nothing near a common scale's effect."""


@dataclass(frozen=True, slots=True)
class Int8Report:
    """The result of a conversion.

    Attributes:
        quantized: Number of 8-bit nodes by operator.
        left: Unchanged parts, in words, with their number.
        balanced: Whether samples balanced activations and weights.
        sizes: Bytes of the file before and after.
        deviations: Per output, the deviation on the samples; empty without samples.
        dependence: How far neighbours in a batch move a row, in the original and now, relative to the largest value;
            ``None`` if not measured.
    """

    quantized: Counter[str]
    left: Counter[str]
    balanced: bool
    sizes: tuple[int, int]
    deviations: tuple[Deviation, ...]
    dependence: tuple[float, float] | None

    def lines(self) -> list[str]:
        """The report, a sentence per line."""
        told = [f"quantized: {_counts(self.quantized)}; {_size(self.sizes[0])} became {_size(self.sizes[1])}"]
        rows = "activations scaled row by row as they come"
        if self.quantized["MatMul"] + self.quantized["Gemm"]:
            balanced = ", channels balanced by the samples" if self.balanced else ""
            told.append(f"method of MatMul and Gemm: weights in 8 bits, {rows}{balanced}")
        if self.quantized["Gather"]:
            told.append("method of Gather: tables in 8 bits, a scale per row")
        if self.quantized["Conv"]:
            told.append("method of Conv: scales fixed by the samples; values beyond those of the samples are cut")
        told.append(f"left as they are: {_counts(self.left) or 'nothing'}")
        if self.left["Conv"] and not self.balanced:
            told.append("Conv needs fixed scales: give --samples to quantize it too")
        told.extend(
            f"output {each.output!r} on {each.rows} sample rows: cosine to the original {each.mean_cosine:.4f} in the"
            f" mean, {each.least_cosine:.4f} at least; largest difference {each.largest:.3g}, largest value"
            f" {each.magnitude:.3g}"
            for each in self.deviations
        )
        if not self.deviations:
            told.append("deviation from the original: not measured, since there are no --samples")
        told.append(f"answers do not depend on the batch: {self._independence()}")
        return told

    def _independence(self) -> str:
        if self.dependence is None:
            return "every scale is a row's own or a constant"
        before, after = self.dependence
        return (
            f"neighbours moved a sample's answer by {after:.1g} of the largest value at most (original: {before:.1g})"
        )


def convert_to_int8(source: Path, target: Path, samples: Sequence[Path], *, model: str) -> Int8Report:
    """Write a model with 8-bit weights and matrix products. Its inputs and outputs keep their types.

    Args:
        source: An ONNX file in FP32.
        target: In an existing folder.
        samples: NPZ files of inputs. With them, convolutions are quantized as well, and matrix products lose less.

    Raises:
        ConfigError: `onnx` is not installed; the model cannot be read, is quantized already, has nothing to quantize or
            does not run afterwards; or samples do not fit. No file is left behind.
    """
    try:
        import onnx  # noqa: PLC0415 - takes a second, and servers do without
    except ImportError as error:
        raise ConfigError((f"converting a model needs the package {error.name!r}: pip install onnx",)) from error
    loaded = inspect_model(source, model=model)
    if source.stat().st_size > _MOST_IN_ONE_FILE:
        raise ConfigError((f"model {model!r}: {source} is larger than 1 GiB, which is more than is converted here",))
    batches = read_samples(samples, loaded)
    try:
        original = onnx.load(source)
        converted, quantized, left = _convert(original, batches, target.parent, model)
        onnx.save(converted, target)
        after = inspect_model(target, model=model)
        found, moved = _compare(source, target, batches, alone=loaded.fixed_rows is None)
        _check(loaded.signature, after.signature, moved, model)
    except ConfigError:
        target.unlink(missing_ok=True)
        raise
    except Exception as error:  # foreign code reads and runs foreign models
        target.unlink(missing_ok=True)
        raise ConfigError((f"model {model!r}: cannot be converted to int8: {describe_failure(error)}",)) from error
    return Int8Report(
        quantized, left, bool(batches), (source.stat().st_size, target.stat().st_size), tuple(found), moved
    )


def _convert(original: Any, batches: list[Tensors], folder: Path, model: str) -> tuple[Any, Counter[str], Counter[str]]:
    import onnx  # noqa: PLC0415

    from serve_app.backends.onnx.int8.balance import find_balance  # noqa: PLC0415 - these need onnx
    from serve_app.backends.onnx.int8.convolutions import quantize_convolutions  # noqa: PLC0415
    from serve_app.backends.onnx.int8.graph import QUANTIZED, all_nodes, left_over  # noqa: PLC0415
    from serve_app.backends.onnx.int8.rowwise import OLDEST_OPSET, quantize_rows  # noqa: PLC0415

    already = sorted({node.op_type for node in all_nodes(original.graph)} & QUANTIZED)
    if already:
        problem = f"is quantized already (it holds {', '.join(already)}); convert the FP32 model it was made of"
        raise ConfigError((f"model {model!r}: {problem}",))
    opset = next((each.version for each in original.opset_import if each.domain in {"", "ai.onnx"}), 0)
    if opset < OLDEST_OPSET:
        original = onnx.version_converter.convert_version(original, 17)
    count = 0
    if batches:
        original, count = quantize_convolutions(original, batches, folder)
    quantized = quantize_rows(original, find_balance(original, batches) if batches else None)
    if count:
        quantized["Conv"] = count
    left = left_over(original.graph)
    if not quantized:
        reason = f"holds nothing to quantize (left as they are: {_counts(left) or 'nothing with weights in FP32'})"
        advice = "; give --samples to quantize Conv" if left["Conv"] and not batches else "; use it as it is"
        raise ConfigError((f"model {model!r}: {reason}{advice}",))
    return original, quantized, left


def _check(before: ModelSignature, after: ModelSignature, moved: tuple[float, float] | None, model: str) -> None:
    if [(spec.name, spec.datatype) for spec in (*before.inputs, *before.outputs)] != [
        (spec.name, spec.datatype) for spec in (*after.inputs, *after.outputs)
    ]:
        raise ConfigError((f"model {model!r}: has other inputs and outputs in int8",))
    if moved is not None and moved[1] > 2 * moved[0] + _MOST_DEPENDENCE:
        problem = f"its answers in int8 move with the batch by {moved[1]:.1g}, the original's by {moved[0]:.1g}"
        raise ConfigError((f"model {model!r}: {problem}; use the original",))


def _compare(
    source: Path, target: Path, batches: list[Tensors], *, alone: bool
) -> tuple[list[Deviation], tuple[float, float] | None]:
    if not batches:
        return [], None
    from serve_app.backends.onnx.int8.balance import make_session  # noqa: PLC0415

    before, after = make_session(str(source)), make_session(str(target))
    found = deviations(before, after, batches)
    return found, (dependence(before, batches[:4]), dependence(after, batches[:4])) if alone else None


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items()) if count)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e5 else f"{nbytes:,} bytes"
