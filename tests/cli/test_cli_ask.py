"""What commands that ask a server say of one whose answers end early."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from typer.testing import CliRunner

from serve_app.cli.commands import app


class _Cut(BaseHTTPRequestHandler):
    """Says that more comes than does; jobs are refused."""

    def do_GET(self) -> None:
        """Answer, and close the connection."""
        self.send_response(404 if self.path.startswith("/v1/jobs/") else 200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"data": [')

    def log_message(self, *_: object) -> None:
        """Nothing is written."""


@pytest.fixture
def url() -> Iterator[str]:
    """Of such a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Cut) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["list"], "IncompleteRead(10 bytes read, 990 more expected)"), (["show", "a"], "the server answers 404")],
)
def test_an_answer_that_is_cut_off(url: str, arguments: list[str], message: str) -> None:
    """One line says so, for an answer and for an error."""
    result = CliRunner().invoke(app, ["jobs", *arguments, "--url", url])
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert message in result.stderr
