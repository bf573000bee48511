"""The benchmark of whole tasks: its requests and answers, its load generator, and what it makes of figures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import orjson
import pytest

from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.requests import Request, write_requests
from benchmarks.tasks.__main__ import choose
from benchmarks.tasks.apps.work import Texts, make_work
from benchmarks.tasks.cases import MIXED, TASKS, connections_of, make_samples, mistake, model_folders, sentences
from benchmarks.tasks.load import CLASSES, Seen, Stream, complete, encode, measure
from benchmarks.tasks.report import draw, render
from benchmarks.tasks.results import CLOSED, OVERLOAD, PACED, Report, Run, best_settings, medians, ratios
from benchmarks.tasks.systems import SYSTEMS, Setting

ANSWER = b'[{"label":"7","score":0.5}]'


def seen(per_second: float, **shares: float) -> Seen:
    """What came back at a rate."""
    return Seen(per_second, 1.0, 2.0, 10, 0, shares, 0, 0.1, 0.05, "")


def run(contender: str, per_second: float, kind: str = CLOSED, setting: str = "a", number: int = 0) -> Run:
    """A run of one task."""
    shares = dict.fromkeys(CLASSES, 0.5) if kind == OVERLOAD else {}
    return Run(contender, "digits", kind, number, setting, 5.0, {"digits": seen(per_second, **shares)}, 1.5)


@contextmanager
def server(status: int = 200) -> Iterator[tuple[int, list[str]]]:
    """A server that answers everything alike. Yields its port, and the classes that requests name."""
    named: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            named.append(self.headers.get("X-Priority", ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(ANSWER)))
            self.end_headers()
            self.wfile.write(ANSWER)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield listening.server_address[1], named
        listening.shutdown()
        thread.join()


def stream(folder: Path, port: int, rate: float = 0.0, deadline_ms: int = 0) -> Stream:
    """Requests of one kind to a port."""
    file = folder / "requests"
    write_requests(file, [Request({"Content-Type": "image/png"}, bytes([number]) * 9) for number in range(3)])
    return Stream("digits", (port,), "/v1/models/digits/predict", str(file), 2, rate, deadline_ms)


@pytest.mark.parametrize("name", ["digits", "speech", "resnet50"])
def test_samples_are_always_the_same(name: str, tmp_path: Path) -> None:
    """A measurement that is repeated sends the same bytes, and the model alone gives the same answers."""
    folder = model_folders(tmp_path)[TASKS[name].model]
    one, other = make_samples(TASKS[name], folder), make_samples(TASKS[name], folder)

    assert [each.request for each in one] == [each.request for each in other]
    assert len({each.expected for each in one}) == len(one)


def test_most_texts_are_short_and_some_are_long(tmp_path: Path) -> None:
    """5 to 200 words, about 49 tokens on average."""
    work = make_work(str(model_folders(tmp_path)["minilm"]), threads=1, rows=1)
    assert isinstance(work, Texts)
    texts = sentences(np.random.default_rng(1), 400)
    words = [len(text.split()) for text in texts]

    assert (min(words), max(words) > 180) == (5, True)
    assert 40 < np.mean([len(row) for row in work.tokens(texts)]) < 58


def test_rows_keep_their_order_in_shared_runs(tmp_path: Path) -> None:
    """Sorted by length and padded, every row has the output that it has alone."""
    folder = str(model_folders(tmp_path)["minilm"])
    texts = ["a b c d e f g", "a", "a b c", "a b c d e", "b"]
    alone, together = make_work(folder, 1, 1), make_work(folder, 1, 2)
    body = orjson.dumps({"inputs": texts})
    rows = together.prepare(body)

    assert mistake(together.answer(together.run(rows)), alone.answer(alone.run(rows))) is None
    assert [len(each) for each in together.run_all([rows[:2], rows[2:]])] == [2, 3]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b'[{"label":"7","score":0.5},{"label":"1","score":0.1}]', None),
        (b'[{"label":"7","score":0.500001},{"label":"1","score":0.1}]', None),
        (b'[{"label":"1","score":0.5},{"label":"7","score":0.1}]', "labels ['1', '7']"),
        (b'[{"label":"7","score":0.51},{"label":"1","score":0.1}]', "off by 2.0e-02"),
        (b"[[0.5, 0.1]]", "labels [] and shape (1, 2)"),
        (b"busy", "not an answer"),
        (b"{}", "not an answer"),
    ],
)
def test_wrong_answers_are_noticed(answer: bytes, fault: str | None) -> None:
    """Other labels, other numbers, another form."""
    found = mistake(answer, b'[{"label":"7","score":0.5},{"label":"1","score":0.1}]')

    assert (found is None) == (fault is None)
    assert fault is None or fault in str(found)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: y\r\n\r\no", 0),
        (b"HTTP/1.1 504 Gateway Timeout\r\ntransfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n", 504),
        (b"HTTP/1.1 200 OK\r\nContent-", 0),
    ],
)
def test_an_answer_is_complete_when_its_body_is(answer: bytes, status: int) -> None:
    """With a length, or in chunks."""
    assert complete(answer) == status


def test_requests_are_encoded_beforehand() -> None:
    """With the headers of their kind."""
    encoded = encode(Request({"Content-Type": "a/b"}, b"12345"), "/path", ["X-Priority: high"])

    assert encoded == (
        b"POST /path HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: a/b\r\nX-Priority: high\r\n"
        b"Content-Length: 5\r\n\r\n12345"
    )


def test_a_closed_loop_counts_good_answers(tmp_path: Path) -> None:
    """Without classes, none is in time or late."""
    with server() as (port, _):
        found = measure([stream(tmp_path, port)], 0.0, 0.3)["digits"]

    assert found.answers > 0
    assert (found.failures, found.in_time, found.bad) == (0, {}, "")


def test_an_open_loop_sends_every_class(tmp_path: Path) -> None:
    """As many requests as the rate says, each answered in time."""
    with server() as (port, named):
        found = measure([stream(tmp_path, port, rate=200.0, deadline_ms=60_000)], 0.0, 0.5)["digits"]

    assert (found.answers, found.failures, len(named)) == (100, 0, 100)
    assert (set(named), found.in_time) == (set(CLASSES), dict.fromkeys(CLASSES, 1.0))


def test_refusals_are_failures(tmp_path: Path) -> None:
    """The report quotes the first one."""
    with server(status=504) as (port, _):
        found = measure([stream(tmp_path, port, rate=100.0, deadline_ms=60_000)], 0.0, 0.2)["digits"]

    assert (found.answers, found.failures, set(found.in_time.values())) == (0, 20, {0.0})
    assert found.bad.startswith("HTTP/1.1 504")


def test_names_are_chosen_by_their_beginnings() -> None:
    """A whole name means no other."""
    assert choose("text", [*TASKS], "task") == ["text"]
    assert choose("SERVE_APP", list(SYSTEMS), "system") == ["serve_app (demo file)", "serve_app (five lines)"]
    assert choose("", [*TASKS, MIXED], "task") == [*TASKS, MIXED]
    with pytest.raises(BenchmarkError, match="there is no task 'poems'"):
        choose("poems", [*TASKS], "task")


def test_all_tasks_run_at_once_on_few_connections() -> None:
    """And alone on their own."""
    assert connections_of("text") == {"text": 32}
    assert list(connections_of(MIXED)) == list(TASKS)


def test_settings_have_different_names() -> None:
    """The report names a setting by its text alone."""
    for system in SYSTEMS.values():
        assert len({str(setting) for setting in system.settings}) == len(system.settings)
    assert str(Setting(2, 1, True, 4)) == "2 workers, 1 thread, batches, runs of up to 4 rows"


def test_the_fastest_setting_is_chosen() -> None:
    """For each task of each system."""
    tried = [run("FastAPI", 10.0, setting="slow"), run("FastAPI", 20.0, setting="fast")]

    assert best_settings(tried) == {("FastAPI", "digits"): "fast"}


def test_ratios_are_to_the_best_rival() -> None:
    """Of medians over the rounds; without a rival there is none."""
    runs = [run("serve_app (demo file)", rate) for rate in (30.0, 50.0, 40.0)]

    assert ratios(medians(runs)) == {}
    rates = medians([*runs, run("FastAPI", 20.0), run("LitServe", 10.0), run("FastAPI", 1.0, PACED)])
    assert ratios(rates) == {"digits": {"serve_app (demo file)": 2.0}}


def test_the_report_says_what_was_measured(tmp_path: Path) -> None:
    """All kinds of load, and what was left out; a picture of the same figures has the same bytes."""
    names = ("serve_app (demo file)", "FastAPI")
    runs = [
        run(name, rate, kind)
        for name, rate in zip(names, (30.0, 20.0), strict=True)
        for kind in (CLOSED, PACED, OVERLOAD)
    ]
    mixed = Run("FastAPI", MIXED, CLOSED, 0, "a", 0.0, {name: seen(4.0) for name in TASKS}, 1.5)
    runs.append(mixed)
    machine = Machine("a CPU", 2, 8.0, "Linux 6", "3.11", {"numpy": "2"}, 0.5)
    left_out = {"LitServe": "it has ended:\nwith a log"}
    report = Report(
        "today",
        machine,
        {},
        2.0,
        8.0,
        1,
        1,
        [run("FastAPI", 9.0)],
        runs,
        left_out,
        medians(runs),
        ratios(medians(runs)),
    )
    text = render(report)

    assert "x 16 | 30.0 (1.50) | 20.0 (1.00) |" in text
    assert "| digits, 5/s, 200 ms | 50.0/50.0/50.0 | 50.0/50.0/50.0 |" in text
    assert "| mixed: all at once, geometric mean |  | 4.0 (1.00) |" in text
    assert "LitServe is left out: it has ended:\n" in text
    draw(report, tmp_path / "one.svg")
    draw(report, tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
