"""``/v2/models/{model}/traffic``: shows and changes how requests are split over versions of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from serve_app.api.gateway import Gateway
from serve_app.api.left_out import BodyDecoder
from serve_app.api.open_inference.wire import invalid
from serve_app.api.replies import json_response
from serve_app.api.routes import Route
from serve_app.errors import InvalidRequest
from serve_app.versions.policy import (
    CANDIDATE,
    Table,
    TableChange,
    Traffic,
    TrafficChange,
    changed,
    described,
    promoted,
    rolled_back,
)
from serve_app.versions.tables import TrafficTables

_PATIENCE_S: Final = 10.0
_T = TypeVar("_T")


class Promotion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version to become stable.

    Attributes:
        to: A version, or an alias.
    """

    to: str = CANDIDATE


_CHANGE: Final = BodyDecoder(TrafficChange)
_PROMOTION: Final = BodyDecoder(Promotion)


def routes(gateway: Gateway, tables: TrafficTables) -> list[Route]:
    """The routes."""
    endpoints = _TrafficEndpoints(gateway, tables)
    path = "/v2/models/{model}/traffic"
    return [
        Route("GET", path, endpoints.show),
        Route("POST", path, endpoints.change, "administration"),
        Route("POST", f"{path}/promote", endpoints.promote, "administration"),
        Route("POST", f"{path}/rollback", endpoints.roll_back, "administration"),
    ]


class _TrafficEndpoints:
    def __init__(self, gateway: Gateway, tables: TrafficTables) -> None:
        self._inference = gateway.inference
        self._bodies = gateway.bodies
        self._tables = tables

    async def show(self, request: Request) -> Response:
        return json_response(self._shown(request.path_params["model"]))

    def _shown(self, model: str) -> Mapping[str, object]:
        """The split of requests over the versions of a model, from `described`. Of one version there are no aliases.

        Raises:
            ModelNotFound: No such model, or the key may not use it.
        """
        info = self._inference.find(model)
        if not info.key:
            only = Table(Traffic(weights={info.version: 100.0}))
            return {**described(model, only, info.versions), "aliases": {}}
        versions = self._tables.models[model]
        return described(model, versions.table, versions.versions)

    async def change(self, request: Request) -> Response:
        change = await self._read(request, _CHANGE, TrafficChange())
        return await self._changed(request, lambda table, versions: changed(table, versions, change))

    async def promote(self, request: Request) -> Response:
        to = (await self._read(request, _PROMOTION, Promotion())).to
        return await self._changed(request, lambda table, versions: promoted(table, versions, to))

    async def roll_back(self, request: Request) -> Response:
        return await self._changed(request, rolled_back)

    async def _changed(self, request: Request, change: TableChange) -> Response:
        model = request.path_params["model"]
        info = self._inference.find(model)
        if info.pipeline is not None:
            raise InvalidRequest(f"{model!r} is a pipeline, which has one version; change the traffic of its models")
        if not info.key:
            raise InvalidRequest(
                f"model {model!r} is served in one version; set versions in its configuration to serve several"
            )
        await self._tables.change(self._tables.models[model], change)
        return json_response(self._shown(model))

    async def _read(self, request: Request, decoder: BodyDecoder[_T], empty: _T) -> _T:
        """Decode a body; an empty one gives the defaults."""
        body = await self._bodies.read(request.receive, dict(request.scope["headers"]), _PATIENCE_S)
        try:
            return decoder.decode(body) if len(body) else empty
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(error) from None
        finally:
            self._bodies.release(len(body))
