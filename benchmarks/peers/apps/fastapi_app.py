"""FastAPI in one process, with the fast parts: uvloop, httptools, orjson, and no batching.

The session runs inside the endpoint, without a thread: with one process that gives the most answers per second, at the
price that nothing else is answered meanwhile.
"""

from __future__ import annotations

import orjson
import uvicorn
from fastapi import FastAPI, Request, Response

from benchmarks.peers.apps.settings import Session, Settings


def build(settings: Settings) -> FastAPI:
    """The application."""
    session = Session(settings)
    app = FastAPI()

    # As text, the annotations could not be resolved: they are names of this module, the function is local.
    async def infer_json(request: Request) -> Response:
        y = session.run(session.from_json(orjson.loads(await request.body())["inputs"]))
        return Response(orjson.dumps(session.to_json(settings.model, y)), media_type="application/json")

    async def infer_bytes(request: Request) -> Response:
        y = session.run(session.from_bytes(await request.body()))
        return Response(y.tobytes(), media_type="application/octet-stream")

    app.post(settings.path)(infer_json if settings.wire == "json" else infer_bytes)
    return app


if __name__ == "__main__":
    told = Settings.from_command_line()
    uvicorn.run(
        build(told),
        host="127.0.0.1",
        port=told.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
