"""What one small request costs the router, in microseconds of the processor: ``make bench-request``.

The real application, service, dispatcher and scheduler run in this process, on uvloop as in production. Only the way
to the replica is left out: what the dispatcher sends is answered at once, with real arrays. The ASGI application is
called directly, one task per request as an HTTP server does it; what that alone costs is measured with an application
that does nothing, and taken off. The split by part is cProfile's, scaled to what was measured without it. With
``wrk`` installed, the same application also answers real connections, under uvicorn.

``--against`` measures another working tree in turns with this one, and compares the medians. It runs this very file
with that tree's packages, however old they are: all that is measured is therefore in here.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import gc
import os
import pstats
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from time import process_time, thread_time
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import orjson
import typer
import uvicorn
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import wrk
from benchmarks.failure import BenchmarkError
from serve_app.api.http_app import HttpSettings, create_app
from serve_app.cache.response_cache import ResponseCache
from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo
from serve_app.payloads import Bundle, BundleResult, Execution, ModelSignature, Success, TensorSpec
from serve_app.router.answer_cache import ModelCacheSettings
from serve_app.router.dispatcher import Dispatcher
from serve_app.router.settings import RoutedModel
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits
from serve_app.telemetry.metrics import RouterMetrics
from serve_app.transport.send import awaiting

_ROOT = Path(__file__).resolve().parent.parent
_SEED = 7
_WARM_UP = 2_000
_RUN_S = (2e-5, 1e-6)
"""What a run of a model is said to take: of itself, and per row."""
_PARTS = (
    ("http", ("api/http_app", "http/errors")),
    ("body", ("http/body",)),
    ("decode, encode", ("open_inference/",)),
    ("options", ("domain/options", "domain/service")),
    ("service", ("router/service", "router/inference", "router/served", "backends/batch")),
    ("dispatcher", ("router/dispatcher", "scheduling/core")),
    ("metrics", ("telemetry/metrics", "prometheus_client/")),
    ("scheduler", ("scheduling/",)),
    ("asyncio", ("asyncio/",)),
)

App = Callable[[Any, Any, Any], Awaitable[None]]
AsgiRequest = tuple[bytes, list[tuple[bytes, bytes]]]
"""A body and headers."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Attributes:
        title: What the table calls it.
        inputs: Values of a row.
        outputs: Values of an answer's row.
        concurrency: Requests at once.
        max_rows: Most rows in a bundle.
        binary: Whether tensors travel as bytes.
        requests: Per repetition.
        path: Where they are sent.
        priority: Their class; `low` has no room.
        status: What they are answered.
    """

    title: str
    inputs: int = 64
    outputs: int = 10
    concurrency: int = 1
    max_rows: int = 20
    binary: bool = False
    requests: int = 8_000
    path: str = "/v2/models/tiny/infer"
    priority: str = "normal"
    status: int = 200


_CASES = (
    Case("tiny, JSON, 1 at once"),
    Case("tiny, JSON, 64 at once", concurrency=64),
    Case("tiny, binary, 64 at once", concurrency=64, binary=True),
    Case("602 KB, binary, 8 at once", inputs=3 * 224 * 224, concurrency=8, binary=True, requests=1_000),
    Case("refused, 64 at once", concurrency=64, priority="low", status=429),
    Case("refused, predict, 64 at once", concurrency=64, path="/v1/models/none/predict", status=404),
)


class Measured(msgspec.Struct):
    """One repetition of one case.

    Attributes:
        us: Microseconds per request, without those of ``bare_us``.
        bare_us: Microseconds per request with an application that only answers.
        entries: Entries per bundle.
    """

    us: float
    bare_us: float
    entries: float


class Replica:
    """The replica's side of `serve_app.transport.send.Send`: answers at once.

    Attributes:
        outputs: Values of an answer's row.
        bundles: Bundles answered.
        entries: Entries answered.
    """

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs
        self._answers = np.random.default_rng(_SEED).standard_normal((64, outputs), dtype=np.float32)
        self.bundles = 0
        self.entries = 0

    async def __call__(self, model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:  # noqa: ARG002
        """Answer every entry with a row."""
        entries = len(bundle.entries)
        self.bundles += 1
        self.entries += entries
        answers = self._answers
        results: list[Any] = [Success({"y": answers[at : at + 1]}) for at in range(entries)]
        return BundleResult(results, [Execution(entries, 0, _RUN_S[0] + entries * _RUN_S[1])], 1e-5, 0.0, 1e-5)


def make_app(
    case: Case,
    replica: Replica | None = None,
    make_cache: Callable[[Dispatcher, RouterMetrics], ResponseCache] | None = None,
    kept: ModelCacheSettings | None = None,
) -> tuple[App, Replica]:
    """The application of a router with one model. Must run in the loop that it serves.

    Args:
        case: What is measured.
        replica: Answers; by default one that gives random rows.
        make_cache: Makes its response cache.
        kept: What that keeps of the model.
    """
    signature = ModelSignature(
        (TensorSpec("x", "FP32", (-1, case.inputs)),), (TensorSpec("y", "FP32", (-1, case.outputs)),)
    )
    timeouts = dict.fromkeys(Priority, 60.0)
    info = ModelInfo("tiny", "1", ("1",), "tensors", signature, case.max_rows, 64, timeouts, ())
    classes = {
        priority: ClassSettings(0 if priority is Priority.LOW else 10_000, 1 << 30, 60.0, min_share=0.05)
        for priority in Priority
    }
    model = ModelScheduling("tiny", case.max_rows, slo_s=0.05, **_breaker())
    scheduler = Scheduler([model], classes, ProcessLimits(1 << 30))
    scheduler.seed("tiny", [(rows, 0, _RUN_S[0] + rows * _RUN_S[1], "") for rows in (1, 2, 4, 8, 16, 32, 64)])
    replica = replica or Replica(case.outputs)
    metrics = RouterMetrics(scheduler)
    dispatcher = Dispatcher(scheduler, awaiting(replica), metrics, 60.0)
    dispatcher.on_replicas("tiny", ["replica"])

    async def page() -> str:
        return metrics.render()

    cache = None if make_cache is None else make_cache(dispatcher, metrics)
    server = _server(dispatcher, metrics, page, cache, RoutedModel(info=info, scheduling=model, cache=kept))
    settings: Any = HttpSettings(send_request_id=False)
    return cast(Any, create_app)(*server, settings), replica


def _server(
    dispatcher: Dispatcher, metrics: RouterMetrics, page: Callable[[], Any], cache: Any, model: RoutedModel
) -> Any:
    """What `create_app` serves: inference and administration; of an older tree, the one service."""
    try:
        from serve_app.router.administration import RouterAdministration  # noqa: PLC0415 - see the module
        from serve_app.router.inference import RouterInference  # noqa: PLC0415
        from serve_app.router.models import Models  # noqa: PLC0415
    except ImportError:
        service = import_module("serve_app.router.service").Service(
            dispatcher=dispatcher, metrics=metrics, metrics_page=page, cache=cache
        )
        service.add_model(model)
        return (service,)
    models = Models(dispatcher, cache)
    models.add(model)
    inference = RouterInference(models, dispatcher, metrics)
    return inference, RouterAdministration(models, inference, dispatcher, metrics, page)


def _breaker() -> dict[str, Any]:
    """What a model has by default and a scheduler has not; empty in a tree that has none."""
    try:
        from serve_app.scheduling.settings import BreakerSettings  # noqa: PLC0415 - see the module
    except ImportError:
        return {}
    return {"breaker": BreakerSettings()}


def body_of(case: Case) -> AsgiRequest:
    """A request's body, and its headers as an HTTP server gives them."""
    x = np.random.default_rng(_SEED).standard_normal((1, case.inputs), dtype=np.float32)
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": x.shape}
    headers = [(b"host", b"127.0.0.1:8000"), (b"user-agent", b"wrk/4.1.0"), (b"accept", b"*/*")]
    if case.priority != "normal":
        headers.append((b"x-priority", case.priority.encode()))
    if not case.binary:
        body = orjson.dumps({"inputs": [tensor | {"data": x.ravel()}]}, option=orjson.OPT_SERIALIZE_NUMPY)
        headers.append((b"content-type", b"application/json"))
    else:
        tensor["parameters"] = {"binary_data_size": x.nbytes}
        head = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
        body = head + x.tobytes()
        headers.append((b"content-type", b"application/octet-stream"))
        headers.append((b"inference-header-content-length", b"%d" % len(head)))
    headers.append((b"content-length", b"%d" % len(body)))
    return body, headers


async def bare(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - an ASGI application
    """An application that does nothing but read and answer."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": b""})


class Client:
    """Calls an ASGI application as an HTTP server does.

    Args:
        case: How many at once.
        requests: What is sent in turn, as `body_of` gives it; by default that of the case.
    """

    def __init__(self, case: Case, requests: Sequence[AsgiRequest] = ()) -> None:
        self._case = case
        self._requests = cycle(requests or [body_of(case)])

    async def run(self, app: App, requests: int) -> float:
        """Send so many requests, some at once. Returns microseconds of the processor per request."""
        loop = asyncio.get_running_loop()
        finished = loop.create_future()
        left, started = requests, 0

        def start() -> None:
            nonlocal started
            started += 1
            loop.create_task(self.ask(app, next(self._requests))).add_done_callback(ended)

        def ended(task: asyncio.Task[Any]) -> None:
            nonlocal left
            left -= 1
            if (error := task.exception()) is not None:
                finished.set_exception(error)
            elif left == 0:
                finished.set_result(None)
            elif started < requests:
                start()

        began = process_time()
        for _ in range(min(self._case.concurrency, requests)):
            start()
        await finished
        return (process_time() - began) / requests * 1e6

    async def ask(self, app: App, request: AsgiRequest) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Send one request. Returns the answer's headers and body.

        Raises:
            BenchmarkError: It has another status than it should.
        """
        body, headers = request
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 40000),
            "scheme": "http",
            "method": "POST",
            "root_path": "",
            "path": self._case.path,
            "raw_path": self._case.path.encode(),
            "query_string": b"",
            "headers": list(headers),
            "state": {},
        }
        message = {"type": "http.request", "body": body, "more_body": False}
        status, told, content = 0, [], b""

        async def receive() -> dict[str, Any]:
            return message

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, told, content
            if message["type"] == "http.response.start":
                status, told = message["status"], message["headers"]
            else:
                content += message.get("body", b"")

        await app(scope, receive, send)
        if status != (200 if app is bare else self._case.status):
            raise BenchmarkError(f"the application answered {status}: {content[:200]!r}")
        return told, content


async def measure(case: Case) -> Measured:
    """One repetition of one case, in a steady state."""
    app, replica = make_app(case)
    client = Client(case)
    await client.run(app, min(_WARM_UP, case.requests))
    replica.bundles = replica.entries = 0
    with as_the_router_collects():
        bare_us = await client.run(bare, case.requests)
        us = await client.run(app, case.requests)
    return Measured(us - bare_us, bare_us, replica.entries / max(1, replica.bundles))


async def profile(case: Case) -> tuple[dict[str, float], pstats.Stats]:
    """Each part's share of what cProfile saw of the application, 0 to 1, and all that it saw."""
    app, _ = make_app(case)
    client = Client(case)
    await client.run(app, min(_WARM_UP, case.requests))
    profiler = cProfile.Profile(thread_time)
    profiler.enable()
    await client.run(app, case.requests)
    profiler.disable()
    stats = pstats.Stats(profiler)
    parts = _by_part(stats)
    total = sum(parts.values())
    return {part: seconds / total for part, seconds in parts.items()}, stats


def _by_part(stats: pstats.Stats) -> dict[str, float]:
    """Seconds by part. What C functions take counts where they were called from; the client's own is left out."""
    parts = {name: 0.0 for name, _ in _PARTS}
    entries: dict[Any, Any] = stats.stats  # type: ignore[attr-defined] # not in the stubs
    for (file, _, _), (_, _, own, _, callers) in entries.items():
        places = [(file, own)]
        if file == "~" or not _part_of(file):
            places = [(caller[0], times[2]) for caller, times in callers.items()]
        for place, seconds in places:
            part = _part_of(place)
            if part is not None:
                parts[part] += seconds
    return parts


def _part_of(file: str) -> str | None:
    return next((name for name, pieces in _PARTS if any(piece in file for piece in pieces)), None)


async def over_sockets(case: Case, bodies: Path, seconds: float) -> tuple[float, float]:
    """The same application under uvicorn and ``wrk``.

    Args:
        case: What is measured.
        bodies: A file with the body.
        seconds: How long.

    Returns:
        Requests per second, and microseconds of this process per request.
    """
    app, _ = make_app(case)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        serving = asyncio.ensure_future(server.serve([listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v2/models/tiny/infer"
        began = process_time()
        load, _ = await asyncio.to_thread(wrk.run, url, bodies, case.concurrency, seconds)
        spent = process_time() - began
        server.should_exit = True
        await serving
    if load.failures:
        raise BenchmarkError(f"{load.failures} of {load.requests} requests failed")
    return load.per_second, spent / load.requests * 1e6


@contextlib.contextmanager
def as_the_router_collects() -> Iterator[None]:
    """Collects garbage as the measured tree's router does, from the same state at the start of each measurement."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(ImportError):  # of a tree that has none
        from serve_app.deployments.garbage import tune_garbage_collection  # noqa: PLC0415

        tune_garbage_collection()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _measure_in(tree: Path, only: str) -> list[Measured]:
    """One repetition of every case in a process of its own, with the packages of a working tree."""
    command = [sys.executable, str(Path(__file__).resolve()), "--repetition", "--only", only]
    path = os.pathsep.join([str(tree), str(_ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    finished = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise BenchmarkError(f"in {tree}: {finished.stderr.strip()}")
    return msgspec.json.decode(finished.stdout.splitlines()[-1], type=list[Measured])


def _compare(trees: list[Path], cases: list[Case], only: str, repetitions: int, console: Console) -> None:
    """Measure the trees in turns, and print the medians."""
    found: list[list[list[Measured]]] = [[] for _ in trees]
    for _ in range(repetitions):
        for at, tree in enumerate(trees):
            found[at].append(_measure_in(tree, only))
    table = Table(title="Microseconds per request, medians of processor time")
    for column in ("case", *(tree.name for tree in trees), "bare", "entries per bundle"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for number, case in enumerate(cases):
        medians = [f"{statistics.median(each[number].us for each in rounds):.1f}" for rounds in found]
        last = [each[number] for each in found[-1]]
        bare_us, entries = statistics.median(m.bare_us for m in last), statistics.median(m.entries for m in last)
        table.add_row(case.title, *medians, f"{bare_us:.1f}", f"{entries:.1f}")
    console.print(table)


def main(
    against: Annotated[Path | None, typer.Option(help="Another working tree, measured in turns with this one.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions, each in a process of its own.")] = 7,
    only: Annotated[str, typer.Option(help="Only the cases whose title contains this.")] = "",
    profiled: Annotated[int, typer.Option("--profile", help="Print so many functions of cProfile's, too.")] = 0,
    sockets: Annotated[float, typer.Option(help="Seconds with wrk over real connections; 0: none.")] = 3.0,
    repetition: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Microseconds of the router per request."""
    cases = [case for case in _CASES if only in case.title]
    if not cases:
        raise typer.BadParameter(f"no case is called {only!r}; there are: {'; '.join(case.title for case in _CASES)}")
    if repetition:
        print(msgspec.json.encode([uvloop.run(measure(case)) for case in cases]).decode())
        return
    console = Console()
    try:
        _compare([*([against.resolve()] if against else []), _ROOT], cases, only, repetitions, console)
    except BenchmarkError as error:
        console.print(f"error: {error}")
        raise typer.Exit(1) from error
    for case in cases:
        shares, stats = uvloop.run(profile(case))
        console.print(f"{case.title}: " + ", ".join(f"{part} {share:.0%}" for part, share in shares.items()))
        if profiled:
            stats.strip_dirs().sort_stats("tottime").print_stats(profiled)
    with contextlib.suppress(BenchmarkError):
        wrk.find()
        for case in islice((case for case in cases if sockets and case.status == 200 and not case.binary), 2):
            with tempfile.NamedTemporaryFile() as bodies:
                Path(bodies.name).write_bytes(body_of(case)[0] + b"\n")
                rate, us = uvloop.run(over_sockets(case, Path(bodies.name), sockets))
            console.print(f"{case.title}, under uvicorn: {rate:,.0f} requests/s, {us:.1f} us of the processor each")


if __name__ == "__main__":
    typer.run(main)
