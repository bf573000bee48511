"""A server with a pool in this process: real models, scheduler, hosts and HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from local_server import LocalServer
from pool_models import infer_body, pool_args

from serve_app.api.http_app import HttpSettings
from serve_app.composition import describe_models, read_args
from serve_app.errors import ConfigError

MEMBERS = 12


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    """A server of a pool that has memory for some of its members."""
    with LocalServer(pool_args(tmp_path, MEMBERS)) as running:
        yield running


@pytest.fixture
def client(server: LocalServer) -> Iterator[httpx.Client]:
    """Its client."""
    with httpx.Client(base_url=server.url, timeout=30.0) as made:
        yield made


def ask(client: httpx.Client, model: str, value: float = 5.0, **parameters: Any) -> httpx.Response:
    """Ask a member."""
    return client.post(f"/v2/models/{model}/infer", json={**infer_body(value), "parameters": parameters})


def answer(response: httpx.Response) -> float:
    """The first number of an answer."""
    assert response.status_code == 200, response.text
    return float(response.json()["outputs"][0]["data"][0])


def pool(client: httpx.Client) -> dict[str, Any]:
    """What `/status` shows of the pool."""
    shown: dict[str, Any] = client.get("/status").json()["pools"]["small"]
    return shown


def test_every_member_answers_within_the_memory_of_the_host(client: httpx.Client) -> None:
    """One after the other, and many at once, which are loaded and unloaded meanwhile."""
    for _ in range(2):
        for number in range(MEMBERS):
            assert answer(ask(client, f"m{number}")) == 5.0 + number
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(ask, client, f"m{number % MEMBERS}", float(number)) for number in range(120)]
        assert [answer(each.result()) for each in asked] == [float(number + number % MEMBERS) for number in range(120)]
    shown = pool(client)
    assert shown["members"] == MEMBERS
    assert shown["loads"] - shown["evictions"] == sum(host["resident"] for host in shown["hosts"].values())
    assert shown["failed_loads"] == 0
    assert all(host["used_bytes"] <= shown["memory_bytes"] for host in shown["hosts"].values())


def test_a_resident_member_is_not_loaded_again(client: httpx.Client) -> None:
    """Hits and misses are counted, and shown with the loads."""
    for _ in range(3):
        answer(ask(client, "m1"))
    shown = pool(client)
    assert (shown["hits"], shown["misses"], shown["loads"]) == (2, 1, 1)
    page = client.get("/metrics").text
    assert 'serve_app_pool_requests_total{pool="small",residency="hit"} 2.0' in page
    assert 'serve_app_pool_load_seconds_count{pool="small"} 1.0' in page
    status = client.get("/status").json()["models"]
    assert (status["m1"]["pool"], status["m1"]["replicas"]) == ("small", ["small-1"])
    assert status["m2"]["replicas"] == []


def test_members_beyond_the_named_are_one_series(tmp_path: Path) -> None:
    """The first that are asked have names, all others are counted together, and models outside of pools apart."""
    args = pool_args(tmp_path, 6) | {"router": {"limits": {"named_members": 2}}}
    args["models"].append({"name": "own", "path": str(tmp_path / "m2"), "cache": {}})
    with LocalServer(args) as running, httpx.Client(base_url=running.url, timeout=30.0) as client:
        for model in ("m3", "m1"):
            answer(ask(client, model))
        client.get("/metrics")
        for model in ("m0", "m1", "m5", "own"):
            answer(ask(client, model))
        page = client.get("/metrics").text
        asked = [client.get(f"/v2/models/m{number}/stats").json()["model_stats"][0] for number in (0, 5)]

    counted = dict(
        re.findall(r'serve_app_requests_total\{model="([^"]+)",outcome="ok",priority="normal"\} (\S+)', page)
    )
    assert counted == {"m3": "1.0", "m1": "2.0", "/other": "2.0", "own": "1.0"}
    assert set(re.findall(r'model="([^"]+)"', page)) == {"m1", "m3", "/other", "own"}
    assert [stats["inference_stats"]["success"]["count"] for stats in asked] == [1, 1]


def test_a_member_is_ready_before_it_is_loaded(client: httpx.Client) -> None:
    """So is the server; statistics and metadata are there as of any model."""
    assert client.get("/v2/models/m3/ready").status_code == 200
    assert client.get("/v2/health/ready").status_code == 200
    assert client.get("/v2/models/m3").json()["inputs"][0]["shape"] == [-1, 2]
    answer(ask(client, "m3"))
    counted = client.get("/v2/models/m3/stats").json()["model_stats"][0]["inference_stats"]
    assert counted["success"]["count"] == 1


def test_a_member_that_cannot_be_loaded_says_why_and_no_other_feels_it(client: httpx.Client, tmp_path: Path) -> None:
    """It is not ready then, and the server is."""
    file = tmp_path / "m4" / "1" / "model.onnx"
    file.write_bytes(b"no model")
    failed = ask(client, "m4")
    assert failed.status_code == 503, failed.text
    assert failed.json()["error"].startswith("model 'm4': its files are not those of revision ")
    assert failed.json()["error"].endswith("; deploy it again")
    assert float(failed.headers["Retry-After"]) > 0.0
    assert client.get("/v2/models/m4/ready").status_code != 200
    assert client.get("/v2/health/ready").status_code == 200
    assert "model 'm4'" in client.get("/status").json()["models"]["m4"]["load_fault"]
    assert ask(client, "m4").status_code == 503
    assert answer(ask(client, "m5")) == 10.0
    assert pool(client)["failed_loads"] == 1


def test_members_are_not_loaded_by_request(tmp_path: Path) -> None:
    """The pool does it, as requests come."""
    with LocalServer(pool_args(tmp_path, 2), HttpSettings(open_administration=True)) as open_server:
        refused = httpx.post(f"{open_server.url}/v2/repository/models/m1/load")
    assert refused.status_code == 501, refused.text
    assert "member of pool 'small'" in refused.json()["error"]


def test_a_host_that_is_lost_costs_its_requests_a_load(server: LocalServer, client: httpx.Client) -> None:
    """What it had loaded is loaded by the next."""
    assert answer(ask(client, "m1")) == 6.0
    server.lose_host("small", "small-1")
    assert answer(ask(client, "m1")) == 6.0
    assert list(pool(client)["hosts"]) == ["small-2"]


def test_members_and_models_of_their_own_are_served_beside_each_other(tmp_path: Path) -> None:
    """And several hosts load the same member where it is asked for."""
    args = pool_args(tmp_path, 4, hosts=2)
    args["models"].append({"name": "own", "path": str(tmp_path / "m2")})
    with LocalServer(args) as running, httpx.Client(base_url=running.url, timeout=30.0) as client:
        assert answer(ask(client, "own")) == 7.0
        assert [answer(ask(client, f"m{number}")) for number in range(4)] == [5.0, 6.0, 7.0, 8.0]
        assert len(pool(client)["hosts"]) == 2


def test_a_member_that_no_host_could_hold_is_refused_at_the_start(tmp_path: Path) -> None:
    """By one line."""
    with pytest.raises(ConfigError) as refused:
        describe_models(read_args(pool_args(tmp_path, 2, memory="500KiB")))
    assert len(refused.value.problems) == 2
    assert "model 'm0': its files have" in refused.value.problems[0]


def test_a_request_that_cannot_wait_for_a_load_is_told_so(client: httpx.Client) -> None:
    """With the deadline's error, and not as if there were no replica."""
    answer(ask(client, "m1"))
    codes = {ask(client, f"m{number}", timeout=1000).status_code for number in range(2, 8)}
    assert codes <= {200, 504}
