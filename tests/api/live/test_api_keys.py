"""API keys on a whole server, by the clients that people use."""

from __future__ import annotations

import http.client
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub
import numpy as np
import openai
import pytest
import tritonclient.http as triton
from external_clients import needs_clients, run_script
from huggingface_hub.errors import HfHubHTTPError
from local_server import LocalServer, every_kind_of_model
from serve_process import ROOT
from tritonclient.utils import InferenceServerException

from api.live.conftest import PICTURE
from serve_app.cli.key_file import add, remove
from serve_app_client import Client, ModelNotFound, PermissionDenied, RateLimited, Unauthenticated

pytestmark = pytest.mark.filterwarnings(
    "ignore:Use 'content=:DeprecationWarning"  # Hugging Face's client's own way of calling httpx
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of keys."""
    return tmp_path_factory.mktemp("keys") / "keys.yaml"


@pytest.fixture(scope="module")
def keys(file: Path) -> dict[str, str]:
    """Keys by their names."""
    return {
        "all": add(file, "all", {}),
        "words": add(file, "words", {"models": ["words", "sum_diff"], "highest_class": "normal"}),
        "rare": add(file, "rare", {"rate": "1/h"}),
        "admin": add(file, "admin", {"admin": True}),
    }


@pytest.fixture(scope="module")
def guarded(file: Path, keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server that knows them."""
    args = every_kind_of_model(tmp_path_factory.mktemp("models"))
    args["router"] = {"access": {"keys_file": str(file), "keys_check_s": 0.02}}
    with LocalServer(args) as running:
        yield running


def _openai(server: LocalServer, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_openai(guarded: LocalServer, keys: dict[str, str]) -> None:
    """Its key is where the client's documentation says, and its exceptions are the right ones."""
    with _openai(guarded, keys["words"]) as client:
        assert [model.id for model in client.models.list()] == ["words", "sum_diff"]
        assert len(client.embeddings.create(model="words", input="the cat").data) == 1
        with pytest.raises(openai.NotFoundError) as missing:
            client.embeddings.create(model="moods", input="the cat")
        assert "digits" not in str(missing.value)
        with pytest.raises(openai.PermissionDeniedError):
            client.embeddings.create(model="words", input="the cat", extra_headers={"X-Priority": "high"})
    with _openai(guarded, "sk-none") as client, pytest.raises(openai.AuthenticationError, match="unknown API key"):
        client.models.list()
    with _openai(guarded, keys["rare"]) as client:
        client.models.list()
        with pytest.raises(openai.RateLimitError) as limited:
            client.models.list()
        assert int(limited.value.response.headers["retry-after"]) > 3000
        assert limited.value.code == "rate_limited"


def test_hugging_face(guarded: LocalServer, keys: dict[str, str]) -> None:
    """Its token is the key, at a model's URL and at the server's."""
    for path in ("/models/digits", ""):
        client = huggingface_hub.InferenceClient(model=guarded.url + path, token=keys["all"])
        assert client.image_classification(PICTURE)[0].label == "4"
        with pytest.raises(HfHubHTTPError, match="401"):
            huggingface_hub.InferenceClient(model=guarded.url + path, token="none").image_classification(PICTURE)
    client = huggingface_hub.InferenceClient(model=f"{guarded.url}/models/digits", token=keys["words"])
    with pytest.raises(HfHubHTTPError, match="404"):
        client.image_classification(PICTURE)


def test_triton_http(guarded: LocalServer, keys: dict[str, str]) -> None:
    """Health without a key, the rest with a header."""
    tensors = [triton.InferInput(f"INPUT{at}", [1, 16], "INT32") for at in range(2)]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
    with triton.InferenceServerClient(urlsplit(guarded.url).netloc) as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="an API key is required"):
            client.infer("sum_diff", tensors)
        result = client.infer("sum_diff", tensors, headers={"X-API-Key": keys["words"]})
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), np.full((1, 16), 2))
        with pytest.raises(InferenceServerException, match="requires an API key with admin"):
            client.update_log_settings({"log_info": True}, headers={"X-API-Key": keys["all"]})
        client.update_log_settings({"log_info": True}, headers={"X-API-Key": keys["admin"]})


@needs_clients
def test_triton_and_kserve_grpc(guarded: LocalServer, keys: dict[str, str]) -> None:
    """As metadata."""
    run_script("keys_grpc.py", guarded.grpc, keys["words"])


def test_own_client(guarded: LocalServer, keys: dict[str, str], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an argument or by the environment, and with exceptions of its own."""
    ones = np.ones((1, 16), np.int32)
    inputs = {"INPUT0": ones, "INPUT1": ones}
    with Client(guarded.url, api_key=keys["words"], retry=None) as client:
        assert client.infer("sum_diff", inputs)["OUTPUT0"].sum() == 32
        with pytest.raises(PermissionDenied):
            client.infer("sum_diff", inputs, priority="high")
        with pytest.raises(ModelNotFound):
            client.infer("strings", inputs)
    monkeypatch.setenv("SERVE_APP_API_KEY", keys["all"])
    with Client(guarded.url) as client:
        assert len(client.models()) == 6
    with Client(guarded.url, api_key="", retry=None) as client:
        assert client.ready()
        with pytest.raises(Unauthenticated):
            client.models()
    rare = add(file, "rarer", {"rate": "1/h"})
    with Client(guarded.url, api_key=rare, retry=None) as client:
        _until(lambda: _lets_in(client))
        with pytest.raises(RateLimited):
            client.models()


def test_a_changed_file_counts_without_a_restart(guarded: LocalServer, file: Path) -> None:
    """New keys are let in and revoked ones are not; a broken file changes nothing, and metrics and status tell."""
    first = add(file, "first", {"admin": True})
    with Client(guarded.url, api_key=first, retry=None) as client:
        _until(lambda: _lets_in(client))
        remove(file, "first")
        _until(lambda: not _lets_in(client))
    admin = add(file, "second", {"admin": True})
    with Client(guarded.url, api_key=admin, retry=None) as client:
        _until(lambda: _lets_in(client))
        good = file.read_text()
        _put(file, "keys: [")
        _until(lambda: client.status()["api_keys"]["fault"] != "")
        assert "line 1" in client.status()["api_keys"]["fault"]
        _put(file, good)
        _until(lambda: client.status()["api_keys"]["fault"] == "")
    connection = http.client.HTTPConnection(urlsplit(guarded.url).netloc)
    connection.request("GET", "/metrics", headers={"X-API-Key": admin})
    page = connection.getresponse().read().decode()
    connection.close()
    assert 'serve_app_key_requests_total{key="second",outcome="admitted"}' in page
    assert 'serve_app_key_reloads_total{outcome="failed"} 1.0' in page


def _put(file: Path, text: str) -> None:
    """At once, as whoever writes such a file should."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # each look is a request; the test's own time limit ends it
        pass


def _lets_in(client: Client) -> bool:
    try:
        client.models()
    except Unauthenticated:
        return False
    return True


def test_no_key_is_logged_or_shown(
    guarded: LocalServer, keys: dict[str, str], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever was asked with whatever key, at every level of logging."""
    caplog.set_level(logging.DEBUG)
    wrong = [
        "sa_wrongwrongwrongwrong",
        "Basic c2VjcmV0c2VjcmV0",
        "Bearer a b",
        "Bearer",
        "\xe9secretsecret",
        "x" * 5000,
    ]
    secrets = [*keys.values(), *(word for value in wrong for word in value.split() if len(word) > 8)]
    shown: list[Any] = []
    connection = http.client.HTTPConnection(urlsplit(guarded.url).netloc)
    for value in [*keys.values(), *wrong]:
        for header in ({"X-API-Key": value}, {"Authorization": f"Bearer {value}"}, {"Authorization": value}):
            for method, path in [
                ("POST", "/v2/models/sum_diff/infer"),
                ("POST", "/v1/models/digits/predict"),
                ("POST", "/v1/embeddings"),
                ("GET", "/status"),
                ("GET", "/metrics"),
                ("GET", "/nothing"),
            ]:
                connection.request(method, path, body=b"{" if method == "POST" else None, headers=header)
                reply = connection.getresponse()
                shown.append((str(reply.headers), reply.read().decode()))
    connection.close()
    hashes = [line.split(":")[-1].strip() for line in file.read_text().splitlines() if "hash" in line]
    logged = [record for record in caplog.records if record.name.split(".")[0] not in {"httpx", "httpcore", "openai"}]
    everything = repr(shown) + "".join(f"{record.getMessage()} {record.exc_text}" for record in logged)
    assert len(hashes) >= 4
    for secret in [*secrets, *hashes]:
        assert secret not in everything


def test_nothing_that_clients_name_is_opened(tmp_path: Path) -> None:
    """Paths and URLs in every input, on a server of its own that tells what it opens."""
    script = Path(__file__).with_name("opened_by_clients.py")
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
