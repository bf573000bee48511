"""Models that refuse our own inputs, as operators and clients see them: served, marked, and warm with samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import edge_case_models
import httpx
import pytest
from local_server import LocalServer

CLIENT = httpx.Client(timeout=30.0)


@pytest.fixture(scope="module")
def particular(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Serves a model of ids, alone and with a range that it takes, and one that reads numbers."""
    folder = tmp_path_factory.mktemp("particular")
    edge_case_models.ids(folder / "ids" / "1" / "model.onnx")
    edge_case_models.numbers(folder / "numbers" / "1" / "model.onnx")
    ids = {"path": str(folder / "ids")}
    models = [
        ids | {"name": "unknown"},
        ids | {"name": "ranged", "warm_up": {"inputs": {"ids": {"range": [1000, 1007]}}}},
        ids | {"name": "mistaken", "warm_up": {"inputs": {"ids": {"range": [2000, 2007]}}}},
        {"name": "numbers", "path": str(folder / "numbers")},
    ]
    with LocalServer({"models": models}) as server:
        yield server


def warm_up(server: LocalServer, model: str) -> Any:
    """What the status says."""
    return CLIENT.get(f"{server.url}/status").json()["models"][model]["warm_up"]


def test_a_model_that_refuses_our_values_is_served(particular: LocalServer) -> None:
    """Marked, with the model's own words and what to do; its first request is answered, and its cost is learnt."""
    told = warm_up(particular, "unknown")
    assert (told["warmed"], told["reason"].startswith("model 'unknown' runs on no known input: the model failed")) == (
        False,
        True,
    )
    assert told["reason"].endswith(
        "give inputs that it takes in the model's warm_up: samples, or a range or values for each input"
    )
    before = CLIENT.get(f"{particular.url}/status").json()["models"]["unknown"]["latency_s"]
    inputs = [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1003, 1007]}]
    answer = CLIENT.post(f"{particular.url}/v2/models/unknown/infer", json={"inputs": inputs})
    assert (answer.status_code, answer.json()["outputs"][0]["data"]) == (200, [3.0, 7.0])
    after = CLIENT.get(f"{particular.url}/status").json()["models"]["unknown"]["latency_s"]
    assert (before, list(after)) == ({}, ["0"])


def test_with_inputs_that_it_takes_it_is_warm(particular: LocalServer) -> None:
    """By configuration, or because one of ours runs."""
    assert [warm_up(particular, model) for model in ("ranged", "numbers")] == [{"warmed": True}] * 2


def test_wrong_configured_inputs_are_told(particular: LocalServer) -> None:
    """As what was configured, not as what is missing."""
    told = warm_up(particular, "mistaken")
    assert (
        told["warmed"],
        told["reason"].endswith("the inputs that warm_up configures are not what it takes: mend them"),
    ) == (False, True)
