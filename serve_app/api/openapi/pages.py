"""``/openapi.json``, and ``/docs``: Swagger UI from a package, without the internet."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from serve_app.api.gateway import Gateway
from serve_app.api.openapi.document import describe, template
from serve_app.api.openapi.pipeline_chart import draw
from serve_app.api.replies import json_response
from serve_app.api.routes import Route
from serve_app.domain.service import ModelInfo
from serve_app.http.errors import RouteNotFound

ASSETS = ("start.js", "swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png")
"""Parts of the page at /docs."""
_START = ASSETS[0]
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <title>serve-app</title>
    <link rel="stylesheet" href="{docs}/swagger-ui.css">
    <link rel="icon" type="image/png" href="{docs}/favicon-32x32.png">
  </head>
  <body>
    <div id="page" data-description="{root}/openapi.json"></div>
{charts}    <script src="{docs}/swagger-ui-bundle.js"></script>
    <script src="{docs}/start.js"></script>
  </body>
</html>
"""
_CHART = """\
    <h3>{name}</h3>
    <pre class="mermaid">{chart}</pre>
"""
# This Swagger UI draws OpenAPI 3.0 and refuses to look at 3.1. What is used of 3.1 here it draws all the same.
_SCRIPT = """\
window.addEventListener("load", async () => {
  const answer = await fetch(document.getElementById("page").dataset.description);
  const spec = { ...(await answer.json()), openapi: "3.0.3" };
  window.ui = SwaggerUIBundle({
    spec,
    dom_id: "#page",
    deepLinking: true,
    displayRequestDuration: true,
    defaultModelsExpandDepth: 0,
    validatorUrl: null,
  });
});
"""
_CACHED = {"Cache-Control": "public, max-age=3600"}


def routes(gateway: Gateway, served: Callable[[], Iterable[Route]]) -> list[Route]:
    """The routes.

    Args:
        gateway: For its models and open policies.
        served: Lists the documented routes; called for the first client.
    """
    pages = _Pages(gateway, served)
    return [
        Route("GET", "/openapi.json", pages.description, "docs"),
        Route("GET", "/docs", pages.page, "docs"),
        Route("GET", "/docs/{asset}", pages.asset, "docs"),
    ]


def assets_folder() -> Path:
    """The package's folder of Swagger UI, for any version."""
    vendor = importlib.resources.files("swagger_ui_bundle") / "vendor"
    return next(Path(str(folder)) for folder in vendor.iterdir() if folder.name.startswith("swagger-ui-"))


class _Pages:
    def __init__(self, gateway: Gateway, served: Callable[[], Iterable[Route]]) -> None:
        self._gateway = gateway
        self._served = served
        template()  # now: reading it takes 30 ms, which no request waits for
        self._described: dict[tuple[str, ...], tuple[list[ModelInfo], dict[str, Any]]] = {}

    async def description(self, request: Request) -> Response:
        models = list(self._gateway.inference.models.values())
        names = tuple(info.name for info in models)
        before, described = self._described.get(names, (None, {}))
        if models != before:  # who may use other models sees another description: no more of them than keys
            described = describe(self._served(), models, self._gateway.is_open if self._gateway.has_keys else None)
            self._described[names] = models, described
        root = request.scope.get("root_path", "")
        return json_response({**described, "servers": [{"url": root or "/"}]})

    async def page(self, request: Request) -> Response:
        root = escape(request.scope.get("root_path", ""))
        charts = "".join(
            _CHART.format(name=escape(info.name), chart=escape(draw(info.pipeline)))
            for info in self._gateway.inference.models.values()
            if info.pipeline is not None
        )
        return HTMLResponse(_PAGE.format(root=root, docs=f"{root}/docs", charts=charts))

    async def asset(self, request: Request) -> Response:
        name = request.path_params["asset"]
        if name == _START:
            return Response(_SCRIPT, media_type="text/javascript")
        if name not in ASSETS:
            raise RouteNotFound(f"there is no {name[:64]!r} here; the page is at /docs")
        return FileResponse(assets_folder() / name, headers=_CACHED)
