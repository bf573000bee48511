"""Writes ONNX graphs node by node, in the order in which the nodes run."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

OPSET = 17
"""The newest operator set that every ONNX Runtime since 1.12 runs."""

_IR_VERSION = 8  # the file format of the same age as the operator set

Shape = tuple[int | str, ...]
"""Dimensions of a tensor; a name stands for a dimension that the caller chooses, such as ``rows``."""


class GraphBuilder:
    """Collects nodes and weights, and makes a checked model of them.

    Names are numbered in the order of the calls, so that the same calls always give the same bytes.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count()
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, value: Any, dtype: type[np.generic] = np.float32) -> str:
        """Add a constant tensor and return its name."""
        name = f"constant_{next(self._numbers)}"
        array = np.ascontiguousarray(np.asarray(value, dtype=dtype))
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output and return the output's name, which is made up unless given."""
        name = output or f"{operator.lower()}_{next(self._numbers)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], name=f"make_{name}", **attributes))
        return name

    def model(
        self,
        inputs: Mapping[str, Shape],
        outputs: Mapping[str, Shape],
        *,
        description: str,
        metadata: Mapping[str, str],
        integers: Collection[str] = (),
    ) -> onnx.ModelProto:
        """Make the model. Inputs and outputs are FP32, but for those that ``integers`` names, which are INT64.

        Raises:
            onnx.checker.ValidationError: The nodes do not form a valid graph.
        """
        graph = helper.make_graph(
            self._nodes,
            self._name,
            _infos(inputs, integers),
            _infos(outputs, integers),
            self._constants,
            doc_string=description,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=_IR_VERSION,
            producer_name="serve-app training",
        )
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model, full_check=True)
        return model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write the model to ``path``, making the folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _infos(tensors: Mapping[str, Shape], integers: Collection[str]) -> Sequence[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name in integers else TensorProto.FLOAT, shape)
        for name, shape in tensors.items()
    ]
