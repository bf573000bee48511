"""A pool in a real server: more members than its host has memory for, and a host that is killed meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import httpx
import pytest
from pool_models import infer_body
from serve_process import ServeProcess

from clusters.faults.conftest import MEMBERS, STREAMS
from serve_app.cli.joinable import joinable_lines
from serve_app.cli.reload import reload_models

pytestmark = pytest.mark.cluster


def ask(server: ServeProcess, client: httpx.Client, number: int) -> str:
    """Ask one member. Returns what is wrong with its answer."""
    answer = client.post(f"{server.url}/v2/models/m{number}/infer", json=infer_body(0.5), timeout=60.0)
    if answer.status_code != 200:
        return answer.text
    given = answer.json()["outputs"][0]["data"]
    return "" if given == [0.5 + number] * 2 else f"m{number}: {given}"


def test_a_start_tells_of_members_that_are_not_loaded_yet_in_one_line(server: ServeProcess) -> None:
    """Whether their requests share runs is tried when they are loaded."""
    begun = "batched if that changes no answer, which is tried when they are loaded: m0, m1, "
    (line,) = (each for each in joinable_lines("127.0.0.1", server.port, "") if each.startswith(begun))
    assert line.endswith(" and 4 more")


def test_members_are_left_out_when_all_models_are_reloaded(server: ServeProcess) -> None:
    """Asked for by name, one says why."""
    assert {line.partition(":")[0] for line, _ in reload_models(server.url, (), "")} == {"moods", *STREAMS}
    ((line, loaded),) = reload_models(server.url, ("m3",), "")
    assert not loaded
    assert line == "m3: model 'm3' is a member of pool 'small', which loads it when requests come for it"


def test_every_member_answers_while_members_are_evicted(server: ServeProcess) -> None:
    """In turns, so that the one that comes next is never loaded."""
    with httpx.Client() as client:
        assert [fault for number in [*range(MEMBERS)] * 3 if (fault := ask(server, client, number))] == []
        status = client.get(f"{server.url}/status").json()["pools"]["small"]
    assert status["loads"] > MEMBERS
    assert status["evictions"] > 0
    assert all(host["used_bytes"] <= status["memory_bytes"] for host in status["hosts"].values())


def test_a_host_that_is_killed_loses_no_request(server: ServeProcess) -> None:
    """What it was to run is tried again at its successor, which has nothing loaded."""
    with httpx.Client() as client, ThreadPoolExecutor(8) as clients:
        numbers = [*range(MEMBERS)] * 10
        asked = clients.map(ask, repeat(server), repeat(client), numbers)
        assert next(asked) == ""
        (host,) = server.replica_processes("small")
        host.kill()
        assert [fault for fault in asked if fault] == []
