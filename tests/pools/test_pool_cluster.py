"""A real server with a pool: its host loads what is asked for, dies, and comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from pool_models import infer_body, pool_args
from serve_process import ServeProcess

from benchmarks.ports import free_ports

pytestmark = pytest.mark.cluster

MEMBERS = 12
CLIENTS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A pool of a dozen members in one host that has memory for some, and a model beside it."""
    folder = tmp_path_factory.mktemp("pool")
    args = pool_args(folder, MEMBERS, cpus=0.1, health={"check_period_s": 1.0})
    args["models"].append({"name": "own", "path": str(folder / "m3"), "resources": {"cpus": 0.1}})
    router = {"cpus": 0.1, "http": {"port": free_ports(1)[0]}}
    args |= {"router": router, "classes": {"normal": {"timeout_ms": 120_000}}}
    with ServeProcess(
        args, folder / "server", env={"SERVE_APP_CACHE": str(folder / "cache")}, graceful=True
    ) as running:
        yield running


def ask(client: httpx.Client, model: str, value: float) -> tuple[int, float]:
    """Status, and the first number of the answer."""
    answer = client.post(f"/v2/models/{model}/infer", json=infer_body(value), timeout=150.0)
    return answer.status_code, answer.json()["outputs"][0]["data"][0] if answer.status_code == 200 else -1.0


def url(server: ServeProcess) -> str:
    """The router's own port."""
    return f"http://127.0.0.1:{server.config['applications'][0]['args']['router']['http']['port']}"


def test_every_member_answers_in_one_process(server: ServeProcess) -> None:
    """By either way in, and beside a model with replicas of its own."""
    assert len(server.replica_processes("small")) == 1
    for base in (url(server), server.url):
        with httpx.Client(base_url=base) as client:
            found = [ask(client, f"m{number}", 5.0) for number in range(MEMBERS)]
            assert found == [(200, 5.0 + number) for number in range(MEMBERS)]
            assert ask(client, "own", 5.0) == (200, 8.0)
    shown = httpx.get(f"{url(server)}/status").json()["pools"]["small"]
    (host,) = shown["hosts"].values()
    assert shown["loads"] >= MEMBERS
    assert host["used_bytes"] <= shown["memory_bytes"]


def test_a_host_that_is_killed_during_loads_costs_nobody_the_answer(server: ServeProcess) -> None:
    """Its requests are tried once more when there is a host again; those of the model beside it feel nothing."""
    ended, wrong = threading.Event(), []
    answered = [0] * CLIENTS

    def keep_asking(number: int) -> None:
        with httpx.Client(base_url=url(server)) as client:
            at = number
            while not ended.is_set():
                at += 1
                found = ask(client, f"m{at % MEMBERS}", float(at))
                if found != (200, float(at + at % MEMBERS)):
                    wrong.append((at, *found))
                answered[number] += 1

    def all_answered(more: int) -> None:
        goal, limit = [count + more for count in answered], time.monotonic() + 120.0
        while any(count < wanted for count, wanted in zip(answered, goal, strict=True)):
            assert time.monotonic() < limit, (answered, goal)
            ended.wait(0.05)

    with ThreadPoolExecutor(CLIENTS) as threads, httpx.Client(base_url=url(server)) as client:
        asking = [threads.submit(keep_asking, number) for number in range(CLIENTS)]
        try:
            all_answered(10)
            (before,) = server.replica_processes("small")
            before.kill()
            assert ask(client, "own", 5.0) == (200, 8.0)
            all_answered(10)
        finally:
            ended.set()
        for each in asking:
            each.result()
    assert wrong == []
    (after,) = server.replica_processes("small")
    assert after.pid != before.pid
