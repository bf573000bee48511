"""Triton's gRPC clients with a model that answers in parts, as their users use them. Takes an address."""

from __future__ import annotations

import asyncio
import queue
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

MODEL = "count_down"
FINAL = "triton_final_response"


def start(number: int) -> list[triton.InferInput]:
    """The number to count down from."""
    made = triton.InferInput("INPUT0", [1, 1], "INT32")
    made.set_data_from_numpy(np.array([[number]], np.int32))
    return [made]


def told(result: triton.InferResult) -> tuple[str, list[int], bool]:
    """The id, the number if there is one, and whether it is the last response."""
    response = result.get_response()
    array = result.as_numpy("OUTPUT0")
    return response.id, [] if array is None else array.reshape(-1).tolist(), response.parameters[FINAL].bool_param


def configuration(client: triton.InferenceServerClient) -> None:
    """By which clients know what to expect."""
    config = client.get_model_config(MODEL, as_json=True)["config"]
    assert config["model_transaction_policy"] == {"decoupled": True}, config


def stream(client: triton.InferenceServerClient) -> None:
    """Several requests at once, each answered until its last response says so."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in (3, 0, 5):
        client.async_stream_infer(MODEL, start(number), request_id=str(number), enable_empty_final_response=True)
    seen: dict[str, list[int]] = {"3": [], "0": [], "5": []}
    ended: set[str] = set()
    while ended != set(seen):
        result, error = answers.get(timeout=30)
        assert error is None, error
        request_id, numbers, final = told(result)
        assert request_id not in ended
        assert final == (not numbers)
        seen[request_id] += numbers
        if final:
            ended.add(request_id)
    assert seen == {"3": [3, 2, 1], "0": [], "5": [5, 4, 3, 2, 1]}, seen
    client.async_stream_infer(MODEL, start(2), request_id="2")  # which wants no empty one
    for number in (2, 1):
        result, error = answers.get(timeout=30)
        assert error is None, error
        assert told(result) == ("2", [number], False)
    client.async_stream_infer(MODEL, start(-4), request_id="-4")
    result, error = answers.get(timeout=30)
    assert told(result) == ("-4", [4], False), error
    result, error = answers.get(timeout=30)
    assert "it broke" in str(error), error
    client.stop_stream()


def cancelled(client: triton.InferenceServerClient) -> None:
    """A stream that is cut off ends."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer(MODEL, start(1_000_000_000))
    answers.get(timeout=30)
    client.stop_stream(cancel_requests=True)


async def asynchronous(address: str) -> None:
    """The asyncio client."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in (2, 3):
            yield {
                "model_name": MODEL,
                "inputs": start(number),
                "request_id": str(number),
                "enable_empty_final_response": True,
            }

    seen: dict[str, list[int]] = {"2": [], "3": []}
    async with triton_aio.InferenceServerClient(address) as client:
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            request_id, numbers, _ = told(result)
            seen[request_id] += numbers
    assert seen == {"2": [2, 1], "3": [3, 2, 1]}, seen


def main(address: str) -> None:
    """Check everything."""
    with triton.InferenceServerClient(address) as client:
        for each in (configuration, stream, cancelled):
            each(client)
            print("ok", each.__name__, flush=True)
    asyncio.run(asynchronous(address))
    print("ok asynchronous", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
