"""A class that has `preprocess` and `postprocess`: what clients send, what they get, and what goes wrong alone.

All of it both in the server's process and in one of its own.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import python_models
from local_server import LocalServer

from serve_app.composition.description import read_models
from serve_app.config.args import parse_args
from serve_app.errors import ConfigError

HOUSES = """
    import numpy as np

    class Houses:
        inputs = {"x": ("float32", [-1, 2])}
        outputs = {"price": ("float32", [-1]), "wide": ("float64", [-1, 2])}
        rows_independent = True

        def setup(self, context):
            self.InvalidRequest = context.InvalidRequest

        def preprocess(self, request):
            houses = request.inputs if isinstance(request.inputs, list) else [request.inputs]
            case = houses[0].get("case")
            rows = [[house.get("rooms", 0), house.get("floor", 0)] for house in houses]
            if case == "raises":
                raise OSError(f"cannot read {__file__}")
            if case == "dtype":
                return {"x": np.array(rows)}
            if case == "shape":
                return {"x": np.array(rows, np.float32)[:, :1]}
            if case == "missing":
                return {}
            if case == "list":
                return rows
            if case == "empty":
                return {"x": np.zeros((0, 2), np.float32)}
            if any("rooms" not in house for house in houses):
                raise self.InvalidRequest("inputs: each house needs rooms")
            return {"x": np.array(rows, np.float32)}

        def predict(self, batch):
            price = batch["x"][:, 0] * 100
            return {"price": price, "wide": batch["x"].astype("float64")}

        def postprocess(self, request, outputs):
            case = request.parameters.get("answer")
            if case == "raises":
                return 1 / 0
            if case == "set":
                return {"prices": [1, {2}]}
            if case == "nan":
                return {"prices": [float("nan")]}
            if case == "key":
                return {1: 2}
            if case == "loop":
                loop = []
                loop.append(loop)
                return loop
            if case == "read-only":
                outputs["price"][0] = 0
            currency = request.parameters.get("currency", "EUR")
            return {"prices": outputs["price"], "currency": currency, "rows": len(outputs["wide"])}
"""

LENGTHS = """
    import numpy as np

    class Lengths:
        inputs = {"n": ("int64", [-1])}
        outputs = {"twice": ("int64", [-1])}

        def preprocess(self, request):
            return {"n": np.array([len(item) for item in request.inputs])}

        def predict(self, batch):
            return {"twice": batch["n"] * 2}
"""

HANGS = """
    import threading
    import numpy as np

    class Hangs:
        inputs = {"x": ("float32", [-1])}
        outputs = {"y": ("float32", [-1])}

        def preprocess(self, request):
            if request.inputs == "preprocess":
                threading.Event().wait()
            return {"x": np.zeros(1, "float32")}

        def predict(self, batch):
            return {"y": batch["x"]}

        def postprocess(self, request, outputs):
            if request.inputs == "postprocess":
                threading.Event().wait()
            return "answered"
"""

PICTURE = """
    import numpy as np

    class Bytes:
        inputs = {"n": ("int64", [])}
        outputs = {"n": ("int64", [])}

        def preprocess(self, request):
            return {"n": np.array(len(request.inputs))}

        def predict(self, batch):
            return batch

        def postprocess(self, request, outputs):
            return [{"label": "bytes", "score": outputs["n"]}, type(request.inputs).__name__]
"""
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


KINDS: Mapping[str, dict[str, Any]] = {
    "in process": {},
    "own process": {"environment": {"python": sys.executable}},
}


@pytest.fixture(params=KINDS, scope="module")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Of a server with such models."""
    folder = tmp_path_factory.mktemp("models")
    options = KINDS[request.param]
    models = []
    for name, task, code in (
        ("houses", "tabular-regression", HOUSES),
        ("lengths", "text-length", LENGTHS),
        ("picture", "image-classification", PICTURE),
    ):
        python_models.write(folder / name, code)
        keys = {"task": task, "path": str(folder / name), "backend": "python", "backend_options": options}
        models.append({"name": name, **keys})
    with LocalServer({"models": models}) as server, httpx.Client(base_url=server.url) as found:
        yield found


def predict(client: httpx.Client, model: str, inputs: Any, **parameters: Any) -> httpx.Response:
    """Ask."""
    return client.post(f"/v1/models/{model}/predict", json={"inputs": inputs, "parameters": parameters})


def test_json_texts_and_pictures_are_answered(client: httpx.Client) -> None:
    """As the task says; without `postprocess`, by the outputs' names."""
    house = {"rooms": 3, "floor": 1}
    assert predict(client, "houses", house, currency="CHF").json() == {"prices": [300.0], "currency": "CHF", "rows": 1}
    assert predict(client, "houses", [house, {"rooms": 2}]).json()["prices"] == [300.0, 200.0]
    assert predict(client, "lengths", ["one", "é"]).json() == {"twice": [6, 2]}
    answer = [{"label": "bytes", "score": 108}, "bytes"]
    assert predict(client, "picture", "data:image/png;base64," + base64.b64encode(PNG).decode()).json() == answer
    headers = {"Content-Type": "image/png"}
    raw = client.post("/v1/models/picture/predict", content=PNG, headers=headers)
    assert raw.json() == answer


WRONG: Mapping[str, tuple[Any, dict[str, Any], int, str]] = {
    "preprocess raises": ({"case": "raises"}, {}, 500, "preprocess failed on this request: OSError: cannot read"),
    "dtype": ({"case": "dtype"}, {}, 500, "input 'x' is int64 [1, 2]; the model declares float32 [-1, 2]: return"),
    "shape": ({"case": "shape"}, {}, 500, "input 'x' is float32 [1, 1]; the model declares float32 [-1, 2]"),
    "missing": ({"case": "missing"}, {}, 500, "preprocess returned no input 'x', which the model declares"),
    "no dict": ({"case": "list"}, {}, 500, "preprocess returned a list; it must return a dict of arrays: {'x': ...}"),
    "no rows": ({"case": "empty"}, {}, 500, "preprocess returned no rows"),
    "refused": ({"floor": 1}, {}, 400, "inputs: each house needs rooms"),
    "too many rows": ([{"rooms": 1}] * 33, {}, 400, "the request makes 33 rows; the most is 32"),
    "postprocess raises": ({"rooms": 1}, {"answer": "raises"}, 500, "postprocess failed on this request: ZeroDiv"),
    "a set": ({"rooms": 1}, {"answer": "set"}, 500, "postprocess returned a set at prices[1], which has no form"),
    "NaN": ({"rooms": 1}, {"answer": "nan"}, 500, "postprocess returned nan at prices[0], which JSON does not have"),
    "a key": ({"rooms": 1}, {"answer": "key"}, 500, "postprocess returned a dict with an int as a key; JSON has"),
    "a loop": ({"rooms": 1}, {"answer": "loop"}, 500, "holds itself, or is nested too deeply for JSON"),
    "changes outputs": ({"rooms": 1}, {"answer": "read-only"}, 500, "read-only: copy an array before you change it"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
async def test_what_goes_wrong_costs_its_request_alone(client: httpx.Client, case: str) -> None:
    """One line, without a path of the server; those that are sent with it are answered."""
    inputs, parameters, status, said = WRONG[case]
    body = {"inputs": inputs, "parameters": parameters}
    good = {"inputs": {"rooms": 3}}
    async with httpx.AsyncClient(base_url=client.base_url) as sending:
        bodies = [good, body, good]
        replies = await asyncio.gather(*(sending.post("/v1/models/houses/predict", json=each) for each in bodies))
    assert [reply.status_code for reply in replies] == [200, status, 200]
    message = replies[1].json()["error"]
    assert said in str(message)
    assert "\n" not in str(message)
    assert "model.py" not in str(message)
    assert replies[0].json()["prices"] == replies[2].json()["prices"] == [300.0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["preprocess", "postprocess"])
async def test_a_call_that_hangs_costs_its_request_alone(tmp_path: Path, kind: str, method: str) -> None:
    """504 at its deadline; those that are sent with it and after it are answered, and the server stops."""
    python_models.write(tmp_path, HANGS)
    model = {"name": "hangs", "task": "json", "path": str(tmp_path), "backend": "python"}
    with LocalServer({"models": [model | {"backend_options": KINDS[kind]}]}) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60.0) as client:

            async def ask(inputs: str, timeout_ms: int) -> httpx.Response:
                headers = {"X-Timeout-Ms": str(timeout_ms)}
                return await client.post("/v1/models/hangs/predict", json={"inputs": inputs}, headers=headers)

            hangs, answered = await asyncio.gather(ask(method, 500), ask("none", 30_000))
            later = await ask("none", 30_000)
    assert [reply.status_code for reply in (hangs, answered, later)] == [504, 200, 200]
    assert hangs.json()["code"] == "deadline_exceeded"


def test_what_the_model_does_not_take_is_refused(client: httpx.Client) -> None:
    """Before the class is asked."""
    headers = {"Content-Type": "text/plain"}
    assert client.post("/v1/models/houses/predict", content=b"hello", headers=headers).status_code == 415
    assert client.post("/v1/models/houses/predict", content=b'{"inputs": [}').status_code == 400
    deep = '{"inputs": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert client.post("/v1/models/houses/predict", content=deep.encode()).status_code == 400
    large = '{"inputs": "' + "a" * 9_000_000 + '"}'
    assert client.post("/v1/models/houses/predict", content=large.encode()).status_code == 413
    assert predict(client, "lengths", []).status_code == 400


def test_tensors_are_taken_as_of_any_model(client: httpx.Client) -> None:
    """By V2, without the class's methods."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [2, 0]}]
    answer = client.post("/v2/models/houses/infer", json={"inputs": inputs}).json()
    assert answer["outputs"][0]["data"] == [200.0]


@pytest.mark.parametrize(
    ("old", "new", "keys", "said"),
    [
        ("preprocess(self, request)", "preprocess(self)", {}, "model.py:11: preprocess takes a request: write"),
        ("def preprocess", "async def preprocess", {}, "model.py:11: preprocess is run in a thread of its own"),
        ("postprocess(self, request, outputs)", "postprocess(self, outputs)", {}, "takes a request and outputs"),
        ("preprocess(self, request)", "prepare(self, request)", {}, "has postprocess and no preprocess: write def"),
        ("", "", {"processor": {"unit": "m"}}, "processor.unit: model.py has preprocess, which takes no options"),
        ("def p", "def x", {}, "has no class with a method predict"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_told_before_anything_runs(
    old: str, new: str, keys: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    """With its place; nothing of the file is run."""
    code = HOUSES.replace(old, new) if new.startswith("def x") else HOUSES.replace(old, new, 1)
    python_models.write(tmp_path, "    import nowhere\n" + code.removeprefix("\n    import numpy as np\n"))
    model = {"name": "houses", "task": "json", "path": str(tmp_path), "backend": "python", **keys}
    with pytest.raises(ConfigError) as caught:
        read_models(parse_args({"models": [model]}))
    (problem,) = caught.value.problems
    assert problem.startswith("model 'houses': ")
    assert said in problem


def test_a_task_that_nobody_serves_is_told(tmp_path: Path) -> None:
    """Where the class has no such methods."""
    python_models.make(tmp_path, "linear")
    model = {"name": "m", "task": "json", "path": str(tmp_path), "backend": "python"}
    with pytest.raises(
        ConfigError, match=r"unknown task json; .*, or write def preprocess\(self, request\) in model.py"
    ):
        read_models(parse_args({"models": [model]}))
