"""Every way in tells the service whose request it is: its id, its trace, and the port that it came by."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from api.protocol_service import NumpyService, both
from serve_app.api.http_app import HttpSettings, create_app
from serve_app.domain.settings import LogSettings
from serve_app.telemetry.request_log import RequestLog

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
WAYS: dict[str, tuple[str, Any]] = {
    "v2": ("/v2/models/double/infer", {"inputs": [TENSOR]}),
    "predict": ("/v1/models/moods/predict", {"inputs": "good"}),
    "openai": ("/v1/embeddings", {"model": "sentences", "input": "good"}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_requests_carry_where_they_come_from(client: httpx.AsyncClient, service: NumpyService, way: str) -> None:
    """What the client calls it, and the span that it is part of."""
    path, body = WAYS[way]
    headers = {"X-Request-Id": "r-1", "traceparent": TRACE, "tracestate": "a=b", ":listener": "forged"}
    reply = await client.post(path, json=body, headers=headers)
    assert (reply.status_code, reply.headers["x-request-id"]) == (200, "r-1")
    ((_, _, options),) = service.calls
    assert (options.request_id, options.trace_parent, options.trace_state, options.listener) == (
        "r-1",
        TRACE,
        "a=b",
        "direct-http",
    )


@pytest.mark.parametrize("way", WAYS)
async def test_a_malformed_trace_is_none_and_every_request_has_an_id(
    client: httpx.AsyncClient, service: NumpyService, way: str
) -> None:
    """The state of a trace means nothing without it."""
    path, body = WAYS[way]
    reply = await client.post(path, json=body, headers={"traceparent": "00-nonsense", "tracestate": "a=b"})
    ((_, _, options),) = service.calls
    assert (options.trace_parent, options.trace_state) == ("", "")
    assert options.request_id == reply.headers["x-request-id"]


async def test_what_is_refused_on_the_way_has_a_line(service: NumpyService) -> None:
    """On every route that takes work; of names that are no model's, none is told."""
    lines: list[dict[str, Any]] = []
    log = RequestLog(
        LogSettings(), lambda line: lines.append(orjson.loads(line)), asyncio.get_running_loop().call_later
    )
    transport = httpx.ASGITransport(create_app(*both(service), HttpSettings(listener="http"), log=log))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        ask: dict[str, Any] = {"content": b"{", "headers": {"X-Request-Id": "r-1", "traceparent": TRACE}}
        for path in ("/v2/models/double/infer", "/v2/models/unheard-of/infer", "/v1/models/moods/predict"):
            await client.post(path, **ask)
        await client.get("/v2/models/unheard-of")
    told = [(line["model"], line["outcome"], line["status"], line["request_id"], line["listener"]) for line in lines]
    assert told[:2] == [
        ("double", "invalid_request", 400, "r-1", "http"),
        ("", "model_not_found", 404, "r-1", "http"),
    ]
    assert [(line["model"], line["trace_id"]) for line in lines[2:]] == [("moods", TRACE[3:35])]
