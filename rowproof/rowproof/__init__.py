"""Proves that each row of a graph's outputs depends on the same row of its inputs alone: see README.md."""

from rowproof.aten import prove_rows as prove_aten_rows
from rowproof.onnx_graph.proof import prove_rows, prove_rows_of
from rowproof.result import EqualSizes, RowProof

__version__ = "0.1.0"
__all__ = ["EqualSizes", "RowProof", "prove_aten_rows", "prove_rows", "prove_rows_of"]
