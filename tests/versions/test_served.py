"""Several versions of a model at once, as clients see them over HTTP, over gRPC and with the client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import grpc
import httpx
import numpy as np
import onnx_models
import orjson
import pytest
from local_server import LocalServer, make_tokenizer

from serve_app.api.http_app import HttpSettings
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.cli.key_file import add
from serve_app_client import Client

HTTP = httpx.Client(timeout=30.0)  # one for all: to make a client takes longer than to ask
VERSIONS = (1, 3, 5)
ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.0]}]}


def adders(folder: Path, **settings: Any) -> dict[str, Any]:
    """A model whose version N adds N."""
    for version in VERSIONS:
        onnx_models.adder(folder / "adds" / str(version) / "model.onnx", float(version))
    return {"name": "adds", "path": str(folder / "adds"), "versions": [3, 5], **settings}


def open_to_all(*models: Mapping[str, Any]) -> LocalServer:
    """A server at which anybody may change traffic."""
    return LocalServer({"models": list(models)}, HttpSettings(open_administration=True))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Tensors and texts in two versions, and a model that has one."""
    folder = tmp_path_factory.mktemp("versions")
    for name in ("words", "moods"):
        for version in ("1", "2"):
            onnx_models.make(folder / name / version / "model.onnx", "seq_mean")
        make_tokenizer(folder / name / "tokenizer.json")
    onnx_models.make(folder / "one" / "1" / "model.onnx", "add_one")
    labels = list("abcdefgh")
    several = {"versions": {"latest": 2}, "aliases": {"stable": 1}, "traffic": {"stable": 100}}
    with open_to_all(
        adders(folder, aliases={"stable": 3, "candidate": 5}, cache={}),
        {"name": "words", "task": "feature-extraction", "path": str(folder / "words"), **several},
        {
            "name": "moods",
            "task": "text-classification",
            "path": str(folder / "moods"),
            "processor": {"labels": labels, "output": "embedding"},
            **several,
        },
        {"name": "one", "path": str(folder / "one")},
    ) as running:
        yield running


def infer(url: str, path: str = "/v2/models/adds/infer", **headers: str) -> httpx.Response:
    """A request that is answered with the number of the version."""
    return HTTP.post(url + path, json=ROW, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("path", "headers", "version"),
    [
        ("/v2/models/adds/infer", {}, 3),
        ("/v2/models/adds/versions/3/infer", {}, 3),
        ("/v2/models/adds/versions/5/infer", {}, 5),
        ("/v2/models/adds/versions/stable/infer", {}, 3),
        ("/v2/models/adds/versions/candidate/infer", {}, 5),
        ("/v2/models/adds/infer", {"x_model_version": "5"}, 5),
        ("/v2/models/adds/infer", {"x_model_version": "candidate"}, 5),
        ("/v2/models/adds/versions/3/infer", {"x_model_version": "5"}, 3),  # as the body beats the header elsewhere
    ],
)
def test_a_request_gets_its_version(server: LocalServer, path: str, headers: dict[str, str], version: int) -> None:
    """And the answer says which one it was; also what comes from the cache."""
    for cache in ("miss", "hit"):
        answer = infer(server.url, path, **headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model_version"] == answer.headers["x-model-version"] == str(version)
        assert answer.json()["outputs"][0]["data"] == [version]
        assert answer.headers["x-cache"] in {cache, "hit"}


@pytest.mark.parametrize("word", ["generate", "generate_stream"])
def test_generate_gets_its_version(server: LocalServer, word: str) -> None:
    """By path and by header, as `infer`."""
    for path, headers, version in (
        ("", {}, "3"),
        ("/versions/candidate", {}, "5"),
        ("", {"x-model-version": "5"}, "5"),
    ):
        answer = HTTP.post(f"{server.url}/v2/models/adds{path}/{word}", json={"x": [[0.0]]}, headers=headers)
        assert answer.status_code == 200, answer.text
        assert orjson.loads(answer.text.removeprefix("data: "))["model_version"] == version
        assert answer.headers["x-model-version"] == version


@pytest.mark.parametrize("named", ["1", "rc", "adds", "%20"])
@pytest.mark.parametrize("rest", ["", "/ready", "/config", "/stats", "/infer"])
def test_an_unknown_version_is_told_with_what_there_is(server: LocalServer, named: str, rest: str) -> None:
    """On every route below it; version 1 is in the folder, and not served."""
    method = "POST" if rest == "/infer" else "GET"
    answer = HTTP.request(method, f"{server.url}/v2/models/adds/versions/{named}{rest}", json=ROW)
    assert answer.status_code == 404
    assert answer.json()["code"] == "model_not_found"
    assert answer.json()["error"].endswith("here; versions: 3, 5; aliases: stable, candidate")


def test_a_key_of_a_version_is_no_name(server: LocalServer) -> None:
    """What the server calls a version by itself is nothing that a client may ask for."""
    answer = HTTP.post(f"{server.url}/v1/embeddings", json={"model": "words/1", "input": "cat"})
    assert answer.status_code == 404
    assert [each["id"] for each in HTTP.get(f"{server.url}/v1/models").json()["data"]][:2] == ["adds", "words"]


TEXTS = {
    "/v1/embeddings": ("/v1/embeddings", {"model": "words", "input": "cat"}),
    "/v1/models/{model}/predict": ("/v1/models/moods/predict", {"inputs": "cat"}),
    "/models/{model}": ("/models/moods", {"inputs": "cat"}),
    "/models/{model}/pipeline/{task}": ("/models/words/pipeline/feature-extraction", {"inputs": "cat"}),
    "/": ("/", {"inputs": "cat", "parameters": {"normalize": True}}),
}
"""A request to each route that runs a model and whose path names no version, but V2's."""


def test_every_route_that_runs_a_model_is_asked(server: LocalServer) -> None:
    """A new one has to know versions, too."""
    running = {route.path for route in server.app.routes if route.operation is not None}
    words = ("infer", "generate", "generate_stream")
    by_path = {f"/v2/models/{{model}}{version}/{word}" for version in ("", "/versions/{version}") for word in words}
    assert running == {*TEXTS, *by_path}


@pytest.mark.parametrize(("path", "body"), TEXTS.values(), ids=TEXTS)
def test_a_header_names_the_version_everywhere(server: LocalServer, path: str, body: Any) -> None:
    """Where paths and bodies have no place for it."""
    for named, version in ((None, "1"), ("2", "2"), ("stable", "1")):
        answer = HTTP.post(server.url + path, json=body, headers={"x-model-version": named} if named else {})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-model-version"] == version
    unknown = HTTP.post(server.url + path, json=body, headers={"x-model-version": "7"})
    assert unknown.status_code == 404
    assert "has no version '7' here; versions: 1, 2; aliases: stable" in unknown.text


def test_metadata_tell_all_versions(server: LocalServer) -> None:
    """Of the model and of each version; statistics are told of each."""
    url = f"{server.url}/v2/models/adds"
    assert HTTP.get(url).json()["versions"] == httpx.get(f"{url}/versions/5").json()["versions"] == ["3", "5"]
    assert HTTP.get(f"{url}/versions/candidate/ready").status_code == 200
    assert HTTP.get(f"{url}/config").json()["version_policy"] == {"specific": {"versions": [3, 5]}}
    assert [each["version"] for each in HTTP.get(f"{url}/stats").json()["model_stats"]] == ["3", "5"]
    assert [each["version"] for each in HTTP.get(f"{url}/versions/5/stats").json()["model_stats"]] == ["5"]
    index = HTTP.post(f"{server.url}/v2/repository/index").json()
    assert [each["version"] for each in index if each["name"] == "adds"] == ["3", "5"]
    assert HTTP.get(f"{server.url}/status").json()["traffic"]["adds"]["shares"] == {"3": 1.0}


def test_a_model_with_one_version_is_as_it_was(server: LocalServer) -> None:
    """No header of the answer, no alias, no traffic; a version that there is not is told as ever."""
    answer = infer(server.url, "/v2/models/one/infer")
    assert answer.json()["model_version"] == "1"
    assert "x-model-version" not in answer.headers
    assert infer(server.url, "/v2/models/one/infer", x_model_version="1").status_code == 200
    assert infer(server.url, "/v2/models/one/versions/stable/infer").json()["error"].endswith("here; versions: 1")
    shown = HTTP.get(f"{server.url}/v2/models/one/traffic").json()
    assert (shown["versions"], shown["aliases"], shown["shares"]) == (["1"], {}, {"1": 1.0})
    promotion = HTTP.post(f"{server.url}/v2/models/one/traffic/promote")
    assert promotion.status_code == 400
    assert "is served in one version" in promotion.json()["error"]


@pytest.mark.parametrize(
    ("in_message", "in_metadata", "version"),
    [("", "", 3), ("5", "", 5), ("candidate", "", 5), ("", "candidate", 5), ("3", "5", 3)],
)
def test_grpc(server: LocalServer, in_message: str, in_metadata: str, version: int) -> None:
    """The message's version, or that of the metadata; in a stream, too."""
    request = pb.ModelInferRequest(model_name="adds", model_version=in_message)
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    tensor.contents.fp32_contents.append(0.0)
    metadata = (("x-model-version", in_metadata),) if in_metadata else ()
    with grpc.insecure_channel(server.grpc) as channel:
        infers: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer, call = infers.with_call(request.SerializeToString(), metadata=metadata)
        streams: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        streamed = list(streams(iter([request.SerializeToString()] * 2), metadata=metadata))
    told = [pb.ModelInferResponse.FromString(answer)]
    told += [pb.ModelStreamInferResponse.FromString(each).infer_response for each in streamed]
    assert [each.model_version for each in told] == [str(version)] * 3
    assert dict(call.trailing_metadata())["x-model-version"] == str(version)
    assert np.frombuffer(told[0].raw_output_contents[0] or b"", "<f4").tolist() in ([], [version])


def test_the_client_names_versions(server: LocalServer) -> None:
    """In every call that asks a model to work, and the result says which one answered."""
    with Client(server.url) as client:
        answered = client.infer("adds", {"x": np.zeros((1, 1), np.float32)}, version="candidate")
        assert answered["y"].tolist() == [[5.0]]
        assert answered.version == answered.served.version == "5"
        assert client.predict("moods", "cat", version="2").served.version == "2"
        assert client.embed("cat", "words", version="2").shape == (1, 8)


def test_traffic_is_changed_shown_and_undone(tmp_path: Path) -> None:
    """A canary, its promotion, its rollback; what does not fit is refused and changes nothing."""
    settings = {"aliases": {"stable": 3, "candidate": 5}, "sticky": "request_id"}
    with open_to_all(adders(tmp_path, **settings)) as server:
        url = f"{server.url}/v2/models/adds/traffic"
        assert HTTP.get(url).json() == {
            "model": "adds",
            "revision": 0,
            "versions": ["3", "5"],
            "aliases": {"stable": "3", "candidate": "5"},
            "traffic": {"stable": 100.0},
            "sticky": "request_id",
            "shadow": None,
            "shares": {"3": 1.0},
        }
        canary = HTTP.post(url, json={"traffic": {"stable": 3, "candidate": 1}})
        assert canary.json()["shares"] == {"3": 0.75, "5": 0.25}
        answers = [infer(server.url, x_request_id=f"id-{each % 20}") for each in range(40)]
        by_id = {answer.headers["x-request-id"]: answer.json()["model_version"] for answer in answers}
        assert set(by_id.values()) == {"3", "5"}
        assert all(by_id[each.headers["x-request-id"]] == each.json()["model_version"] for each in answers)
        assert all(answer.json()["outputs"][0]["data"] == [float(answer.json()["model_version"])] for answer in answers)

        refused = HTTP.post(url, json={"traffic": {"rc": 1}})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
        assert HTTP.post(url, json={"weights": {}}).status_code == 400
        assert HTTP.get(url).json()["revision"] == 1

        promoted = HTTP.post(f"{url}/promote")
        assert (promoted.json()["revision"], promoted.json()["shares"]) == (2, {"5": 1.0})
        assert infer(server.url).json()["model_version"] == "5"
        assert infer(server.url, "/v2/models/adds/versions/stable/infer").json()["model_version"] == "5"
        page = HTTP.get(f"{server.url}/metrics").text
        assert 'serve_app_traffic_share{model="adds/5"} 1.0' in page
        assert 'serve_app_traffic_revision{model="adds"} 2.0' in page

        assert HTTP.post(f"{url}/rollback").json()["shares"] == {"3": 0.75, "5": 0.25}
        assert HTTP.post(f"{url}/promote", json={"to": 7}).status_code == 400


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalServer, dict[str, dict[str, str]]]]:
    """A server with API keys, and the headers that carry each."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "keys.yaml"
    permissions: dict[str, dict[str, Any]] = {"admin": {"admin": True}, "user": {}, "other": {"models": ["nothing"]}}
    keys = {name: {"x_api_key": add(file, name, wish)} for name, wish in permissions.items()}
    config = {"models": [adders(folder, sticky="key", traffic={"3": 1, "5": 1})]}
    with LocalServer({**config, "router": {"access": {"keys_file": str(file)}}}) as running:
        yield running, keys


def test_only_administrators_change_traffic(guarded: tuple[LocalServer, dict[str, dict[str, str]]]) -> None:
    """Who may use the model may look; a key of another model learns nothing."""
    server, keys = guarded
    url = f"{server.url}/v2/models/adds/traffic"
    sent = {name: {"x-api-key": key["x_api_key"]} for name, key in keys.items()}
    shown = {name: HTTP.get(url, headers=key).status_code for name, key in sent.items()}
    assert shown == {"admin": 200, "user": 200, "other": 404}
    changed = {name: HTTP.post(f"{url}/promote", json={"to": "3"}, headers=key) for name, key in sent.items()}
    assert {name: reply.status_code for name, reply in changed.items()} == {"admin": 200, "user": 403, "other": 404}
    HTTP.post(f"{url}/rollback", headers=sent["admin"])
    for name in ("admin", "user"):
        assert len({infer(server.url, **keys[name]).json()["model_version"] for _ in range(10)}) == 1


def shadows(server: LocalServer) -> dict[str, int]:
    """Shadow requests by outcome."""
    lines = HTTP.get(f"{server.url}/metrics").text.splitlines()
    told = [line for line in lines if line.startswith("serve_app_shadow_requests_total{")]
    return {line.split('outcome="')[1].split('"')[0]: int(float(line.split()[-1])) for line in told}


def until_shadows(server: LocalServer, number: int) -> dict[str, int]:
    """The same once so many have ended."""
    while sum((found := shadows(server)).values()) < number:
        pass
    return found


@pytest.mark.parametrize(
    ("shadow", "outcome"),
    [
        ({"to": "candidate"}, "different"),
        ({"to": 5, "tolerance": {"y": {"atol": 2.0}}}, "same"),
        ({"to": "candidate", "tolerance": {"x": {"atol": 2.0}, "y": {"rtol": 0.1}}}, "different"),
    ],
)
def test_a_shadow_is_compared_and_reaches_nobody(
    tmp_path: Path, shadow: dict[str, Any], outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Version 5 answers 2 more than version 3: it is told, with the request's id, and clients see nothing of it."""
    model = adders(tmp_path, aliases={"stable": 3, "candidate": 5}, shadow=shadow)
    with open_to_all(model) as server:
        answers = [infer(server.url, x_request_id=f"id-{each}") for each in range(5)]
        assert [answer.json()["outputs"][0]["data"] for answer in answers] == [[3.0]] * 5
        infer(server.url, x_model_version="5")  # which is not compared with itself
        assert until_shadows(server, 5) == {outcome: 5}
        page = HTTP.get(f"{server.url}/metrics").text
        assert 'serve_app_requests_total{model="adds/5",outcome="ok",priority="low"} 5.0' in page
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Shadow")]
    if outcome == "same":
        assert not told
    else:
        assert told[0][:-1] in {
            f"Shadow adds/5: request id-{each} differs: y in 1 of 1 values, by up to " for each in range(5)
        }
        assert told[0].endswith("2")


def test_answers_from_the_cache_are_not_shadowed(tmp_path: Path) -> None:
    """What was executed once is compared once."""
    with open_to_all(adders(tmp_path, cache={}, shadow={"to": 3})) as server:
        caches = [infer(server.url).headers["x-cache"] for _ in range(3)]
        assert caches == ["miss", "hit", "hit"]
        assert until_shadows(server, 1) == {"different": 1}


def test_a_shadow_that_fails_is_counted(tmp_path: Path) -> None:
    """And the client has its answer."""
    onnx_models.make(tmp_path / "m" / "1" / "model.onnx", "add_one")
    onnx_models.make(tmp_path / "m" / "2" / "model.onnx", "fail_on_negative")
    model = {
        "name": "m",
        "path": str(tmp_path / "m"),
        "versions": [1, 2],
        "aliases": {"stable": 1},
        "shadow": {"to": 2},
    }
    negative = {"inputs": [{**ROW["inputs"][0], "data": [-1.0]}]}
    with open_to_all(model) as server:
        answer = HTTP.post(f"{server.url}/v2/models/m/infer", json=negative)
        assert answer.json()["outputs"][0]["data"] == [0.0]
        assert until_shadows(server, 1) == {"failed": 1}


def test_no_answer_is_wrong_while_versions_are_promoted(tmp_path: Path) -> None:
    """Under load: every answer is that of the version that it names, and none fails."""
    settings = {"aliases": {"stable": 3, "candidate": 5}, "cache": {}, "shadow": {"to": "candidate", "share": 50}}
    ended, answered = Event(), Semaphore(0)
    with open_to_all(adders(tmp_path, **settings)) as server:

        def keep_asking(number: int) -> Counter[str]:
            seen: Counter[str] = Counter()
            with httpx.Client(base_url=server.url, timeout=30.0) as client:
                while not ended.is_set():
                    value = float(seen.total() % 7 + number)
                    inputs = [{**ROW["inputs"][0], "data": [value]}]
                    answer = client.post("/v2/models/adds/infer", json={"inputs": inputs})
                    told = answer.json()
                    version = told["model_version"] if answer.status_code == 200 else "failed"
                    right = version != "failed" and told["outputs"][0]["data"] == [value + float(version)]
                    seen[version if right else "wrong"] += 1
                    answered.release()
            return seen

        def more_answers() -> None:
            while answered.acquire(blocking=False):
                pass
            for _ in range(6):  # two for each: the first may have been asked for before
                assert answered.acquire(timeout=30.0)

        with ThreadPoolExecutor(3) as pool:
            clients = [pool.submit(keep_asking, number) for number in range(3)]
            url = f"{server.url}/v2/models/adds/traffic"
            try:
                more_answers()
                for _ in range(6):
                    for change in ({"traffic": {"stable": 1, "candidate": 1}}, None):
                        path, body = (url, change) if change else (f"{url}/promote", {"to": "candidate"})
                        told = HTTP.post(path, json=body).json()
                        if change is None:
                            assert infer(server.url).json()["model_version"] == "5"
                        assert told["revision"] > 0
                    more_answers()
                    HTTP.post(url, json={"aliases": {"stable": 3}, "traffic": {}}).raise_for_status()
                    assert infer(server.url).json()["model_version"] == "3"
            finally:
                ended.set()
            seen = sum((client.result() for client in clients), Counter())
    assert set(seen) == {"3", "5"}
