"""How bundles become batches in a replica: Serve's own batching, told what the gate has decided."""

from __future__ import annotations

from collections.abc import Sequence

from ray import serve

from serve_app.replica.staged import Staged
from serve_app.replica.worker import BatchTogether


def batch_with_serve(max_rows: int) -> BatchTogether:
    """``@serve.batch``, per instance and sized in rows, for the function that runs a batch of bundles.

    The gate wakes the bundles of one batch in the same turn of the event loop, so a wait of 0 collects them all.

    Args:
        max_rows: Most rows in one batch. A larger bundle is one of its own.
    """

    def rows(bundles: Sequence[Staged]) -> int:
        return sum(min(bundle.rows, max_rows) for bundle in bundles)

    batch: BatchTogether = serve.batch(max_batch_size=max_rows, batch_wait_timeout_s=0, batch_size_fn=rows)
    return batch
