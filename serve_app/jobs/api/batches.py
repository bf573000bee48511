"""``/v1/files`` and ``/v1/batches`` as OpenAI's clients use them: a file of requests in, a file of answers out.

A batch is a job whose items are the lines of a file. Errors that OpenAI's servers report later are refused here at
creation. Output and error files are not stored: they are written from the job's items on reading.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Literal

import msgspec
import orjson
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from serve_app.api.forms import opened_form
from serve_app.api.gateway import Gateway
from serve_app.api.left_out import BodyDecoder
from serve_app.api.open_inference.wire import invalid
from serve_app.api.openai import render_error
from serve_app.api.replies import dump_json, json_response
from serve_app.api.routes import Handler, Route
from serve_app.errors import InvalidRequest, JobNotFound, ServeAppError, error_from_code
from serve_app.http.body import BYTE_ORDER_MARK, BodyReader
from serve_app.http.errors import status_of
from serve_app.jobs.api.bodies import check_metadata
from serve_app.jobs.api.items import ItemRoutes
from serve_app.jobs.api.routes import aside, idempotency_key, json_of, number, off, page
from serve_app.jobs.job_service import Jobs
from serve_app.jobs.records import BATCH, Item, Job, NewItem, StoredFile
from serve_app.jobs.states import ENDED, JobState

_PATIENCE_S: Final = 60.0
_WINDOW_S: Final = 24 * 3600.0
_PAGE: Final = 500
_PURPOSE: Final = "batch"
_OUTPUT: Final = "-output"
_ERRORS: Final = "-errors"
_MOST_NAME: Final = 256
_MOST_FILES: Final = 10_000
_EXPIRES: Final = ("expires_after[anchor]", "expires_after[seconds]")
_LEAST_KEPT_S, _MOST_KEPT_S = 3_600, 2_592_000
_JSON: Final[Mapping[str, str]] = {"content-type": "application/json"}
_DONE: Final = frozenset({JobState.COMPLETED.value})
_NOT_DONE: Final = frozenset({JobState.ERROR.value, JobState.CANCELLED.value})
_STATUS: Final[Mapping[JobState, str]] = {
    JobState.PENDING: "validating",
    JobState.PROCESSING: "in_progress",
    JobState.COMPLETED: "completed",
    JobState.ERROR: "completed",  # with requests that failed; one that is too late is `expired`
    JobState.CANCELLED: "cancelled",
}


class _BatchLine(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: Literal["POST"] = "POST"


class _BatchRequest(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: dict[str, str] | None = None


_TEXT: Final = re.compile(rb"\S[^\r\n]*")
"""A line that is not empty, from its first character."""
_LINE: Final = BodyDecoder(_BatchLine)
_REQUEST: Final = BodyDecoder(_BatchRequest)


def routes(gateway: Gateway, jobs: Jobs | None, items: ItemRoutes) -> list[Route]:
    """The routes; without jobs they answer with the setting to change."""
    of = _BatchEndpoints(gateway, jobs, items) if jobs is not None else None

    def route(method: str, path: str, name: str) -> Route:
        handler: Handler = off if of is None else getattr(of, name)
        return Route(method, path, handler, errors=render_error)

    return [
        route("POST", "/v1/files", "upload"),
        route("GET", "/v1/files", "files"),
        route("GET", "/v1/files/{file}", "file"),
        route("DELETE", "/v1/files/{file}", "delete"),
        route("GET", "/v1/files/{file}/content", "content"),
        route("POST", "/v1/batches", "create"),
        route("GET", "/v1/batches", "newest"),
        route("GET", "/v1/batches/{batch}", "show"),
        route("POST", "/v1/batches/{batch}/cancel", "cancel"),
    ]


class _BatchEndpoints:
    def __init__(self, gateway: Gateway, jobs: Jobs, items: ItemRoutes) -> None:
        self._gateway = gateway
        self._jobs = jobs
        self._items = items

    # ---------------------------------------------------------------- files

    async def upload(self, request: Request) -> Response:
        bodies, headers = self._gateway.bodies, dict(request.scope["headers"])
        body = await bodies.read(request.receive, headers, _PATIENCE_S)
        try:
            name, purpose, content, keep_s = await _parse_form(headers, body)
            if purpose != _PURPOSE:
                raise InvalidRequest("purpose: expected batch; files are for nothing else here")
            file = await self._jobs.add_file(self._gateway.caller, name, purpose, content, keep_s)
            return json_response(_file(file))
        finally:
            bodies.release(len(body))

    async def files(self, request: Request) -> Response:
        limit = number(request, "limit", 100, 1, _MOST_FILES)
        order = request.query_params.get("order") or "desc"
        if order not in {"asc", "desc"}:
            raise InvalidRequest("order: expected asc or desc")
        if request.query_params.get("purpose", _PURPOSE) != _PURPOSE:
            return json_response(page([], limit))
        after = request.query_params.get("after", "")
        found = await self._jobs.files(self._gateway.caller, after, limit + 1, oldest_first=order == "asc")
        return json_response(page([_file(file) for file in found], limit))

    async def file(self, request: Request) -> Response:
        name = request.path_params["file"]
        made = await self._batch_of_file(name)
        if made is None:
            return json_response(_file(await self._jobs.file(name, self._gateway.caller)))
        job, _ = made
        created, expires = job.ended or job.created, job.kept_until or 0.0
        shown = _file(StoredFile(name, job.owner, f"{name}.jsonl", "batch_output", 0, created, expires))
        del shown["bytes"]  # only reading all of it would tell
        return json_response(shown)

    async def delete(self, request: Request) -> Response:
        name = request.path_params["file"]
        if await self._batch_of_file(name) is not None:
            raise InvalidRequest("file: output and error files go with their batch")
        await self._jobs.delete_file(name, self._gateway.caller)
        return json_response({"id": name, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        name = request.path_params["file"]
        made = await self._batch_of_file(name)
        if made is None:
            file = await self._jobs.file(name, self._gateway.caller)
            self._gateway.bodies.hold(file.nbytes)
            try:
                content = await self._jobs.content(name, self._gateway.caller)
            except BaseException:
                self._gateway.bodies.release(file.nbytes)
                raise
            return _Counted(content, self._gateway.bodies, file.nbytes)
        return StreamingResponse(self._lines(*made), media_type="application/jsonl")

    async def _batch_of_file(self, file: str) -> tuple[Job, frozenset[str]] | None:
        """The batch that a file belongs to, with the states of its items; ``None``: it was uploaded."""
        for suffix, states in ((_OUTPUT, _DONE), (_ERRORS, _NOT_DONE)):
            batch = file.removeprefix("file-").removesuffix(suffix)
            if file == f"file-{batch}{suffix}" and batch.startswith(f"{BATCH}_"):
                job = await self._jobs.find(batch, self._gateway.caller, BATCH)
                if not job.has_ended:
                    raise JobNotFound(f"batch {batch} has not ended: there is no such file yet")
                return job, states
        return None

    async def _lines(self, job: Job, states: frozenset[str]) -> AsyncIterator[bytes]:
        after = -1
        while items := await self._jobs.items(job, after, _PAGE, states):
            after = items[-1].index
            yield b"".join(dump_json(_line(job, item)) + b"\n" for item in items)

    # -------------------------------------------------------------- batches

    async def create(self, request: Request) -> Response:
        bodies, headers, owner = self._gateway.bodies, dict(request.scope["headers"]), self._gateway.caller
        key = idempotency_key(headers)
        body = await bodies.read(request.receive, headers, _PATIENCE_S)
        try:
            asked, digest = await aside(bodies, len(body), _understood, body)
        finally:
            bodies.release(len(body))
        check_metadata(asked.metadata or {})
        self._items.model_of(asked.endpoint)
        file = await self._jobs.file(asked.input_file_id, owner)
        bodies.hold(file.nbytes)
        try:  # its items are counted until they are kept
            content = await self._jobs.content(file.id, owner)
            items = await bodies.offload(self._parse, content, asked.endpoint)
            del content
            job, _ = await self._jobs.submit(
                BATCH,
                owner,
                items,
                timeout_s=min(_WINDOW_S, self._jobs.settings.max_timeout_s),
                meta=dump_json({"endpoint": asked.endpoint, "file": file.id, "metadata": asked.metadata}),
                idempotency_key=key,
                digest=digest if key else b"",
            )
        finally:
            bodies.release(file.nbytes)
        return json_response(_batch(job))

    def _parse(self, content: bytes, endpoint: str) -> list[NewItem]:
        items: list[NewItem] = []
        seen: set[str] = set()
        named = self._items.model_of(endpoint)
        place, at = 1, len(BYTE_ORDER_MARK) if content.startswith(BYTE_ORDER_MARK) else 0
        for found in _TEXT.finditer(content, at):  # one after the other: a list of all lines could be very long
            place, at = place + content.count(b"\n", at, found.start()), found.start()
            try:
                line = _LINE.decode(found[0])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise invalid(error, f"line {place}") from None
            if line.url != endpoint:
                raise InvalidRequest(f"line {place}: url is {line.url[:64]!r}, and the batch is for {endpoint}")
            if not line.custom_id or len(line.custom_id) > _MOST_NAME or line.custom_id in seen:
                raise InvalidRequest(
                    f"line {place}: custom_id: expected 1 to {_MOST_NAME} characters, of one line only"
                )
            seen.add(line.custom_id)
            if len(items) >= self._jobs.settings.max_items:
                most = self._jobs.settings.max_items
                raise InvalidRequest(f"line {place}: router.jobs.max_items allows {most} requests in one batch")
            body = bytes(memoryview(line.body))
            try:
                model = named or self._items.model_in(endpoint, _JSON, body)
            except ServeAppError:
                model = ""  # it fails alone, when it is run
            items.append(NewItem(model, endpoint.rstrip("/"), body, _JSON, line.custom_id))
        if not items:
            raise InvalidRequest("input_file_id: the file has no lines")
        return items

    async def newest(self, request: Request) -> Response:
        limit = number(request, "limit", 20, 1, 100)
        after = request.query_params.get("after", "")
        found = await self._jobs.newest(self._gateway.caller, BATCH, after, limit + 1)
        return json_response(page([_batch(job) for job in found], limit))

    async def show(self, request: Request) -> Response:
        return json_response(_batch(await self._jobs.find(request.path_params["batch"], self._gateway.caller, BATCH)))

    async def cancel(self, request: Request) -> Response:
        batch, owner = request.path_params["batch"], self._gateway.caller
        return json_response(_batch(await self._jobs.cancel(batch, owner, BATCH)))


class _Counted(Response):
    """A file's content, counted by `BodyReader.hold` until it is sent."""

    media_type = "application/jsonl"

    def __init__(self, content: bytes, bodies: BodyReader, nbytes: int) -> None:
        super().__init__(content)
        self._bodies = bodies
        self._nbytes = nbytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._bodies.release(self._nbytes)


def _understood(body: bytes) -> tuple[_BatchRequest, bytes]:
    """The request and its digest. Raises `InvalidRequest`."""
    try:
        return _REQUEST.decode(body), hashlib.sha256(body).digest()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(error) from None


async def _parse_form(headers: Mapping[bytes, bytes], body: bytes) -> tuple[str, str, bytes, float | None]:
    """Name, purpose, content and lifetime in seconds, if any, of an uploaded file. Raises `InvalidRequest`."""
    async with opened_form(headers, body, max_files=1, max_fields=8) as form:
        fields = dict(form)
        file, purpose = fields.get("file"), fields.get("purpose")
        said = purpose.decode(errors="replace") if isinstance(purpose, bytes) else ""
        if not isinstance(file, UploadFile):
            raise InvalidRequest("file: expected a form field of this name with the file (curl -F file=@...)")
        keep_s = _kept_s(*(fields.get(name) for name in _EXPIRES))
        return (file.filename or "")[:_MOST_NAME], said, await file.read(), keep_s


def _kept_s(anchor: object, seconds: object) -> float | None:
    if anchor is None and seconds is None:
        return None
    if anchor != b"created_at":
        raise InvalidRequest(f"{_EXPIRES[0]}: expected created_at")
    digits = seconds if isinstance(seconds, bytes) and seconds.isdigit() and len(seconds) < 10 else b"0"
    if not _LEAST_KEPT_S <= int(digits) <= _MOST_KEPT_S:
        raise InvalidRequest(f"{_EXPIRES[1]}: expected an integer from {_LEAST_KEPT_S} to {_MOST_KEPT_S}")
    return float(digits)


def _file(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.nbytes,
        "created_at": int(file.created),
        "expires_at": int(file.expires),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def _batch(job: Job) -> dict[str, Any]:
    meta = msgspec.json.decode(job.meta)
    status = "expired" if job.code == "deadline_exceeded" else _STATUS[job.state]
    ended = None if job.ended is None else int(job.ended)
    at = {
        "in_progress_at": None if job.started is None else int(job.started),
        "finalizing_at": ended if status == "completed" else None,
        "completed_at": ended if status == "completed" else None,
        "failed_at": None,
        "expired_at": ended if status == "expired" else None,
        "cancelling_at": ended if status == "cancelled" else None,
        "cancelled_at": ended if status == "cancelled" else None,
    }
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": meta["endpoint"],
        "errors": None,
        "input_file_id": meta["file"],
        "completion_window": "24h",
        "status": status,
        "output_file_id": f"file-{job.id}{_OUTPUT}" if job.has_ended and job.completed else None,
        "error_file_id": f"file-{job.id}{_ERRORS}" if job.has_ended and job.completed < job.total else None,
        "created_at": int(job.created),
        "expires_at": int(job.expires),
        **at,
        "request_counts": {"total": job.total, "completed": job.completed, "failed": job.failed},
        "metadata": meta["metadata"],
    }


def _answer(item: Item) -> dict[str, Any]:
    """An answer as ``body``; if it is not JSON, beside it with its headers."""
    if (body := json_of(item)) is not None:
        return {"body": body}
    return {"body": None, "body_base64": base64.b64encode(item.body).decode(), "headers": item.headers}


def _line(job: Job, item: Item) -> dict[str, Any]:
    """A line of an output or error file."""
    line: dict[str, Any] = {
        "id": f"batch_req_{job.id.removeprefix(f'{BATCH}_')}_{item.index}",
        "custom_id": item.custom_id,
        "response": None,
        "error": None,
    }
    request_id = f"{job.id}-{item.index}"
    if item.state is JobState.COMPLETED:
        line["response"] = {"status_code": item.status, "request_id": request_id, **_answer(item)}
    elif item.code:
        error = error_from_code(item.code, item.message)
        line["response"] = {
            "status_code": status_of(error).http,
            "request_id": request_id,
            "body": orjson.Fragment(render_error(error).body),
        }
    elif item.state in ENDED:
        how = "cancelled" if item.state is JobState.CANCELLED else "expired"
        line["error"] = {"code": f"batch_{how}", "message": f"the batch was {how} before this request was run"}
    return line
