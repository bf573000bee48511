"""LitServe, with what its documentation advises for throughput on Linux: ``fast_queue``. Workers decode and run.

Each model has workers of its own. Bodies come as they are: FastAPI resolves the annotation of ``decode_request``, which
LitServe puts into the endpoint, so it is no text here.
"""

from typing import Annotated, Any

import litserve as ls
from fastapi import Depends, Request
from fastapi.responses import Response

from benchmarks.tasks.apps.work import MOST_REQUESTS, PATH, Row, Settings, make_work

_BATCH_WAIT_S = 0.002


async def read(request: Request) -> bytes:
    """The body."""
    content: bytes = await request.body()
    return content


class Api(ls.LitAPI):  # type: ignore[misc]  # not in this environment
    """One model.

    Args:
        settings: Of the server.
        model: Its name.
    """

    def __init__(self, settings: Settings, model: str) -> None:
        batches = {"max_batch_size": MOST_REQUESTS, "batch_timeout": _BATCH_WAIT_S} if settings.batches else {}
        super().__init__(api_path=PATH.format(model), **batches)
        self._settings, self._model = settings, model

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's
        """In the worker's process."""
        settings = self._settings
        self._work = make_work(settings.models[self._model], settings.threads, settings.rows)

    def decode_request(self, request: Annotated[bytes, Depends(read)]) -> list[Row]:
        """One request."""
        return self._work.prepare(request)

    def batch(self, inputs: list[list[Row]]) -> list[list[Row]]:
        """Requests to a batch."""
        return inputs

    def predict(self, x: Any) -> list[Any]:
        """Run a batch, or one request where there are none."""
        return self._work.run_all(x) if self._settings.batches else self._work.run(x)

    def unbatch(self, output: list[list[Row]]) -> list[list[Row]]:
        """A batch to requests."""
        return output

    def encode_response(self, output: list[Row]) -> Response:
        """One answer."""
        return Response(self._work.answer(output), media_type="application/json")


if __name__ == "__main__":
    told = Settings.from_command_line()
    apis = [Api(told, model) for model in told.models]
    server = ls.LitServer(apis, accelerator="cpu", workers_per_device=told.workers, timeout=60, fast_queue=True)
    server.run(
        host="127.0.0.1",
        port=told.ports[0],
        num_api_servers=told.workers,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
