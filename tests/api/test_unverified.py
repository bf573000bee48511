"""An answer that may have shared a run without proof says so, by whatever route it was asked for."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from api.protocol_service import NumpyService
from api.rpc.conftest import FOUR

TENSORS = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": FOUR.ravel().tolist()}]}
ROUTES = [
    ("/v2/models/double/infer", TENSORS),
    ("/v1/models/pictures/predict", {"inputs": "AAAA"}),
    ("/v1/models/sentences/predict", {"inputs": "a"}),
    ("/v1/embeddings", {"model": "sentences", "input": "a"}),
]


@pytest.mark.parametrize("unverified", [True, False])
@pytest.mark.parametrize(("path", "body"), ROUTES, ids=[path for path, _ in ROUTES])
async def test_every_route_says_it_in_a_header(
    client: httpx.AsyncClient, service: NumpyService, path: str, body: Any, unverified: bool
) -> None:
    """And of what is proven, nothing."""
    service.took = replace(service.took, unverified=unverified)
    answer = await client.post(path, json=body)
    assert (200, "batch" if unverified else None) == (answer.status_code, answer.headers.get("x-unverified"))


async def test_v2_says_it_in_the_parameters(client: httpx.AsyncClient, service: NumpyService) -> None:
    """Beside the variant that answered."""
    service.took = replace(service.took, unverified=True)
    body = TENSORS | {"parameters": {"variant": "int8"}}
    answer = await client.post("/v2/models/double/infer", json=body)
    assert {"variant": "int8", "unverified": "batch"} == answer.json()["parameters"]


async def test_the_description_of_the_routes_knows_the_header(client: httpx.AsyncClient) -> None:
    """As one of those that answers of models may have."""
    described = (await client.get("/openapi.json")).json()
    answer = described["paths"]["/v1/models/{model}/predict"]["post"]["responses"]["200"]
    assert ["batch"] == described["components"]["headers"]["X-Unverified"]["schema"]["enum"]
    assert "X-Unverified" in answer["headers"]
