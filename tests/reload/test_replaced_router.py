"""A router takes the place of one that has died, in the server without Ray: it serves what is agreed on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import httpx
import numpy as np
import onnx_models
import pytest
from local_server import LocalServer, make_tokenizer
from onnx import TensorProto, helper
from pool_models import infer_body, write_member

from reload.test_local_reload import OPEN, write_constant

MOODS = ("joy", "anger", "fear", "love", "surprise", "calm")


def write_moods(folder: Path, classes: int, *, beside: Path | None = None) -> None:
    """A classifier of texts into the first of the moods, with its labels and its tokenizer in ``beside``."""
    beside = beside or folder
    for each in (folder, beside):
        each.mkdir(parents=True, exist_ok=True)
    made = folder / "next.tmp"
    onnx_models.write(
        made,
        [
            helper.make_node("Gather", ["table", "input_ids"], ["tokens"], axis=0),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
            helper.make_node("Mul", ["tokens", "mask3"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "middle"], ["logits"], keepdims=0),
        ],
        [(name, TensorProto.INT64, ["rows", "length"]) for name in ("input_ids", "attention_mask")],
        [("logits", TensorProto.FLOAT, ["rows", classes])],
        {
            "table": np.sin(np.arange(classes * 32, dtype=np.float32)).reshape(32, classes),
            "last": np.array([2], np.int64),
            "middle": np.array([1], np.int64),
        },
    )
    made.rename(folder / "model.onnx")
    put(beside / "labels.txt", "\n".join(MOODS[:classes]).encode())
    make_tokenizer(beside / "tokenizer.tmp")
    (beside / "tokenizer.tmp").rename(beside / "tokenizer.json")


def put(file: Path, content: bytes) -> None:
    """Replace a file by ``rename``."""
    beside = file.with_suffix(".tmp")
    beside.write_bytes(content)
    beside.rename(file)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the models lie: ``moods``, of four classes, and ``constant``."""
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    write_moods(tmp_path / "moods", 4)
    write_constant(tmp_path / "constant" / "model.onnx", 1.0)
    return tmp_path


def moods(path: Path, **settings: Any) -> dict[str, Any]:
    """Configuration of the classifier."""
    return {
        "name": "moods",
        "task": "text-classification",
        "path": str(path),
        "processor": {"max_length": 16},
        **settings,
    }


def both(folder: Path) -> dict[str, Any]:
    """A server of both models."""
    return {"models": [moods(folder / "moods"), {"name": "constant", "path": str(folder / "constant")}]}


class Listening(Protocol):
    """A server."""

    url: str


def ask(server: Listening, model: str = "moods") -> httpx.Response:
    """Classify a text, or run one row of tensors."""
    if model == "moods":
        body = {"inputs": "the cat sat", "parameters": {"top_k": 9}}
        return httpx.post(f"{server.url}/v1/models/moods/predict", json=body)
    return httpx.post(f"{server.url}/v2/models/{model}/infer", json=infer_body(5.0))


def labels(answer: httpx.Response) -> set[str]:
    """What a text was classified into."""
    assert answer.status_code == 200, answer.text
    return {each["label"] for row in answer.json() for each in row}


def load(server: Listening, verb: str = "load") -> httpx.Response:
    """Load or unload the classifier."""
    return httpx.post(f"{server.url}/v2/repository/models/moods/{verb}", timeout=60.0)


def reasons(server: Listening) -> dict[str, str]:
    """By model, why it is not ready; empty: it is."""
    index = httpx.post(f"{server.url}/v2/repository/index").json()
    assert [entry["state"] == "READY" for entry in index] == [not entry["reason"] for entry in index]
    return {entry["name"]: entry["reason"] for entry in index}


def is_ready(server: Listening, model: str = "") -> bool:
    """Whether the server is, or a model."""
    path = f"models/{model}" if model else "health"
    return httpx.get(f"{server.url}/v2/{path}/ready").status_code == 200


def test_labels_that_a_load_has_changed_are_those_of_the_next_router(folder: Path) -> None:
    """It reads what is agreed on, and not the tensors that the model was deployed with."""
    with LocalServer(both(folder), OPEN) as server:
        assert labels(ask(server)) == set(MOODS[:4])
        write_moods(folder / "moods", 6)
        assert load(server).status_code == 200
        assert labels(ask(server)) == set(MOODS)
        server.replace_router()
        assert labels(ask(server)) == set(MOODS)
        assert reasons(server) == {"moods": "", "constant": ""}
        write_moods(folder / "moods", 5)
        assert load(server).status_code == 200
        assert labels(ask(server)) == set(MOODS[:5])


@pytest.mark.parametrize("beside", [lambda _: None, lambda folder: folder], ids=["own labels", "labels of all"])
def test_a_version_that_nobody_has_loaded_does_not_count_for_the_next_router(
    folder: Path, beside: Callable[[Path], Path | None]
) -> None:
    """It lies beside the one that is served, with labels of its own, or in place of those of both."""
    write_moods(folder / "several" / "1", 4, beside=beside(folder / "several"))
    with LocalServer({"models": [moods(folder / "several")]}, OPEN) as server:
        write_moods(folder / "several" / "2", 6, beside=beside(folder / "several"))
        server.replace_router()
        assert labels(ask(server)) == set(MOODS[:4])
        assert load(server).json()["version"] == "2"
        assert labels(ask(server)) == set(MOODS)


def break_tokenizer(folder: Path) -> None:
    """It is there, and no tokenizer."""
    put(folder / "tokenizer.json", b"{}")


def break_labels(folder: Path) -> None:
    """One is missing."""
    put(folder / "labels.txt", b"joy\nanger\nfear")


def take_away(folder: Path) -> None:
    """The whole folder is not there any more."""
    shutil.rmtree(folder)


@pytest.mark.parametrize("spoil", [break_tokenizer, break_labels, take_away])
def test_files_that_could_not_be_loaded_do_not_keep_a_router_from_starting(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    """A load of them fails, and the model is served as before; by the next router, too."""
    with LocalServer(both(folder), OPEN) as server:
        spoil(folder / "moods")
        assert load(server).status_code == 400
        assert labels(ask(server)) == set(MOODS[:4])
        server.replace_router()
        assert labels(ask(server)) == set(MOODS[:4])
        assert ask(server, "constant").json()["outputs"][0]["data"] == [1.0, 1.0]
        write_moods(folder / "moods", 6)
        assert load(server).status_code == 200
        assert labels(ask(server)) == set(MOODS)


def test_a_model_that_cannot_be_read_says_so_and_the_others_are_served(folder: Path) -> None:
    """Its files are others and were not kept: 503 and a line without a path, until files can be loaded."""
    with LocalServer(both(folder), OPEN) as server:
        break_tokenizer(folder / "moods")
        shutil.rmtree(folder / "cache" / "revisions")
        server.replace_router()
        refused = ask(server)
        line = refused.json()["error"]
        assert refused.status_code == 503, line
        assert line.startswith("model 'moods': its files are not those of revision ")
        assert line.endswith(" any more; load the model again, or deploy it again if it has no other replica")
        assert str(folder) not in line
        assert "\n" not in line
        assert reasons(server) == {"moods": line, "constant": ""}
        assert is_ready(server)
        assert is_ready(server, "constant")
        assert not is_ready(server, "moods")
        status = httpx.get(f"{server.url}/status").json()
        assert status["ready"]
        assert (status["models"]["moods"]["ready"], status["models"]["moods"]["load_fault"]) == (False, line)
        assert ask(server, "constant").json()["outputs"][0]["data"] == [1.0, 1.0]
        assert load(server).status_code == 400
        assert ask(server).json()["error"] == line
        write_moods(folder / "moods", 6)
        assert load(server).status_code == 200
        assert labels(ask(server)) == set(MOODS)
        assert reasons(server) == {"moods": "", "constant": ""}


def test_a_loaded_state_that_cannot_be_read_says_so_too(folder: Path) -> None:
    """Unloaded, it is unknown as any other; with its files again it is served."""
    with LocalServer(both(folder), OPEN) as server:
        write_moods(folder / "moods", 6)
        assert load(server).status_code == 200
        take_away(folder / "moods")
        shutil.rmtree(folder / "cache" / "revisions")
        server.replace_router()
        assert ask(server).status_code == 503
        assert "no such folder" in ask(server).json()["error"]
        assert load(server, "unload").status_code == 200
        assert ask(server).status_code == 404
        write_moods(folder / "moods", 6)
        assert load(server).status_code == 200
        assert labels(ask(server)) == set(MOODS)


def test_other_weights_on_the_disk_do_not_matter_to_the_next_router(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads labels and tokenizers, also where nothing is kept of what is served."""
    with LocalServer(both(folder), OPEN) as server:
        put(folder / "moods" / "model.onnx", b"not loaded yet")
        monkeypatch.setenv("SERVE_APP_CACHE", str(folder / "another cache"))
        server.replace_router()
        assert labels(ask(server)) == set(MOODS[:4])


def test_what_could_not_be_read_for_a_while_is_served_when_it_can(folder: Path) -> None:
    """A folder is away while a router starts, and comes back."""
    with LocalServer(both(folder), OPEN) as server:
        (folder / "moods").rename(folder / "away")
        shutil.rmtree(folder / "cache" / "revisions")
        server.replace_router()
        assert ask(server).status_code == 503
        server.retry()
        assert ask(server).status_code == 503
        (folder / "away").rename(folder / "moods")
        server.retry()
        assert labels(ask(server)) == set(MOODS[:4])


def test_one_version_that_cannot_be_read_leaves_the_others(folder: Path) -> None:
    """Requests that name it are told so; those that name none are answered by the others."""
    for version, classes in ((1, 4), (2, 6)):
        write_moods(folder / "several" / str(version), classes)
    several = moods(folder / "several", versions=[1, 2], aliases={"stable": 1}, traffic={"2": 100})
    with LocalServer({"models": [several]}, OPEN) as server:
        assert labels(ask(server)) == set(MOODS)
        take_away(folder / "several" / "2")
        shutil.rmtree(folder / "cache" / "revisions")
        server.replace_router()
        assert labels(ask(server)) == set(MOODS[:4])
        named = httpx.post(
            f"{server.url}/v1/models/moods/predict", json={"inputs": "the cat"}, headers={"X-Model-Version": "2"}
        )
        assert named.status_code == 503
        assert "its files are not those of revision" in named.json()["error"]
        assert is_ready(server)


def test_a_member_whose_folder_is_gone_leaves_the_pool_in_service(folder: Path) -> None:
    """A pool has one router: the next one starts, and says of that member what is wrong."""
    for name in ("plain", "gone"):
        write_member(folder / name / "model.onnx", 3.0)
    args = {
        "models": [
            moods(folder / "moods", pool="small"),
            *({"name": name, "path": str(folder / name), "pool": "small"} for name in ("plain", "gone")),
        ],
        "pools": [{"name": "small", "memory": "7MiB"}],
    }
    with LocalServer(args, OPEN) as server:
        assert labels(ask(server)) == set(MOODS[:4])
        (folder / "moods").rename(folder / "away")
        take_away(folder / "gone")
        server.replace_router()
        assert ask(server, "plain").json()["outputs"][0]["data"] == [8.0, 8.0]
        for model in ("moods", "gone"):
            refused = ask(server, model)
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"].endswith("; deploy it again")
            assert str(folder) not in refused.json()["error"]
            assert not is_ready(server, model)
        assert is_ready(server)
        assert load(server).status_code == 501
        (folder / "away").rename(folder / "moods")
        server.retry()
        assert labels(ask(server)) == set(MOODS[:4])
