"""MLServer with a model class of one's own and its adaptive batching, inside the server's process.

Run as a program, it becomes ``mlserver start``. Its documentation ("Parallel inference") advises to switch the workers
off where one process is enough, which spares every request a way through two queues.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from benchmarks.peers.apps.settings import Session, Settings


class OnnxModel(MLModel):  # type: ignore[misc]  # not in this environment
    """One model."""

    async def load(self) -> bool:
        """Make the session, in a thread: a model that is loaded anew goes on answering meanwhile."""
        settings = Settings.from_text(json.dumps(self.settings.parameters.extra))
        self._session = await asyncio.to_thread(Session, settings)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run a batch."""
        inputs = {
            each.name: NumpyCodec.decode_input(each).astype(self._session.inputs[each.name], copy=False)
            for each in payload.inputs
        }
        output = NumpyCodec.encode_output(self._session.output, self._session.run(inputs))
        return InferenceResponse(model_name=self.name, outputs=[output])


def main() -> None:
    """Become ``mlserver start``."""
    text = sys.argv[1]
    settings, folder = Settings.from_text(text), Path(Settings.from_text(text).folder)
    grpc, metrics = settings.more_ports
    server = {
        "host": "127.0.0.1",
        "http_port": settings.port,
        "grpc_port": grpc,
        "metrics_port": metrics,
        "metrics_endpoint": None,
        "debug": False,
        "gzip_enabled": False,
        "parallel_workers": 0,
    }
    model = {
        "name": settings.model,
        "implementation": "benchmarks.peers.apps.mlserver_app.OnnxModel",
        "max_batch_size": settings.max_rows,
        "max_batch_time": settings.max_wait_ms / 1000,
        "parameters": {"uri": settings.model_file, "extra": json.loads(text)},
    }
    (folder / "settings.json").write_text(json.dumps(server), encoding="utf-8")
    (folder / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
    program = str(Path(sys.executable).with_name("mlserver"))
    os.execv(program, [program, "start", str(folder)])


if __name__ == "__main__":
    main()
