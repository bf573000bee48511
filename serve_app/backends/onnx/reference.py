"""Compares a model's session with an unoptimized one on the CPU.

ONNX Runtime rewrites a graph before running it, possibly wrongly: 1.31.1 computes BiT's pooling with the padding of
another operator (``Pad_Fusion``). An unoptimized session reveals it. The remaining difference is rounding by the device
and the kernels, which sharing a run may add as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import onnxruntime

from rowproof.onnx_graph.skeleton import read_skeleton
from serve_app.backends.backend import RuntimeCheck, not_compared
from serve_app.backends.joining.experiment import SAME, Difference, of_floats
from serve_app.backends.onnx.failure import describe_failure
from serve_app.errors import ConfigError
from serve_app.payloads import Tensors

LARGEST_BYTES: Final = 2 * 2**30
"""Weights of a model that is compared: a second session takes as much memory again, for a moment."""

_FAULT: Final[Mapping[str, float]] = MappingProxyType({"full": 1e-4, "reduced": 0.05})
"""Differences above this, relative to an output's largest value, start the search for the optimizer that causes them.

FP32 sums in another order differ by 1e-7 to 1e-5. ``reduced``: FP16, BF16, TF32 and quantized numbers.
"""

_PART: Final = 0.1
"""An optimizer is at fault where the difference without it is less than this part."""

_REDUCED_TYPES: Final = frozenset({10, 16})
"""FP16 and BF16, as `onnx.TensorProto.DataType`."""

_NAMES = """
    Pad_Fusion ConvAddFusion ConvMulFusion ConvBNFusion MatMul_BatchNormalization_Fusion MatMulAddFusion
    MatMulScaleFusion MatmulTransposeFusion MatMulActivationFusion GemmSumFusion GemmTransposeFusion
    GemmActivationFusion ConvActivationFusion ConvAddActivationFusion FuseReluClip DivMulFusion NotWhereFusion
    ReshapeFusion LayerNormFusionL1 LayerNormFusionL2 SimplifiedLayerNormFusion SkipLayerNormFusion
    BiasSkipLayerNormFusion EmbedLayerNormFusion AttentionFusion GroupQueryAttentionFusion GeluFusionL1 GeluFusionL2
    FastGeluFusion QuickGeluFusion BiasGeluFusion BiasSoftmaxFusion BiasDropoutFusion TransposeOptimizer
    NchwcTransformer NhwcTransformer ConstantFolding ConstantSharing CommonSubexpressionElimination CastElimination
    CastChainElimination ExpandElimination UnsqueezeElimination EliminateSlice NoopElimination
    PreShapeNodeElimination GatherToSliceFusion GatherSliceToSplitFusion LabelEncoderFusion ClipQuantRewrite
    ReluQuantRewrite QDQSelectorActionTransformer QDQPropagationTransformer DoubleQDQPairsRemover
    DynamicQuantizeMatMulFusion MatMulIntegerToFloatFusion
"""

OPTIMIZERS: Final = tuple(_NAMES.split())
"""ONNX Runtime's names of those that rewrite what is computed, as ``disabled_optimizers`` takes them."""

Open = Callable[[Sequence[str]], Any]
"""Makes the session that serves, without these optimizers."""


def compare(
    model_file: Path, run: Callable[[Any, Tensors], Tensors], session: Any, reopen: Open, inputs: Sequence[Tensors]
) -> RuntimeCheck:
    """Compare a session with an unoptimized one, and find the optimizer that makes them differ.

    Args:
        run: Runs a session on an input.
        session: The serving session.
        reopen: Makes another session like it. Raises `ConfigError`.

    Raises:
        ServeAppError: The model does not run these inputs.
    """
    try:
        plain = _unoptimized(model_file, session.get_session_options().intra_op_num_threads)
    except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
        return not_compared(describe_failure(error))
    expected = [run(plain, each) for each in inputs]
    del plain

    def gap(other: Any) -> Difference:
        found = (of_floats(right, run(other, each)) for right, each in zip(expected, inputs, strict=True))
        return max(found, key=lambda each: each.relative, default=SAME)

    worst, again = gap(session), gap(session)
    reduced = session.get_providers()[0] != "CPUExecutionProvider" or _computes_reduced(model_file)
    limit = _FAULT["reduced" if reduced else "full"]
    if max(worst.relative, again.relative) <= limit:
        return RuntimeCheck(worst.relative)
    if worst != again:
        return not_compared("its answers differ from run to run")
    changes = f"ONNX Runtime's optimization changes output {worst.output!r}{worst.by}"
    try:
        names, left = _at_fault(lambda names: gap(reopen(names)).relative, worst.relative * _PART)
    except ConfigError as error:
        return RuntimeCheck(0.0, note=f"{changes}; the optimizer was not found: {error}")
    if not names:
        return RuntimeCheck(0.0, note=f"{changes}, and no optimizer alone explains it: answers may be wrong")
    return RuntimeCheck(min(left, limit), tuple(names), f"{changes}; disabled: {', '.join(names)}")


def _at_fault(gap: Callable[[Sequence[str]], float], enough: float) -> tuple[Sequence[str], float]:
    """Bisect for the optimizers to disable so that the difference is small enough; none if that fails."""
    names: Sequence[str] = OPTIMIZERS
    left = gap(names)
    if left > enough:
        return (), left
    while len(names) > 1:
        middle = len(names) // 2
        for half in (names[:middle], names[middle:]):
            found = gap(half)
            if found <= enough:
                names, left = half, found
                break
        else:
            break  # it takes some of both
    return names, left


def _unoptimized(model_file: Path, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model_file, options, providers=["CPUExecutionProvider"])


def _computes_reduced(model_file: Path) -> bool:
    graph = read_skeleton(model_file).graph
    return any(tensor.data_type in _REDUCED_TYPES for tensor in graph.initializer) or any(
        "Quantize" in node.op_type or "Integer" in node.op_type or node.op_type.startswith("QLinear")
        for node in graph.node
    )
