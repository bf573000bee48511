"""Processors of users: found, made of their options, and kept from harming anybody else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx_models
import pytest
from local_server import LocalServer

from serve_app.composition import identities
from serve_app.composition.model import find_files
from serve_app.config.args import parse_args
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.payloads import Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors import create_processor
from serve_app.processors.processor import Cost, Processor

SIGNATURE = ModelSignature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),))
SOURCE = '''
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, Field

from serve_app.processors import InvalidRequest, Processor, expect_texts


class Lengths(Processor):
    """Characters of a text, and something."""

    def __init__(self, signature, folder, *, unit: Literal["characters", "words"] = "characters", copy: int = 2):
        self._name, self._unit, self._copy = signature.inputs[0].name, unit, copy

    def preprocess(self, payload):
        texts = expect_texts(payload).texts
        for text in texts:
            if text == "bad":
                raise InvalidRequest("inputs: bad is no text")
            if text == "broken":
                raise KeyError("secret")
            if text == "exit":
                raise SystemExit(3)
            if text == "list":
                return {self._name: [1.0, 2.0]}
        return {self._name: np.array([[len(text), self._copy] for text in texts], np.float32)}

    def example(self, rows, bucket):
        return {self._name: np.ones((rows, 2), np.float32)}

    def postprocess(self, payload, outputs, inputs):
        if payload.texts == ["no answer"]:
            return object()
        return [{"length": row[0]} for row in outputs["y"]]


class WithModel(Lengths):
    class options(BaseModel):
        size: Annotated[int, Field(ge=1)] = 4

    def __init__(self, signature, folder, options):
        super().__init__(signature, folder, copy=options.size)


class Free(Lengths):
    def __init__(self, signature, folder, **keys):
        super().__init__(signature, folder)
        self.keys = keys


class Needs(Lengths):
    def __init__(self, signature, folder, size: int):
        super().__init__(signature, folder)


class Raises(Lengths):
    def __init__(self, signature, folder):
        raise ValueError("no such size")


class Lacks(Processor):
    def preproces(self, payload): ...

    def example(self, rows, bucket): ...


class Asks(Lengths):
    async def preprocess(self, payload): ...


class Fewer(Lengths):
    def postprocess(self, payload, outputs): ...


class Wide(Lengths):
    def example(self, rows, bucket):
        return {self._name: np.ones((rows, 3))}


class Own:
    """Not derived."""

    def __init__(self, signature, folder): ...

    estimate = preprocess = bucket = lambda self, payload: None
    pad = example = lambda self, tensors, bucket: None
    postprocess = Lengths.postprocess


def function(signature, folder): ...
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package outside of the tree that can be imported; its folder."""
    folder = tmp_path / "site" / "lengths_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "lengths.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(folder.parent)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "lengths_package"]:
        del sys.modules[name]


def make(name: str, folder: Path, **options: Any) -> Processor:
    """The processor that the configuration names so."""
    return create_processor("text-length", SIGNATURE, folder, options, name)


def problems(name: str, folder: Path, **options: Any) -> str:
    """Why it cannot be made, lines apart by semicolons."""
    with pytest.raises(ConfigError) as caught:
        make(name, folder, **options)
    return "; ".join(caught.value.problems)


@pytest.mark.parametrize("name", ["lengths_package.lengths:Lengths", "processor.py:Lengths", "processor.py:Free"])
def test_a_class_is_found(package: Path, name: str) -> None:
    """In a module, or in a file beside the model."""
    (package / "processor.py").write_text(SOURCE)
    made = make(name, package)

    assert made.estimate(Texts(["a", "b"], {})) == Cost(2, 0)
    tensors = made.preprocess(Texts(["abc", ""], {}))
    assert tensors["x"].tolist() == [[3, 2], [0, 2]]
    assert made.postprocess(Texts(["abc"], {}), {"y": tensors["x"]}, tensors) == [{"length": 3.0}, {"length": 0.0}]


def test_a_file_that_changed_is_read_again(package: Path) -> None:
    """And leaves nothing beside the model."""
    file = package / "processor.py"
    for copy in (5, 6):
        file.write_text(SOURCE.replace("copy: int = 2", f"copy: int = {copy}"))
        assert make("processor.py:Lengths", package).preprocess(Texts(["a"], {}))["x"].tolist() == [[1, copy]]
    assert list(package.glob("__pycache__/processor.*")) == []


def test_a_package_may_offer_it(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an entry point of the task's name; of two the configuration chooses."""
    points = [EntryPoint("text-length", "lengths_package.lengths:Lengths", "serve_app.processors")]

    def offered(**by: Any) -> EntryPoints:
        return EntryPoints(points).select(**by)

    for module in ("serve_app.processors.custom", "serve_app.config.processor"):
        monkeypatch.setattr(f"{module}.entry_points", offered)
    model = {"name": "m", "path": "p", "task": "text-length", "processor": {"unit": "words"}}
    (config,) = parse_args({"models": [model]}).models

    assert config.processor is not None
    assert create_processor("text-length", SIGNATURE, package, {"copy": 7}).example(1, 0)["x"].shape == (1, 2)
    points.append(EntryPoint("text-length", "other:Lengths", "serve_app.processors"))
    with pytest.raises(ConfigError, match=r"several packages have a processor for text-length: say lengths_package"):
        create_processor("text-length", SIGNATURE, package, {})
    with pytest.raises(ConfigError, match=r"unknown task 'text-lenght'; did you mean text-length\?"):
        parse_args({"models": [{**model, "task": "text-lenght"}]})


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (
            "lengths_package.lenghts:A",
            "there is no module lengths_package.lenghts; did you mean lengths_package.lengths?",
        ),
        ("no_such_package.a:A", "there is no module no_such_package; install its package where the server runs"),
        ("lengths_package.lengths:Length", "lengths_package.lengths has no Length; did you mean Lengths?"),
        ("lengths_package.lengths:function", "lengths_package.lengths: function is a function, not a class"),
        (
            "lengths_package.needs:A",
            "cannot import lengths_package.needs: {folder}/needs.py, line 1: ModuleNotFound",
        ),
        ("lengths_package.breaks:A", "cannot import lengths_package.breaks: {folder}/breaks.py, line 2: ZeroDivision"),
        ("lengths_package.leaves:A", "cannot import lengths_package.leaves: {folder}/leaves.py, line 1: SystemExit: 3"),
        ("lengths_package.typo:A", "cannot import lengths_package.typo: {folder}/typo.py, line 1: SyntaxError: "),
        ("typo.py:A", "cannot import typo.py: {folder}/typo.py, line 1: SyntaxError: "),
        ("breaks.py:A", "cannot import breaks.py: {folder}/breaks.py, line 2: ZeroDivisionError: division by zero"),
        ("nothing.py:A", "there is no file nothing.py in the model's folder"),
    ],
)
def test_what_cannot_be_imported_is_one_line(package: Path, name: str, fault: str) -> None:
    """It says where, why, and what to do."""
    (package / "needs.py").write_text("import no_such_module")
    (package / "breaks.py").write_text("\n1 / 0")
    (package / "leaves.py").write_text("raise SystemExit(3)")
    (package / "typo.py").write_text("def f(:")

    found = problems(name, package)
    assert found.startswith("processor.class: " + fault.format(folder=package)), found


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("Lengths", {"unti": "words"}, "processor.unti: unknown key; did you mean unit?"),
        ("Lengths", {"unit": "lines"}, "processor.unit: must be 'characters' or 'words', got 'lines'"),
        ("Lengths", {"copy": "x"}, "processor.copy: must be a whole number, got 'x'"),
        ("WithModel", {"sise": 3}, "processor.sise: unknown key; did you mean size?"),
        ("WithModel", {"size": 0}, "processor.size: must be at least 1, got 0"),
        ("Needs", {}, "processor.size: required, but missing"),
        ("Raises", {}, "processor.class: Raises(signature, folder, ...) cannot be made: {file}, line "),
        (
            "Lacks",
            {},
            "processor.class: Lacks has no method preprocess; is preproces meant to be it?; processor.",
        ),
        ("Asks", {}, "processor.class: Asks.preprocess is async; it runs in a thread: write def"),
        ("Fewer", {}, "processor.class: Fewer.postprocess(payload, outputs) cannot be called with 3 arguments"),
        (
            "Wide",
            {},
            "processor.class: Wide.example does not fit the model: input 'x' is of dtype float64; FP32",
        ),
        ("Own", {}, "processor.class: Own has no labels; write it, and derive from serve_app.processors.Processor; "),
    ],
)
def test_what_cannot_be_made_is_one_line(package: Path, name: str, options: dict[str, Any], fault: str) -> None:
    """Options as those of the server's own, and what the class lacks."""
    found = problems(f"lengths_package.lengths:{name}", package, **options)
    assert found.startswith(fault.format(file=package / "lengths.py")), found


def test_options_reach_the_class(package: Path) -> None:
    """As keyword arguments, or as one of its model."""

    def copies(name: str, **options: Any) -> float:
        made = make(f"lengths_package.lengths:{name}", package, **options)
        return float(made.preprocess(Texts(["a"], {}))["x"][0, 1])

    assert [copies("Lengths", copy=9), copies("WithModel"), copies("WithModel", size=3)] == [9, 4, 3]
    assert copies("Free", anything={"a": [1]}) == 2


# --- What a processor does wrong harms the request alone -----------------------------------------------------------


class Careless(Processor):
    """Does what it is told to."""

    buckets = (1, 2)

    def __init__(self, signature: ModelSignature, folder: Any) -> None:
        self.cost: Any = Cost(1, 1)
        self.gives: Any = {"x": np.ones((1, 2), np.float32)}
        self.size: Any = 1

    def estimate(self, payload: Media | Texts) -> Cost:
        if isinstance(self.cost, BaseException):
            raise self.cost
        return self.cost  # type: ignore[no-any-return]

    def preprocess(self, payload: Media | Texts) -> Tensors:
        return self.gives  # type: ignore[no-any-return]

    def bucket(self, tensors: Tensors) -> int:
        return self.size  # type: ignore[no-any-return]

    def example(self, rows: int, bucket: int) -> Tensors:
        return {"x": np.ones((rows, 2), np.float32)}

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        return outputs["y"]


@pytest.fixture
def careless(tmp_path: Path) -> tuple[Careless, Processor]:
    """The class's own instance, and what the server makes of it."""
    kept: list[Careless] = []

    class Kept(Careless):
        def __init__(self, signature: ModelSignature, folder: Any) -> None:
            super().__init__(signature, folder)
            kept.append(self)

    made = create_processor("text-length", SIGNATURE, tmp_path, {}, Kept)
    return kept[0], made


@pytest.mark.parametrize(
    ("gives", "fault"),
    [
        ([1], "a list came, and no dict"),
        ({}, "input 'x' is missing"),
        ({"x": np.ones((1, 2), np.float32), "z": np.ones(1)}, "the model has no input 'z'; it has x"),
        ({"x": [1]}, "input 'x' is a list, and no numpy array"),
        ({"x": np.ones((1, 2))}, "input 'x' is of dtype float64"),
        ({"x": np.ones((1, 3), np.float32)}, "input 'x' has shape [1, 3]; the model takes [-1, 2], rows first"),
        ({"x": np.ones(2, np.float32)}, "input 'x' has shape [2]"),
        ({"x": np.ones((0, 2), np.float32)}, "input 'x' has no rows"),
    ],
)
def test_tensors_that_do_not_fit_are_the_processors_fault(
    careless: tuple[Careless, Processor], gives: Any, fault: str
) -> None:
    """Whoever runs it answers 500, and logs this."""
    own, made = careless
    own.gives = gives
    with pytest.raises(RuntimeError) as caught:
        made.preprocess(Texts(["a"], {}))
    assert fault in str(caught.value)


@pytest.mark.parametrize("cost", [Cost(0, 1), Cost(1, 3), 5, KeyError("x"), SystemExit(1), ConfigError(("no",))])
def test_a_router_survives_a_wrong_estimate(careless: tuple[Careless, Processor], cost: Any) -> None:
    """The request fails, without what the exception says; the client's own faults stay what they are."""
    own, made = careless
    own.cost = cost
    with pytest.raises(InferenceFailed, match=r"^the model's processor failed to estimate this request$"):
        made.estimate(Texts(["a"], {}))
    own.cost = InvalidRequest("inputs: no")
    with pytest.raises(InvalidRequest, match="inputs: no"):
        made.estimate(Texts(["a"], {}))


def test_a_bucket_that_there_is_not_is_found_out_early(careless: tuple[Careless, Processor]) -> None:
    """Where it fails the request, and not all of its batch."""
    own, made = careless
    own.size = 7
    with pytest.raises(RuntimeError, match="gives 7, which is none of its buckets"):
        made.preprocess(Texts(["a"], {}))
    with pytest.raises(InferenceFailed, match="failed to size this request"):
        made.bucket(own.gives)


@pytest.fixture
def text_model(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Makes the configuration of a model of two numbers, with a file beside it that makes them of texts."""

    def make_model(source: str = SOURCE, **keys: Any) -> dict[str, Any]:
        onnx_models.make(tmp_path / "model" / "1" / "model.onnx", "add_one")
        (tmp_path / "model" / "processor.py").write_text(source)
        return {
            "name": "lengths",
            "task": "text-length",
            "path": str(tmp_path / "model"),
            "processor": {"class": "processor.py:Lengths"},
            **keys,
        }

    return make_model


def test_neighbours_are_answered(text_model: Callable[..., dict[str, Any]]) -> None:
    """Requests that the processor refuses, fails on and cannot answer, and one in between."""
    with LocalServer({"models": [text_model()]}) as server, httpx.Client(base_url=server.url) as client:

        def ask(*texts: str) -> tuple[int, Any]:
            reply = client.post("/v1/models/lengths/predict", json={"inputs": list(texts)})
            return reply.status_code, reply.json()

        assert ask("abc", "") == (200, [{"length": 4.0}, {"length": 1.0}])
        status, refused = ask("bad")
        assert (status, refused["error"]) == (400, "inputs: bad is no text")
        for text, step in (("broken", "pre"), ("exit", "pre"), ("list", "pre"), ("no answer", "post")):
            status, failed = ask(text)
            assert (status, failed["error"]) == (
                500,
                f"model lengths failed to {step}process this request",
            )
        assert ask("a") == (200, [{"length": 2.0}])


def test_a_changed_class_is_another_state_of_the_model(
    text_model: Callable[..., dict[str, Any]], package: Path
) -> None:
    """So that answers of the former are not given again."""

    def state(**keys: Any) -> str:
        (model,) = parse_args({"models": [text_model(**keys)]}).models
        return identities(model, find_files(model))[""]

    installed = {"processor": {"class": "lengths_package.lengths:Lengths"}}
    assert state() == state()
    assert state() != state(source=SOURCE + "#")
    before = state(**installed)
    (package / "lengths.py").write_text(SOURCE + "#")
    assert state(**installed) != before


def test_the_file_comes_with_a_remote_model(
    text_model: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only what belongs to the model is copied."""
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    (model,) = parse_args({"models": [text_model(path=f"file://{folder}")]}).models
    (folder / "1" / "model.onnx").rename(folder / "model.onnx")
    location = find_files(model)[""]

    assert location.folder.is_relative_to(tmp_path / "cache")
    assert make("processor.py:Lengths", location.folder).estimate(Texts(["a"], {})) == Cost(1, 0)
