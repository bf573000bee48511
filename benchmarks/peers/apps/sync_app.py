"""The server that teams write first: a plain ``def`` endpoint of FastAPI, one ``session.run`` per request.

FastAPI runs such endpoints in a pool of 40 threads. The session is made without options.
"""

from __future__ import annotations

from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Request, Response

from benchmarks.peers.apps.settings import Session, Settings


async def read(request: Request) -> bytes:
    """The body."""
    content: bytes = await request.body()
    return content


def build(settings: Settings) -> FastAPI:
    """The application."""
    session = Session(settings, threads=0)
    app = FastAPI()

    def infer_json(body: dict[str, Any]) -> dict[str, Any]:
        return session.to_json(settings.model, session.run(session.from_json(body["inputs"])))

    def infer_bytes(body: bytes = Depends(read)) -> Response:
        return Response(session.run(session.from_bytes(body)).tobytes(), media_type="application/octet-stream")

    if settings.wire == "json":
        app.post(settings.path)(infer_json)
    else:
        app.post(settings.path)(infer_bytes)
    return app


if __name__ == "__main__":
    told = Settings.from_command_line()
    uvicorn.run(build(told), host="127.0.0.1", port=told.port, access_log=False, log_level="warning")
