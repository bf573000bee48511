"""Triton's gRPC client, sync, asyncio and streaming, as its users use it. Takes an address; fails with a traceback."""

from __future__ import annotations

import asyncio
import queue
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

FIRST = np.arange(32, dtype=np.int32).reshape(2, 16)
SECOND = np.full((2, 16), 3, np.int32)
TEXTS = np.array([["a", "ü"], ["", "ß" * 50]], np.object_)


def tensor(name: str, array: Any, datatype: str) -> triton.InferInput:
    """An input."""
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def numbers(first: Any = FIRST) -> list[triton.InferInput]:
    """Inputs of the model `sum_diff`."""
    return [tensor("INPUT0", first, "INT32"), tensor("INPUT1", SECOND, "INT32")]


def check(result: triton.InferResult, first: Any = FIRST) -> None:
    """The outputs of `sum_diff` are right."""
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + SECOND)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - SECOND)


def failure(call: Any, *arguments: Any, **options: Any) -> str:
    """The status of a call that must fail."""
    try:
        call(*arguments, **options)
    except InferenceServerException as error:
        return str(error.status())
    raise AssertionError(f"{call.__name__} should have failed")


def health_and_metadata(client: triton.InferenceServerClient) -> None:
    """What clients ask before they start."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("sum_diff")
    assert client.is_model_ready("sum_diff", "1")
    assert not client.is_model_ready("nothing")
    assert "statistics" in client.get_server_metadata().extensions
    metadata = client.get_model_metadata("sum_diff", as_json=True)
    assert [each["name"] for each in metadata["inputs"]] == ["INPUT0", "INPUT1"], metadata
    assert metadata["inputs"][0]["shape"] == ["-1", "16"], metadata
    config = client.get_model_config("sum_diff", as_json=True)["config"]
    assert config["input"][0] == {"name": "INPUT0", "data_type": "TYPE_INT32", "dims": ["16"]}, config
    assert config["max_batch_size"] > 0
    index = client.get_model_repository_index(as_json=True)["models"]
    assert {"sum_diff", "string_identity"} <= {each["name"] for each in index}


def inference(client: triton.InferenceServerClient) -> None:
    """Numbers and strings, with options."""
    check(client.infer("sum_diff", numbers()))
    outputs = [triton.InferRequestedOutput("OUTPUT1")]
    result = client.infer(
        "sum_diff", numbers(), outputs=outputs, request_id="7", model_version="1", priority=1, timeout=5_000_000
    )
    assert (result.get_response().id, len(result.get_response().outputs)) == ("7", 1)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - SECOND)
    result = client.infer("string_identity", [tensor("INPUT0", TEXTS, "BYTES")], headers={"x-priority": "low"})
    assert [item.decode() for item in result.as_numpy("OUTPUT0").reshape(-1)] == TEXTS.reshape(-1).tolist()
    check(client.infer("sum_diff", numbers(), compression_algorithm="gzip"))
    check(client.infer("sum_diff", numbers(), client_timeout=10.0))


def typed_contents(client: triton.InferenceServerClient) -> None:
    """As Triton's examples with explicit contents build their messages, and read raw answers to them."""
    request = service_pb2.ModelInferRequest(model_name="sum_diff")
    for name in ("INPUT0", "INPUT1"):
        made = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        made.contents.int_contents.extend(range(16))
    answer = client._client_stub.ModelInfer(request)
    np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], np.int32), 2 * np.arange(16))


def at_once(client: triton.InferenceServerClient) -> None:
    """`async_infer`: callbacks from gRPC's threads."""
    answers: queue.Queue[Any] = queue.Queue()
    for number in range(20):
        first = np.full((2, 16), number, np.int32)
        client.async_infer(
            "sum_diff", numbers(first), lambda result, error, first=first: answers.put((result, error, first))
        )
    for _ in range(20):
        result, error, first = answers.get(timeout=30)
        assert error is None, error
        check(result, first)


def stream(client: triton.InferenceServerClient) -> None:
    """Answers in the order of requests; one that fails leaves the stream open."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(30):
        model = "nothing" if number == 10 else "sum_diff"
        client.async_stream_infer(model, numbers(np.full((2, 16), number, np.int32)), request_id=str(number))
    for number in range(30):
        result, error = answers.get(timeout=30)
        if number == 10:
            assert "nothing" in str(error), error
            continue
        assert error is None, error
        assert result.get_response().id == str(number)
        check(result, np.full((2, 16), number, np.int32))
    client.stop_stream()


def faults(client: triton.InferenceServerClient) -> None:
    """Statuses as the client shows them."""
    assert failure(client.infer, "nothing", numbers()) == "StatusCode.NOT_FOUND"
    assert failure(client.infer, "sum_diff", numbers()[:1]) == "StatusCode.INVALID_ARGUMENT"
    assert failure(client.infer, "sum_diff", numbers(), model_version="9") == "StatusCode.NOT_FOUND"
    check(client.infer("sum_diff", numbers(), priority=9))  # more levels than classes: the lowest
    assert failure(client.infer, "sum_diff", numbers(), sequence_id=3) == "StatusCode.UNIMPLEMENTED"
    assert (
        failure(client.infer, "sum_diff", numbers(), headers={"x-timeout-ms": "0.001"})
        == "StatusCode.DEADLINE_EXCEEDED"
    )
    assert failure(client.get_model_config, "nothing") == "StatusCode.NOT_FOUND"
    assert failure(client.load_model, "sum_diff") == "StatusCode.PERMISSION_DENIED"
    assert failure(client.unload_model, "sum_diff") == "StatusCode.PERMISSION_DENIED"
    assert failure(client.register_system_shared_memory, "r", "/r", 64) == "StatusCode.UNIMPLEMENTED"


def extensions(client: triton.InferenceServerClient) -> None:
    """Questions that need an answer, if only an empty one."""
    assert not client.get_system_shared_memory_status().regions
    assert not client.get_cuda_shared_memory_status().regions
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    client.get_trace_settings()
    client.get_log_settings()
    (before,) = client.get_inference_statistics("sum_diff").model_stats
    client.infer("sum_diff", numbers())
    (after,) = client.get_inference_statistics("sum_diff").model_stats
    assert after.inference_stats.success.count >= before.inference_stats.success.count
    assert {"sum_diff", "string_identity"} <= {each.name for each in client.get_inference_statistics().model_stats}


async def asynchronous(address: str) -> None:
    """The asyncio client: calls, many at once, and a stream."""
    async with triton_aio.InferenceServerClient(address) as client:
        assert await client.is_server_ready()
        firsts = [np.full((2, 16), number, np.int32) for number in range(50)]
        results = await asyncio.gather(*(client.infer("sum_diff", numbers(first)) for first in firsts))
        for first, result in zip(firsts, results, strict=True):
            check(result, first)

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for number, first in enumerate(firsts):
                yield {"model_name": "sum_diff", "inputs": numbers(first), "request_id": str(number)}

        seen = 0
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            assert result.get_response().id == str(seen)
            check(result, firsts[seen])
            seen += 1
        assert seen == len(firsts)


def main(address: str) -> None:
    """Check everything."""
    with triton.InferenceServerClient(address) as client:
        for each in (health_and_metadata, inference, typed_contents, at_once, stream, faults, extensions):
            each(client)
            print("ok", each.__name__, flush=True)
    asyncio.run(asynchronous(address))
    print("ok asynchronous", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
