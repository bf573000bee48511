"""A server that takes callbacks, as a client of ours would have it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple


class Received(NamedTuple):
    """One request.

    Attributes:
        path: Of it.
        headers: By lower-case name.
        body: All of it.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes


class Receiver:
    """Takes POST requests at a free port, from `__enter__` to `__exit__`.

    Args:
        statuses: Of its answers, one after the other; then 204.

    Attributes:
        received: What came.
    """

    def __init__(self, *statuses: int) -> None:
        self.received: queue.Queue[Received] = queue.Queue()
        left = list(statuses)
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = left.pop(0) if left else 204
                received.put(Received(self.path, headers, body))
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
