"""Models that are loaded anew while clients ask, in the server without Ray: real models whose constant tells which."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import onnx_models
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from local_server import LocalServer
from onnx import TensorProto, helper

from serve_app.api.http_app import HttpSettings
from serve_app.composition.copies import is_being_written
from serve_app.composition.look import look_at
from serve_app.composition.revision import find_revision, forget_revisions, keep_revision, open_revision
from serve_app.config.args import parse_args
from serve_app.domain.agreed import Told
from serve_app.errors import ConfigError, ModelUnavailable

SWAPS = 30
OPEN = HttpSettings(open_administration=True)


def write_constant(path: Path, constant: float, *, name: str = "x") -> None:
    """A model that answers with its constant, put in its place by `rename`."""
    beside = path.with_name("next.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx_models.write(
        beside,
        [helper.make_node("Mul", [name, "zero"], ["none"]), helper.make_node("Add", ["none", "constant"], ["y"])],
        [(name, TensorProto.FLOAT, ["batch", 2])],
        [("y", TensorProto.FLOAT, ["batch", 2])],
        {"zero": np.zeros(1, np.float32), "constant": np.full(1, constant, np.float32)},
    )
    beside.rename(path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that answers 1."""
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    write_constant(tmp_path / "model" / "model.onnx", 1.0)
    return tmp_path / "model"


@pytest.fixture
def server(folder: Path) -> Iterator[LocalServer]:
    """Serves it."""
    with LocalServer(serving(folder), OPEN) as server:
        yield server


def serving(folder: Path, **model: Any) -> dict[str, Any]:
    """A configuration of that one model."""
    return {
        "models": [{"name": "constant", "path": str(folder), **model}],
        "router": {"access": {"open_administration": True}},
    }


def _infer(client: httpx.Client, url: str, name: str = "x", datatype: str = "FP32") -> httpx.Response:
    tensor = {"name": name, "shape": [1, 2], "datatype": datatype, "data": [5, 5]}
    return client.post(f"{url}/v2/models/constant/infer", json={"inputs": [tensor]})


def _value(answer: httpx.Response) -> float:
    assert answer.status_code == 200, answer.text
    values = set(answer.json()["outputs"][0]["data"])
    assert len(values) == 1, values
    return float(values.pop())


def _load(client: httpx.Client, server: LocalServer, verb: str = "load") -> httpx.Response:
    return client.post(f"{server.url}/v2/repository/models/constant/{verb}", timeout=60.0)


def test_what_is_asked_after_a_load_is_answered_by_it(server: LocalServer, folder: Path) -> None:
    """A changed file alone changes nothing; a load does, and its answer tells what."""
    with httpx.Client() as client:
        assert _value(_infer(client, server.url)) == 1.0
        write_constant(folder / "model.onnx", 2.0)
        assert _value(_infer(client, server.url)) == 1.0  # nothing has been loaded
        told = _load(client, server)
        assert told.status_code == 200, told.text
        assert told.json()["state"] == "READY"
        assert told.json()["before"] != told.json()["after"]
        assert told.json()["replicas"] == 1
        assert _value(_infer(client, server.url)) == 2.0
        again = _load(client, server).json()
        assert again["before"] == again["after"] == told.json()["after"]
        assert again["replicas"] == 0


def test_clients_are_answered_by_one_of_the_two_whatever_happens(
    server: LocalServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Thirty loads under clients: every request is answered, by the state before or after, and sent once."""
    stop, newest, asked = threading.Event(), [1.0], [0]

    def ask() -> list[str]:
        wrong = []
        with httpx.Client() as client:
            while not stop.is_set():
                oldest = newest[0]
                answer = _infer(client, server.url)
                asked[0] += 1
                if answer.status_code != 200:
                    wrong.append(answer.text)
                elif not oldest <= _value(answer) <= newest[0] + 1:  # the next may be there before its load is answered
                    wrong.append(f"{_value(answer)} between {oldest} and {newest[0] + 1}")
        return wrong

    with ThreadPoolExecutor(4) as pool, httpx.Client() as client:
        clients = [pool.submit(ask) for _ in range(4)]
        try:
            for swap in range(SWAPS):
                write_constant(folder / "model.onnx", swap + 2.0)
                told = _load(client, server)
                assert told.status_code == 200, told.text
                newest[0] = swap + 2.0
        finally:
            stop.set()
        for each in clients:
            assert each.result() == []
    assert asked[0] > SWAPS
    assert "does not have revision" not in caplog.text


def test_a_file_that_cannot_be_loaded_changes_nothing(server: LocalServer, folder: Path) -> None:
    """The former state is served on, and the answer says why without a path of the server."""
    with httpx.Client() as client:
        (folder / "model.onnx").write_bytes(b"no model")
        told = _load(client, server)
        assert told.status_code == 400, told.text
        assert "constant" in told.json()["error"]
        assert _value(_infer(client, server.url)) == 1.0
        write_constant(folder / "model.onnx", 3.0)
        assert _load(client, server).status_code == 200
        assert _value(_infer(client, server.url)) == 3.0


def test_an_unloaded_model_is_not_found_until_it_is_loaded(server: LocalServer) -> None:
    """The index tells that it is unloaded, and the server stays ready."""
    with httpx.Client() as client:
        told = _load(client, server, "unload")
        assert told.status_code == 200, told.text
        assert told.json()["state"] == "UNAVAILABLE"
        refused = _infer(client, server.url)
        assert refused.status_code == 404
        assert "unloaded" in refused.json()["error"]
        index = client.post(f"{server.url}/v2/repository/index").json()
        assert index == [{"name": "constant", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]
        assert client.get(f"{server.url}/v2/health/ready").status_code == 200
        assert _load(client, server, "unload").json()["replicas"] == 0
        assert _load(client, server).status_code == 200
        assert _value(_infer(client, server.url)) == 1.0
        assert client.post(f"{server.url}/v2/repository/index").json()[0]["state"] == "READY"


def test_another_signature_is_served_and_the_former_is_refused(server: LocalServer, folder: Path) -> None:
    """Requests for the tensors of before are faults, not run."""
    with httpx.Client() as client:
        write_constant(folder / "model.onnx", 2.0, name="z")
        assert _load(client, server).status_code == 200
        assert _infer(client, server.url).status_code == 400
        assert _value(_infer(client, server.url, "z")) == 2.0


def test_versions_go_up_and_answers_tell_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load takes the highest version there is; the one before is gone."""
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    write_constant(tmp_path / "model" / "1" / "model.onnx", 1.0)
    with LocalServer(serving(tmp_path / "model"), OPEN) as server, httpx.Client() as client:
        assert _infer(client, server.url).json()["model_version"] == "1"
        write_constant(tmp_path / "model" / "2" / "model.onnx", 2.0)
        assert _load(client, server).json()["version"] == "2"
        answer = _infer(client, server.url)
        assert (answer.json()["model_version"], _value(answer)) == ("2", 2.0)
        tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [5, 5]}
        gone = client.post(f"{server.url}/v2/models/constant/versions/1/infer", json={"inputs": [tensor]})
        assert gone.status_code == 404


def test_cached_answers_are_those_of_the_revision_that_is_served(tmp_path: Path, folder: Path) -> None:
    """Back and forth between two states, the cache never answers for the other one."""
    with (
        LocalServer(serving(folder, cache={"ttl_s": 600, "max_bytes": "1MiB"}), OPEN) as server,
        httpx.Client() as client,
    ):
        for constant in (2.0, 1.0, 2.0):
            write_constant(folder / "model.onnx", constant)
            assert _load(client, server).status_code == 200
            assert [_value(_infer(client, server.url)) for _ in range(3)] == [constant] * 3
        assert _infer(client, server.url).headers["x-cache"] == "hit"


def test_a_model_that_does_not_fit_is_refused_with_one_line(folder: Path) -> None:
    """Both states must fit at once."""
    with LocalServer(serving(folder, resources={"memory_limit": "1MiB"}), OPEN) as server, httpx.Client() as client:
        write_constant(folder / "model.onnx", 2.0)
        told = _load(client, server)
        assert told.status_code == 400
        assert "resources.memory_limit" in told.json()["error"]
        assert _value(_infer(client, server.url)) == 1.0


def test_nothing_a_client_sends_names_a_file_or_a_setting(server: LocalServer) -> None:
    """Parameters of Triton that would do so are refused."""
    with httpx.Client() as client:
        url = f"{server.url}/v2/repository/models/constant/load"
        assert client.post(url, json={"parameters": {"config": "{}"}}).status_code == 501
        assert client.post(url, json={"parameters": {"file:1/model.onnx": "AAAA"}}).status_code == 501
        assert client.post(url, json={"parameters": {"path": "/etc"}}).status_code == 400
        assert client.post(f"{server.url}/v2/repository/models/other/load").status_code == 404


def test_who_may_not_change_the_server_may_not_load(folder: Path) -> None:
    """Without keys only where administration is open."""
    with LocalServer({**serving(folder), "router": {}}) as server, httpx.Client() as client:
        assert _load(client, server).status_code == 403
        with pytest.raises(Exception, match="admin"):
            triton_grpc.InferenceServerClient(server.grpc).load_model("constant")


def test_triton_clients_load_and_unload(server: LocalServer, folder: Path) -> None:
    """By HTTP and gRPC, with the calls of Triton's own clients."""
    http = triton_http.InferenceServerClient(server.url.removeprefix("http://"))
    grpc = triton_grpc.InferenceServerClient(server.grpc)
    for client in (http, grpc):
        client.unload_model("constant")
        assert not client.is_model_ready("constant")
        client.load_model("constant")
        assert client.is_model_ready("constant")
    write_constant(folder / "model.onnx", 7.0)
    grpc.load_model("constant")
    with httpx.Client() as client:
        assert _value(_infer(client, server.url)) == 7.0


def test_a_router_that_missed_a_load_hears_of_it_by_its_next_bundle(server: LocalServer, folder: Path) -> None:
    """The replica gives the bundle back, and the router turns to what is agreed on."""
    write_constant(folder / "model.onnx", 2.0)
    agreed = server.run(server.keeper.find("constant"))
    server.run(server.register.write("constant", agreed))
    assert server.run(server.replicas["constant-only"].settle()) == agreed.revision
    with httpx.Client() as client:
        assert _value(_infer(client, server.url)) == 2.0


def test_a_replica_that_missed_a_load_catches_up_with_its_next_bundle(server: LocalServer, folder: Path) -> None:
    """As one that was starting meanwhile: what names the new state waits in the router until the replica has it."""
    write_constant(folder / "model.onnx", 2.0)
    agreed = server.run(server.keeper.find("constant"))
    server.run(server.register.write("constant", agreed))
    server.run(server.keeper.settle("constant"))
    with httpx.Client() as client:
        assert _value(_infer(client, server.url)) == 2.0
    assert server.replicas["constant-only"].current == agreed.revision


def test_what_was_loaded_and_not_agreed_on_is_dropped(server: LocalServer, folder: Path) -> None:
    """All who asked for it gave up: the present state stays, and the other can be loaded."""
    replica, before = server.replicas["constant-only"], server.replicas["constant-only"].current
    write_constant(folder / "model.onnx", 2.0)
    found = server.run(server.keeper.find("constant"))
    server.run(replica.prepare(found.revision, found.version, "first"))
    server.run(replica.prepare(found.revision, found.version, "second"))
    write_constant(folder / "model.onnx", 3.0)
    other = server.run(server.keeper.find("constant"))
    for given_up in ("third", "first", None):  # the second wants it still
        with pytest.raises(ModelUnavailable, match="another load"):
            server.run(replica.prepare(other.revision, other.version, "third"))
        assert server.run(replica.settle(given_up)) == before
    assert server.run(replica.settle("second")) == before
    server.run(replica.prepare(other.revision, other.version, "third"))
    with httpx.Client() as client:
        assert _value(_infer(client, server.url)) == 1.0


def test_loads_at_once_and_an_unload_end_in_order(server: LocalServer, folder: Path) -> None:
    """A hundred loads, whose file changes meanwhile, and unloads among them: each is answered, and the last counts."""
    with httpx.Client() as client, ThreadPoolExecutor(20) as pool:
        loads = [pool.submit(_load, client, server) for _ in range(50)]
        write_constant(folder / "model.onnx", 2.0)
        others = [pool.submit(_load, client, server, verb) for verb in ("unload", "load") * 25]
        assert {each.result().status_code for each in loads + others} <= {200, 400}  # the file changed during a load
        assert _load(client, server).status_code == 200
        assert _value(_infer(client, server.url)) == 2.0
        assert _load(client, server, "unload").status_code == 200
        assert _infer(client, server.url).status_code == 404


def test_a_load_that_finds_nothing_new_ends_what_another_began(server: LocalServer, folder: Path) -> None:
    """A router has agreed on a revision, and died before all had turned to it: what is asked now is answered by it."""
    replica = server.replicas["constant-only"]
    write_constant(folder / "model.onnx", 2.0)
    agreed = server.run(server.keeper.find("constant"))
    server.run(replica.prepare(agreed.revision, agreed.version, "of the dead"))
    server.run(server.register.write("constant", agreed))
    with httpx.Client() as client:
        told = _load(client, server).json()
        assert told["before"] == told["after"] == agreed.revision
        assert replica.current == agreed.revision
        assert _value(_infer(client, server.url)) == 2.0


def test_who_loads_the_same_at_once_shares_it(server: LocalServer, folder: Path) -> None:
    """Of two routers, both go on."""
    replica = server.replicas["constant-only"]
    write_constant(folder / "model.onnx", 2.0)
    found = server.run(server.keeper.find("constant"))

    async def both() -> list[Told]:
        return await asyncio.gather(*(replica.prepare(found.revision, found.version, claim) for claim in "ab"))

    first, second = server.run(both())
    assert first == second
    server.run(server.register.write("constant", found))
    assert server.run(replica.settle("a")) == found.revision


def test_a_file_that_is_being_written_is_not_loaded(server: LocalServer, folder: Path) -> None:
    """Whatever it has so far may be read as a model: Python files and labels are. Nor is it watched."""
    model = parse_args(serving(folder)).models[0]
    with httpx.Client() as client, (folder / "model.onnx").open("ab") as written:
        if not is_being_written(folder / "model.onnx"):
            pytest.skip("the filesystem of this machine has no leases")
        told = _load(client, server)
        assert told.status_code == 400
        assert told.json()["error"] == "model 'constant': model.onnx is being written; rename it when it is whole"
        assert look_at(model) is None
        written.close()
        assert look_at(model) is not None
        assert _load(client, server).status_code == 200
        assert _value(_infer(client, server.url)) == 1.0


def test_a_folder_that_is_gone_changes_nothing(server: LocalServer, folder: Path) -> None:
    """The answer says so in a line."""
    folder.rename(folder.with_name("elsewhere"))
    with httpx.Client() as client:
        told = _load(client, server)
        assert told.status_code == 400
        assert "no such folder" in told.json()["error"]
        assert str(folder.parent) not in told.json()["error"]
        assert _value(_infer(client, server.url)) == 1.0


@pytest.mark.parametrize("name", ["..", "%2e%2e%2fother", "constant/../../other", "/etc/passwd", "constant\x00"])
def test_no_name_leads_out_of_the_configured_models(server: LocalServer, name: str) -> None:
    """Models are found by their name in the configuration, and by nothing on the disk."""
    with httpx.Client() as client:
        url = f"{server.url}/v2/repository/models/{quote(name, safe='')}/load"
        assert client.post(url).status_code in {400, 404}


def test_a_replica_that_starts_late_takes_what_was_agreed_on(folder: Path) -> None:
    """Its files were replaced on the disk meanwhile, and are found where they were kept."""
    model = parse_args(serving(folder)).models[0]
    first = find_revision(model)
    with keep_revision(first):
        write_constant(folder / "model.onnx", 2.0)
        found = open_revision(model, first.name, first.version)
        assert found.name == first.name
        assert not found.locations[""].model_file.is_relative_to(folder)
        (found.locations[""].model_file).write_bytes(b"overwritten in place")
        with pytest.raises(ConfigError, match="load the model again"):
            open_revision(model, first.name, first.version)


def test_a_load_that_fails_leaves_the_files_of_what_is_served(server: LocalServer, folder: Path) -> None:
    """A replica that starts later finds them, whatever was prepared meanwhile; those of the other one are gone."""
    model = parse_args(serving(folder)).models[0]
    replica, before = server.replicas["constant-only"], server.replicas["constant-only"].current
    write_constant(folder / "model.onnx", 2.0)
    found = server.run(server.keeper.find("constant"))
    server.run(replica.prepare(found.revision, found.version, "fails"))
    write_constant(folder / "model.onnx", 3.0)
    assert before is not None
    assert {open_revision(model, name).name for name in (before, found.revision)} == {before, found.revision}
    assert server.run(replica.settle("fails")) == before
    assert open_revision(model, before).name == before
    with pytest.raises(ConfigError, match="not those of revision"):
        open_revision(model, found.revision)


def test_the_files_of_what_was_served_before_are_not_kept(server: LocalServer, folder: Path) -> None:
    """Only those of what is loaded, and none that were loaded once."""
    model = parse_args(serving(folder)).models[0]
    names = [find_revision(model).name]
    with httpx.Client() as client:
        for constant in (2.0, 3.0):
            write_constant(folder / "model.onnx", constant)
            names.append(_load(client, server).json()["after"])
    write_constant(folder / "model.onnx", 4.0)
    assert open_revision(model, names[-1]).name == names[-1]
    for former in names[:-1]:
        with pytest.raises(ConfigError, match="not those of revision"):
            open_revision(model, former)


def test_files_are_kept_while_a_process_has_them_loaded(folder: Path) -> None:
    """Another replica of this machine may prepare what this one does not know of, or serve it until it ends."""
    model = parse_args(serving(folder)).models[0]
    first = find_revision(model)
    with keep_revision(first), keep_revision(first):  # of two replicas
        write_constant(folder / "model.onnx", 2.0)
        second = find_revision(model)
        with keep_revision(second):
            write_constant(folder / "model.onnx", 3.0)
            forget_revisions(model, first.name)
            assert open_revision(model, second.name).name == second.name
            forget_revisions(model, second.name)
    assert open_revision(model, first.name).name == first.name
    forget_revisions(model, second.name)
    assert open_revision(model, second.name).name == second.name
    with pytest.raises(ConfigError, match="not those of revision"):
        open_revision(model, first.name)
