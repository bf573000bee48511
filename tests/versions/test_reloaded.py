"""A model that is served in several versions, loaded and unloaded while clients ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from local_server import LocalServer
from reload.test_local_reload import OPEN, write_constant

CANDIDATE = {"X-Model-Version": "candidate"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose version 3 answers 3, and 5 answers 5."""
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    for version in (3, 5):
        write_constant(tmp_path / "model" / str(version) / "model.onnx", float(version))
    return tmp_path / "model"


@pytest.fixture
def client(folder: Path) -> Iterator[httpx.Client]:
    """Asks a server of both versions, of which 3 is the stable one and 5 runs copies."""
    model = {
        "name": "constant",
        "path": str(folder),
        "versions": [3, 5],
        "aliases": {"stable": 3, "candidate": 5},
        "shadow": {"to": 5},
    }
    with LocalServer({"models": [model]}, OPEN) as server, httpx.Client(base_url=server.url, timeout=60.0) as client:
        yield client


def infer(client: httpx.Client, name: str = "x", datatype: str = "FP32", **headers: str) -> httpx.Response:
    """One row."""
    tensor = {"name": name, "shape": [1, 2], "datatype": datatype, "data": [5, 5]}
    return client.post("/v2/models/constant/infer", json={"inputs": [tensor]}, headers=headers)


def value(answer: httpx.Response) -> tuple[float, str]:
    """The answer's number, and the version that it names."""
    assert answer.status_code == 200, answer.text
    assert answer.json()["model_version"] == answer.headers["x-model-version"]
    return answer.json()["outputs"][0]["data"][0], answer.headers["x-model-version"]


def change(client: httpx.Client, verb: str) -> dict[str, Any]:
    """Load or unload the model."""
    told = client.post(f"/v2/repository/models/constant/{verb}")
    assert told.status_code == 200, told.text
    found: dict[str, Any] = told.json()
    return found


def index(client: httpx.Client) -> list[tuple[str, str]]:
    """State and reason of each version."""
    entries = client.post("/v2/repository/index").json()
    assert [entry["name"] for entry in entries] == ["constant", "constant"]
    return [(f"{entry['version']} {entry['state']}", entry["reason"]) for entry in entries]


def test_a_load_takes_the_changed_files_of_every_version(client: httpx.Client, folder: Path) -> None:
    """Each stays the version that it is, with its aliases; the answer tells of all."""
    assert value(infer(client)) == (3.0, "3")
    write_constant(folder / "5" / "model.onnx", 50.0)
    told = change(client, "load")
    assert (told["model"], told["state"], told["version"], told["replicas"]) == ("constant", "READY", "3,5", 1)
    before, after = told["before"].split(","), told["after"].split(",")
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)
    assert value(infer(client)) == (3.0, "3")
    assert value(infer(client, **CANDIDATE)) == (50.0, "5")
    assert client.get("/v2/models/constant").json()["versions"] == ["3", "5"]
    write_constant(folder / "3" / "model.onnx", 30.0)
    assert change(client, "load")["replicas"] == 1
    assert value(infer(client)) == (30.0, "3")
    shown = client.get("/status").json()["models"]
    assert [shown[key]["revision"] for key in ("constant/3", "constant/5")] != before


def test_a_version_that_takes_other_tensors_keeps_its_place(client: httpx.Client, folder: Path) -> None:
    """The model's table of traffic goes on, as it was changed while the server ran."""
    client.post("/v2/models/constant/traffic", json={"traffic": {"candidate": 1}, "shadow": None}).raise_for_status()
    write_constant(folder / "5" / "model.onnx", 7.0, name="other")
    change(client, "load")
    assert value(infer(client, name="other")) == (7.0, "5")
    assert value(infer(client, **{"X-Model-Version": "stable"})) == (3.0, "3")
    assert client.get("/v2/models/constant/traffic").json()["shares"] == {"5": 1.0}


def test_an_unload_is_of_all_versions_and_keeps_the_table(client: httpx.Client) -> None:
    """A load brings them back, and requests are spread as before."""
    client.post("/v2/models/constant/traffic/promote", json={}).raise_for_status()
    told = change(client, "unload")
    assert (told["state"], told["version"], told["after"], told["replicas"]) == ("UNAVAILABLE", "", "", 2)
    assert index(client) == [("3 UNAVAILABLE", "unloaded"), ("5 UNAVAILABLE", "unloaded")]
    for headers in ({}, CANDIDATE):
        refused = infer(client, **headers)
        assert (refused.status_code, "is unloaded" in refused.json()["error"]) == (404, True)
    assert client.get("/v2/health/ready").status_code == 200
    assert change(client, "load")["version"] == "3,5"
    assert value(infer(client)) == (5.0, "5")
    table = client.get("/v2/models/constant/traffic").json()
    assert (table["revision"], table["aliases"]["stable"]) == (1, "5")
    assert index(client) == [("3 READY", ""), ("5 READY", "")]


def test_a_shadow_is_compared_after_a_load(client: httpx.Client, folder: Path) -> None:
    """The copy of a request is not for the state of the other version's files."""
    write_constant(folder / "5" / "model.onnx", 3.0)
    change(client, "load")
    outcome = 'serve_app_shadow_requests_total{model="constant/5",outcome="same"} 1.0'
    value(infer(client))
    while outcome not in client.get("/metrics").text:
        assert 'outcome="failed"} 1.0' not in client.get("/metrics").text


def test_files_that_cannot_be_served_change_nothing_of_their_version(client: httpx.Client, folder: Path) -> None:
    """The version before it is served anew all the same."""
    write_constant(folder / "3" / "model.onnx", 30.0)
    (folder / "5" / "model.onnx").write_bytes(b"no model")
    refused = client.post("/v2/repository/models/constant/load")
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
    assert value(infer(client)) == (30.0, "3")
    assert value(infer(client, **CANDIDATE)) == (5.0, "5")
