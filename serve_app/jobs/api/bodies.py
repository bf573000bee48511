"""Parses the body of ``POST /v1/jobs`` within bounds into items."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from itertools import repeat
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.requests import Request

from serve_app.api.base64_text import from_base64
from serve_app.api.left_out import NULL, BodyDecoder
from serve_app.api.open_inference.wire import invalid
from serve_app.api.replies import dump_json
from serve_app.domain.service import Inference
from serve_app.errors import InvalidRequest, ModelNotFound, PayloadTooLarge, ServeAppError, error_from_code
from serve_app.jobs.api.items import KEPT, ItemRoutes
from serve_app.jobs.records import NewItem
from serve_app.payloads import TENSORS

_MOST_NAME: Final = 256
_MOST_METADATA: Final = 16
_MOST_METADATA_VALUE: Final = 512
_JSON: Final = "application/json"
_OF_JSON: Final = {"content-type": _JSON}
"""One for all items that have no other headers."""

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
        """Count it. This bounds the list before it takes memory for all received items."""
        left = _left.get()
        if left is not None and next(left, None) is None:
            raise _TooMany


class _TooMany(Exception):
    """A request has too many items."""


class JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The client's request; see docs/jobs.md."""

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


_REQUEST: Final = BodyDecoder(JobRequest)


class JobBodies:
    """Reads bodies.

    Args:
        max_items: Most items of one job.
    """

    def __init__(self, service: Inference, items: ItemRoutes, max_items: int) -> None:
        self._service = service
        self._items = items
        self._max_items = max_items

    def read(
        self, request: Request, headers: Mapping[bytes, bytes], body: bytes
    ) -> tuple[JobRequest, list[NewItem], bytes]:
        """The request, its items, and a digest of everything that determines them.

        Args:
            request: Its query may describe the body.
            headers: Of the request, by lower-case name.

        Raises:
            ServeAppError: It is no job, or names an unknown model or route.
        """
        query = request.query_params
        digest = hashlib.sha256(request.scope.get("query_string", b"") + b"\0")
        if "url" in query or "model" in query:
            asked, items = self._raw(query, headers, body)
            digest.update(dump_json(sorted(items[0].headers.items())))
        else:
            asked, items = self._parse(body)
        digest.update(body)
        return asked, items, digest.digest()

    def _parse(self, body: bytes) -> tuple[JobRequest, list[NewItem]]:
        most = self._max_items
        counting = _left.set(repeat(True, most))
        try:
            asked = _REQUEST.without_nulls(body)  # in one go: its items are counted
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
        elif (asked.body is not msgspec.UNSET and asked.body != NULL) or asked.body_base64 or asked.content_type:
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
    ) -> tuple[JobRequest, list[NewItem]]:
        """A job of the single request in the body; the query names the model or route."""
        if unknown := sorted(query.keys() - {"url", "model", "timeout_s", "callback"}):
            raise InvalidRequest(f"{unknown[0][:64]}: there is no such query parameter here")
        try:
            timeout_s = float(query["timeout_s"]) if "timeout_s" in query else None
        except ValueError:
            raise InvalidRequest("timeout_s: expected a number of seconds") from None
        asked = JobRequest(
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
        """Add the model that its body names, if nothing else does."""
        if item.model:
            return item
        return msgspec.structs.replace(item, model=self._items.model_in(item.url, item.headers, item.body))

    def _target(self, model: str, url: str) -> tuple[str, str]:
        """The model and the URL of an item; the URL's model takes precedence.

        Raises:
            ServeAppError: The model is unknown, or the URL runs none.
        """
        if url:
            named, path = self._items.model_of(url), url.rstrip("/")
            if model and named and model != named:
                raise InvalidRequest(f"model: it is {model[:64]!r}, and the url is for {named[:64]!r}")
            if model and not named:
                return self._service.find(model).name, path
            return named, path
        if not model:
            raise InvalidRequest("model: expected a name, here or for the whole job; or url, the path of a request")
        info = self._service.find(model)
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
    if item.body is not msgspec.UNSET and item.body != NULL:
        if item.body_base64:
            raise InvalidRequest("body, body_base64: expected one of them")
        headers.setdefault("content-type", _JSON)
        body = bytes(memoryview(item.body))
    else:
        body = from_base64(item.body_base64, "body_base64: expected base64")
        if not body:
            raise InvalidRequest("body: expected the body of a request; or body_base64, for one that is not JSON")
    if headers.get("content-type") == _JSON and len(headers) == 1:
        headers = _OF_JSON
    return NewItem(model, url, body, headers, item.custom_id)


def _check_priority(priority: str) -> None:
    if priority and priority not in {"high", "normal", "low"}:
        raise InvalidRequest("priority: expected high, normal or low")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise `InvalidRequest` if a client's metadata are too many or too long."""
    if len(metadata) > _MOST_METADATA or any(
        len(name) > 64 or len(value) > _MOST_METADATA_VALUE for name, value in metadata.items()
    ):
        raise InvalidRequest("metadata: expected at most 16 texts of 512 characters, with names of 64")
