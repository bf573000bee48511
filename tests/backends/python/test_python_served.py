"""Python models behind a server: what its clients see of them, and when their replica is replaced."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import python_models
from local_server import LocalServer
from runtime_harness import batch_same_turn
from serve_process import ROOT

from serve_app.composition.identity import identities
from serve_app.composition.model import find_files, read_builds
from serve_app.composition.replica import MadeReplica, make_replica
from serve_app.config.args import parse_args
from serve_app.config.model import ModelConfig
from serve_app.errors import ConfigError
from serve_app.payloads import Bundle, Failure, Success, WireEntry

OWN_PROCESS: Mapping[str, Any] = {"environment": {"python": sys.executable}}

FALLIBLE = """
    import os

    class Fallible:
        inputs = {"x": ("float32", [-1, 1])}
        outputs = {"y": ("float32", [-1, 1])}

        def predict(self, batch):
            if (batch["x"] == 8).any():
                raise OSError(f"cannot read {__file__}: no such file")
            if (batch["x"] == 9).any():
                os.abort()
            return batch | {"y": batch["x"]} if (batch["x"] == 7).any() else {"y": batch["x"]}
"""


def value(number: float) -> dict[str, Any]:
    """A request for one number."""
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]}]}


@pytest.mark.parametrize("options", [{}, OWN_PROCESS], ids=["in process", "own process"])
def test_clients_see_answers_and_errors_of_one_line(options: Mapping[str, Any], tmp_path: Path) -> None:
    """No traceback and no path; and the metadata of the class."""
    python_models.write(tmp_path / "fallible", FALLIBLE)
    common = {"backend": "python", "backend_options": options}
    args = {
        "models": [
            {"name": "iris", "path": str(ROOT / "examples" / "iris"), **common},
            {"name": "fallible", "path": str(tmp_path / "fallible"), **common},
        ]
    }
    flowers = {"name": "flower", "datatype": "FP32", "shape": [2, 4], "data": [5.1, 3.5, 1.4, 0.2, 6.5, 3, 5.8, 2.2]}
    with LocalServer(args) as server, httpx.Client(base_url=server.url) as client:
        told = client.get("/v2/models/iris").json()
        answer = client.post("/v2/models/iris/infer", json={"inputs": [flowers]}).json()
        replies = [client.post("/v2/models/fallible/infer", json=value(number)) for number in (1, 7, 8, 2)]
    assert (told["platform"], told["parameters"]["joinable"]) == ("python", "exact")
    assert answer["outputs"][1]["data"] == ["setosa", "virginica"]
    assert [reply.status_code for reply in replies] == [200, 500, 500, 200]
    errors = [reply.text for reply in replies[1:3]]
    assert "predict returned output 'x', which the model does not declare" in errors[0]
    assert "the model failed on this input: OSError: cannot read" in errors[1]
    assert not any(part in error for error in errors for part in (str(tmp_path), "model.py", "Traceback"))


async def test_a_replica_whose_process_has_ended_asks_to_be_replaced(tmp_path: Path) -> None:
    """At once, also where no input is known to test it with; until then requests fail."""
    python_models.write(tmp_path / "m", FALLIBLE)
    keys = {"backend": "python", "backend_options": OWN_PROCESS}
    (model,) = parse_args({"models": [{"name": "m", "path": str(tmp_path / "m"), **keys}]}).models
    replica = made(model)
    try:
        found = []
        for number in (1, 9, 1):
            tensors = {"x": np.full((1, 1), number, np.float32)}
            result = await replica.worker.run(Bundle([WireEntry(1, 60.0, 1, "", tensors)]))
            found.append((type(result.results[0]), replica.worker.failing))
    finally:
        replica.worker.close()
    assert found == [(Success, False), (Failure, True), (Failure, True)]


NOTING = """
    import os

    class Noting:
        inputs = {"x": ("float32", [-1, 1])}
        outputs = {"y": ("float32", [-1, 1])}
        rows_independent = True

        def setup(self, context):
            self.notes = open(context.parameters["notes"], "a", buffering=1)
            self.notes.write(f"loaded in {os.getpid()}\\n")
            if "faulty" in str(context.folder):
                raise OSError("no weights")

        def predict(self, batch):
            if DIES:
                os.kill(os.getpid(), 9)
            return {"y": batch["x"]}

        def close(self):
            self.notes.write("closed\\n")
"""
"""Writes down what becomes of it."""


def noting(folder: Path, notes: Path, options: Mapping[str, Any], dies: str = "False", **keys: Any) -> ModelConfig:
    """A model, whose process dies where its batch is like that."""
    python_models.write(folder, NOTING.replace("DIES", dies))
    options = {**options, "parameters": {"notes": str(notes)}}
    model = {"name": "m", "path": str(folder), "backend": "python", "backend_options": options, **keys}
    return parse_args({"models": [model]}).models[0]


def made(model: ModelConfig) -> MadeReplica:
    """Its replica."""
    return make_replica(model, read_builds(model, find_files(model)), batch_same_turn)


def processes(notes: Path) -> tuple[int, int]:
    """How many processes have loaded it, and how many of them there are."""
    found = [line.split()[-1] for line in notes.read_text().splitlines() if line.startswith("loaded")]
    return len(found), len([pid for pid in found if Path("/proc", pid).exists()])


@pytest.mark.parametrize(
    ("dies", "said"),
    [
        ("True", "the process of the model was ended by SIGKILL"),
        ("len(batch['x']) == 4", "warm-up with 4 rows: the process of the model was ended by SIGKILL"),
        ("(batch['x'] < 0).any()", "the process of the model was ended by SIGKILL"),
    ],
    ids=["at all inputs", "in a larger batch", "in the proof"],
)
def test_a_model_whose_process_dies_before_its_first_request_is_not_served(
    dies: str, said: str, tmp_path: Path
) -> None:
    """It would end its replica with the first one. One line says what happened and what to do; no process is left."""
    notes = tmp_path / "notes"
    with pytest.raises(ConfigError) as caught:
        made(noting(tmp_path / "m", notes, OWN_PROCESS, dies, batching={"max_rows": 4}))
    assert str(caught.value) == (
        f"model 'm': its session ended before the first request: {said}; see the log. If memory was short, lower"
        " batching.max_rows; if it cannot run these inputs, give others in warm_up"
    )
    assert processes(notes) == (1, 0)


@pytest.mark.parametrize("options", [{}, OWN_PROCESS], ids=["in process", "own process"])
def test_a_load_that_fails_closes_what_it_has_loaded(options: Mapping[str, Any], tmp_path: Path) -> None:
    """Here the model itself, as its variant cannot be loaded: it is closed, and no process and no module is left."""
    notes = tmp_path / "notes"
    python_models.write(tmp_path / "faulty", NOTING.replace("DIES", "False"))
    variants = [{"name": "light", "path": str(tmp_path / "faulty")}]
    model = noting(tmp_path / "m", notes, options, variants=variants)
    before = {name for name in sys.modules if name.startswith("served_model_")}
    with pytest.raises(ConfigError, match="setup failed: OSError: no weights"):
        made(model)
    assert notes.read_text().splitlines().count("closed") == 1
    assert processes(notes) == ((2, 0) if options else (2, 2))
    assert {name for name in sys.modules if name.startswith("served_model_")} == before


def test_what_it_answers_depends_on_all_of_its_files(tmp_path: Path) -> None:
    """A stored answer is of its code, its modules and its requirements."""
    folder = tmp_path / "m"
    python_models.make(folder, "helper")
    (folder / "requirements.txt").write_text("numpy==2.0.0\n")
    keys = {"backend": "python", "backend_options": {"environment": {"requirements": "requirements.txt"}}}
    (model,) = parse_args({"models": [{"name": "m", "path": str(folder), **keys}]}).models
    found = set()
    for name in (None, "model.py", "scaling.py", "requirements.txt"):
        if name is not None:
            with (folder / name).open("a") as file:
                file.write("# changed\n")
        found.add(identities(model, find_files(model))[""])
    assert len(found) == 4
