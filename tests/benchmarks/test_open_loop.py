"""The open-loop load generator: its files, its bodies, and real requests to a server in the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import typer
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.failure import BenchmarkError
from benchmarks.open_loop import main, make_bodies, send
from benchmarks.open_loop_workload import Result, Workload, poisson, summary
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app_simulator.workloads import Arrivals

INPUTS = [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]


def workload(
    arrival_s: list[float], timeout_s: float = 5.0, model: str = "m", priority: Priority = Priority.NORMAL
) -> Workload:
    """One request of two rows at each of the times."""
    return Workload.alike(np.array(arrival_s, dtype=np.float64), model, timeout_s, priority, rows=2)


def result(status: list[int], latency_s: list[float]) -> Result:
    """What became of requests that were sent in time."""
    count = len(status)
    return Result(
        np.array(status), np.array(latency_s), np.zeros(count), cpu=0.25, in_flight=3, probe_s=np.array([0.002])
    )


class Server:
    """A server of one model that answers when it is told to.

    Attributes:
        url: Where it listens.
        bodies: What it was sent, in the order of arrival.
        headers: Likewise.
        answering: Answers wait for this.
        expected: Answers are given once so many requests have arrived.
        status: Of its answers.
        answer: What they hold.
    """

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.headers: list[Any] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.expected = 0
        self.status = 200
        self.answer = b""

    async def infer(self, request: web.Request) -> web.Response:
        """An inference."""
        self.bodies.append(await request.read())
        self.headers.append(request.headers)
        if len(self.bodies) == self.expected:
            self.answering.set()
        await self.answering.wait()
        return web.Response(status=self.status, body=self.answer)

    @staticmethod
    async def describe(request: web.Request) -> web.Response:
        """A model's metadata."""
        if request.match_info["model"] != "m":
            return web.json_response({"error": "there is no such model"}, status=404)
        return web.json_response({"name": "m", "inputs": INPUTS})

    @staticmethod
    async def index(request: web.Request) -> web.Response:
        """The list of models."""
        return web.json_response([{"name": "m"}])

    @staticmethod
    async def live(request: web.Request) -> web.Response:
        """Health."""
        return web.Response()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server on a free port."""
    found = Server()
    app = web.Application()
    app.add_routes(
        [
            web.get("/v2/health/live", found.live),
            web.get("/v2/models/{model}", found.describe),
            web.post("/v2/models/{model}/infer", found.infer),
            web.post("/v2/repository/index", found.index),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


def test_arrivals_are_random_at_the_rate_and_the_same_for_everybody() -> None:
    """But differ between repetitions."""
    first, again, other = (poisson(100.0, 50.0, seed) for seed in ((1, 0), (1, 0), (1, 1)))
    assert len(first) == 5000
    assert first.tolist() == again.tolist() != other.tolist()
    assert first[-1] == pytest.approx(50.0, rel=0.1)


async def test_sends_do_not_wait_for_answers(server: Server) -> None:
    """No answer comes before the last request has arrived, and yet all are sent."""
    server.expected = 20
    server.answering.clear()
    _, found = await send(server.url, workload([0.001 * number for number in range(20)]))
    assert found.status.tolist() == [200] * 20
    assert found.in_flight == 20


async def test_latency_counts_from_when_a_request_was_due(server: Server) -> None:
    """The first of two requests due 0.3 s apart, which are answered together, waits as long."""
    server.expected = 2
    server.answering.clear()
    _, found = await send(server.url, workload([0.0, 0.3]))
    assert found.latency_s[0] >= 0.3
    assert (found.latency_s >= found.late_s).all()
    assert (found.late_s >= 0).all()
    assert len(found.probe_s) >= 1


async def test_a_request_is_what_the_protocol_asks_for(server: Server) -> None:
    """The JSON part, its length, the rows behind it, the class and the time left."""
    await send(server.url, workload([0.0], timeout_s=4.0, priority=Priority.HIGH))
    headers, body = server.headers[0], server.bodies[0]
    length = int(headers["Inference-Header-Content-Length"])
    described = orjson.loads(body[:length])
    assert described == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}],
        "parameters": {"binary_data_output": True},
    }
    assert len(body) - length == 24
    assert headers["X-Priority"] == "1"
    assert 0 < float(headers["X-Timeout-Ms"]) <= 4000


async def test_refusals_are_recorded(server: Server) -> None:
    """A refusal has a status and a latency, and is not in time."""
    server.status = 429
    sent, found = await send(server.url, workload([0.0, 0.01]))
    assert found.status.tolist() == [429, 429]
    assert np.isfinite(found.latency_s).all()
    assert found.in_time(sent).tolist() == [False, False]


async def test_answers_are_compared_with_what_is_expected(server: Server) -> None:
    """By what their bodies end with."""
    server.answer = b"an answer"
    _, found = await send(server.url, workload([0.0, 0.01]), answers=[b"answer", b"another"])
    assert found.status.tolist() == [200, 200]
    assert found.wrong == 1


async def test_what_gets_no_answer_has_status_0(server: Server) -> None:
    """A server that closes its connections."""

    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    server.infer = hang_up  # type: ignore[method-assign]
    app = web.Application()
    app.add_routes([web.get("/v2/models/{model}", server.describe), web.post("/v2/models/{model}/infer", hang_up)])
    app.add_routes([web.get("/v2/health/live", server.live)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _, found = await send(f"http://127.0.0.1:{runner.addresses[0][1]}", workload([0.0]))
    await runner.cleanup()
    assert found.status.tolist() == [0]
    assert found.latency_s.tolist() == [np.inf]


async def test_a_trace_is_sent_as_it_is_written(server: Server, tmp_path: Path) -> None:
    """A file, as the simulator takes it."""
    workload([0.0, 0.01, 0.02]).write(tmp_path / "trace.csv")
    sent, found = await send(server.url, tmp_path / "trace.csv")
    assert sent.arrival_s.tolist() == [0.0, 0.01, 0.02]
    assert found.status.tolist() == [200] * 3


async def test_an_unknown_model_ends_it(server: Server, tmp_path: Path) -> None:
    """Both where the model is named in a workload and where it is named in a file."""
    with pytest.raises(BenchmarkError, match=r"status 404: .*there is no such model"):
        await send(server.url, workload([0.0], model="other"))
    workload([0.0], model="other").write(tmp_path / "trace.csv")
    with pytest.raises(ConfigError, match="line 2, column model"):
        await send(server.url, tmp_path / "trace.csv")


def test_no_server_is_said_in_a_line(tmp_path: Path) -> None:
    """On the command line, with exit code 1."""
    workload([0.0]).write(tmp_path / "trace.csv")
    arguments = ["http://127.0.0.1:1", str(tmp_path / "trace.csv"), str(tmp_path / "result.npz")]
    app = typer.Typer()
    app.command()(main)
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 1
    assert ran.output.startswith("error: the server does not answer")
    assert not (tmp_path / "result.npz").exists()


def test_bodies_are_always_the_same_and_all_different() -> None:
    """Random floats by seed; whole numbers are ones, of the bucket's length."""
    first, again = (make_bodies(INPUTS, 2, 0) for _ in range(2))
    assert [made.body for made in first] == [made.body for made in again]
    assert len({made.body for made in first}) == len(first)
    inputs = [{"name": "ids", "datatype": "INT64", "shape": [-1, -1]}]
    (tokens,) = make_bodies(inputs, 2, 4, count=1)
    assert (
        np.frombuffer(tokens.body[int(tokens.headers["Inference-Header-Content-Length"]) :], dtype=np.int64).tolist()
        == [1] * 8
    )


@pytest.mark.parametrize(
    "described",
    [
        pytest.param({"name": "x", "datatype": "FP32", "shape": [-1, -1]}, id="free dimension without a bucket"),
        pytest.param({"name": "x", "datatype": "BYTES", "shape": [-1, 1]}, id="text"),
    ],
)
def test_a_body_that_cannot_be_made_names_its_input(described: dict[str, Any]) -> None:
    """Before anything is sent."""
    with pytest.raises(BenchmarkError, match="'x'"):
        make_bodies([described], 1, 0)


def test_arrivals_of_the_simulator_become_a_workload() -> None:
    """Names instead of places, timeouts instead of deadlines."""
    arrivals = Arrivals(
        ("a", "b"),
        arrival=np.array([0.0, 1.0]),
        deadline=np.array([0.5, 1.25]),
        model=np.array([1, 0]),
        priority=np.array([1, 3]),
        rows=np.array([4, 5]),
        bucket=np.array([0, 16]),
        stream=np.array([-1, -1]),
        tenant=np.array([0, 0]),
    )
    found = Workload.of(arrivals)
    assert found.model.tolist() == ["b", "a"]
    assert found.timeout_s.tolist() == [0.5, 0.25]
    assert len(found) == 2


def test_arrivals_must_not_run_backwards() -> None:
    """Nor may columns differ in length."""
    with pytest.raises(ValueError, match="backwards"):
        workload([1.0, 0.5])
    with pytest.raises(ValueError, match="one length"):
        replace(workload([0.0, 1.0]), timeout_s=np.ones(1))


def test_in_time_is_an_answer_by_its_deadline() -> None:
    """Late answers, refusals and no answers are not."""
    found = result([200, 200, 429, 0], [4.9, 5.1, 0.1, np.inf])
    assert found.in_time(workload([0.0] * 4)).tolist() == [True, False, False, False]


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    """And something else is refused."""
    result([200, 0], [0.1, np.inf]).save(tmp_path / "result.npz")
    read = Result.load(tmp_path / "result.npz")
    assert read.status.tolist() == [200, 0]
    assert read.latency_s.tolist() == [0.1, np.inf]
    assert (read.cpu, read.in_flight, read.probe_s.tolist()) == (0.25, 3, [0.002])
    with pytest.raises(BenchmarkError, match=r"missing\.npz"):
        Result.load(tmp_path / "missing.npz")


def test_the_summary_has_every_class_and_status() -> None:
    """For people."""
    text = summary(workload([0.0] * 4), result([200, 200, 429, 0], [0.1, 0.3, 0.1, np.inf]))
    assert text.splitlines() == [
        "4 requests, 50.00% in time, generator late by p99 0.0 ms",
        " normal: 50.00% in time, p50 200.0 ms, p99 298.0 ms",
        "status 0: 1, status 200: 2, status 429: 1",
    ]


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e4),
            st.sampled_from(["wide", "minilm"]),
            st.sampled_from(list(Priority)),
            st.integers(1, 1000),
            st.integers(0, 512),
            st.floats(1e-3, 1e3),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_a_workload_survives_its_file_exactly(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    """To the last bit: what is simulated is what was sent."""
    columns = [np.array(column) for column in zip(*sorted(rows, key=lambda row: row[0]), strict=True)]
    written = Workload(columns[0], columns[1], columns[2].astype(np.int64), columns[3], columns[4], columns[5])
    path = tmp_path_factory.mktemp("traces") / "trace.csv"
    written.write(path)
    read = Workload.read(path, ["minilm", "wide"])
    for name in ("arrival_s", "model", "priority", "rows", "bucket", "timeout_s"):
        assert getattr(read, name).tolist() == getattr(written, name).tolist()
