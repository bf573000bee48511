"""The measurement of overload: its load generator, and its report."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from benchmarks.overload.__main__ import Run, draw, report
from benchmarks.overload.generator import Answers, Asked, Generator
from benchmarks.requests import Request

_STATUS = {b"high": b"200 OK", b"normal": b"429 Too Many Requests", b"low": b"504 Gateway Timeout"}


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer `high` with 200, `normal` with 429 and `low` with 504; the 20th request of a connection ends it."""
    for _ in range(20):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            break
        fields = dict(line.split(b": ") for line in head.split(b"\r\n")[1:] if line)
        await reader.readexactly(int(fields[b"Content-Length"]))
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: 2\r\n\r\nok" % _STATUS[fields[b"X-Priority"]])
    writer.close()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt-get install build-essential")
@pytest.mark.parametrize("connections", ["shared", "own"])
async def test_the_generator_counts_what_becomes_of_each_class(tmp_path: Path, connections: str) -> None:
    """By status; and connections that the server ends are made again."""
    generator = Generator(tmp_path)
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=4096)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        asked = Asked("/x", Request({}, b"{}"), 30_000)
        _, classes = await asyncio.to_thread(generator.run, url, asked, 300.0, 2.0, connections)
        _, closed = await asyncio.to_thread(generator.run, url, asked, 0.0, 1.0, connections)

    high, normal, low = classes["high"], classes["normal"], classes["low"]
    assert min(high.offered, normal.offered, low.offered) > 0
    assert (high.good, high.in_time) == (high.offered - high.failed, high.offered - high.failed)
    assert (normal.full, normal.good) == (normal.offered - normal.failed, 0)
    assert (low.expired, low.good) == (low.offered - low.failed, 0)
    assert closed["high"].good > 0
    assert closed["normal"] == closed["low"] == Answers(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)


def test_a_rival_is_told_class_and_deadline_its_own_way() -> None:
    """Triton reads both from the body, in JSON alone or before tensors in binary; FastAPI knows neither."""
    plain = Request({"Inference-Header-Content-Length": "2"}, b"{}123")

    told = Asked("/x", plain, 100.0, "parameters").request("low", timed=True)
    assert told.body == b'{"parameters":{"priority":3,"timeout":100000}}123'
    assert told.headers == {"Inference-Header-Content-Length": "46", "Content-Length": "49"}
    assert Asked("/x", plain, 100.0, "nothing").request("low", timed=True).body == plain.body


def test_the_report_has_a_line_for_each_load(tmp_path: Path) -> None:
    """Medians of the rounds; late answers do not count as in time."""
    runs = [
        Run("after", "tiny, 100 ms", "direct", factor, 1000.0, 2.0, 1.0, dict.fromkeys(("high", "normal", "low"), of))
        for factor in (0.8, 2.0)
        for of in (Answers(100, 90, in_time, 5, 5, 0, 0, 3.0, 9.0) for in_time in (60, 80, 90))
    ]
    lines = report(runs).splitlines()
    draw(runs, tmp_path / "overload.svg")

    assert len(lines) == 4
    assert lines[2] == "| tiny, 100 ms | 0.8 | 80.0/80.0/80.0; 0.12x1,000 |"
    assert (tmp_path / "overload.svg").read_text().startswith("<?xml")
