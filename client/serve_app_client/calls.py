"""Calls as data: requests to send, and readers of answers. Nothing here sends; both clients share it."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypedDict, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import orjson

from serve_app_client import wire
from serve_app_client.deadline import Deadline, deadline_of
from serve_app_client.errors import DeadlineExceeded, InvalidAnswer, Unavailable, error_of
from serve_app_client.jobs import Job, JobOptions, JobResult, job_body, job_of, result_of
from serve_app_client.media import Media, Value, body_of, inputs_body, plain
from serve_app_client.results import (
    InferResult,
    ModelMetadata,
    ModelSummary,
    PipelineResult,
    PredictResult,
    Served,
    TensorMetadata,
    Timings,
)
from serve_app_client.tensors import decode_answer, encode_request
from serve_app_client.wire import Priority

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"([\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?)?")
_SHAPELESS: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What comes of looking for things in JSON data of another form."""


class CallOptions(TypedDict, total=False):
    """Options of every inference call.

    Attributes:
        priority: The class: ``high``, ``normal`` or ``low``. Default: the client's.
        timeout: Seconds for the whole call, all attempts together. Default: the client's.
        variant: Build of the model to run, e.g. ``int8``.
        fallback: False: only that build may answer, even if late.
        request_id: Id in the server's log; up to 128 printable characters. Default: random.
    """

    priority: Priority | None
    timeout: float | None
    variant: str | None
    fallback: bool | None
    request_id: str | None


class Answer(NamedTuple):
    """A complete HTTP response.

    Attributes:
        headers: By lower-case name.
        body: Without content coding.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """One call: the content of its attempts, and the reader of its answer.

    Attributes:
        path: With a leading slash.
        headers: Common to all attempts: see `attempt_headers`.
        deadline: Of the call; for a stream, of its first part.
        read: Makes the result, or raises the answer's error.
        whole: Of the whole stream, if sent to the server.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes
    deadline: Deadline
    read: Callable[[Answer], T_co]
    whole: Deadline | None = None

    @property
    def request_id(self) -> str:
        """The id sent."""
        return self.headers[wire.X_REQUEST_ID]

    def attempt_headers(self, now: float) -> dict[str, str]:
        """The headers of an attempt starting now, with the remaining time for the server.

        Raises:
            DeadlineExceeded: No time remains.
        """
        left = min(self.deadline.left(now), wire.MAX_TIMEOUT_S)
        headers = dict(self.headers)
        if self.deadline.announced:
            headers[wire.X_TIMEOUT_MS] = _milliseconds(left)
        if self.whole is not None:
            headers[wire.X_STREAM_TIMEOUT_MS] = _milliseconds(min(self.whole.left(now), wire.MAX_TIMEOUT_S))
        return headers


@dataclass(frozen=True, slots=True)
class Calls:
    """Makes calls.

    Attributes:
        headers: Of every request, by lower-case name.
        priority: Default of calls.
        timeout: Default of calls, seconds; ``None``: the server's default for the class.
        patience: Longest wait for an answer without a timeout, seconds.
    """

    headers: Mapping[str, str]
    priority: Priority | None = None
    timeout: float | None = None
    patience: float = 60.0

    def infer(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        outputs: Sequence[str] | None,
        version: str | None,
        options: CallOptions,
        *,
        timings: bool,
    ) -> Call[InferResult]:
        """``POST /v2/models/{model}/infer`` with binary tensors both ways."""
        deadline = self._deadline(options)
        body, head_length = encode_request(inputs, outputs, timings=timings)
        headers = {
            "content-type": "application/octet-stream",
            wire.HEAD_LENGTH: str(head_length),
        }
        path = f"{_model_path(model, version)}/infer"
        return self._post(path, body, headers, options, deadline, _read_infer)

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Any],
        version: str | None,
        stream_timeout: float | None,
        options: CallOptions,
    ) -> Call[None]:
        """``POST /v2/models/{model}/generate_stream``."""
        deadline = self._deadline(options)
        whole = deadline_of(stream_timeout, self.patience, monotonic())
        if whole.announced:
            deadline = deadline._replace(at=min(deadline.at, whole.at))
        body = orjson.dumps(inputs, default=plain, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"content-type": "application/json", "accept": "text/event-stream, application/json"}
        path = f"{_model_path(model, version)}/generate_stream"
        call = self._post(path, body, headers, options, deadline, _read_refusal)
        return replace(call, whole=whole if whole.announced else None)

    def predict(
        self,
        model: str,
        media: Media,
        parameters: Mapping[str, Any] | None,
        sampling_rate: int | None,
        options: CallOptions,
        *,
        version: str | None = None,
    ) -> Call[PredictResult]:
        """``POST /v1/models/{model}/predict``."""
        deadline = self._deadline(options)
        content, content_type = body_of(media, parameters, sampling_rate)
        path = f"/v1/models/{_segment(model)}/predict"
        headers = {"content-type": content_type, **_version_header(version)}
        return self._post(path, content, headers, options, deadline, _read_predict)

    def run_pipeline(
        self, pipeline: str, inputs: Mapping[str, Value], options: CallOptions, *, version: str | None = None
    ) -> Call[PipelineResult]:
        """The same route, with inputs by name."""
        deadline = self._deadline(options)
        content, content_type = inputs_body(inputs)
        path = f"/v1/models/{_segment(pipeline)}/predict"
        headers = {"content-type": content_type, **_version_header(version)}
        return self._post(path, content, headers, options, deadline, _read_pipeline)

    def embed(
        self,
        texts: str | Sequence[str],
        model: str,
        dimensions: int | None,
        options: CallOptions,
        *,
        version: str | None = None,
    ) -> Call[npt.NDArray[np.float32]]:
        """``POST /v1/embeddings``, the vectors in base64."""
        deadline = self._deadline(options)
        document: dict[str, Any] = {
            "model": model,
            "input": texts if isinstance(texts, str) else list(texts),
            "encoding_format": "base64",
        }
        if dimensions is not None:
            document["dimensions"] = dimensions
        headers = {"content-type": "application/json", **_version_header(version)}
        return self._post("/v1/embeddings", orjson.dumps(document), headers, options, deadline, _read_embeddings)

    def models(self) -> Call[list[ModelSummary]]:
        """``GET /``."""
        return self._get("/", _read_models)

    def model(self, name: str, version: str | None) -> Call[ModelMetadata]:
        """``GET /v2/models/{model}``."""
        return self._get(_model_path(name, version), _read_metadata)

    def status(self) -> Call[dict[str, Any]]:
        """``GET /status``."""
        return self._get("/status", _read_object)

    def statistics(self, model: str) -> Call[dict[str, Any]]:
        """``GET /v2/models/{model}/stats``."""
        return self._get(f"{_model_path(model, None)}/stats", _read_statistics)

    def submit_job(
        self, items: Sequence[Mapping[str, Any]], model: str | None, options: JobOptions, timeout: float | None
    ) -> Call[Job]:
        """``POST /v1/jobs``. Repetitions make only one job."""
        key = options.get("idempotency_key") or uuid.uuid4().hex
        headers = {"content-type": "application/json", wire.IDEMPOTENCY_KEY: _header_value("idempotency_key", key)}
        deadline = self._deadline({"timeout": timeout})
        return self._post("/v1/jobs", job_body(items, model, options), headers, {}, deadline, _read_job)

    def job(self, job: str, wait: float, timeout: float | None) -> Call[Job]:
        """``GET /v1/jobs/{id}``, waiting up to this many seconds for the job's end."""
        path = f"/v1/jobs/{_segment(job)}" + (f"?wait={wait:.3f}" if wait > 0 else "")
        return self._get(path, _read_job, {"timeout": timeout})

    def jobs(self, after: str, limit: int) -> Call[list[Job]]:
        """``GET /v1/jobs``."""
        return self._get(f"/v1/jobs?after={quote(after, safe='')}&limit={limit}", _read_jobs)

    def cancel_job(self, job: str) -> Call[Job]:
        """``POST /v1/jobs/{id}/cancel``."""
        return self._post(f"/v1/jobs/{_segment(job)}/cancel", b"", {}, {}, self._deadline({}), _read_job)

    def job_results(self, job: str, after: int, states: Sequence[str]) -> Call[tuple[list[JobResult], int | None]]:
        """``GET /v1/jobs/{id}/results``: a page, and the index that the next one follows."""
        path = f"/v1/jobs/{_segment(job)}/results?after={after}&state={quote(','.join(states), safe='')}"
        return self._get(path, _read_results)

    def live(self, timeout: float) -> Call[str]:
        """``GET /v2/health/live``; the result says why not, or is empty."""
        return self._get("/v2/health/live", _read_health, {"timeout": timeout})

    def ready(self, model: str | None, timeout: float) -> Call[str]:
        """``GET /v2/health/ready``, or a model's; the result says why not, or is empty."""
        path = "/v2/health/ready" if model is None else f"{_model_path(model, None)}/ready"
        return self._get(path, _read_health, {"timeout": timeout})

    def _deadline(self, options: CallOptions) -> Deadline:
        if unknown := options.keys() - CallOptions.__annotations__.keys():
            known = ", ".join(CallOptions.__annotations__)
            raise TypeError(f"there is no option {', '.join(sorted(unknown))}; there are {known}")
        timeout = options.get("timeout")
        return deadline_of(self.timeout if timeout is None else timeout, self.patience, monotonic())

    def _get(self, path: str, read: Callable[[Answer], T], options: CallOptions | None = None) -> Call[T]:
        options = options or {}
        headers = {**self._headers({}), "accept": "application/json"}
        return Call("GET", path, headers, b"", self._deadline(options), read)

    def _post(
        self,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        options: CallOptions,
        deadline: Deadline,
        read: Callable[[Answer], T],
    ) -> Call[T]:
        return Call("POST", path, {**self._headers(options), **headers}, content, deadline, read)

    def _headers(self, options: CallOptions) -> dict[str, str]:
        headers = dict(self.headers)
        priority = options.get("priority") or self.priority
        if priority is not None:
            headers[wire.X_PRIORITY] = checked_priority(priority)
        variant, fallback = options.get("variant"), options.get("fallback")
        if variant:
            headers[wire.X_VARIANT] = _header_value("variant", variant)
        if fallback is not None:
            headers[wire.X_FALLBACK] = "allow" if fallback else "never"
        headers[wire.X_REQUEST_ID] = _request_id(options.get("request_id"))
        return headers


def _milliseconds(seconds: float) -> str:
    return f"{max(seconds * 1e3, 0.001):.3f}"


def _version_header(version: str | None) -> dict[str, str]:
    return {} if version is None else {wire.X_MODEL_VERSION: _header_value("version", version)}


def default_headers(api_key: str | None, further: Mapping[str, str] | None) -> dict[str, str]:
    """The headers of every request of a client, by lower-case name.

    Raises:
        ValueError: One cannot be sent. Otherwise it would appear as a broken connection and be retried.
    """
    headers = {"user-agent": f"serve-app-python/{wire.__version__}", "accept-encoding": "identity"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {_header_value('api_key', api_key)}"
    for name, value in (further or {}).items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"headers: {name!r} is no name of a header")
        headers[name.lower()] = _header_value(f"headers[{name!r}]", value)
    return headers


def _header_value(what: str, value: str) -> str:
    """A valid header value. The message does not show it: it may be a secret."""
    if not _HEADER_VALUE.fullmatch(value):
        raise ValueError(f"{what}: expected printable ASCII, without spaces at its ends")
    return value


def checked_priority(priority: Priority) -> Priority:
    """A valid priority. Raises `ValueError`."""
    if priority not in wire.PRIORITIES:
        raise ValueError(f"priority: expected one of {', '.join(wire.PRIORITIES)}; got {priority!r}")
    return priority


def _request_id(given: str | None) -> str:
    if given is None:
        return uuid.uuid4().hex
    if not _REQUEST_ID.fullmatch(given):
        raise ValueError("request_id: expected 1 to 128 printable ASCII characters without spaces")
    return given


def _model_path(model: str, version: str | None) -> str:
    path = f"/v2/models/{_segment(model)}"
    return path if version is None else f"{path}/versions/{_segment(version)}"


def _segment(name: str) -> str:
    """A name as a path segment; dots alone would lead elsewhere."""
    return name.replace(".", "%2E") if name in {".", ".."} else quote(name, safe="")


# --- Answers ---------------------------------------------------------------------------------------------------------


def _body(answer: Answer) -> bytes:
    if answer.status != 200:
        raise error_of(answer.status, answer.headers, answer.body)
    return answer.body


def _json(answer: Answer) -> Any:
    try:
        return orjson.loads(_body(answer))
    except orjson.JSONDecodeError as error:
        raise InvalidAnswer(f"the answer is not JSON: {error}", answer.status) from None


def _misshapen(error: Exception) -> InvalidAnswer:
    return InvalidAnswer(f"the answer has not the form expected: {type(error).__name__}: {error}", 200)


def served_of(answer: Answer) -> Served:
    """How a request was served, from its answer's headers."""
    names = (wire.X_PRIORITY, wire.X_VARIANT, wire.X_REQUEST_ID, wire.X_CACHE, wire.X_MODEL_VERSION)
    return Served(*(answer.headers.get(name, "") for name in names))


def _read_refusal(answer: Answer) -> None:
    _body(answer)


def _read_infer(answer: Answer) -> InferResult:
    head, outputs = decode_answer(_body(answer), answer.headers.get(wire.HEAD_LENGTH))
    timings = _timings(head.get("parameters"))
    return InferResult(
        outputs, str(head.get("model_name", "")), str(head.get("model_version", "")), served_of(answer), timings
    )


def _timings(parameters: Any) -> Timings | None:
    if not isinstance(parameters, Mapping) or "queue_us" not in parameters:
        return None
    try:
        spent = {
            f"{part}_us": int(parameters[f"{part}_us"]) for part in ("queue", "preprocess", "infer", "postprocess")
        }
        return Timings(**spent, timeout_us=int(parameters["timeout"]))
    except _SHAPELESS as error:
        raise _misshapen(error) from None


def _read_predict(answer: Answer) -> PredictResult:
    return PredictResult(_json(answer), served_of(answer))


def _read_pipeline(answer: Answer) -> PipelineResult:
    return PipelineResult(_read_object(answer), served_of(answer))


def _read_embeddings(answer: Answer) -> npt.NDArray[np.float32]:
    document = _json(answer)
    try:
        data = sorted(document["data"], key=lambda item: item["index"])
        raw = b"".join(base64.b64decode(item["embedding"], validate=True) for item in data)
        return np.frombuffer(raw, "<f4").reshape(len(data), -1).astype(np.float32)
    except (*_SHAPELESS, binascii.Error) as error:
        raise _misshapen(error) from None


def _read_models(answer: Answer) -> list[ModelSummary]:
    document = _json(answer)
    try:
        return [
            ModelSummary(item["name"], item["version"], item["task"], bool(item["ready"]))
            for item in document["models"]
        ]
    except _SHAPELESS as error:
        raise _misshapen(error) from None


def _read_metadata(answer: Answer) -> ModelMetadata:
    document = _json(answer)
    try:
        inputs, outputs = (
            tuple(TensorMetadata(item["name"], item["datatype"], tuple(item["shape"])) for item in document[side])
            for side in ("inputs", "outputs")
        )
        return ModelMetadata(
            document["name"], tuple(document["versions"]), document.get("platform", ""), inputs, outputs
        )
    except _SHAPELESS as error:
        raise _misshapen(error) from None


def _read_object(answer: Answer) -> dict[str, Any]:
    document = _json(answer)
    if not isinstance(document, dict):
        raise InvalidAnswer("the answer is not a JSON object", answer.status)
    return document


def _read_statistics(answer: Answer) -> dict[str, Any]:
    try:
        statistics: dict[str, Any] = _read_object(answer)["model_stats"][0]
    except _SHAPELESS as error:
        raise _misshapen(error) from None
    return statistics


def _read_job(answer: Answer) -> Job:
    document = _read_object(answer._replace(status=200) if answer.status == 202 else answer)
    try:
        return job_of(document)
    except _SHAPELESS as error:
        raise _misshapen(error) from None


def _read_jobs(answer: Answer) -> list[Job]:
    document = _read_object(answer)
    try:
        return [job_of(job) for job in document["data"]]
    except _SHAPELESS as error:
        raise _misshapen(error) from None


def _read_results(answer: Answer) -> tuple[list[JobResult], int | None]:
    document = _read_object(answer)
    try:
        return [result_of(item) for item in document["data"]], document["next"]
    except (*_SHAPELESS, binascii.Error) as error:
        raise _misshapen(error) from None


def _read_health(answer: Answer) -> str:
    try:
        _body(answer)
    except (Unavailable, DeadlineExceeded) as error:
        return error.message
    return ""
