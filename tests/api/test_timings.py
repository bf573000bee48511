"""What an answer tells of the time that it took: the Server-Timing header, and the request parameter ``timings``."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from api.protocol_service import NumpyService
from serve_app.api.replies import server_timing, timings
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer

REQUEST: dict[str, Any] = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
ANSWER = Answer(
    {}, Priority.HIGH, 0.0012344, 0.5, timeout_s=4.9999996, preprocess_s=0.00001, infer_s=0.25, postprocess_s=0.000002
)
HEADER = "queue;dur=1.234, preprocess;dur=0.010, infer;dur=250.000, postprocess;dur=0.002, total;dur=500.000"


def test_the_header_is_in_milliseconds() -> None:
    """As the Server-Timing specification has it."""
    assert server_timing(ANSWER).decode() == HEADER


def test_the_parameters_are_in_microseconds() -> None:
    """As V2's own timeout is."""
    assert timings(ANSWER) == {
        "priority": 1,
        "timeout": 5_000_000,
        "queue_us": 1234,
        "preprocess_us": 10,
        "infer_us": 250_000,
        "postprocess_us": 2,
    }


@pytest.mark.parametrize("variant", ["", "int8"])
async def test_infer_tells_them_when_asked(client: httpx.AsyncClient, service: NumpyService, variant: str) -> None:
    """Beside the name of the variant that answered, where it is not the exact model."""
    service.took = ANSWER
    parameters = {"timings": True, "variant": variant, "priority": 1}

    reply = await client.post("/v2/models/double/infer", json={**REQUEST, "parameters": parameters})

    expected = timings(ANSWER) if not variant else {"variant": variant, **timings(ANSWER)}
    assert reply.json()["parameters"] == expected
    assert reply.headers["server-timing"] == HEADER


async def test_infer_tells_nothing_unasked(client: httpx.AsyncClient) -> None:
    """Clients that compare responses are not surprised."""
    reply = await client.post("/v2/models/double/infer", json=REQUEST)

    assert "parameters" not in reply.json()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/double/infer", REQUEST),
        ("/v1/models/moods/predict", {"inputs": "fine"}),
        ("/v1/embeddings", {"model": "sentences", "input": "fine"}),
    ],
)
async def test_every_answer_has_the_header(
    client: httpx.AsyncClient, service: NumpyService, path: str, body: dict[str, Any]
) -> None:
    """Whatever the protocol."""
    service.took = ANSWER

    reply = await client.post(path, json=body)

    assert reply.status_code == 200
    assert reply.headers["server-timing"] == HEADER
