"""What the suites of faults and of endurance count, and how they tell right answers from others'."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from benchmarks.chaos.clients import GRACE_S, Ending, as_expected
from benchmarks.chaos.lean import Lean
from benchmarks.chaos.play import SCENARIOS
from benchmarks.chaos.questions import TOLERANCE, Bank, Question, difference, known_of, tensor_question
from benchmarks.chaos.records import End, Record, recovery_s, share_in_time, summarize
from benchmarks.chaos.server import Setup, part_of
from benchmarks.failure import BenchmarkError
from benchmarks.process import ROOT
from benchmarks.soak import Sample, lives
from serve_app.config.file import read_document


def question(value: float, refusals: tuple[str, ...] = ()) -> Question:
    """A question of `m` whose answer is this value."""
    x = np.array([[value]], np.float32)
    return tensor_question("m", x, x, binary=False, refusals=refusals)


def record(sent: float, ended: float, end: End = End.RIGHT, code: str = "", **options: Any) -> Record:
    """A request of class high with a second's deadline."""
    return Record(sent, ended, "m", "plain", options.get("priority", "high"), 1.0, end, code)


def test_answers_are_compared_by_value_and_scores_by_their_logarithms() -> None:
    """Another shape, another kind and what is not a number are as far away as can be."""
    assert difference(np.ones(2, np.float32), np.ones(2, np.float32)) == 0.0
    assert difference(np.ones(2, np.float32), np.ones(3, np.float32)) == float("inf")
    assert difference(np.array([np.nan], np.float32), np.ones(1, np.float32)) == float("inf")
    labels = known_of([{"label": "a", "score": 0.5}, {"label": "b", "score": 0.25}])
    assert difference(labels, labels) == 0.0
    assert difference(labels, np.ones(2, np.float32)) == float("inf")
    other = known_of([{"label": "a", "score": 0.25}, {"label": "b", "score": 0.5}])
    assert difference(labels, other) == pytest.approx(np.log(2))


def test_what_is_tried_is_what_is_shipped() -> None:
    """Serve's processes have the demo's variables, and those that a suite asks for beside them."""
    demo = read_document(ROOT / "configs" / "demo.yaml")["controller_options"]["runtime_env"]["env_vars"]
    setups = [Setup("plain", ()), Setup("more", (), serve_variables={"RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "5"})]
    plain, more = (setup.document()["controller_options"]["runtime_env"]["env_vars"] for setup in setups)
    assert plain == demo
    assert more == demo | {"RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "5"}


def test_questions_that_could_stand_for_each_other_are_refused() -> None:
    """Otherwise an answer that belongs to another request would pass."""
    Bank({"m": [question(1.0), question(1.0 + 3 * TOLERANCE)]})
    with pytest.raises(BenchmarkError, match="too much alike"):
        Bank({"m": [question(1.0), question(1.0 + TOLERANCE / 2)]})


def test_guilty_questions_come_when_they_are_asked_for() -> None:
    """One in so many, or the next one only."""
    bank = Bank({"m": [question(1.0), question(2.0)]}, {"m": [question(-1.0, ("inference_failed",))]})
    assert [bool(bank.take("m").refusals) for _ in range(4)] == [False] * 4
    bank.spoil_next("m")
    assert [bool(bank.take("m").refusals) for _ in range(3)] == [True, False, False]
    bank.spoil(2)
    assert [bool(bank.take("m").refusals) for _ in range(4)] == [False, True, False, True]


def test_what_must_be_refused_is_right_only_if_it_is() -> None:
    """An answer to such a request is wrong, a lost connection stays one."""
    guilty = question(-1.0, ("inference_failed",))
    assert as_expected(guilty, Ending(End.REFUSED, "inference_failed")).end is End.RIGHT
    assert as_expected(guilty, Ending(End.REFUSED, "internal")).end is End.REFUSED
    assert as_expected(guilty, Ending(End.RIGHT)).end is End.WRONG
    assert as_expected(guilty, Ending(End.CUT)).end is End.CUT


def test_requests_are_counted_by_how_they_ended() -> None:
    """What was refused with 429 was never accepted, so that it has not failed."""
    records = [
        record(0.0, 0.5),
        record(0.0, 1.5),
        record(1.0, 1.1, End.CUT),
        record(1.0, 1.1, End.REFUSED, "queue_full"),
        record(1.0, 1.1, End.REFUSED, "model_unavailable", priority="low"),
    ]
    found = summarize(records)
    assert (found.requests, found.right, found.cut, found.by_client) == (5, 2, 1, {"plain": 2})
    assert found.refused == {"queue_full": 1, "model_unavailable": 1}
    assert found.high_in_time == 0.25
    assert share_in_time([]) == 1.0


def test_recovery_ends_with_the_last_request_that_suffered() -> None:
    """Before the fault and after the next one nothing counts; without any loss it is nothing."""
    records = [record(0.0, 0.5, End.CUT), record(1.0, 1.2), record(1.0, 2.5), record(9.0, 9.5, End.CUT)]
    assert recovery_s(records, 1.0, 8.0) == 1.5
    assert recovery_s(records, 3.0, 8.0) == 0.0


def test_processes_are_known_by_their_command_lines() -> None:
    """Replicas by their model's name."""
    assert part_of(["ray::ServeReplica:serve-app:spoken-digits"]) == "spoken-digits"
    assert part_of(["ray::ServeReplica:serve-app:router.handle_request"]) == "router"
    assert part_of(["/somewhere/haproxy", "-f", "x"]) == "haproxy"
    assert part_of(["ray::ServeController.run"]) == "controller"
    assert part_of([]) == "Ray's other processes"


def test_scenarios_have_names_of_their_own() -> None:
    """The report files them by name."""
    names = [each.name for each in SCENARIOS]
    assert len(set(names)) == len(names)


def test_growth_is_that_of_a_process_after_its_warm_up() -> None:
    """A slope is found, a single step is none, and what lived too briefly is left out."""
    growing = [Sample(1, "router", 100.0 + 2.0 * at / 60, 10, 5, at) for at in range(0, 600, 10)]
    brief = [Sample(2, "tiny", 50.0, 10, 5, at) for at in range(0, 60, 10)]
    (life,) = lives([*growing, *brief], 240.0)
    assert (life.role, life.descriptors, life.threads) == ("router", 0.0, 0.0)
    assert life.slope == pytest.approx(2.0)
    stepping = [Sample(1, "tiny", 100.0 if at < 300 else 150.0, 10, 5, at) for at in range(0, 600, 10)]
    (life,) = lives(stepping, 240.0)
    assert (life.mib, life.slope, life.steps) == (150.0, 0.0, None)


def test_growth_at_redeploys_is_growth() -> None:
    """Of what outlives them; what comes and goes with them is judged by its slope alone."""
    redeploys = (150.0, 450.0, 750.0)
    leaking = [
        Sample(1, "controller", 100.0 + 50.0 * sum(each < at for each in redeploys), 10, 5, at)
        for at in range(0, 1801, 5)
    ]
    replaced = [Sample(2, "router", 100.0, 10, 5, at) for at in range(755, 1801, 5)]
    controller, router = lives([*leaking, *replaced], 420.0, redeploys)
    assert controller.slope == 0.0
    assert controller.steps == pytest.approx(100.0 / 22.5)
    assert router.steps is None


def test_slopes_of_days_fit_into_memory() -> None:
    """Readings are left out where there are too many to compare each with every other."""
    (life,) = lives([Sample(1, "router", at / 60, 10, 5, at) for at in range(0, 172_800, 5)], 420.0)
    assert life.slope == pytest.approx(1.0)


_ANSWER = b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [%d]}]}'
_REFUSAL = b'{"error": "no", "code": "queue_full"}'
_Heard = tuple[str, list[bytes], set[asyncio.StreamWriter]]


def _response(status: int, body: bytes, more: str = "") -> bytes:
    return f"HTTP/1.1 {status} -\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


@asynccontextmanager
async def _answering(
    content: bytes | None, *, closes: bool = False
) -> AsyncIterator[tuple[str, list[bytes], set[Any]]]:
    """A server that says the same to everybody, or nothing; with what it was asked, and the connections of that."""
    asked: list[bytes] = []
    connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        while request := await reader.read(65536):
            asked.append(request)
            if content is not None:
                writer.write(content)
            if closes:
                writer.close()
                return

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked, connections
        for each in connections:
            each.close()


@pytest.mark.parametrize(
    ("content", "end", "code"),
    [
        (_response(200, _ANSWER % 1), End.RIGHT, ""),
        (_response(200, _ANSWER % 9), End.WRONG, "instead of"),
        (_response(200, b"{}"), End.WRONG, "not an answer"),
        (_response(429, _REFUSAL, "connection: close\r\n"), End.REFUSED, "queue_full"),
        (_response(502, b"<html>"), End.REFUSED, "status_502"),
        (b"HTTP/1.1 200 -\r\ncontent-", End.CUT, "closed"),
        (b"hello", End.CUT, "not an answer of HTTP"),
    ],
)
async def test_the_lean_client_tells_ends_apart(content: bytes, end: End, code: str) -> None:
    """As the plain one does."""
    async with _answering(content, closes=end is End.CUT) as (url, _, _):
        client = Lean(url, "flood")
        ending = await client.ask(question(1.0), "low", 5.0)
        await client.close()
    assert ending.end is end
    assert code in ending.code


async def test_the_lean_client_uses_connections_again_and_sends_what_it_should() -> None:
    """One for requests that follow each other, more for those at once."""
    async with _answering(_response(200, _ANSWER % 1)) as (url, asked, connections):
        client = Lean(url, "flood")
        for _ in range(3):
            assert (await client.ask(question(1.0), "low", 2.5)).end is End.RIGHT
        assert len(connections) == 1
        await asyncio.gather(*(client.ask(question(1.0), "low", 2.5) for _ in range(2)))
        await client.close()
        assert len(connections) == 2
    assert len(asked) == 5
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert body == question(1.0).request.body
    assert head.startswith(b"POST /v2/models/m/infer HTTP/1.1\r\n")
    assert b"\r\nx-priority: low\r\nx-timeout-ms: 2500\r\n" in head + b"\r\n"


async def test_the_lean_client_tells_who_does_not_answer_or_is_not_there() -> None:
    """The one hangs, the other is unreachable."""
    async with _answering(None) as (url, _, _):
        client = Lean(url, "flood")
        assert (await client.ask(question(1.0), "low", 0.1 - GRACE_S)).end is End.HUNG
        await client.close()
    assert (await Lean(url, "flood").ask(question(1.0), "low", 5.0)).end is End.UNREACHABLE
