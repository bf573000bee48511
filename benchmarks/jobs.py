"""What jobs promise, and what they cost: ``python -m benchmarks.jobs``.

- Items of one job run while a process is killed with SIGKILL: a router, a replica, Serve's controller, the Redis server
  that keeps the jobs, all processes at once. Every item must end, with the answer that a direct request gets.
- Requests of class ``high`` beside a backlog and without one, in turns; items per second beside those of live requests.
- Memory of a router before a backlog of a million items, with it, and while it is worked on.
- The cleaning of a year's expired jobs: how long the longest of its steps keeps others from the store.

Writes ``jobs.json`` and ``jobs.md``.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import aiohttp
import httpx
import numpy as np
import orjson
import typer
from rich.console import Console

from benchmarks.chaos.server import CONTROLLER, ROUTER, FaultyServer, Setup
from benchmarks.chaos.setups import QUEUES, fixed
from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine, describe
from benchmarks.open_loop import send_apart
from benchmarks.open_loop_workload import Workload
from benchmarks.publishing import folders, machine_table, table, write_report
from benchmarks.redis_server import RedisServer
from benchmarks.server import OUT, ROOT, is_ready
from benchmarks.session import ending_in_order, quiet_machine
from serve_app.cli.processes import end
from serve_app.jobs.records import JOB, Bounds, NewItem, NewJob
from serve_app.jobs.sqlite.store import SqliteStore

_DIGITS, _MINILM, _TINY = "digits", "minilm", "tiny"
_PICTURES = ROOT / "tests" / "data" / "digits"
_LEASE_S = 2
_PATIENCE_S = 600.0
_TEXT = "a text of some words, as those have that are embedded in the night when few people ask for anything else"
_HIGH = 1
_TIMEOUT_S = 20.0
_CONNECTIONS = 128
_PART = 20_000
"""Items of one job of the million."""
_ITEMS_OF_OLD = 10
WHOLE, REDIS = "the whole cluster", "Redis"


@dataclass(frozen=True, slots=True)
class Kill:
    """A process was killed while items ran.

    Attributes:
        victim: What it was.
        store: What kept the jobs.
        items: How many there were.
        done_before: How many had ended when it was killed.
        lost: Items without an answer in the end.
        wrong: Items with another answer than a direct request gets.
        twice: Items that ended more than once, by the job's own count.
        seconds: From submission to the end.
    """

    victim: str
    store: str
    items: int
    done_before: int
    lost: int
    wrong: int
    twice: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Beside:
    """Live requests and items; medians over the rounds.

    Attributes:
        alone_ms: 99th percentile of class ``high`` without a backlog.
        beside_ms: And with one.
        live_per_s: Requests per second in a closed loop of many connections, in class ``normal``.
        items_per_s: Items per second of a backlog alone.
    """

    alone_ms: float
    beside_ms: float
    live_per_s: float
    items_per_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Proportional set size of the router, MiB.

    Attributes:
        items: Of the backlog.
        before_mib: Without it.
        kept_mib: When all of it was taken.
        working_mib: Most of it while it was worked on for a while.
        store_mib: Size of the store.
    """

    items: int
    before_mib: float
    kept_mib: float
    working_mib: float
    store_mib: float


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Expired jobs were forgotten.

    Attributes:
        jobs: How many.
        items: Theirs together.
        steps: How many it took.
        longest_ms: The longest of them.
        seconds: All together, without the pauses.
    """

    jobs: int
    items: int
    steps: int
    longest_ms: float
    seconds: float


@dataclass(slots=True)
class Report:
    """What was measured."""

    date: str
    machine: Machine
    kills: list[Kill] = field(default_factory=list)
    beside: Beside | None = None
    memory: Memory | None = None
    cleaning: Cleaning | None = None


def render(report: Report) -> str:
    """The report, in Markdown."""
    parts = ["# Jobs\n\n`make bench-jobs` writes this page."]
    if report.kills:
        rows = [
            [
                *(each.victim, each.store, f"{each.items}", f"{each.done_before}"),
                *(f"{each.lost}", f"{each.wrong}", f"{each.twice}", f"{each.seconds:.0f}"),
            ]
            for each in report.kills
        ]
        header = ["killed", "store", "items", "done before", "lost", "wrong", "twice", "seconds"]
        parts.append(f"## Processes killed with SIGKILL while items run\n\n{table(header, rows)}")
    if (beside := report.beside) is not None:
        rows = [
            ["p99 of class `high`, no backlog, ms", f"{beside.alone_ms:.1f}"],
            ["the same beside a backlog, ms", f"{beside.beside_ms:.1f}"],
            ["ratio", f"{beside.beside_ms / beside.alone_ms:.2f}"],
            ["live requests per second", f"{beside.live_per_s:.0f}"],
            ["items per second", f"{beside.items_per_s:.0f}"],
            ["ratio", f"{beside.items_per_s / beside.live_per_s:.2f}"],
        ]
        parts.append(f"## Beside live requests (minilm)\n\n{table(['', ''], rows)}")
    if (memory := report.memory) is not None:
        rows = [
            ["router before, MiB", f"{memory.before_mib:.0f}"],
            [f"with {memory.items} items waiting, MiB", f"{memory.kept_mib:.0f}"],
            ["while they run, at most, MiB", f"{memory.working_mib:.0f}"],
            ["store, MiB", f"{memory.store_mib:.0f}"],
        ]
        parts.append(f"## Memory\n\n{table(['', ''], rows)}")
    if (cleaning := report.cleaning) is not None:
        rows = [
            ["expired jobs, items", f"{cleaning.jobs}, {cleaning.items}"],
            ["steps, and the longest, ms", f"{cleaning.steps}, {cleaning.longest_ms:.0f}"],
            ["all of them, s", f"{cleaning.seconds:.0f}"],
        ]
        parts.append(f"## Cleaning\n\n{table(['', ''], rows)}")
    return "\n\n".join([*parts, machine_table(report.date, report.machine)]) + "\n"


# -------------------------------------------------------------------- kills


def _setup(store: Mapping[str, Any], model: Mapping[str, Any], routers: int, replicas: int) -> Setup:
    jobs = {"lease_s": _LEASE_S, "max_timeout_s": 90_000, **store}
    return Setup("jobs", [fixed(dict(model), replicas)], {"replicas": routers, "jobs": jobs}, QUEUES)


def _digits() -> dict[str, Any]:
    return {"name": _DIGITS, "task": "image-classification", "path": "models/digits"}


@contextmanager
def _serving(setup: Setup) -> Iterator[FaultyServer]:
    with FaultyServer(setup) as server:
        server.wait_until(lambda: is_ready(server.direct))
        yield server


def measure_kills(items: int, only: Sequence[str], console: Console) -> list[Kill]:
    """Kill each process in turn."""
    found = []
    for victim in (ROUTER, _DIGITS, CONTROLLER, WHOLE, REDIS):
        if only and victim not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            if victim == REDIS:
                with RedisServer(Path(folder), "--appendonly", "yes") as redis:
                    found.append(_kill(victim, {"redis": {"url": redis.url}}, items, redis))
            else:
                found.append(_kill(victim, {"path": f"{folder}/jobs.sqlite"}, items, None))
        console.print(found[-1])
    return found


def _kill(victim: str, store: Mapping[str, Any], items: int, redis: RedisServer | None) -> Kill:
    setup = _setup(store, _digits(), 2, 2)
    pictures = [base64.b64encode(path.read_bytes()).decode() for path in sorted(_PICTURES.glob("*28px*.png"))]
    with _serving(setup) as server:
        direct = [_answer(server, _DIGITS, {"inputs": picture}) for picture in pictures]
        bodies = [{"body": {"inputs": pictures[n % len(pictures)]}} for n in range(items)]
        began = time.monotonic()
        job = _submit(server, {"model": _DIGITS, "items": bodies})
        while (done := _done(_job(server, job))) < items // 3:
            time.sleep(0.05)
        if victim == WHOLE:
            _end_all(server)
        elif redis is not None:
            redis.kill()
            redis.start()
        else:
            end(server.find(victim)[0], signal.SIGKILL)
        if victim != WHOLE:
            return _ended(server, job, victim, items, done, direct, began)
    with _serving(setup) as server:
        return _ended(server, job, victim, items, done, direct, began)


def _end_all(server: FaultyServer) -> None:
    """Kill every process of a server, until none is left."""
    while processes := server._processes():
        for process in processes:
            process.kill()


def _ended(
    server: FaultyServer, job: str, victim: str, items: int, done: int, direct: Sequence[Any], began: float
) -> Kill:
    found = _wait(server, job)
    seconds = time.monotonic() - began
    answers: dict[int, Any] = {}
    after: int | None = -1
    while after is not None:
        page = _get(server, f"/v1/jobs/{job}/results?after={after}&limit=1000")
        answers |= {each["index"]: each.get("body") for each in page["data"]}
        after = page["next"]
    lost = sum(answers.get(n) is None for n in range(items))
    wrong = sum(answers.get(n) not in (None, direct[n % len(direct)]) for n in range(items))
    twice = max(0, found["items"]["completed"] + found["items"]["failed"] - items)
    store = "Redis" if victim == REDIS else "SQLite"
    return Kill(victim, store, items, done, lost, wrong, twice, seconds)


def _answer(server: FaultyServer, model: str, body: Any) -> Any:
    return httpx.post(f"{server.direct}/v1/models/{model}/predict", json=body, timeout=60.0).raise_for_status().json()


def _submit(server: FaultyServer, job: Mapping[str, Any]) -> str:
    answer = httpx.post(
        f"{server.direct}/v1/jobs", content=orjson.dumps(job), headers={"Content-Type": "application/json"}, timeout=300
    )
    if answer.status_code != 202:
        raise BenchmarkError(f"the job was not taken: {answer.text[:300]}")
    name: str = answer.json()["id"]
    return name


def _get(server: FaultyServer, path: str) -> Any:
    """An answer, from a router that lives."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            answer = httpx.get(f"{server.direct}{path}", timeout=90.0)
            if answer.status_code == 200:
                return answer.json()
            problem = answer.text[:300]
        except httpx.TransportError as error:
            problem = str(error)
        if time.monotonic() > until:
            raise BenchmarkError(f"{path}: {problem}")
        time.sleep(0.1)


def _job(server: FaultyServer, job: str) -> Any:
    return _get(server, f"/v1/jobs/{job}")


def _done(job: Mapping[str, Any]) -> int:
    return int(job["items"]["completed"] + job["items"]["failed"])


def _wait(server: FaultyServer, job: str) -> Any:
    until = time.monotonic() + _PATIENCE_S
    while (found := _get(server, f"/v1/jobs/{job}?wait=5"))["state"] not in {"COMPLETED", "ERROR", "CANCELLED"}:
        if time.monotonic() > until:
            raise BenchmarkError(f"job {job} has not ended: {found['items']}")
    return found


# ------------------------------------------------------------- live traffic


def measure_beside(rounds: int, seconds: float, rate: float) -> Beside:
    """Requests of class ``high`` beside a backlog; items beside live requests."""
    model = {"name": _MINILM, "task": "feature-extraction", "path": "models/minilm"}
    with (
        tempfile.TemporaryDirectory() as folder,
        _serving(_setup({"path": f"{folder}/jobs.sqlite"}, model, 1, 1)) as server,
    ):
        body = {"inputs": _TEXT}
        live, items, alone, beside = [], [], [], []
        for number in range(rounds):
            alone.append(_high_p99(server, rate, seconds, number))
            job = _submit(server, {"model": _MINILM, "items": [{"body": body}] * 50_000})
            _get(server, "/status")
            beside.append(_high_p99(server, rate, seconds, number))
            items.append(_per_second(lambda job=job: _done(_job(server, job)), seconds))  # type: ignore[misc]
            httpx.post(f"{server.direct}/v1/jobs/{job}/cancel", timeout=60.0).raise_for_status()
            live.append(asyncio.run(_live(f"{server.direct}/v1/models/{_MINILM}/predict", body, seconds)))
    return Beside(median(alone), median(beside), median(live), median(items))


def _high_p99(server: FaultyServer, rate: float, seconds: float, number: int) -> float:
    """Milliseconds."""
    random = np.random.default_rng((7, number))
    count = max(1, int(rate * seconds))
    whole = np.ones(count, np.int64)
    arrivals = np.cumsum(random.exponential(1 / rate, count))
    workload = Workload(arrivals, np.full(count, _MINILM), whole * _HIGH, whole, whole * 32, np.full(count, _TIMEOUT_S))
    result = send_apart(server.direct, workload, OUT / "jobs")
    if (result.status != 200).any():
        raise BenchmarkError(f"{(result.status != 200).sum()} requests of class high were not answered")
    return float(np.quantile(result.latency_s, 0.99)) * 1e3


def _per_second(count: Callable[[], int], seconds: float) -> float:
    began, before = time.monotonic(), count()
    time.sleep(seconds)
    return (count() - before) / (time.monotonic() - began)


async def _live(url: str, body: Any, seconds: float) -> float:
    """Answers per second in a closed loop."""
    content, answered = orjson.dumps(body), 0
    until = time.monotonic() + seconds

    async def ask(session: aiohttp.ClientSession) -> None:
        nonlocal answered
        while time.monotonic() < until:
            async with session.post(url, data=content, headers={"Content-Type": "application/json"}) as answer:
                await answer.read()
                if answer.status != 200:
                    raise BenchmarkError(f"a live request got {answer.status}")
                answered += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CONNECTIONS)) as session:
        await asyncio.gather(*(ask(session) for _ in range(_CONNECTIONS)))
    return answered / seconds


# ------------------------------------------------------------------- memory


def measure_memory(items: int, seconds: float) -> Memory:
    """Memory of the router with a backlog."""
    model = {"name": _TINY, "path": "models/tiny", "batching": {"max_rows": 64, "slo_ms": 50}}
    with (
        tempfile.TemporaryDirectory() as folder,
        _serving(_setup({"path": f"{folder}/jobs.sqlite"}, model, 1, 1)) as server,
    ):
        inputs = httpx.get(f"{server.direct}/v2/models/{_TINY}", timeout=30).json()["inputs"]
        tensors = [
            {
                "name": each["name"],
                "shape": [1, *each["shape"][1:]],
                "datatype": each["datatype"],
                "data": [1] * int(np.prod(each["shape"][1:])),
            }
            for each in inputs
        ]
        before = _router_mib(server)
        for start in range(0, items, _PART):
            number = min(_PART, items - start)
            _submit(server, {"model": _TINY, "items": [{"body": {"inputs": tensors}}] * number})
        kept, working = _router_mib(server), 0.0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            working = max(working, _router_mib(server))
            time.sleep(1.0)
        store = server.snapshot()["jobs"].get("store_bytes", 0) / 2**20
    return Memory(items, before, kept, working, store)


def _router_mib(server: FaultyServer) -> float:
    return max(each.mib for each in server.readings() if each.role == ROUTER)


# ----------------------------------------------------------------- cleaning


async def measure_cleaning(jobs: int) -> Cleaning:
    """Steps of the sweep over old jobs."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "jobs.sqlite")
        await store.open()
        items = [NewItem(_DIGITS, "/v1/models/digits/predict", b"x" * 512)] * _ITEMS_OF_OLD
        for number in range(jobs):
            job = NewJob(f"job_{secrets.token_hex(8)}", JOB, "", float(number), number + 1.0, 1.0)
            await store.create(job, items, Bounds(jobs + 1, 2**50))
            await store.cancel(job.id, float(number))
        took: list[float] = []
        swept = 1
        while swept:
            began = time.monotonic()
            swept = await store.sweep(jobs + 10.0, 200)
            took.append(time.monotonic() - began)
        await store.close()
    return Cleaning(jobs, jobs * _ITEMS_OF_OLD, len(took), max(took) * 1e3, sum(took))


def main(
    only: Annotated[
        str, typer.Option(help="Of kills, beside, memory, cleaning: those, with commas between them.")
    ] = "kills,beside,memory,cleaning",
    victims: Annotated[str, typer.Option(help="Of kills, only of these, e.g. router,Redis.")] = "",
    items: Annotated[int, typer.Option(min=10, help="Items that run while something is killed.")] = 10_000,
    backlog: Annotated[int, typer.Option(min=10, help="Items of the backlog for memory.")] = 1_000_000,
    old: Annotated[int, typer.Option(min=1, help="Expired jobs to clean.")] = 36_500,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds beside live requests.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each.")] = 20.0,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests per second of class high.")] = 10.0,
    publish: Annotated[bool, typer.Option(help="Write what was measured into docs/benchmarks too.")] = False,
) -> None:
    """Measure jobs on this machine."""
    console, parts = Console(), only.split(",")
    with ending_in_order(console):
        machine = describe({})
        quiet_machine(console)
        report = Report(datetime.now(UTC).date().isoformat(), machine)
        if "kills" in parts:
            report.kills = measure_kills(items, [each for each in victims.split(",") if each], console)
        if "beside" in parts:
            report.beside = measure_beside(rounds, seconds, rate)
            console.print(report.beside)
        if "memory" in parts:
            report.memory = measure_memory(backlog, seconds)
            console.print(report.memory)
        if "cleaning" in parts:
            report.cleaning = asyncio.run(measure_cleaning(old))
            console.print(report.cleaning)
        text = render(report)
        for folder in folders(publish=publish):
            write_report(folder, "jobs", report, text)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        failed = [each for each in report.kills if each.lost or each.wrong or each.twice]
        if failed:
            raise BenchmarkError(f"items were lost, wrong or twice: {failed}")


if __name__ == "__main__":
    typer.run(main)
