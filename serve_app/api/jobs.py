"""``/v1/jobs``: requests that are answered later. They are kept when they are taken, and run as class ``low``."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import repeat
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import quote

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from serve_app.api.gateway import Gateway
from serve_app.api.items import KEPT, ItemRoutes
from serve_app.api.open_inference.wire import invalid
from serve_app.api.replies import dump_json, json_response
from serve_app.api.routes import Handler, Route
from serve_app.errors import (
    Conflict,
    InvalidRequest,
    JobNotFound,
    ModelNotFound,
    PayloadTooLarge,
    ServeAppError,
    Unsupported,
    error_from_code,
)
from serve_app.http.body import BodyReader
from serve_app.http.errors import status_of
from serve_app.jobs.jobs import Jobs
from serve_app.jobs.records import JOB, Item, NewItem
from serve_app.jobs.shown import shown
from serve_app.jobs.states import ENDED, State
from serve_app.payloads import TENSORS

ERRORS_BELOW: Final = "/v1/jobs"
"""Here errors have the usual shape, in the middle of OpenAI's paths."""

_P = ParamSpec("_P")
_Result = TypeVar("_Result")

_PATIENCE_S: Final = 60.0
_MOST_WAIT_S: Final = 60.0
_MOST_PAGE: Final = 1000
_MOST_NAME: Final = 256
_MOST_METADATA: Final = 16
_MOST_METADATA_VALUE: Final = 512
_JSON: Final = "application/json"

_OFF: Final = "this server keeps no jobs: set router.jobs in its configuration"


_left: Final[ContextVar[Iterator[object] | None]] = ContextVar("_left", default=None)
"""One object for each item that a request may still have while it is parsed: where they end, the parser stops."""


class _Item(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body_base64: str = ""
    content_type: str = ""
    headers: dict[str, str] | None = None
    model: str = ""
    url: str = ""
    custom_id: str = ""

    def __post_init__(self) -> None:
        """Count it. The list is bounded here, before it has taken memory for all that came."""
        left = _left.get()
        if left is not None and next(left, None) is None:
            raise _TooMany


class _TooMany(Exception):
    """A request has more items than it may have."""


class _JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    items: list[_Item] | None = None
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body_base64: str = ""
    content_type: str = ""
    headers: dict[str, str] = {}
    model: str = ""
    url: str = ""
    priority: str = ""
    timeout_s: float | None = None
    callback: str = ""
    metadata: dict[str, str] = {}


_REQUEST: Final = msgspec.json.Decoder(_JobRequest)


def routes(gateway: Gateway, jobs: Jobs | None, items: ItemRoutes) -> list[Route]:
    """The routes; where there are no jobs they say what to set."""
    of = _Endpoints(gateway, jobs, items) if jobs is not None else None

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
    """Run what reads so many bytes: in a thread where these are many."""
    if bodies.is_large(nbytes):
        return await bodies.offload(function, *args, **kwargs)
    return function(*args, **kwargs)


async def off(_: Request) -> Response:
    """Answers where there are no jobs."""
    raise Unsupported(_OFF)


class _Endpoints:
    def __init__(self, gateway: Gateway, jobs: Jobs, items: ItemRoutes) -> None:
        self._gateway = gateway
        self._jobs = jobs
        self._items = items

    async def submit(self, request: Request) -> Response:
        bodies, headers = self._gateway.bodies, dict(request.scope["headers"])
        key = idempotency_key(headers)
        body = await bodies.read(request.receive, headers, _PATIENCE_S)
        nbytes = len(body)
        try:  # what waits for the store is still counted
            asked, items, digest = await aside(bodies, nbytes, self._understood, request, headers, body)
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
        if unknown := sorted(states - set(State)):
            raise InvalidRequest(f"state: {unknown[0][:32]!r} is none; expected {', '.join(State)}")
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
        if item.state is State.COMPLETED:
            return Response(item.body, item.status, dict(item.headers))
        if item.state not in ENDED:
            raise Conflict("this item has not ended; ask again later, or wait for the job with ?wait=SECONDS")
        raise _error(item)

    # ---------------------------------------------------------------- bodies

    def _understood(
        self, request: Request, headers: Mapping[bytes, bytes], body: bytes
    ) -> tuple[_JobRequest, list[NewItem], bytes]:
        """What is asked for, the items, and a digest of all that makes them."""
        query = request.query_params
        digest = hashlib.sha256(request.scope.get("query_string", b"") + b"\0")
        if "url" in query or "model" in query:
            asked, items = self._raw(query, headers, body)
            digest.update(dump_json(sorted(items[0].headers.items())))
        else:
            asked, items = self._parse(body)
        digest.update(body)
        return asked, items, digest.digest()

    def _parse(self, body: bytes) -> tuple[_JobRequest, list[NewItem]]:
        """A job of JSON."""
        most = self._jobs.settings.max_items
        counting = _left.set(repeat(True, most))
        try:
            asked = _REQUEST.decode(body)
        except _TooMany:
            raise PayloadTooLarge(f"items: router.jobs.max_items allows {most} in one job") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(error) from None
        finally:
            _left.reset(counting)
        alone = asked.items is None
        given = asked.items or []
        if alone:
            given = [_Item(body=asked.body, body_base64=asked.body_base64, content_type=asked.content_type)]
        elif asked.body is not msgspec.UNSET or asked.body_base64 or asked.content_type:
            raise InvalidRequest("items, body: expected one of them")
        models: dict[tuple[str, str], tuple[str, str]] = {}
        items = []
        for index, item in enumerate(given):
            asked_for = item.model or asked.model, item.url or asked.url
            try:
                if asked_for not in models:
                    models[asked_for] = self._target(*asked_for)
                items.append(self._named(_new_item(item, asked.headers, *models[asked_for])))
            except ServeAppError as error:
                if alone:
                    raise
                # What names a field goes on with it; that there is no such model begins with Triton's words.
                between = ": " if isinstance(error, ModelNotFound) else "."
                raise error_from_code(error.code, f"items[{index}]{between}{error.message}") from None
        _check_priority(asked.priority)
        check_metadata(asked.metadata)
        return asked, items

    def _raw(
        self, query: Mapping[str, str], headers: Mapping[bytes, bytes], body: bytes
    ) -> tuple[_JobRequest, list[NewItem]]:
        """A job of the one request that the body is; the query says of which model or route."""
        if unknown := sorted(query.keys() - {"url", "model", "timeout_s", "callback"}):
            raise InvalidRequest(f"{unknown[0][:64]}: there is no such query parameter here")
        try:
            timeout_s = float(query["timeout_s"]) if "timeout_s" in query else None
        except ValueError:
            raise InvalidRequest("timeout_s: expected a number of seconds") from None
        asked = _JobRequest(
            model=query.get("model", ""),
            url=query.get("url", ""),
            timeout_s=timeout_s,
            callback=query.get("callback", ""),
        )
        model, url = self._target(asked.model, asked.url)
        kept = {
            name: value.decode("latin-1")
            for given, value in headers.items()
            if (name := given.decode("latin-1")) in KEPT
        }
        return asked, [self._named(NewItem(model, url, body, kept))]

    def _named(self, item: NewItem) -> NewItem:
        """With the model that its body names, where nothing else does."""
        if item.model:
            return item
        return msgspec.structs.replace(item, model=self._items.model_in(item.url, item.headers, item.body))

    def _target(self, model: str, url: str) -> tuple[str, str]:
        """The model and the URL of an item: the URL's model is the one that counts.

        Raises:
            ServeAppError: There is no such model, or nothing runs one at that URL.
        """
        if url:
            named, path = self._items.model_of(url), url.rstrip("/")
            if model and named and model != named:
                raise InvalidRequest(f"model: it is {model[:64]!r}, and the url is for {named[:64]!r}")
            if model and not named:
                return self._gateway.service.find(model).name, path
            return named, path
        if not model:
            raise InvalidRequest("model: expected a name, here or for the whole job; or url, the path of a request")
        info = self._gateway.service.find(model)
        segment = quote(model, safe="")
        return model, f"/v2/models/{segment}/infer" if info.task == TENSORS else f"/v1/models/{segment}/predict"


def _new_item(item: _Item, common: Mapping[str, str], model: str, url: str) -> NewItem:
    headers = {name.lower(): value for name, value in {**common, **(item.headers or {})}.items()}
    if unknown := sorted(headers.keys() - KEPT):
        raise InvalidRequest(f"headers: {unknown[0][:64]!r} says nothing here; expected {', '.join(sorted(KEPT))}")
    for name, value in headers.items():
        if not value.isascii() or not value.isprintable() or len(value) > _MOST_NAME:
            raise InvalidRequest(f"headers.{name}: expected at most {_MOST_NAME} ASCII characters")
    if len(item.custom_id) > _MOST_NAME:
        raise InvalidRequest(f"custom_id: expected at most {_MOST_NAME} characters")
    if item.content_type:
        headers["content-type"] = item.content_type[:_MOST_NAME]
    if item.body is not msgspec.UNSET:
        if item.body_base64:
            raise InvalidRequest("body, body_base64: expected one of them")
        headers.setdefault("content-type", _JSON)
        body = bytes(memoryview(item.body))
    else:
        try:
            body = binascii.a2b_base64(item.body_base64, strict_mode=True)
        except ValueError:
            raise InvalidRequest("body_base64: expected base64") from None
        if not body:
            raise InvalidRequest("body: expected the body of a request; or body_base64, for one that is not JSON")
    if headers.get("content-type") == _JSON and len(headers) == 1:
        headers = _OF_JSON
    return NewItem(model, url, body, headers, item.custom_id)


_OF_JSON: Final = {"content-type": _JSON}


def _check_priority(priority: str) -> None:
    if priority and priority not in {"high", "normal", "low"}:
        raise InvalidRequest("priority: expected high, normal or low")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise `InvalidRequest` where a client's own notes are too many or too long."""
    if len(metadata) > _MOST_METADATA or any(
        len(name) > 64 or len(value) > _MOST_METADATA_VALUE for name, value in metadata.items()
    ):
        raise InvalidRequest("metadata: expected at most 16 texts of 512 characters, with names of 64")


def idempotency_key(headers: Mapping[bytes, bytes]) -> str:
    """The header Idempotency-Key; empty where there is none. Raises `InvalidRequest`."""
    given = headers.get(b"idempotency-key", b"").decode("latin-1").strip()
    if len(given) > _MOST_NAME or not given.isprintable():
        raise InvalidRequest(f"Idempotency-Key: expected at most {_MOST_NAME} printable characters")
    return given


def number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """An integer of the query. Raises `InvalidRequest`."""
    given = request.query_params.get(name)
    if given is None or given == "":
        return default
    if not given.lstrip("-").isdecimal() or len(given) > 11 or not least <= int(given) <= most:
        raise InvalidRequest(f"{name}: expected an integer from {least} to {most}")
    return int(given)


def seconds(request: Request, name: str, most: float) -> float:
    """Seconds of the query, 0 where it names none. Raises `InvalidRequest`."""
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
    """A page of a list, as OpenAI's API has them, of one object more than the page may have."""
    shown_here = objects[:limit]
    return {
        "object": "list",
        "data": shown_here,
        "first_id": shown_here[0]["id"] if shown_here else None,
        "last_id": shown_here[-1]["id"] if shown_here else None,
        "has_more": len(objects) > limit,
    }


def json_of(item: Item) -> Any:
    """The answer of an item where it is JSON; ``None``: it is not."""
    kind = item.headers.get("content-type", "")
    return orjson.Fragment(item.body) if kind.startswith(_JSON) and item.body else None


def _result(item: Item) -> dict[str, Any]:
    shown_item: dict[str, Any] = {"index": item.index, "custom_id": item.custom_id, "state": item.state}
    if item.state is State.COMPLETED:
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
        how = "cancelled" if item.state is State.CANCELLED else "ended by its deadline"
        return Conflict(f"the job was {how} before this item was run")
    return error_from_code(item.code, item.message)
