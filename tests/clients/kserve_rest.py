"""KServe's Python REST client against a server: run by `test_kserve_rest`, in the environment that has KServe.

Usage: python kserve_rest.py http://host:port
"""

from __future__ import annotations

import asyncio
import sys

import httpx
import numpy as np
import pytest
from kserve import (  # in the clients' environment only
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)
from kserve.protocol.infer_type import RequestedOutput


async def _infer(client: InferenceRESTClient, url: str, *, binary: bool) -> None:
    values = np.arange(16, dtype=np.int32).reshape(1, 16)
    inputs = [InferInput(name, list(values.shape), "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor in inputs:
        tensor.set_data_from_numpy(values, binary_data=binary)
    wanted = RequestedOutput("OUTPUT0", {"binary_data": binary})
    request = InferRequest("simple", inputs, request_id="seven", request_outputs=[wanted])
    answered: dict[str, str] = {}

    response = await client.infer(url, request, model_name="simple", response_headers=answered)

    (output,) = response.outputs
    assert (response.id, response.model_name) == ("seven", "simple")
    assert output.name == "OUTPUT0"
    assert np.array_equal(2 * values, output.as_numpy()), output.as_numpy()
    assert ("inference-header-content-length" in answered) is binary


async def _all(url: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    assert await client.is_server_live(url) is True
    assert await client.is_server_ready(url) is True
    assert await client.is_model_ready(url, "simple") is True
    for binary in (False, True):
        await _infer(client, url, binary=binary)
    with pytest.raises(httpx.HTTPStatusError, match="there is no 'nothing' here") as caught:
        await client.infer(url, {"inputs": []}, model_name="nothing")
    assert caught.value.response.status_code == 404
    await client.close()


if __name__ == "__main__":
    asyncio.run(_all(sys.argv[1]))
