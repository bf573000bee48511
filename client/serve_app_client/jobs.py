"""Jobs: encodes requests that the server answers later, and reads its answers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypedDict
from urllib.parse import quote

import numpy.typing as npt
import orjson

from serve_app_client.errors import DeadlineExceeded
from serve_app_client.media import Media, Value, body_of, inputs_body
from serve_app_client.tensors import decode_answer, encode_request
from serve_app_client.wire import HEAD_LENGTH

ENDED: Final = frozenset({"COMPLETED", "ERROR", "CANCELLED"})
"""States of jobs and items in which nothing happens any more."""

MOST_WAIT_S: Final = 30.0
"""How long one request of `wait_for_job` waits at the server."""
GRACE_S: Final = 30.0
"""How much longer it may take."""


class JobOptions(TypedDict, total=False):
    """Options of a job.

    Attributes:
        url: Path of the items' route, unless it is the model's usual one.
        priority: Class of its items: ``high``, ``normal`` or ``low``. Default: ``low``.
        timeout_s: Seconds for the whole job. Default: the server's.
        callback: URL to notify of its end. The server must allow its host.
        metadata: Notes of the caller, texts by name.
        idempotency_key: Id of this job: repetitions make only one. Default: random.
    """

    url: str | None
    priority: str | None
    timeout_s: float | None
    callback: str | None
    metadata: Mapping[str, str] | None
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """A job's state at the server.

    Attributes:
        state: ``PENDING``, ``PROCESSING``, ``COMPLETED``, ``ERROR`` (some items failed, or it was too late) or
            ``CANCELLED``.
        progress: Share of ended items, 0 to 1.
        items: Numbers of items: ``total``, ``completed``, ``failed``, ``cancelled``, ``expired``, ``waiting``.
        error: Why it failed, or empty.
        metadata: As submitted.
        document: The server's complete document.
    """

    id: str
    state: str
    progress: float
    items: Mapping[str, int]
    error: str
    metadata: Mapping[str, str]
    document: Mapping[str, Any]

    @property
    def has_ended(self) -> bool:
        """Whether it has ended for good."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one item.

    Attributes:
        index: Its place in the job, from 0.
        custom_id: The caller's name for it.
        state: As in `Job`.
        status: The HTTP status of its request; 0 before the end.
        body: The answer.
        headers: Of the answer, by lower-case name.
        code: Of the error, or empty.
        error: The message.
    """

    index: int
    custom_id: str
    state: str
    status: int
    body: bytes
    headers: Mapping[str, str]
    code: str
    error: str

    @property
    def value(self) -> Any:
        """The JSON answer. Raises `ValueError` for others."""
        return orjson.loads(self.body)

    @property
    def outputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """The tensors of an answer to `infer_item`. Raises `ServeAppClientError` for others."""
        return decode_answer(self.body, self.headers.get(HEAD_LENGTH))[1]


def predict_item(
    model: str,
    media: Media,
    *,
    parameters: Mapping[str, Any] | None = None,
    sampling_rate: int | None = None,
    custom_id: str = "",
) -> dict[str, Any]:
    """An item of a predict request; arguments as in `Client.predict`."""
    content, content_type = body_of(media, parameters, sampling_rate)
    item = {"model": model, "url": f"/v1/models/{_segment(model)}/predict", "custom_id": custom_id}
    if content_type == "application/json":
        return {**item, "body": orjson.Fragment(content)}
    return {**item, "body_base64": base64.b64encode(content).decode(), "content_type": content_type}


def pipeline_item(pipeline: str, inputs: Mapping[str, Value], *, custom_id: str = "") -> dict[str, Any]:
    """An item for a pipeline; arguments as in `Client.run_pipeline`."""
    url = f"/v1/models/{_segment(pipeline)}/predict"
    body = orjson.Fragment(inputs_body(inputs).content)
    return {"model": pipeline, "url": url, "custom_id": custom_id, "body": body}


def infer_item(
    model: str, inputs: Mapping[str, npt.ArrayLike], *, outputs: Sequence[str] | None = None, custom_id: str = ""
) -> dict[str, Any]:
    """An item of tensors; arguments as in `Client.infer`."""
    body, head_length = encode_request(inputs, outputs, timings=False)
    return {
        "model": model,
        "url": f"/v2/models/{_segment(model)}/infer",
        "custom_id": custom_id,
        "body_base64": base64.b64encode(body).decode(),
        "content_type": "application/octet-stream",
        "headers": {HEAD_LENGTH: str(head_length)},
    }


def job_body(items: Sequence[Mapping[str, Any]], model: str | None, options: JobOptions) -> bytes:
    """The body of ``POST /v1/jobs``."""
    given = {name: value for name, value in options.items() if value is not None and name != "idempotency_key"}
    return orjson.dumps({"items": list(items), **({} if model is None else {"model": model}), **given})


def job_of(document: Mapping[str, Any]) -> Job:
    """Decode a job. Raises lookup errors for a document in another form."""
    return Job(
        document["id"],
        document["state"],
        float(document["progress"]),
        document["items"],
        (document.get("error") or {}).get("message", ""),
        document.get("metadata") or {},
        document,
    )


def result_of(document: Mapping[str, Any]) -> JobResult:
    """Decode a result. Raises lookup errors for a document in another form."""
    encoded = document.get("body_base64")
    if encoded is not None:
        body = binascii.a2b_base64(encoded)
    else:
        body = orjson.dumps(document["body"]) if "body" in document else b""
    error = document.get("error") or {}
    return JobResult(
        int(document["index"]),
        document["custom_id"],
        document["state"],
        int(document.get("status", 0)),
        body,
        document.get("headers", {}),
        error.get("code", ""),
        error.get("message", ""),
    )


def waiting(end: float) -> tuple[float, float]:
    """How long the next request waits at the server for a job's end, and its timeout, seconds."""
    wait_s = max(0.0, min(MOST_WAIT_S, end - monotonic()))
    return wait_s, wait_s + GRACE_S


def not_ended(job: Job, timeout: float) -> DeadlineExceeded:
    """The error after the longest wait."""
    return DeadlineExceeded(f"job {job.id} is {job.state} after {timeout:g} s; it goes on")


def _segment(name: str) -> str:
    return quote(name, safe="")
