"""An open-loop load generator: requests leave at times fixed beforehand, whatever the server does.

    python -m benchmarks.open_loop URL trace.csv result.npz

A closed loop (one request per connection at a time) sends less when the server is slow, and so leaves out just the
latencies that matter ("coordinated omission", Tene 2013). Here every latency counts from the moment when the request
was due, sends never wait for answers, and how late the generator itself was is reported with the result.

Bodies are V2 with the binary tensor extension, made before the first send from what the server says of its models.
Class and remaining time travel in ``X-Priority`` and ``X-Timeout-Ms``.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import numpy as np
import numpy.typing as npt
import orjson
import typer
import uvloop

from benchmarks.failure import BenchmarkError
from benchmarks.open_loop_workload import Result, Workload, summary
from benchmarks.requests import Request, read_requests
from benchmarks.server import ROOT
from benchmarks.wires import binary_request
from serve_app.errors import ConfigError
from serve_app.payloads import DTYPES

_SEED = 11
_BODIES = 8
"""Different bodies per model, rows and bucket; they are sent in turn."""
_LEAD_S = 0.2
_GIVE_UP_S = 10.0
"""A request that is not answered this long after its deadline is given up."""
_PROBE_EVERY_S = 0.1
_OK = 200
_OPENED = 32
"""Connections opened before the first send."""


def make_bodies(inputs: list[dict[str, Any]], rows: int, bucket: int, count: int = _BODIES) -> list[Request]:
    """Different requests for a model, always the same ones: floats are random, whole numbers are ones.

    Args:
        inputs: As the server's metadata describe them: ``name``, ``datatype``, ``shape`` with rows first.
        rows: Rows of each.
        bucket: Size of every further free dimension.
        count: How many.

    Raises:
        BenchmarkError: An input is not numbers, or has a free dimension and there is no bucket.
    """
    random = np.random.default_rng((_SEED, rows, bucket))
    bodies = []
    for _ in range(count):
        arrays: dict[str, npt.NDArray[Any]] = {}
        for each in inputs:
            dtype = DTYPES[each["datatype"]]
            trailing = [bucket if size < 0 else size for size in each["shape"][1:]]
            if dtype.kind == "O" or 0 in trailing:
                raise BenchmarkError(f"no body can be made for input {each['name']!r} of {each['shape']}")
            shape = (rows, *trailing)
            arrays[each["name"]] = (
                random.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)
            )
        bodies.append(binary_request(arrays))
    return bodies


async def send(
    url: str,
    trace: Path | Workload,
    connections: int = 2048,
    requests: Sequence[Request] = (),
    models: Sequence[str] = (),
    answers: Sequence[bytes] = (),
) -> tuple[Workload, Result]:
    """Send a workload and wait for its last answer.

    Args:
        url: Of the server, e.g. ``http://127.0.0.1:8000``.
        trace: What to send, or a file that holds it.
        connections: Most connections at once. A request that waits for one is counted with that wait.
        requests: Sent in turn instead of what the server's description of its models calls for.
        models: Names that the file may hold; by default the server is asked.
        answers: What the body of each request's answer has to end with; by default answers are not looked at.

    Returns:
        What was sent, and what became of it.

    Raises:
        BenchmarkError: The server does not describe its models, or bodies cannot be made.
        ConfigError: The file is no trace, or names a model that the server does not have.
    """
    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=60.0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        if isinstance(trace, Workload):
            workload = trace
        else:
            workload = Workload.read(trace, list(models) or await _models(session, url))
        bodies = list(islice(cycle(requests), len(workload))) or await _bodies(session, url, workload)
        await asyncio.gather(*(_touch(session, f"{url}/v2/health/live") for _ in range(min(_OPENED, connections))))
        # A collection of garbage would be lateness, and nothing here makes cycles worth one.
        gc.collect()
        gc.disable()
        try:
            return workload, await _Sending(session, url, workload, bodies, answers).run()
        finally:
            gc.enable()


def send_apart(
    url: str,
    workload: Workload,
    folder: Path,
    command: tuple[str, ...] = (),
    requests: Path | None = None,
    answers: Sequence[bytes] = (),
) -> Result:
    """Send a workload from a process of its own.

    Args:
        url: Of the server.
        workload: What to send.
        folder: For the files that go to that process and come back.
        command: Put before it, e.g. ``("taskset", "--cpu-list", "0")``.
        requests: A file of requests (see `benchmarks.requests`) for a server that does not describe its models.
        answers: What the body of each request's answer has to end with, all of one length.

    Raises:
        BenchmarkError: The process failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given, found = folder / "trace.csv", folder / "result.npz"
    workload.write(given)
    found.unlink(missing_ok=True)
    arguments = [*command, sys.executable, "-m", "benchmarks.open_loop", url, str(given), str(found)]
    if requests is not None:
        arguments += ["--requests", str(requests)]
        arguments += [word for model in np.unique(workload.model) for word in ("--model", str(model))]
    if answers:
        expected = folder / "answers.npy"
        np.save(expected, np.frombuffer(b"".join(answers), np.uint8).reshape(len(answers), -1))
        arguments += ["--answers", str(expected)]
    finished = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT)
    if finished.returncode != 0:
        raise BenchmarkError(f"the load generator failed: {(finished.stderr or finished.stdout).strip()[-2000:]}")
    return Result.load(found)


class _Sending:
    """One run."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        workload: Workload,
        requests: Sequence[Request],
        answers: Sequence[bytes],
    ) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._arrivals = workload.arrival_s.tolist()
        self._timeouts = workload.timeout_s.tolist()
        self._priorities = [str(priority) for priority in workload.priority.tolist()]
        self._requests = requests
        self._answers = answers
        self._urls = [f"{url}/v2/models/{model}/infer" for model in workload.model.tolist()]
        self._status = np.zeros(len(workload), dtype=np.int64)
        self._latency = np.full(len(workload), np.inf)
        self._late = np.zeros(len(workload))
        self._wrong = 0
        self._started = 0.0
        self._most = 0
        self._live = f"{url}/v2/health/live"
        self._probes: list[float] = []

    async def run(self) -> Result:
        loop = self._loop
        pending: set[asyncio.Task[None]] = set()
        self._started = loop.time() + _LEAD_S
        began, cpu_before = loop.time(), _cpu_s()
        probing = loop.create_task(self._probe())
        for index, arrival in enumerate(self._arrivals):
            due = self._started + arrival
            await asyncio.sleep(0)  # answers are read even when the generator is behind
            while (wait := due - loop.time()) > 0:  # noqa: ASYNC110 - timers may be early
                await asyncio.sleep(wait)
            task = loop.create_task(self._ask(index, due))
            pending.add(task)
            task.add_done_callback(pending.discard)
            self._most = max(self._most, len(pending))
        if pending:
            await asyncio.wait(pending)
        probing.cancel()
        await asyncio.wait([probing])
        cpu = (_cpu_s() - cpu_before) / (loop.time() - began)
        return Result(self._status, self._latency, self._late, cpu, self._most, np.array(self._probes), self._wrong)

    async def _ask(self, index: int, due: float) -> None:
        loop = self._loop
        request = self._requests[index]
        sent = loop.time()
        self._late[index] = sent - due
        remaining_s = due + self._timeouts[index] - sent
        if remaining_s <= 0:
            return  # nobody waits for this answer any more
        headers = {
            **request.headers,
            "X-Priority": self._priorities[index],
            "X-Timeout-Ms": f"{remaining_s * 1000:.6f}",
        }
        try:
            async with asyncio.timeout(remaining_s + _GIVE_UP_S):
                async with self._session.post(self._urls[index], data=request.body, headers=headers) as answer:
                    content = await answer.read()
                    self._status[index] = answer.status
                    self._latency[index] = loop.time() - due
                    if self._answers and answer.status == _OK and not content.endswith(self._answers[index]):
                        self._wrong += 1
        except (aiohttp.ClientError, TimeoutError):
            self._status[index] = 0

    async def _probe(self) -> None:
        """Ask for nothing, again and again; one question at a time."""
        while True:
            started = self._loop.time()
            with suppress(aiohttp.ClientError):
                await _touch(self._session, self._live)
                self._probes.append(self._loop.time() - started)
            await asyncio.sleep(max(0.0, started + _PROBE_EVERY_S - self._loop.time()))


async def _bodies(session: aiohttp.ClientSession, url: str, workload: Workload) -> list[Request]:
    keys = list(zip(workload.model.tolist(), workload.rows.tolist(), workload.bucket.tolist(), strict=True))
    found = {}
    described: dict[str, list[dict[str, Any]]] = {}
    for model, rows, bucket in sorted(set(keys)):
        if model not in described:
            described[model] = await _inputs(session, f"{url}/v2/models/{model}")
        found[model, rows, bucket] = make_bodies(described[model], rows, bucket)
    return [found[key][index % len(found[key])] for index, key in enumerate(keys)]


async def _inputs(session: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    inputs: list[dict[str, Any]] = (await _described(session.get(url)))["inputs"]
    return inputs


async def _models(session: aiohttp.ClientSession, url: str) -> list[str]:
    return [each["name"] for each in await _described(session.post(f"{url}/v2/repository/index", json={}))]


async def _described(request: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> Any:
    try:
        async with request as answer:
            content = await answer.read()
            if answer.status != 200:
                raise BenchmarkError(f"{answer.url}: status {answer.status}: {content[:200].decode(errors='replace')}")
    except aiohttp.ClientError as error:
        raise BenchmarkError(f"the server does not answer: {error}") from error
    return orjson.loads(content)


async def _touch(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url) as answer:
        await answer.read()


def _endings(path: Path) -> list[bytes]:
    return [row.tobytes() for row in np.load(path)]


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(
    url: Annotated[str, typer.Argument(help="Of the server, e.g. http://127.0.0.1:8000.")],
    trace: Annotated[Path, typer.Argument(help="What to send: a CSV file as the simulator takes.", dir_okay=False)],
    result: Annotated[Path, typer.Argument(help="Where what became of every request is written, .npz.")],
    connections: Annotated[int, typer.Option(min=1, help="Most connections at once.")] = 2048,
    requests: Annotated[Path | None, typer.Option(help="A file of requests that are sent in turn.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model of the trace; by default the server is asked.")
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(help="What answers have to end with: .npy, (requests, bytes).")
    ] = None,
) -> None:
    """Send the requests of a trace at the times that it names, whatever the server does."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            workload, found = runner.run(
                send(
                    url.rstrip("/"),
                    trace,
                    connections,
                    read_requests(requests) if requests else (),
                    model or (),
                    _endings(answers) if answers else (),
                )
            )
    except BenchmarkError as error:
        problems: Sequence[str] = (str(error),)
    except ConfigError as error:
        problems = error.problems
    else:
        found.save(result)
        typer.echo(summary(workload, found))
        return
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
