"""The worked examples of docs/extending.md work."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from api.protocol_service import NumpyService

from serve_app.api.http_app import APIS, create_app

PAGE = Path(__file__).parents[1] / "docs/extending.md"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Makes a module of the code below a heading."""

    def make(heading: str) -> Any:
        section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
        module = ModuleType("example")
        monkeypatch.setitem(sys.modules, "example", module)
        for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            exec(compile(code, f"{PAGE.name}: {heading}", "exec"), module.__dict__)
        return module

    return make


@pytest.mark.parametrize(
    ("model", "body", "status"),
    [
        ("double", {"instances": [[1, 2, 3, 4], [5, 6, 7, 8]]}, 200),
        ("double", {"instances": [[1, 2, 3]]}, 400),
        ("double", {"instances": [["a"]]}, 400),
        ("double", {"rows": []}, 400),
        ("mirror", {"instances": [[1]]}, 400),
        ("nobody", {"instances": [[1]]}, 404),
    ],
)
async def test_an_api(example: Callable[[str], Any], model: str, body: dict[str, Any], status: int) -> None:
    """It has a row in the table of routes, and everything else comes with that."""
    service = NumpyService()
    app = create_app(service, apis=(*APIS, example("Add an API").routes))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        reply = await client.post(f"/v1/models/{model}:predict", json=body, headers={"X-Priority": "low"})

    assert reply.status_code == status, reply.text
    if status == 200:
        assert reply.json() == {"predictions": [[2, 4, 6, 8], [10, 12, 14, 16]]}
        assert reply.headers["x-priority"] == "low"
    else:
        assert len(service.refusals) == 1
