"""How many Python functions one small request calls, router and replica together: ``python -m benchmarks.calls``.

The real `Router` and a real `Worker` run in this process, on one event loop, joined by a real link. A client in a
thread of its own sends V2 requests of one row over one connection to the router's own port, one at a time, warm.
`sys.setprofile` tells of every call of a Python function (``call``: a coroutine that goes on counts again) and of a C
function (``c_call``), in every thread but the client's. Unlike times, these numbers are the same on every machine.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import sysconfig
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import CodeType, FrameType
from typing import Annotated, Any

import orjson
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.failure import BenchmarkError
from serve_app.composition import model_info, read_models, router_settings
from serve_app.composition.replica import make_replica
from serve_app.config.args import parse_args
from serve_app.deployments.batching import batch_with_serve
from serve_app.payloads import Bundle, BundleResult, ModelSignature
from serve_app.router.router import Router
from serve_app.router.settings import HttpPort, ReplicaReport
from serve_app.transport.link_server import LinkServer

_ROOT = Path(__file__).resolve().parent.parent
_NAME = "tiny"
_WARM_UP = 300
_FREE_AXIS = 4
"""How long an axis is that the model leaves open, beside the rows."""


@dataclass(frozen=True, slots=True)
class Calls:
    """What was counted.

    Attributes:
        python: Calls of Python functions, for each request.
        c: Calls of C functions, mean over the requests.
        functions: Calls of each Python function, mean over the requests.
    """

    python: list[int]
    c: float
    functions: dict[CodeType, float]

    @property
    def median(self) -> float:
        """Calls of Python functions per request."""
        return statistics.median(self.python)

    @property
    def least(self) -> int:
        """Those of the request with the fewest: on an idle machine as many as the median."""
        return min(self.python)


class _Counter:
    """Counts calls while it is ``on``: of the thread that has it `installed`, and of those that begin after that."""

    def __init__(self) -> None:
        self.on = False
        self.python = 0
        self.c = 0
        self.functions: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.on:
            return
        if event == "call":
            self.python += 1
            self.functions[frame.f_code] += 1
        elif event == "c_call":
            self.c += 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def count(model: Path, requests: int = 200) -> Calls:
    """Count the calls of so many requests.

    Args:
        model: Folder of a model of plain tensors with rows.
        requests: How many, after others that are not counted.

    Raises:
        BenchmarkError: A request was not answered, or not by the link.
    """
    counter = _Counter()
    with tempfile.TemporaryDirectory() as folder, counter.installed():
        return uvloop.run(_count(counter, model.resolve(), Path(folder), requests))


async def _count(counter: _Counter, model: Path, folder: Path, requests: int) -> Calls:
    past_link = 0

    async def call(_model: str, bundle: Bundle, _replica: str | None, _nbytes: int) -> BundleResult:
        nonlocal past_link
        past_link += counter.on
        return await worker.run(bundle)

    config = parse_args(
        {
            "router": {"http": {"port": 1}},  # as a configuration has to name one; it is replaced below
            "models": [{"name": _NAME, "path": str(model), "batching": {"max_rows": 64, "slo_ms": 50}}],
        }
    )
    builds = read_models(config)[_NAME]
    model_config = config.models[0]
    replica = make_replica(model_config, builds, batch_with_serve(model_config.batching.configured_rows))
    worker, warm_up = replica.worker, replica.warm_up
    report = ReplicaReport(warm_up.executions, replica.joining.verdicts, warm_up.reason)
    links = LinkServer(_NAME, worker.run, worker.recall)
    info = model_info(model_config, config, builds)
    settings = router_settings(config, {_NAME: info}, priors={}, identities={}, log_file=folder / "requests.log")
    router = Router(replace(settings, http_port=HttpPort("127.0.0.1", 0)), call)
    router.start()
    router.on_replicas(_NAME, {"only": replace(report, address=links.address)})
    try:
        await router.opened()
        assert router.http_address is not None
        client = _Client(counter, router.http_address, _request(info.signature), requests)
        python = await client.run()
    finally:
        await router.close(1.0, grace_s=0.0)
        await links.drain(1.0)
        worker.close()
    if past_link:
        raise BenchmarkError(f"{past_link} bundles went another way than by the link")
    functions = {code: calls / requests for code, calls in counter.functions.most_common()}
    return Calls(python, counter.c / requests, functions)


def _request(signature: ModelSignature) -> bytes:
    """An HTTP request with one row of ones."""
    inputs = []
    for spec in signature.inputs:
        shape = [1, *(_FREE_AXIS if length < 0 else length for length in spec.shape[1:])]
        inputs.append({"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": [1.0] * prod(shape)})
    body = orjson.dumps({"inputs": inputs})
    head = (
        f"POST /v2/models/{_NAME}/infer HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Client:
    """Sends the same request again and again, in a thread whose calls are not counted."""

    def __init__(self, counter: _Counter, address: tuple[str, int], request: bytes, requests: int) -> None:
        self._counter = counter
        self._address = address
        self._request = request
        self._requests = requests

    async def run(self) -> list[int]:
        """Send all requests. Returns the calls of Python functions during each of those that count."""
        return await asyncio.to_thread(self._run)

    def _run(self) -> list[int]:
        sys.setprofile(None)
        counter = self._counter
        with socket.create_connection(self._address) as connection, connection.makefile("rb") as answers:
            for _ in range(_WARM_UP):
                self._ask(connection, answers)
            before, python = 0, []
            counter.on = True
            for _ in range(self._requests):
                self._ask(connection, answers)
                now = counter.python
                python.append(now - before)
                before = now
            counter.on = False
        return python

    def _ask(self, connection: socket.socket, answers: Any) -> None:
        connection.sendall(self._request)
        status = answers.readline()
        length = 0
        while line := answers.readline().strip():
            name, _, value = line.lower().partition(b":")
            if name == b"content-length":
                length = int(value)
        content = answers.read(length)
        if not status.startswith(b"HTTP/1.1 200"):
            raise BenchmarkError(f"the server answered {status!r}: {content[:200]!r}")


def _place(code: CodeType) -> str:
    """The file of a function, as short as can be."""
    file = code.co_filename
    for folder in (f"{_ROOT}/", sysconfig.get_path("purelib") + "/", sysconfig.get_path("stdlib") + "/"):
        file = file.removeprefix(folder)
    return file


def _package(file: str) -> str:
    parts = file.split("/")
    return "/".join(parts[:2]) if parts[0] == "serve_app" else parts[0]


def _table(title: str, numbers: dict[str, float], rows: int | None = None) -> Table:
    table = Table(title=title)
    table.add_column("where")
    table.add_column("calls", justify="right")
    for name, calls in sorted(numbers.items(), key=lambda item: -item[1])[:rows]:
        table.add_row(name, f"{calls:.2f}")
    return table


def main(
    model: Annotated[Path, typer.Option(help="Folder of a model of plain tensors.")] = _ROOT / "models" / "tiny",
    requests: Annotated[int, typer.Option(min=1, help="How many requests count.")] = 200,
    functions: Annotated[int, typer.Option(help="Print so many functions, too.")] = 0,
) -> None:
    """Print the calls of Python functions per request, by package and by file."""
    console = Console()
    try:
        calls = count(model, requests)
    except BenchmarkError as error:
        console.print(f"error: {error}")
        raise typer.Exit(1) from error
    files: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    each: Counter[str] = Counter()
    for code, number in calls.functions.items():
        place = _place(code)
        files[place] += number  # type: ignore[assignment] # means, not whole numbers
        packages[_package(place)] += number  # type: ignore[assignment]
        each[f"{place}:{code.co_firstlineno} {code.co_qualname}"] += number  # type: ignore[assignment]
    console.print(_table("By package", dict(packages)))
    console.print(_table("By file", dict(files)))
    if functions:
        console.print(_table("By function", dict(each), functions))
    console.print(
        f"{calls.median:.0f} calls of Python functions per request (median of {requests}; mean"
        f" {statistics.mean(calls.python):.1f}), and {calls.c:.0f} of C functions"
    )


if __name__ == "__main__":
    typer.run(main)
