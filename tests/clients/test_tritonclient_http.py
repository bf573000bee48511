"""NVIDIA's HTTP client, unmodified: every call that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from client_models import TYPES
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

ROWS = 3


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    """A client of the server."""
    with triton.InferenceServerClient(address) as client:
        yield client


def _input(name: str, datatype: str, array: npt.NDArray[Any], *, binary: bool = True) -> triton.InferInput:
    tensor = triton.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def _values(datatype: str) -> npt.NDArray[Any]:
    if datatype == "BYTES":
        return np.array([["", "é"], ["a" * 300, "b"], ["c", "d"]], dtype=np.object_)
    return (np.arange(2 * ROWS).reshape(ROWS, 2) % 2).astype(triton_to_np_dtype(datatype))


def test_health(client: triton.InferenceServerClient) -> None:
    """All three."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("nothing")


def test_metadata(client: triton.InferenceServerClient) -> None:
    """Of the server and of a model, and the model's configuration and state."""
    assert {"binary_tensor_data", "classification", "statistics"} <= set(client.get_server_metadata()["extensions"])
    metadata = client.get_model_metadata("simple", "1")
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    config = client.get_model_config("simple")
    assert (config["max_batch_size"], config["model_transaction_policy"]) == (8, {"decoupled": False})
    levels = config["dynamic_batching"]["priority_queue_policy"]
    assert levels["1"]["default_timeout_microseconds"] == 1_000_000  # the class high's own
    index = {model["name"]: model["state"] for model in client.get_model_repository_index()}
    assert index["simple"] == "READY"
    formats = {name: client.get_model_config(name)["input"][0]["format"] for name in ("simple", "image_logits")}
    assert formats == {"simple": "FORMAT_NONE", "image_logits": "FORMAT_NCHW"}


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_infer(client: triton.InferenceServerClient, binary: bool, compression: str | None) -> None:
    """In binary and in JSON, compressed both ways or not, with the outputs that are asked for."""
    values = np.arange(16 * ROWS, dtype=np.int32).reshape(ROWS, 16)
    result = client.infer(
        "simple",
        [_input(name, "INT32", values, binary=binary) for name in ("INPUT0", "INPUT1")],
        model_version="1",
        outputs=[triton.InferRequestedOutput("OUTPUT1", binary_data=binary)],
        request_id="seven",
        priority=1,
        timeout=5_000_000,
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
        parameters={"timings": True},
    )

    assert np.array_equal(values - values, result.as_numpy("OUTPUT1"))
    assert result.as_numpy("OUTPUT0") is None
    response = result.get_response()
    assert (response["id"], response["model_version"]) == ("seven", "1")
    assert response["parameters"]["priority"] == 1
    assert 0 < response["parameters"]["timeout"] <= 5_000_000


@pytest.mark.parametrize("rows", [1, 60])
@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_answers_are_compressed_where_it_is_worth_it(
    client: triton.InferenceServerClient, rows: int, compression: str
) -> None:
    """Small ones stay as they are; the client reads both."""
    values = np.zeros((rows, 1000), np.float32)
    result = client.infer("wide", [_input("x", "FP32", values)], response_compression_algorithm=compression)

    assert np.array_equal(values + 1, result.as_numpy("y"))


@pytest.mark.parametrize("datatype", TYPES)
@pytest.mark.parametrize("binary", [True, False])
def test_every_datatype_survives(client: triton.InferenceServerClient, datatype: str, binary: bool) -> None:
    """Both ways; the client itself takes no FP16 in JSON."""
    values = {name: _values(name) for name in TYPES}
    inputs = [_input(f"in_{name}", name, array, binary=binary or name == "FP16") for name, array in values.items()]
    outputs = [triton.InferRequestedOutput(f"out_{datatype}", binary_data=binary)]

    got = client.infer("mirror", inputs, outputs=outputs).as_numpy(f"out_{datatype}")

    if datatype == "BYTES" and binary:
        got = np.vectorize(bytes.decode, otypes=[object])(got)
    assert np.array_equal(values[datatype], got)


def test_bfloat16(client: triton.InferenceServerClient) -> None:
    """In binary, through a model that computes with it."""
    values = np.array([[1.5, -2.0], [0.25, 1024.0]], np.float32)

    result = client.infer("bfloat16", [_input("x", "BF16", values)])

    assert np.array_equal(2 * values, result.as_numpy("y"))
    assert np.array_equal(values / 2, result.as_numpy("half"))


@pytest.mark.parametrize("binary", [True, False])
def test_classification(client: triton.InferenceServerClient, binary: bool) -> None:
    """Values, places and labels; one list of them per row."""
    pixels = np.zeros((2, 3, 32, 32), np.float32)
    pixels[0, 1], pixels[1, 2] = 0.5, 0.25
    outputs = [triton.InferRequestedOutput("logits", binary_data=binary, class_count=2)]

    got = client.infer("image_logits", [_input("pixels", "FP32", pixels)], outputs=outputs).as_numpy("logits")

    texts = [[text.decode() if isinstance(text, bytes) else text for text in row] for row in got]
    assert texts == [["0.500000:1:green", "0.000000:0:red"], ["0.250000:2:blue", "0.000000:0:red"]]


def test_raw_requests(client: triton.InferenceServerClient) -> None:
    """The body is the only input; the client has no call of its own for it, only this one."""
    values = np.arange(5, dtype=np.float32)
    response = client._post(
        request_uri="v2/models/wide/infer",
        request_body=values.tobytes(),
        headers={"Inference-Header-Content-Length": "0"},
        query_params=None,
    )
    length = int(response["Inference-Header-Content-Length"])
    result = triton.InferenceServerClient.parse_response_body(response.read(), header_length=length)

    assert np.array_equal([values + 1], result.as_numpy("y"))


def test_async_infer(address: str) -> None:
    """Several at once, from green threads."""
    values = np.ones((1, 16), np.int32)
    inputs = [_input(name, "INT32", values) for name in ("INPUT0", "INPUT1")]
    with triton.InferenceServerClient(address, concurrency=4) as client:
        asked = [client.async_infer("simple", inputs, request_id=str(number)) for number in range(8)]
        ids = [request.get_result().get_response()["id"] for request in asked]

    assert ids == [str(number) for number in range(8)]


async def test_the_asyncio_client(address: str) -> None:
    """The same calls."""
    values = np.ones((1, 16), np.int32)
    inputs = [_input(name, "INT32", values) for name in ("INPUT0", "INPUT1")]
    async with triton_aio.InferenceServerClient(address) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("simple")
        assert (await client.get_server_metadata())["name"] == "serve-app"
        assert (await client.get_model_metadata("simple"))["name"] == "simple"
        assert (await client.get_model_config("simple"))["name"] == "simple"
        assert await client.get_model_repository_index()
        assert (await client.get_log_settings())["log_error"] is True
        for compression in (None, "gzip", "deflate"):
            result = await client.infer(
                "simple",
                inputs,
                request_compression_algorithm=compression,
                response_compression_algorithm=compression,
            )
            assert np.array_equal(values + values, result.as_numpy("OUTPUT0"))
        statistics = await client.get_inference_statistics("simple")
        assert statistics["model_stats"][0]["inference_count"] >= 3
        with pytest.raises(InferenceServerException, match=r"^\[404\] Request for unknown model"):
            await client.infer("nothing", inputs)


def test_statistics(client: triton.InferenceServerClient) -> None:
    """Rows are inferences, runs are executions, and every run is told by its size."""
    before = client.get_inference_statistics("wide", "1")["model_stats"][0]
    client.infer("wide", [_input("x", "FP32", np.ones((4, 2), np.float32))])
    after = client.get_inference_statistics("wide")["model_stats"][0]

    assert after["inference_count"] - before["inference_count"] == 4
    assert after["execution_count"] - before["execution_count"] == 1
    assert after["last_inference"] > 1_600_000_000_000
    sizes = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in after["batch_stats"]}
    assert sizes[4] >= 1
    durations = after["inference_stats"]
    assert set(durations) == {
        *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    }
    assert durations["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    every = client.get_inference_statistics()["model_stats"]
    assert {"simple", "wide", "mirror"} <= {model["name"] for model in every}


def test_log_settings(client: triton.InferenceServerClient) -> None:
    """What can be changed is, and the rest is refused by name."""
    settings = client.get_log_settings()
    try:
        assert client.update_log_settings({"log_verbose_level": 1, "log_info": True})["log_verbose_level"] == 1
        assert client.update_log_settings({"log_verbose_level": 0})["log_verbose_level"] == 0
    finally:
        client.update_log_settings({"log_info": settings["log_info"]})
    with pytest.raises(InferenceServerException, match="log_file cannot be changed"):
        client.update_log_settings({"log_file": "/tmp/x"})


def test_trace_settings(client: triton.InferenceServerClient) -> None:
    """Nothing is traced, and nothing else can be had."""
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.update_trace_settings("simple", {"trace_level": ["OFF"]})["trace_level"] == ["OFF"]
    assert client.update_trace_settings(settings={"trace_rate": None})["trace_level"] == ["OFF"]
    with pytest.raises(InferenceServerException, match="requests are not traced here"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})


REFUSED: list[tuple[str, Callable[[triton.InferenceServerClient], object]]] = [
    ("by the server's own", lambda client: client.load_model("simple", config="{}")),
    ("register is not served here", lambda client: client.register_system_shared_memory("r", "/key", 64)),
    ("register is not served here", lambda client: client.register_cuda_shared_memory("r", b"handle", 0, 64)),
]


@pytest.mark.parametrize(("message", "call"), REFUSED)
def test_what_is_not_served_is_refused(
    client: triton.InferenceServerClient, message: str, call: Callable[[triton.InferenceServerClient], object]
) -> None:
    """With 501 and the reason."""
    with pytest.raises(InferenceServerException, match=message) as caught:
        call(client)
    assert caught.value.status() == "501"


def test_no_memory_is_shared(client: triton.InferenceServerClient) -> None:
    """Examples clean up before they begin: that is fine, there is nothing to do."""
    assert client.get_system_shared_memory_status() == []
    assert client.get_cuda_shared_memory_status() == []
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory("region")
    with pytest.raises(InferenceServerException, match="no shared-memory region 'region'"):
        client.get_system_shared_memory_status("region")
    tensor = triton.InferInput("x", [1, 2], "FP32")
    tensor.set_shared_memory("region", 8)
    with pytest.raises(InferenceServerException, match="shared memory is not supported here"):
        client.infer("wide", [tensor])


@pytest.mark.parametrize(
    ("model", "inputs", "message", "status"),
    [
        ("nothing", [_input("x", "FP32", np.ones((1, 2), np.float32))], "there is no 'nothing' here", "404"),
        ("wide", [_input("x", "FP64", np.ones((1, 2)))], "input 'x' takes FP32; got 'FP64'", "400"),
        ("wide", [_input("x", "FP32", np.ones((2,), np.float32))], "input 'x' has the shape", "400"),
    ],
)
def test_errors_say_what_is_wrong(
    client: triton.InferenceServerClient, model: str, inputs: list[Any], message: str, status: str
) -> None:
    """The client shows our messages and our statuses."""
    with pytest.raises(InferenceServerException, match=message) as caught:
        client.infer(model, inputs)
    assert caught.value.status() == status
