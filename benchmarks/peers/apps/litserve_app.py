"""LitServe, with its batching, and what its documentation advises for throughput on Linux: ``fast_queue``.

LitServe looks at annotations itself, so they are no text here.
"""

import base64
from typing import Any

import litserve as ls
import numpy as np
from fastapi import Request

from benchmarks.peers.apps.settings import Session, Settings


class Api(ls.LitAPI):  # type: ignore[misc]  # not in this environment
    """One model.

    Args:
        settings: What the server is told.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            max_batch_size=settings.max_rows, batch_timeout=settings.max_wait_ms / 1000, api_path=settings.path
        )
        self._settings = settings

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's
        """In the worker's process."""
        self._session = Session(self._settings)

    def decode_request(self, request: Request) -> Any:
        """One request, whose JSON LitServe has read, to the inputs."""
        body: Any = request
        if self._settings.wire == "json":
            return self._session.from_json(body["inputs"])
        return self._session.from_bytes(base64.b64decode(body["data"]))

    def batch(self, inputs: list[Any]) -> Any:
        """Requests to a batch."""
        return {name: np.concatenate([each[name] for each in inputs]) for name in self._session.inputs}

    def predict(self, x: Any) -> Any:
        """Run a batch."""
        return self._session.run(x)

    def unbatch(self, output: Any) -> Any:
        """One row per request."""
        return list(output[:, None])

    def encode_response(self, output: Any) -> Any:
        """One answer."""
        if self._settings.wire == "json":
            return self._session.to_json(self._settings.model, output)
        return {"data": base64.b64encode(output.tobytes()).decode("ascii")}


if __name__ == "__main__":
    told = Settings.from_command_line()
    server = ls.LitServer(Api(told), accelerator="cpu", workers_per_device=1, timeout=60, fast_queue=True)
    server.run(host="127.0.0.1", port=told.port, generate_client_file=False, log_level="warning", access_log=False)
