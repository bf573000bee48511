"""``/v1/jobs``: requests that are answered later, stored on arrival and run as class ``low``."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from serve_app.api.gateway import Gateway
from serve_app.api.replies import dump_json, json_response
from serve_app.api.routes import Handler, Route
from serve_app.errors import (
    Conflict,
    InvalidRequest,
    JobNotFound,
    ServeAppError,
    Unsupported,
    error_from_code,
)
from serve_app.http.body import BodyReader
from serve_app.http.errors import status_of
from serve_app.jobs.api.bodies import JobBodies
from serve_app.jobs.api.items import ItemRoutes
from serve_app.jobs.job_service import Jobs
from serve_app.jobs.records import JOB, Item
from serve_app.jobs.shown import shown
from serve_app.jobs.states import ENDED, JobState

ERRORS_BELOW: Final = "/v1/jobs"
"""Here errors have the usual shape, in the middle of OpenAI's paths."""

_P = ParamSpec("_P")
_Result = TypeVar("_Result")

_PATIENCE_S: Final = 60.0
_MOST_WAIT_S: Final = 60.0
_MOST_PAGE: Final = 1000
_MOST_KEY: Final = 256
_JSON: Final = "application/json"

_OFF: Final = "this server keeps no jobs: set router.jobs in its configuration"


def routes(gateway: Gateway, jobs: Jobs | None, items: ItemRoutes) -> list[Route]:
    """The routes; without jobs they answer with the setting to change."""
    of = _JobEndpoints(gateway, jobs, items) if jobs is not None else None

    def handler(name: str) -> Handler:
        return off if of is None else getattr(of, name)

    return [
        Route("POST", "/v1/jobs", handler("submit")),
        Route("GET", "/v1/jobs", handler("newest")),
        Route("GET", "/v1/jobs/{job}", handler("show")),
        Route("POST", "/v1/jobs/{job}/cancel", handler("cancel")),
        Route("GET", "/v1/jobs/{job}/results", handler("results")),
        Route("GET", "/v1/jobs/{job}/results/{index}", handler("result")),
    ]


async def aside(
    bodies: BodyReader, nbytes: int, function: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs
) -> _Result:
    """Run a reader of this many bytes, in a thread if they are many."""
    if bodies.is_large(nbytes):
        return await bodies.offload(function, *args, **kwargs)
    return function(*args, **kwargs)


async def off(_: Request) -> Response:
    """The answer if jobs are disabled."""
    raise Unsupported(_OFF)


class _JobEndpoints:
    def __init__(self, gateway: Gateway, jobs: Jobs, items: ItemRoutes) -> None:
        self._gateway = gateway
        self._jobs = jobs
        self._bodies = JobBodies(gateway.inference, items, jobs.settings.max_items)

    async def submit(self, request: Request) -> Response:
        bodies, headers = self._gateway.bodies, dict(request.scope["headers"])
        key = idempotency_key(headers)
        body = await bodies.read(request.receive, headers, _PATIENCE_S)
        nbytes = len(body)
        try:  # what waits for the store is still counted
            asked, items, digest = await aside(bodies, nbytes, self._bodies.read, request, headers, body)
            del body
            job, new = await self._jobs.submit(
                JOB,
                self._gateway.caller,
                items,
                timeout_s=asked.timeout_s,
                headers={"x-priority": asked.priority} if asked.priority else {},
                callback=asked.callback,
                meta=dump_json({"metadata": asked.metadata}),
                idempotency_key=key,
                digest=digest if key else b"",
            )
        finally:
            bodies.release(nbytes)
        answer = json_response(shown(job), {"location": f"/v1/jobs/{job.id}"})
        answer.status_code = 202 if new else 200
        return answer

    async def newest(self, request: Request) -> Response:
        limit = number(request, "limit", 20, 1, 100)
        after = request.query_params.get("after", "")
        found = await self._jobs.newest(self._gateway.caller, JOB, after, limit + 1)
        return json_response(page([shown(job) for job in found], limit))

    async def show(self, request: Request) -> Response:
        job, owner = request.path_params["job"], self._gateway.caller
        wait_s = seconds(request, "wait", _MOST_WAIT_S)
        if wait_s:
            return json_response(shown(await self._jobs.wait(job, owner, JOB, wait_s)))
        return json_response(shown(await self._jobs.find(job, owner, JOB)))

    async def cancel(self, request: Request) -> Response:
        return json_response(shown(await self._jobs.cancel(request.path_params["job"], self._gateway.caller, JOB)))

    async def results(self, request: Request) -> Response:
        limit = number(request, "limit", 100, 1, _MOST_PAGE)
        after = number(request, "after", -1, -1, 2**31)
        states = frozenset(filter(None, request.query_params.get("state", "").upper().split(",")))
        if unknown := sorted(states - set(JobState)):
            raise InvalidRequest(f"state: {unknown[0][:32]!r} is none; expected {', '.join(JobState)}")
        job = await self._jobs.find(request.path_params["job"], self._gateway.caller, JOB)
        items = await self._jobs.items(job, after, limit, states)
        return json_response(
            {
                "object": "list",
                "state": job.state,
                "data": [_result(item) for item in items],
                "next": items[-1].index if items and items[-1].index < job.total - 1 else None,
            }
        )

    async def result(self, request: Request) -> Response:
        given = request.path_params["index"]
        index = int(given) if given.isdecimal() and len(given) < 10 else -1
        job = await self._jobs.find(request.path_params["job"], self._gateway.caller, JOB)
        items = await self._jobs.items(job, index - 1, 1) if index >= 0 else []
        if not items or items[0].index != index:
            raise JobNotFound(f"job {job.id} has no item {given[:16]!r}; it has {job.total}, from 0")
        item = items[0]
        if item.state is JobState.COMPLETED:
            return Response(item.body, item.status, dict(item.headers))
        if item.state not in ENDED:
            raise Conflict("this item has not ended; ask again later, or wait for the job with ?wait=SECONDS")
        raise _error(item)


def idempotency_key(headers: Mapping[bytes, bytes]) -> str:
    """The header Idempotency-Key, possibly empty. Raises `InvalidRequest`."""
    given = headers.get(b"idempotency-key", b"").decode("latin-1").strip()
    if len(given) > _MOST_KEY or not given.isprintable():
        raise InvalidRequest(f"Idempotency-Key: expected at most {_MOST_KEY} printable characters")
    return given


def number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """An integer in the query. Raises `InvalidRequest`."""
    given = request.query_params.get(name)
    if given is None or given == "":
        return default
    if not given.removeprefix("-").isdecimal() or len(given) > 11 or not least <= int(given) <= most:
        raise InvalidRequest(f"{name}: expected an integer from {least} to {most}")
    return int(given)


def seconds(request: Request, name: str, most: float) -> float:
    """Seconds in the query, default 0. Raises `InvalidRequest`."""
    given = request.query_params.get(name)
    if not given:
        return 0.0
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:  # false for NaN
        raise InvalidRequest(f"{name}: expected seconds, at most {most:g}")
    return value


def page(objects: Sequence[Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """A page of a list in OpenAI's format, from one object more than it may have."""
    shown_here = objects[:limit]
    return {
        "object": "list",
        "data": shown_here,
        "first_id": shown_here[0]["id"] if shown_here else None,
        "last_id": shown_here[-1]["id"] if shown_here else None,
        "has_more": len(objects) > limit,
    }


def json_of(item: Item) -> Any:
    """An item's answer if it is JSON, else ``None``."""
    kind = item.headers.get("content-type", "")
    return orjson.Fragment(item.body) if kind.startswith(_JSON) and item.body else None


def _result(item: Item) -> dict[str, Any]:
    shown_item: dict[str, Any] = {"index": item.index, "custom_id": item.custom_id, "state": item.state}
    if item.state is JobState.COMPLETED:
        shown_item |= {"status": item.status, "headers": item.headers}
        if (body := json_of(item)) is not None:
            shown_item["body"] = body
        else:
            shown_item["body_base64"] = base64.b64encode(item.body).decode()
    elif item.code:
        error = _error(item)
        shown_item |= {"status": status_of(error).http, "error": {"code": item.code, "message": item.message}}
    return shown_item


def _error(item: Item) -> ServeAppError:
    if not item.code:
        how = "cancelled" if item.state is JobState.CANCELLED else "ended by its deadline"
        return Conflict(f"the job was {how} before this item was run")
    return error_from_code(item.code, item.message)
