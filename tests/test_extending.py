"""The worked examples of docs/extending.md work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from api.protocol_service import NumpyService
from serve_process import ROOT

from serve_app.api.http_app import APIS, create_app

PAGE = ROOT / "docs/extending.md"


def _section(heading: str) -> str:
    return PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Makes a module of the code below a heading."""

    def make(heading: str) -> Any:
        section = _section(heading)
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


@pytest.mark.parametrize(
    ("heading", "others"),
    [
        ("Add a metric", ()),
        ("Add a setting", ("simulation/test_scenario.py::test_every_setting_of_batching_reaches_the_simulator",)),
        ("Add a reason to wait", ()),
    ],
)
def test_a_change_of_the_product(heading: str, others: tuple[str, ...], tmp_path: Path) -> None:
    """Applied to a copy of the package, the section's edits make its tests pass, and these others."""
    section = _section(heading)
    shutil.copytree(ROOT / "serve_app", tmp_path / "serve_app")
    for edits in re.findall(r"```diff\n(.*?)```", section, re.DOTALL):
        _apply(edits, tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "test_example.py").write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    files = ["test_example.py", *(str(ROOT / "tests" / name) for name in others)]
    paths = [tmp_path, ROOT, ROOT / "client", ROOT / "tests"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "--noconftest", "-p", "no:cacheprovider", *files],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr


def _apply(edits: str, folder: Path) -> None:
    """Apply a unified diff without line numbers: what a part leaves and takes away is in its file once."""
    for change in edits.split("--- ")[1:]:
        name, *parts = change.split("@@\n")
        file = folder / name.strip()
        text = file.read_text()
        for part in parts:
            lines = [line or " \n" for line in part.splitlines(keepends=True)]
            before, after = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
            assert text.count(before) == 1, f"{name.strip()} has {text.count(before)} times:\n{before}"
            text = text.replace(before, after)
        file.write_text(text)
