"""What the server's own HTTP listener costs beside uvicorn, plain and with TLS: ``python -m benchmarks.listener``.

All serve the same applications on the same event loop (uvloop), with the same parser (llhttp), each in a process of
its own and loaded by wrk in turns, over connections that stay open:

    small   765 bytes in, 500 bytes out, 64 connections
    large   602 KB in, 500 bytes out, 32 connections; the application wants the body in one piece
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import trustme
import uvicorn
import uvloop
from rich.console import Console
from rich.table import Table
from starlette.types import Receive, Scope, Send

from benchmarks import wrk
from benchmarks.failure import BenchmarkError
from serve_app.domain.settings import TlsFiles
from serve_app.http.body import BodyReader
from serve_app.http.listener import Listener, bind
from serve_app.http.tls import Certificates

_SCRIPT = Path(__file__).with_suffix(".lua")
_ANSWER = b"y" * 500
_HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_ANSWER))],
}
_LOADS = {"small": (765, 64), "large": (602 * 1000, 32)}
_SERVERS = ("uvicorn", "uvicorn, TLS", "listener", "listener, TLS")


async def _small(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    message = await receive()
    assert not message.get("more_body", False)
    await send(dict(_HEAD))
    await send({"type": "http.response.body", "body": _ANSWER})


class _Large:
    """Reads bodies the way the V2 endpoint does."""

    def __init__(self) -> None:
        self._bodies = BodyReader(max_body=2**25, max_held_bytes=2**29, offload_above=2**18, decode_threads=2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._bodies.read_in_place(receive, dict(scope["headers"]), 30.0, 128)
        self._bodies.release(len(body))
        await send(dict(_HEAD))
        await send({"type": "http.response.body", "body": _ANSWER})


def _serve(server: str, load: str, folder: Path) -> None:
    """Serve in this process, after one line that holds the port."""
    app: Any = _small if load == "small" else _Large()
    certificate, key = _files(folder)
    secure = server.endswith("TLS")
    sock = bind("127.0.0.1", 0)
    print(sock.getsockname()[1], flush=True)

    async def ours() -> None:
        certificates = Certificates(TlsFiles(certificate, key)) if secure else None
        await Listener(app, sock, certificates=certificates).start()
        await asyncio.Event().wait()

    if server.startswith("listener"):
        uvloop.run(ours())
    else:
        sock.listen(2048)
        files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)} if secure else {}
        options: dict[str, Any] = {"log_level": "error", "access_log": False, **files}
        config = uvicorn.Config(app, http="httptools", loop="uvloop", lifespan="off", **options)
        uvicorn.Server(config).run(sockets=[sock])


def _files(folder: Path) -> tuple[Path, Path]:
    return folder / "server.pem", folder / "server.key"


def _certify(folder: Path) -> None:
    """A certificate as public authorities give them: RSA of 2,048 bits."""
    issued = trustme.CA(key_type=trustme.KeyType.RSA).issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA)
    certificate, key = _files(folder)
    certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    key.touch(0o600)
    issued.private_key_pem.write_to_path(key)


@contextmanager
def _running(server: str, load: str, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "benchmarks.listener", "--serve", server, load, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        scheme = "https" if server.endswith("TLS") else "http"
        yield f"{scheme}://127.0.0.1:{int(process.stdout.readline())}/", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def _measure(url: str, process: psutil.Process, load: str, seconds: int) -> tuple[float, float]:
    """Requests per second, and CPU microseconds of the server per request."""
    nbytes, connections = _LOADS[load]
    command = [wrk.find(), "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(_SCRIPT), url, "--", str(nbytes)]
    before = process.cpu_times()
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = process.cpu_times()
    if "Non-2xx" in output or "Socket errors" in output:
        raise BenchmarkError(f"not every request was answered:\n{output}")
    found = re.search(r"(\d+) requests in ([\d.]+)s", output)
    assert found is not None
    requests = int(found[1])
    cpu_s = after.user + after.system - before.user - before.system
    return requests / float(found[2]), cpu_s / requests * 1e6


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    if options.serve:
        server, load, folder = options.serve
        _serve(server, load, Path(folder))
        return
    table = Table(
        "load",
        "server",
        "requests/s",
        "MB/s in",
        "CPU us per request",
        title="alternating runs: median rate, least cost",
    )
    for load, (nbytes, _) in _LOADS.items():
        results: dict[str, list[tuple[float, float]]] = {server: [] for server in _SERVERS}
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            _certify(folder)
            running = [stack.enter_context(_running(server, load, folder)) for server in _SERVERS]
            for _ in range(options.rounds):
                for server, (url, process) in zip(_SERVERS, running, strict=True):
                    results[server].append(_measure(url, process, load, options.seconds))
        for server, runs in results.items():
            rate = statistics.median(run[0] for run in runs)
            cost = min(run[1] for run in runs)  # whatever else runs on the machine can only add to it
            table.add_row(load, server, f"{rate:,.0f}", f"{rate * nbytes / 1e6:,.0f}", f"{cost:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
