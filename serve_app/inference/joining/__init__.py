"""Whether strangers' rows may be joined into one batch: what a model's graph says about it."""

from serve_app.inference.joining.proof import RowProof, prove_rows, prove_rows_of

__all__ = ["RowProof", "prove_rows", "prove_rows_of"]
