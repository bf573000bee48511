"""Items run while a process is killed with SIGKILL; every one must end, with the answer that a direct request gets."""

from __future__ import annotations

import base64
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.chaos.server import CONTROLLER, ROUTER, FaultyServer
from benchmarks.failure import BenchmarkError
from benchmarks.jobs.asking import ask_job, ended_items, get, predict, serving, setup_of, submit, wait
from benchmarks.redis_server import RedisServer
from benchmarks.server import ROOT
from serve_app.cli.processes import end

_DIGITS = "digits"
_PICTURES = ROOT / "tests" / "data" / "digits"
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
        twice: Items that ended more than once, by the job's own count or by its results.
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


def measure_kills(items: int, only: Sequence[str], console: Console) -> list[Kill]:
    """Kill each process in turn.

    Args:
        items: That run meanwhile.
        only: Of what can be killed, if not all.
        console: For what was found.

    Raises:
        BenchmarkError: The server did not start, the job did not end, or had ended when something was to be killed.
    """
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
    model = {"name": _DIGITS, "task": "image-classification", "path": "models/digits"}
    setup = setup_of(store, model, 2, 2)
    pictures = [base64.b64encode(path.read_bytes()).decode() for path in sorted(_PICTURES.glob("*28px*.png"))]
    with serving(setup) as server:
        direct = [predict(server, _DIGITS, {"inputs": picture}) for picture in pictures]
        bodies = [{"body": {"inputs": pictures[n % len(pictures)]}} for n in range(items)]
        began = time.monotonic()
        job = submit(server, {"model": _DIGITS, "items": bodies})
        while (done := ended_items(ask_job(server, job))) < items // 3:
            time.sleep(0.05)
        if done >= items:
            raise BenchmarkError(f"all {items} items had ended when {victim} was to be killed: it takes more items")
        if victim == WHOLE:
            server.kill()
        elif redis is not None:
            redis.kill()
            redis.start()
        else:
            end(server.find(victim)[0], signal.SIGKILL)
        if victim != WHOLE:
            return _ended(server, job, victim, items, done, direct, began)
    with serving(setup) as server:
        return _ended(server, job, victim, items, done, direct, began)


def _ended(
    server: FaultyServer, job: str, victim: str, items: int, done: int, direct: Sequence[Any], began: float
) -> Kill:
    found = wait(server, job)
    seconds = time.monotonic() - began
    results: list[Any] = []
    after: int | None = -1
    while after is not None:
        page = get(server, f"/v1/jobs/{job}/results?after={after}&limit=1000")
        results += page["data"]
        after = page["next"]
    answers = {each["index"]: each.get("body") for each in results}
    lost = sum(answers.get(n) is None for n in range(items))
    wrong = sum(answers.get(n) not in (None, direct[n % len(direct)]) for n in range(items))
    counted = found["items"]["completed"] + found["items"]["failed"]
    twice = max(0, counted - items, len(results) - len(answers))
    store = "Redis" if victim == REDIS else "SQLite"
    return Kill(victim, store, items, done, lost, wrong, twice, seconds)
