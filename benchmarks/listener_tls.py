"""What the listener's own TLS costs beside asyncio's: ``python -m benchmarks.listener_tls``.

Both drive the same HTTP connections, on uvloop and on asyncio's loop, each server in a process of its own. One client
asks them in turns. Figures are CPU time of the server, which each answer carries, and memory of open connections.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import trustme
import uvloop
from rich.console import Console
from rich.table import Table
from starlette.types import Receive, Scope, Send

from serve_app.domain.settings import TlsFiles
from serve_app.http.body import BodyReader
from serve_app.http.http1 import Connection, Limits, ListenerState
from serve_app.http.listener import Listener, bind
from serve_app.http.tls import Certificates
from serve_app.http.turns import Turns

_LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
_WAYS = ("ours", "asyncio's")
_SMALL, _LARGE = 765, 602 * 1000
_ANSWER = 500
_OPEN = 200
_ROWS = ("small request, us", "602 KB received, us", "connect and one request, us", "memory of a connection, KiB")


class _App:
    """Reads a body as the V2 endpoint does, and answers with the CPU time of this process."""

    def __init__(self) -> None:
        self._bodies = BodyReader(max_body=2**25, max_held_bytes=2**29, offload_above=2**18, decode_threads=2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._bodies.read_in_place(receive, dict(scope["headers"]), 30.0, 128)
        self._bodies.release(len(body))
        answer = str(time.process_time_ns()).rjust(_ANSWER).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % _ANSWER)]})
        await send({"type": "http.response.body", "body": answer})


def _serve(loop: str, way: str, folder: Path) -> None:
    """Serve in this process, after one line that holds the port."""
    sock = bind("127.0.0.1", 0)
    print(sock.getsockname()[1], flush=True)

    async def run() -> None:
        certificates = Certificates(TlsFiles(folder / "server.pem", folder / "server.key"))
        if way == "ours":
            await Listener(_App(), sock, certificates=certificates).start()
        else:
            running, limits = asyncio.get_running_loop(), Limits()
            state = ListenerState(_App(), limits, running, Turns(running, most=limits.requests))
            made = partial(Connection, state, "https")
            await running.create_server(made, sock=sock, backlog=2048, ssl=certificates.context())
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=_LOOPS[loop]) as runner:
        runner.run(run())


class _Client:
    """Asks one server, over blocking sockets."""

    def __init__(self, port: int, process: psutil.Process, context: ssl.SSLContext) -> None:
        self._port, self._process, self._context = port, process, context
        self._kept = self._connect()

    def _connect(self) -> ssl.SSLSocket:
        sock = socket.create_connection(("127.0.0.1", self._port))
        return self._context.wrap_socket(sock, server_hostname="127.0.0.1")

    def _ask(self, sock: ssl.SSLSocket, nbytes: int) -> int:
        sock.sendall(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % nbytes + b"x" * nbytes)
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0 or len(received) < end + 4 + _ANSWER:
            received += sock.recv(4096)
        return int(received[end + 4 :])

    def requests(self, nbytes: int, count: int) -> float:
        """CPU microseconds of the server for a request on a kept connection."""
        first = self._ask(self._kept, nbytes)
        for _ in range(count):
            last = self._ask(self._kept, nbytes)
        return (last - first) / count / 1e3

    def connects(self, count: int) -> float:
        """The same with a connection for each."""
        first = self._ask(self._kept, _SMALL)
        for _ in range(count):
            with self._connect() as sock:
                self._ask(sock, _SMALL)
        return (self._ask(self._kept, _SMALL) - first) / count / 1e3

    def memory(self) -> float:
        """KiB of an open connection after a small request."""
        before = self._process.memory_info().rss
        with ExitStack() as stack:
            for _ in range(_OPEN):
                self._ask(stack.enter_context(self._connect()), _SMALL)
            return float(self._process.memory_info().rss - before) / _OPEN / 1024


@contextmanager
def _running(loop: str, way: str, folder: Path, context: ssl.SSLContext) -> Iterator[_Client]:
    command = [sys.executable, "-m", "benchmarks.listener_tls", "--serve", loop, way, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        time.sleep(1)  # it listens a little later
        yield _Client(port, psutil.Process(process.pid), context)
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.serve:
        loop, way, folder = options.serve
        _serve(loop, way, Path(folder))
        return
    table = Table("loop", "figure", *_WAYS, "ratio", title="medians of alternating rounds")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = trustme.CA(key_type=trustme.KeyType.RSA)
        issued = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA)
        (folder / "server.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        (folder / "server.key").touch(0o600)
        issued.private_key_pem.write_to_path(folder / "server.key")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        for loop in _LOOPS:
            clients = [stack.enter_context(_running(loop, way, folder, context)) for way in _WAYS]
            figures: list[Callable[[_Client], float]] = [
                lambda client: client.requests(_SMALL, 500),
                lambda client: client.requests(_LARGE, 40),
                lambda client: client.connects(40),
            ]
            memory = [client.memory() for client in clients]  # first: later ones fit into what is free by then
            for name, figure in zip(_ROWS, figures, strict=False):
                runs = [[figure(client) for client in clients] for _ in range(options.rounds)]
                ratio = statistics.median(theirs / ours for ours, theirs in runs)
                ours, theirs = (statistics.median(each) for each in zip(*runs, strict=True))
                table.add_row(loop, name, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ratio:.2f}")
            table.add_row(loop, _ROWS[-1], *(f"{each:,.0f}" for each in memory), f"{memory[1] / memory[0]:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
