"""Stock Ray Serve: one deployment that answers HTTP itself, so that no request passes a second process.

Batches are ``@serve.batch``'s. Everything runs in the replica's event loop, which has nothing else to do.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.tasks.apps.work import MOST_REQUESTS, Row, Settings

_BATCH_WAIT_S = 0.002


class Models:
    """Every model.

    Args:
        told: The settings, JSON.
    """

    def __init__(self, told: str) -> None:
        self._settings = Settings.from_text(told)
        self._work = self._settings.work()

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        name = request.url.path.split("/")[3]
        work = self._work[name]
        rows = work.prepare(await request.body())
        outputs = await self.run((name, rows)) if self._settings.batches else work.run(rows)
        return Response(work.answer(outputs), media_type="application/json")

    @serve.batch(max_batch_size=MOST_REQUESTS, batch_wait_timeout_s=_BATCH_WAIT_S)  # type: ignore[untyped-decorator]
    async def run(self, requests: list[tuple[str, list[Row]]]) -> list[list[Row]]:
        """Run a batch, whose requests may be for different models."""
        by_model = defaultdict(list)
        for number, (name, _) in enumerate(requests):
            by_model[name].append(number)
        found: list[list[Row]] = [[] for _ in requests]
        for name, numbers in by_model.items():
            outputs = self._work[name].run_all([requests[number][1] for number in numbers])
            for number, each in zip(numbers, outputs, strict=True):
                found[number] = each
        return found


def build(args: dict[str, Any]) -> serve.Application:
    """Build the application from what stands under ``args:`` of the Serve file."""
    application: serve.Application = (
        serve.deployment(Models)
        .options(
            num_replicas=args["workers"],
            max_ongoing_requests=1024,
            ray_actor_options={"num_cpus": 0.5},
        )
        .bind(args["told"])
    )
    return application
