"""The measurement of swaps: what it takes for a failed, a wrong and a right answer, and what memory it calls growth."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from aiohttp import web
from local_server import LocalServer
from reload.test_local_reload import OPEN

from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.ports import free_ports
from benchmarks.reload.loading import load_by_http
from benchmarks.reload.members import ask_in_turns, write_members
from benchmarks.reload.models import KINDS, MODEL, SIZE
from benchmarks.reload.report import figures, memory_of, render, slope
from benchmarks.reload.swapping import Load, Memory, Swapping, Swaps
from benchmarks.reload.systems import VERSIONED, arguments
from benchmarks.wires import WIRES
from serve_app.backends.kind import BuildSettings
from serve_app.backends.python.kind import PYTHON

MODEL_BYTES = 4 * 2**20
MACHINE = Machine("a CPU", 2, 8.0, "Linux 6", "3.11", {"numpy": "2"}, 0.5, load_during=[1.5, 2.5])


def no_memory() -> Memory:
    """Of no processes."""
    return Memory({}, {})


class Server:
    """Answers with the number of its files as of the last load.

    Args:
        behind: By how much its answers are behind.
        fails: Every so many requests one fails.
        refuses: Whether it refuses to load.
    """

    def __init__(self, *, behind: int = 0, fails: int = 0, refuses: bool = False) -> None:
        self.behind, self.fails, self.refuses = behind, fails, refuses
        self.file = self.loaded = 1
        self.asked = 0

    def write(self, number: int) -> int:
        """What the benchmark calls to replace files."""
        self.file = number
        return MODEL_BYTES

    async def load(self, _: web.Request) -> web.Response:
        """Load what was written."""
        if self.refuses:
            return web.Response(status=400, text="no room")
        self.loaded = self.file
        return web.json_response({})

    async def infer(self, _: web.Request) -> web.Response:
        """Answer."""
        self.asked += 1
        if self.fails and self.asked % self.fails == 0:
            return web.Response(status=503, text="away")
        answer = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [self.loaded - self.behind]}]}
        return web.Response(text=json.dumps(answer), content_type="application/json")

    async def measure(self, swaps: int, pauses: int = 100) -> Swaps:
        """Swap so often; a pause follows the first ones."""
        app = web.Application()
        app.add_routes([web.post("/v2/repository/models/constant/load", self.load), web.post("/infer", self.infer)])
        runner = web.AppRunner(app)
        await runner.setup()
        (port,) = free_ports(1)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            url = f"http://127.0.0.1:{port}"
            load = partial(load_by_http, url, "constant")
            swapping = Swapping(url, self.write, no_memory, load, ["/infer"], WIRES["json"], SIZE, pauses)
            return await swapping.run(swaps, 2, 60.0)
        finally:
            await runner.cleanup()


def test_a_server_that_loads_what_was_written_is_found_without_fault() -> None:
    """Every swap is counted, and every answer is right."""
    found = asyncio.run(Server().measure(5))
    assert (len(found.swap_s), len(found.memory), found.model_bytes) == (5, 5, MODEL_BYTES)
    assert (found.load.failed, found.load.wrong) == (0, 0)


def test_answers_of_former_files_are_wrong() -> None:
    """All of them are, here."""
    found = asyncio.run(Server(behind=1).measure(5))
    assert found.load.failed == 0
    assert found.load.wrong > 0


def test_latencies_are_of_the_swaps_that_a_pause_follows() -> None:
    """The others' requests are checked, and counted."""
    found = asyncio.run(Server(behind=1).measure(5, pauses=1))
    timed = len(found.load.during) + len(found.load.between)
    assert 0 < timed < found.load.requests
    assert found.load.wrong > 0


def test_a_report_keeps_the_figures_of_what_was_not_measured_again() -> None:
    """They say when they were measured, and survive a file."""
    load = Load(during=[0.02, 0.04], between=[0.01, 0.02], failed=1)
    memory = Memory({"replica of constant": 2**30}, {"replica of constant": 2**29})
    swaps = Swaps([0.25, 0.5], MODEL_BYTES, [memory, memory], load)
    before = json.loads(json.dumps({"onnx": figures("onnx", swaps, "Monday, abc")}))
    systems = before | {"triton": figures("triton", swaps, "Tuesday, def", "triton==1")}
    text = render(systems, {"python": "broken"}, {"onnx": "one", "triton": "another"}, 64, MACHINE, "Tuesday")
    assert "| ONNX Runtime | 2 | 4 | **1, 0** | 30.0/39.8 | 15.0/19.9 | 2.00 | 0.38/0.50 |" in text
    assert "| 1024 to 1024 | 0.000 |" in text
    assert "- Triton: another (Tuesday, def)\n" in text
    assert "| a Python class | broken |" in text
    assert ", Triton triton==1; load average" in text


def test_errors_are_failed_requests_and_no_wrong_ones() -> None:
    """The first few are told."""
    found = asyncio.run(Server(fails=2).measure(5))
    assert found.load.failed > 0
    assert found.load.wrong == 0
    assert found.load.faults[0] == "503 away"


def test_a_load_that_is_refused_ends_the_measurement() -> None:
    """With what the server says."""
    with pytest.raises(BenchmarkError, match="a load failed: 400 no room"):
        asyncio.run(Server(refuses=True).measure(5))


def test_growth_is_of_what_comes_after_the_start() -> None:
    """A tenth of the model per ten swaps is a size per hundred; what the start adds does not count."""
    start = [0] * 50 + [100 * MODEL_BYTES] * 50
    assert slope([*start, *(100 * MODEL_BYTES + each * MODEL_BYTES // 100 for each in range(100))], MODEL_BYTES) == (
        pytest.approx(1.0, rel=1e-3)
    )


def test_memory_is_that_of_replicas_and_hosts_but_of_other_servers_all() -> None:
    """Ray and the router hold no model."""
    roles = {
        "replica of constant": 1,
        "Python models' own processes": 2,
        "replica of router": 4,
        "Ray's own processes": 8,
    }
    assert memory_of("python-own", [roles]) == [3]
    assert memory_of("mlserver", [roles]) == [15]


@pytest.mark.parametrize(
    ("name", "settings"), [*((name, {}) for name in KINDS), ("onnx", VERSIONED)], ids=[*KINDS, "versions"]
)
def test_every_backend_is_loaded_anew_without_a_wrong_answer(
    name: str, settings: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the server without Ray, whose answers are numbers that the files were written for."""
    kind = KINDS[name]
    if not kind.usable:
        pytest.skip(f"there is no {kind.needs}")
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    folders = [tmp_path / MODEL / each for each in (("1", "2") if settings else ("",))]

    def write(number: int) -> int:
        return sum(kind.write(folder, number) for folder in folders)

    assert write(1) > MODEL_BYTES
    args = arguments(kind, tmp_path, **settings)
    with LocalServer(args, OPEN) as server:
        ask = [f"/v2/models/{MODEL}/infer"]
        load = partial(load_by_http, server.url, MODEL)
        found = asyncio.run(
            Swapping(server.url, write, no_memory, load, ask, WIRES["binary"], SIZE, 3).run(3, 4, 120.0)
        )
    assert (len(found.swap_s), found.load.failed, found.load.wrong, found.load.faults) == (3, 0, 0, [])
    assert found.load.during != []


def test_members_of_a_pool_that_come_and_go_answer_with_their_numbers(tmp_path: Path) -> None:
    """Each is loaded more than once."""
    args, nbytes = write_members(tmp_path)
    with LocalServer(args, OPEN) as server:
        found = ask_in_turns(server.url, no_memory, 15, 120.0, nbytes)
        loads = httpx.get(f"{server.url}/status").json()["pools"]["many"]["loads"]
    assert (len(found.swap_s), found.load.failed, found.load.wrong, found.load.faults) == (15, 0, 0, [])
    assert loads > 6


def test_code_and_weights_of_two_builds_answer_wrongly(tmp_path: Path) -> None:
    """So that a load of half the files is seen."""
    kind = KINDS["python"]
    kind.write(tmp_path, 1)
    code = (tmp_path / "model.py").read_bytes()
    kind.write(tmp_path, 2)
    (tmp_path / "model.py").write_bytes(code)
    backend = PYTHON.create(BuildSettings("constant", tmp_path / "model.py"), PYTHON.options())
    backend.load()
    try:
        assert backend.run({"x": np.ones((1, SIZE), np.float32)})["y"].tolist() == [[-1.0]]
    finally:
        backend.close()
