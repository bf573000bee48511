"""What calls send, without sending it, and what nonsense they refuse."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app import __version__
from serve_app_client import AsyncClient, Client, PredictResult, Retry, ServeAppClientError
from serve_app_client.calls import Answer, Call, Calls, default_headers
from serve_app_client.connection import Connection, checked_url
from serve_app_client.hedging import Latencies, Percentile
from serve_app_client.results import Served

CALLS = Calls(default_headers("secret", {"X-Team": "a"}), priority="low")
X = {"x": np.zeros((1, 4), np.float32)}


def test_options_become_headers() -> None:
    """The same ones for all protocols."""
    call = CALLS.infer(
        "a/b",
        X,
        ["y"],
        "1",
        {"priority": "high", "variant": "int8", "fallback": False, "request_id": "r-1"},
        timings=True,
    )
    assert call.path == "/v2/models/a%2Fb/versions/1/infer"
    assert dict(call.headers) == {
        "user-agent": f"serve-app-python/{__version__}",
        "accept-encoding": "identity",
        "authorization": "Bearer secret",
        "x-team": "a",
        "x-priority": "high",
        "x-variant": "int8",
        "x-fallback": "never",
        "x-request-id": "r-1",
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(call.content.index(b"\0")),
    }
    head = orjson.loads(call.content[: call.content.index(b"\0")])
    assert (head["outputs"], head["parameters"]) == ([{"name": "y"}], {"binary_data_output": True, "timings": True})


def test_defaults_are_the_clients() -> None:
    """What a call does not name."""
    call = CALLS.predict("m", "text", None, None, {})
    assert (call.headers["x-priority"], len(call.request_id)) == ("low", 32)
    assert call.request_id != CALLS.predict("m", "text", None, None, {}).request_id


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": "urgent"}, "priority: expected one of high, normal, low"),
        ({"request_id": "a b"}, "request_id"),
        ({"request_id": "a\r\nx: y"}, "request_id"),
        ({"variant": "ä"}, "variant"),
        ({"variant": "a\r\nx: y"}, "variant"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_nonsense_options_are_refused(options: Any, message: str) -> None:
    """Here, where the traceback shows the line that is wrong."""
    with pytest.raises(ValueError, match=message):
        CALLS.embed("x", "m", None, options)


@pytest.mark.parametrize(
    ("given_url", "expected"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h/prefix/", "http://h/prefix"),
        ("https://h", "https://h"),
    ],
)
def test_addresses(given_url: str, expected: str) -> None:
    """With or without the scheme."""
    assert checked_url(given_url) == expected


@pytest.mark.parametrize("url", ["grpc://h:1", "http://", "://"])
def test_other_addresses_are_refused(url: str) -> None:
    """HTTP is what is spoken here."""
    with pytest.raises(ValueError, match="url: expected"):
        checked_url(url)


def test_address_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none is given; otherwise that of a server started with its defaults."""
    monkeypatch.setenv("SERVE_APP_URL", "somewhere:1")
    assert repr(Client()) == "Client('http://somewhere:1')"
    monkeypatch.delenv("SERVE_APP_URL")
    assert repr(AsyncClient()) == "AsyncClient('http://127.0.0.1:8000')"


@pytest.mark.parametrize(
    "settings",
    [
        {"priority": "urgent"},
        {"timeout": 0.0},
        {"patience": float("nan")},
        {"api_key": "a\r\nx: y"},
        {"api_key": "ключ"},
        {"headers": {"x": "a\n"}},
    ],
)
def test_nonsense_settings_are_refused(settings: Any) -> None:
    """When the client is made."""
    with pytest.raises(ValueError, match="expected"):
        Client("h", **settings)


def test_a_key_that_cannot_be_sent_is_not_shown() -> None:
    """It is a secret all the same. Names of headers are none."""
    with pytest.raises(ValueError, match="api_key") as caught:
        Client("h", api_key="secret\n")
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="'a b' is no name"):
        Client("h", headers={"a b": "x"})


@pytest.mark.parametrize("name", [".", "..", "a/b", "?"])
def test_a_name_is_one_segment_of_the_path(name: str) -> None:
    """Whatever it is made of, it leads nowhere else."""
    path = CALLS.model(name, name).path
    assert path == httpx.URL("http://h").join(path).raw_path.decode()
    assert unquote(path) == f"/v2/models/{name}/versions/{name}"


@pytest.mark.parametrize("wanted", [-1.0, float("nan"), float("inf")])
def test_nonsense_hedging_is_refused(wanted: float) -> None:
    """When the client is made."""
    with pytest.raises(ValueError, match="hedge_after"):
        AsyncClient("h", hedge_after=wanted)


_READS: list[Call[Any]] = [
    CALLS.infer("m", X, None, None, {}, timings=True),
    CALLS.predict("m", "x", None, None, {}),
    CALLS.embed("x", "m", None, {}),
    CALLS.models(),
    CALLS.model("m", None),
    CALLS.status(),
    CALLS.statistics("m"),
    CALLS.live(1.0),
    CALLS.ready("m", 1.0),
]
_KEYS = st.sampled_from(
    [
        *("data", "index", "embedding", "models", "name", "version", "task", "ready", "inputs", "outputs", "versions"),
        *("parameters", "queue_us", "timeout", "model_stats", "shape", "datatype"),
    ]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "AACAPw==", "?"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(
    call=st.sampled_from(_READS),
    status=st.sampled_from([200, 200, 200, 204, 302, 404, 503]),
    body=_JSON.map(orjson.dumps) | st.binary(max_size=20),
)
def test_any_answer_is_read_or_refused(call: Call[Any], status: int, body: bytes) -> None:
    """Whatever a server that is not ours answers, what comes of it is a result or an error of this package."""
    with contextlib.suppress(ServeAppClientError):
        call.read(Answer(status, {}, body))


def test_typed_views_of_answers() -> None:
    """Labels, lists of labels and arrays; and a clear error for another form."""
    best = {"label": "7", "score": 0.5}
    result = PredictResult([best], Served())
    assert result.labels[0] == ("7", 0.5)
    assert PredictResult([[best]], Served()).labels == result.labels
    assert PredictResult([[best], [best]], Served()).label_lists == [result.labels, result.labels]
    assert PredictResult([[1.0, 2.0]], Served()).array.shape == (1, 2)
    for value in ({"a": 1}, [1.0], "x", None):
        with pytest.raises(TypeError, match="the answer holds no labels"):
            _ = PredictResult(value, Served()).labels
    with pytest.raises(TypeError, match="no numbers alone"):
        _ = result.array
    with pytest.raises(TypeError, match="no lists of labels"):
        _ = PredictResult(None, Served()).label_lists


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=300), st.floats(0.01, 0.99), st.integers(1, 50))
def test_percentile_of_the_latest_calls(seconds: list[float], part: float, samples: int) -> None:
    """So many of them took no longer; and nothing is hedged before there are enough."""
    latencies = Latencies()
    for taken in seconds:
        latencies.add("m", taken)
    after = latencies.hedge_after("m", Percentile(part, samples))
    latest = seconds[-200:]
    if len(latest) < samples:
        assert after is None
    else:
        assert after in latest
        assert sum(taken <= after for taken in latest) >= part * len(latest) - 1e-9
    assert latencies.hedge_after("other", Percentile(part, samples)) is None


@pytest.mark.parametrize("arguments", [(0.0,), (1.0,), (0.5, 0), (0.5, 201)])
def test_nonsense_percentiles_are_refused(arguments: Any) -> None:
    """They would hedge never, or everything."""
    with pytest.raises(ValueError, match="expected"):
        Percentile(*arguments)


def test_no_retries_at_all() -> None:
    """`None` is one attempt."""
    assert Connection("h", retry=None).retry == Retry(attempts=1)
