"""Which build of a model answers: how a request chooses, and how the answer tells."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton

from api.protocol_service import DOUBLE, NumpyService
from serve_app.domain.options import request_options
from serve_app.errors import InvalidRequest

INFER = "/v2/models/double/infer"
TENSORS = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
EMBEDDINGS = "/v1/embeddings"
PICTURES = "/v1/models/pictures/predict"
SENTENCES = "/v1/models/sentences/predict"


@pytest.mark.parametrize(
    ("path", "body"),
    [(INFER, TENSORS), (PICTURES, {"inputs": "AAAA"}), (EMBEDDINGS, {"model": "sentences", "input": "a"})],
)
@pytest.mark.parametrize(
    ("header", "variant"), [(None, "int8"), ("allow", "int8"), (" Allow ", "int8"), ("never", None), ("NEVER", None)]
)
async def test_a_header_forbids_fallbacks(
    client: httpx.AsyncClient, service: NumpyService, path: str, body: Any, header: str | None, variant: str | None
) -> None:
    """On every protocol, and the answer names what ran unless it was the exact model."""
    service.fallback = "int8"
    reply = await client.post(path, json=body, headers={} if header is None else {"X-Fallback": header})

    assert reply.status_code == 200
    assert reply.headers.get("x-variant") == variant


@pytest.mark.parametrize("in_form", [False, True])
@pytest.mark.parametrize("header", ["allow", "never"])
@pytest.mark.parametrize("allowed", [False, True])
async def test_the_body_beats_the_header(
    client: httpx.AsyncClient, service: NumpyService, header: str, allowed: bool, in_form: bool
) -> None:
    """``parameters.fallback`` is the server's, and no parameter of the task."""
    parameters = {"fallback": allowed, "normalize": True}
    headers = {"X-Fallback": header}
    if in_form:
        form = {"parameters": json.dumps(parameters)}
        await client.post(SENTENCES, files={"inputs": (None, "a")}, data=form, headers=headers)
    else:
        await client.post(SENTENCES, json={"inputs": "a", "parameters": parameters}, headers=headers)

    ((_, payload, options),) = service.calls
    assert options.fallback is allowed
    assert payload.parameters == {"normalize": True}  # type: ignore[union-attr]


@pytest.mark.parametrize(("parameters", "variant"), [({}, "int8"), ({"fallback": False}, None)])
@pytest.mark.parametrize("binary", [False, True])
async def test_a_v2_answer_names_the_variant(
    client: httpx.AsyncClient, service: NumpyService, parameters: Any, variant: str | None, binary: bool
) -> None:
    """In the response's parameters too, in JSON and before binary tensors; Triton's client can forbid it."""
    service.fallback = "int8"
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32), binary_data=binary)
    output = triton.InferRequestedOutput("y", binary_data=binary)
    body, length = triton.InferenceServerClient.generate_request_body([tensor], outputs=[output], parameters=parameters)
    headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
    reply = await client.post(INFER, content=body, headers=headers)

    reply_length = reply.headers.get("inference-header-content-length")
    answer = triton.InferenceServerClient.parse_response_body(
        reply.content, header_length=None if reply_length is None else int(reply_length)
    )
    assert answer.as_numpy("y").tolist() == [[2.0] * 4]
    assert answer.get_response().get("parameters") == (None if variant is None else {"variant": variant})
    assert reply.headers.get("x-variant") == variant


async def test_a_variant_that_was_asked_for_is_named(client: httpx.AsyncClient) -> None:
    """As a fallback is, and whatever the request says of fallbacks."""
    reply = await client.post(INFER, json=TENSORS, headers={"X-Variant": "int8", "X-Fallback": "never"})

    assert reply.json()["parameters"] == {"variant": "int8"}
    assert reply.headers["x-variant"] == "int8"


@pytest.mark.parametrize("value", [b"", b"no", b"false", b"\xff"])
def test_an_unknown_word_in_the_header_is_refused(value: bytes) -> None:
    """It may have meant never."""
    with pytest.raises(InvalidRequest, match=r"X-Fallback: expected allow \(the default\) or never"):
        request_options(DOUBLE, {b"x-fallback": value}, 0)


@pytest.mark.parametrize("value", [0, 1, "never", [True]])
@pytest.mark.parametrize("path", [INFER, SENTENCES])
async def test_anything_but_true_or_false_in_the_body_is_refused(
    client: httpx.AsyncClient, path: str, value: Any
) -> None:
    """With the place and what was expected."""
    body = (TENSORS if path == INFER else {"inputs": "a"}) | {"parameters": {"fallback": value}}
    reply = await client.post(path, json=body)

    assert reply.status_code == 400
    assert reply.json()["error"].startswith("parameters.fallback: expected true or false")
