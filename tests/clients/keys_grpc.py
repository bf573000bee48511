"""Triton's gRPC client, sync and streaming, with an API key. Takes an address and the key; fails with a traceback."""

from __future__ import annotations

import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException


def inputs() -> list[triton.InferInput]:
    """Of the model `sum_diff`."""
    made = [triton.InferInput(f"INPUT{at}", [1, 16], "INT32") for at in range(2)]
    for tensor in made:
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
    return made


def refused(headers: dict[str, str], model: str, **options: Any) -> str:
    """The status of a call that must fail."""
    try:
        client.infer(model, inputs(), headers=headers, **options)
    except InferenceServerException as error:
        return str(error.status())
    raise AssertionError(f"{model} should have been refused")


address, key = sys.argv[1:]
client = triton.InferenceServerClient(address)
assert client.is_server_live()
assert client.is_server_ready()
assert refused({}, "sum_diff") == "StatusCode.UNAUTHENTICATED"
assert refused({"x-api-key": "wrong"}, "sum_diff") == "StatusCode.UNAUTHENTICATED"
for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
    result = client.infer("sum_diff", inputs(), headers=headers)
    assert result.as_numpy("OUTPUT0").tolist() == [[2] * 16]
    assert refused(headers, "strings") == "StatusCode.NOT_FOUND"
    assert refused(headers, "sum_diff", priority=1) == "StatusCode.PERMISSION_DENIED"
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)  # noqa: B023
    client.async_stream_infer("sum_diff", inputs())
    result, error = answers.get(timeout=20)
    assert error is None, error
    client.stop_stream()
client.close()
