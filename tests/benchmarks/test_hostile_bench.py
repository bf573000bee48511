"""The measurement of `high` beside hostile clients: its loads against a listener in this process, and its report."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from api.listener.raw_client import serving
from api.protocol_service import NumpyService
from hypothesis_profiles import thorough

from benchmarks.overload.generator import Answers, Generator, Offer
from benchmarks.overload.hostile import ALONE, Run, hostile_loads, measure, report, request_of
from serve_app.api.http_app import create_app
from serve_app.api.urgency import HeadUrgency
from serve_app.domain.priority import Priority
from serve_app.http.turns import Turns

PATH = "/v2/models/double/infer"
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()


@thorough
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt-get install build-essential")
async def test_high_is_measured_beside_each_load(tmp_path: Path) -> None:
    """Every load is there meanwhile, and tells what became of it."""
    service, loop = NumpyService(), asyncio.get_running_loop()
    generator, app = Generator(tmp_path), create_app(service, service)
    turns = Turns(loop, HeadUrgency({Priority.HIGH: 10.0, Priority.NORMAL: 30.0, Priority.LOW: 60.0}))
    async with serving(app, turns=turns, errors_of=app.errors_of) as (_, port):
        url, offer = f"http://127.0.0.1:{port}", Offer(2, request_of(PATH, BODY, "X-Priority: high"), 1.0)
        found = {
            beside: await asyncio.to_thread(measure, generator, url, load, offer, 50.0, 0.5)
            for beside, load in hostile_loads(generator, url, PATH, BODY, 20, 0.5).items()
        }
    assert all(high.good == high.offered > 0 for _, high in found.values())
    assert all(high.p50_ms <= high.p99_ms <= high.max_ms for _, high in found.values())
    told = [said for said, _ in found.values()]
    assert told[:3] == ["", *["20 connections, of which the server ended 0"] * 2]
    assert all(said.endswith("turned down") and not said.startswith("0/s") for said in told[3:])


def test_the_report_compares_with_high_alone_in_the_same_round() -> None:
    """Medians of the rounds and of the differences."""
    runs = [
        Run(beside, number, told, Answers(100, 100, 90, 0, 0, 0, 0, p50 + number, 2 * p50, 3 * p50))
        for number in range(3)
        for beside, told, p50 in ((ALONE, "", 2.0), ("heads", "3 connections", 5.0))
    ]
    lines = report(runs).splitlines()
    assert lines[2:] == [
        "| nothing | 3.0 | 4.0 | 6.0 | 90.0 | - |",
        "| heads | 6.0 (+3.0) | 10.0 (+6.0) | 15.0 (+9.0) | 90.0 | 3 connections |",
    ]
