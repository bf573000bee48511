"""How bundles become batches in a replica: Serve's own batching, told what the gate has decided."""

from __future__ import annotations

from collections.abc import Sequence

from ray import serve

from serve_app.replica.staged import Staged
from serve_app.replica.worker import BatchTogether, RunBatch, RunOne


def batch_with_serve(max_rows: int) -> BatchTogether:
    """``@serve.batch``, per replica and sized in rows, for the function that runs a batch of bundles.

    The gate wakes the bundles of one batch in the same turn of the event loop, so a wait of 0 collects them all. Serve
    keeps what it decorates for as long as the process lives, so that this is one function of the replica's and none of
    a session's, which come and go.

    Args:
        max_rows: Most rows in one batch. A larger bundle is one of its own.
    """

    def rows(asked: Sequence[tuple[Staged, RunBatch]]) -> int:
        return sum(min(bundle.rows, max_rows) for bundle, _ in asked)

    async def run_all(asked: list[tuple[Staged, RunBatch]]) -> list[Staged]:
        by_session: dict[RunBatch, list[Staged]] = {}
        for staged, run in asked:
            by_session.setdefault(run, []).append(staged)
        for run, bundles in by_session.items():
            await run(bundles)
        return [staged for staged, _ in asked]

    together = serve.batch(max_batch_size=max_rows, batch_wait_timeout_s=0, batch_size_fn=rows)(run_all)

    def batch(run: RunBatch) -> RunOne:
        async def one(staged: Staged) -> Staged:
            joined: Staged = await together((staged, run))
            return joined

        return one

    return batch
