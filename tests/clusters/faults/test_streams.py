"""Answers in parts from a real server: from a generator in a replica's process, and in one of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serve_process import ServeProcess

from clusters.asking import wait_until
from clusters.faults.conftest import STREAMS

pytestmark = pytest.mark.cluster


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """The parts of an answer as they come."""
    for line in answer.iter_lines():
        if line:
            yield json.loads(line.removeprefix("data: "))


def ask(server: ServeProcess, model: str, n: int, fail_at: int = -1) -> list[Any]:
    """The numbers that come; or the code of an error."""
    body = {"n": n, "fail_at": fail_at}
    url = f"{server.url}/v2/models/{model}/generate_stream"
    with httpx.stream("POST", url, json=body, timeout=60.0) as answer:
        return [event.get("code", event.get("i")) for event in events(answer)]


def closings(folder: Path, model: str) -> int:
    """How often its generators have been closed."""
    return (folder / model / "closed").stat().st_size


@pytest.mark.parametrize("model", STREAMS)
def test_an_answer_comes_in_parts(server: ServeProcess, folder: Path, model: str) -> None:
    """All of them, an error after some, and several clients one after the other."""
    before = closings(folder, model)
    assert ask(server, model, 50) == [*range(50)]
    assert ask(server, model, 10, fail_at=3) == [0, 1, 2, "inference_failed"]
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda n: ask(server, model, n), (5, 6, 7, 8)))
    assert answers == [[*range(5)], [*range(6)], [*range(7)], [*range(8)]]
    assert closings(folder, model) >= before + 6  # and one of the self-test


@pytest.mark.parametrize("model", STREAMS)
def test_a_client_that_leaves_closes_the_generator(server: ServeProcess, folder: Path, model: str) -> None:
    """Which has no end of its own; the next request is answered."""
    before = closings(folder, model)
    url = f"{server.url}/v2/models/{model}/generate_stream"
    with httpx.stream("POST", url, json={"n": -1, "fail_at": -1}, timeout=60.0) as answer:
        assert next(events(answer))["i"] == 0
    wait_until(lambda: closings(folder, model) > before, "the generator is closed")
    assert ask(server, model, 3) == [0, 1, 2]


@pytest.mark.parametrize("model", STREAMS)
def test_a_replica_that_dies_ends_its_answer(server: ServeProcess, model: str) -> None:
    """With an error that says so, and no second try; its successor answers the next request."""
    url = f"{server.url}/v2/models/{model}/generate_stream"
    with httpx.stream("POST", url, json={"n": -1, "fail_at": -1}, timeout=60.0) as answer:
        parts = events(answer)
        assert next(parts)["i"] == 0
        (replica,) = server.replica_processes(model)
        replica.kill()
        *more, last = parts
    assert [part["i"] for part in more] == [*range(1, 1 + len(more))]
    assert last["code"] == "model_unavailable"
    wait_until(lambda: ask(server, model, 2) == [0, 1], "another replica answers")


def test_metrics_tell_how_answers_ended(server: ServeProcess) -> None:
    """By model and outcome; requests count as answered with their first part."""
    page = httpx.get(f"{server.url}/metrics", timeout=30.0).text
    found = {
        (sample.labels["model"], sample.labels["outcome"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "serve_app_streams_total"
    }
    for model in STREAMS:
        assert found[model, "cancelled"] == 1
        assert found[model, "model_unavailable"] == 1
        assert found[model, "inference_failed"] == 1
        assert found[model, "ok"] >= 7
