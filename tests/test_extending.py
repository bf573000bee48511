"""The worked examples of docs/extending.md work."""

from __future__ import annotations

import io
import json
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
import numpy as np
import pytest
from api.protocol_service import NumpyService, both
from local_server import LocalServer
from rich.console import Console
from serve_process import ROOT

from serve_app.api.http_app import APIS, create_app
from serve_app.backends.registry import BACKENDS
from serve_app.cli.check import file_schema
from serve_app.cli.profile import ProfileOptions, profile_model
from serve_app.composition.backend import read_options
from serve_app.config.args import parse_args
from serve_app.errors import ConfigError
from serve_app.testing.backends import NotConforming
from serve_app.testing.processors import NotConforming as ProcessorNotConforming

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
        ("double", {"instances": [["1", 2, 3, 4]]}, 400),
        ("double", {"instances": [[1e39, 2, 3, 4]]}, 400),
        ("double", {"instances": [1, 2, 3, 4]}, 400),
        ("double", {"instances": json.loads("[" * 500 + "]" * 500)}, 400),
        ("double", {"rows": []}, 400),
        ("mirror", {"instances": [[1]]}, 400),
        ("nobody", {"instances": [[1]]}, 404),
    ],
)
async def test_an_api(example: Callable[[str], Any], model: str, body: dict[str, Any], status: int) -> None:
    """It has a row in the table of routes, and everything else comes with that."""
    service = NumpyService()
    app = create_app(*both(service), apis=(*APIS, example("Add an API").routes))
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
        ("Add an option of a request", ()),
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
    paths = [tmp_path, ROOT, ROOT / "client", ROOT / "simulator", ROOT / "tests"]
    plugins = ["-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "--noconftest", *plugins, *files],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
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


# --- A backend and a processor ----------------------------------------------------------------------------------------


@pytest.fixture
def linear(example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the backend, whose kind is registered."""
    module = example("Add a backend")
    monkeypatch.setitem(BACKENDS, "linear", module.LINEAR)
    return module


def linear_model(folder: Path, weight: list[list[float]], bias: list[float]) -> Path:
    """A model of one version; returns its file."""
    file = folder / "1" / "model.npz"
    file.parent.mkdir(parents=True)
    np.savez(file, weight=np.array(weight, np.float32), bias=np.array(bias, np.float32))
    return file


@pytest.mark.parametrize("keys", [{}, {"backend": "linear", "backend_options": {"precision": "FP64"}}])
def test_a_backend(linear: Any, tmp_path: Path, keys: dict[str, Any]) -> None:
    """A model is found by its file, described, loaded and asked, and clients are told what runs it."""
    linear_model(tmp_path / "line", [[1, 2], [3, 4], [5, 6]], [10, 20])
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 0, 0, 1, 1, 1]}]}
    args = {"models": [{"name": "line", "path": str(tmp_path / "line"), **keys}]}
    with LocalServer(args) as server, httpx.Client(base_url=server.url) as client:
        reply = client.post("/v2/models/line/infer", json=body)
        told = client.get("/v2/models/line").json()
        config = client.get("/v2/models/line/config").json()

    assert reply.status_code == 200, reply.text
    (output,) = reply.json()["outputs"]
    assert (output["name"], output["shape"], output["data"]) == ("y", [2, 2], [11.0, 22.0, 19.0, 32.0])
    assert (told["platform"], told["parameters"]["joinable"]) == ("numpy_linear", "exact")
    assert (config["backend"], config["default_model_filename"]) == ("linear", "model.npz")


def test_a_backend_is_few_files() -> None:
    """Of the product: a module and a row. What the page names besides are tests."""
    section = PAGE.read_text().split("\n## Add a backend\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(serve_app/[\w/]+\.py)`", section)) == {
        "serve_app/backends/linear.py",
        "serve_app/backends/registry.py",
    }


def test_a_backend_is_profiled(linear: Any, tmp_path: Path) -> None:
    """As all are, with the version of what runs it."""
    linear_model(tmp_path / "line", [[1.0], [2.0]], [0.5])
    (model,) = parse_args({"models": [{"name": "line", "path": str(tmp_path / "line")}]}).models
    profile = profile_model(model, ProfileOptions(seconds=0.001, rows=(1, 4)), Console(file=io.StringIO()))

    assert profile.machine.runtime == f"numpy {np.__version__}"
    assert [point.rows for point in profile.shapes] == [1, 4]


def test_a_backend_has_its_options_in_the_schema(linear: Any) -> None:
    """So that editors know them."""
    model = file_schema()["$defs"]["serve_app.ModelConfig"]

    assert model["properties"]["backend"]["enum"] == [*BACKENDS, None]
    tied = [part["then"] for part in model["allOf"] if part["if"]["properties"].get("backend") == {"const": "linear"}]
    assert [part["properties"]["backend_options"]["title"] for part in tied] == ["LinearOptions"]


def test_a_backend_keeps_what_backends_promise(linear: Any, tmp_path: Path) -> None:
    """And the checks would tell."""
    file = linear_model(tmp_path / "line", [[1.5, 2], [3, 4], [5, 6]], [10, 20])
    linear.check_linear(file)
    linear.LinearBackend.device = "tpu"
    with pytest.raises(NotConforming, match="device is cpu, and it runs on 'tpu'"):
        linear.check_linear(file)


def test_backends_beside_each_other(linear: Any, tmp_path: Path) -> None:
    """Each has options of its own; a folder with models of two needs to be told which."""
    file = linear_model(tmp_path / "line", [[1.0]], [0.0])
    (file.parent / "model.onnx").touch()
    line = {"name": "line", "path": str(tmp_path / "line")}

    def problem(**keys: Any) -> str:
        with pytest.raises(ConfigError) as caught, LocalServer({"models": [{**line, **keys}]}):
            pass
        return "; ".join(caught.value.problems)

    (config,) = parse_args({"models": [{**line, "backend_options": {"tensorrt": True}}]}).models
    with pytest.raises(ConfigError, match=r"backend_options.tensorrt: unknown key; known here: precision"):
        read_options(config, linear.LINEAR)
    assert problem() == f"{line['path']}, version 1: onnx and linear could run it: say which of them by backend"
    assert problem(backend="liner") == f"{line['path']}: unknown backend 'liner'; did you mean linear?"
    assert problem(backend="x") == f"{line['path']}: unknown backend 'x'; there is {', '.join(BACKENDS)}"


@pytest.fixture
def text_length(linear: Any, example: Callable[[str], Any], tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """The module of the processor, and a model that it is for."""
    module = example("Add a processor")
    linear_model(tmp_path / "price", [[2.0]], [0.5])
    processor = {"class": "example:TextLength", "unit": "words"}
    return module, {"name": "price", "task": "text-length", "path": str(tmp_path / "price"), "processor": processor}


def test_a_processor(text_length: tuple[Any, dict[str, Any]]) -> None:
    """Texts are answered by the model of another backend, as any API of texts asks."""
    with LocalServer({"models": [text_length[1]]}) as server, httpx.Client(base_url=server.url) as client:
        several = client.post("/v1/models/price/predict", json={"inputs": ["one two three", ""]})
        hugging_face = client.post("/models/price", json={"inputs": "one two"})
        nothing = client.post("/v1/models/price/predict", content=b"\x00", headers={"content-type": "image/png"})

    assert (several.status_code, several.json()) == (200, [[6.5], [0.5]])
    assert (hugging_face.status_code, hugging_face.json()) == (200, [[4.5]])
    assert nothing.status_code == 415, nothing.text


def test_a_processor_that_is_misspelt_is_one_line(text_length: tuple[Any, dict[str, Any]]) -> None:
    """As the page shows it."""
    model = text_length[1] | {"processor": {"class": "example:TextLength", "unti": "words"}}
    with pytest.raises(ConfigError) as caught, LocalServer({"models": [model]}):
        pass
    (problem,) = caught.value.problems
    assert problem == "model 'price': processor.unti: unknown key; did you mean unit?"
    assert problem in _section("Add a processor")


def test_a_processor_keeps_what_processors_promise(text_length: tuple[Any, dict[str, Any]]) -> None:
    """And the checks would tell."""
    module = text_length[0]
    module.check_text_length()
    module.expect_texts = lambda payload: payload
    with pytest.raises(ProcessorNotConforming, match="a picture in place of sample 0 is answered with"):
        module.check_text_length()
