"""Pipelines set against their models: what fits becomes a plan, and what does not is told with its place."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from local_server import make_tokenizer

from serve_app.api.openapi.pipeline_chart import draw
from serve_app.composition import describe_models, expand_models, read_args, with_versions
from serve_app.domain.pipeline import ModelStep, Reference
from serve_app.domain.service import ModelInfo
from serve_app.errors import ConfigError
from serve_app.payloads import Joinable, TensorSpec
from serve_app.pipelines.composition import pipeline_infos
from serve_app.pipelines.values import payload_of

INPUTS = {
    "picture": {"type": "image"},
    "sound": {"type": "audio"},
    "text": {"type": "text"},
    "texts": {"type": "text", "many": True},
    "numbers": {"type": "tensor", "datatype": "FP32", "shape": [-1, 4]},
    "whole": {"type": "tensor", "datatype": "INT32", "shape": [-1, 16]},
    "any": {"type": "json"},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A model of every kind, one of them in two versions."""
    folder = tmp_path_factory.mktemp("models")
    for version in (1, 2):
        onnx_models.make(folder / "one" / str(version) / "model.onnx", "add_one")
    onnx_models.make(folder / "pair" / "1" / "model.onnx", "sum_diff")
    onnx_models.make(folder / "words" / "1" / "model.onnx", "seq_mean")
    make_tokenizer(folder / "words" / "tokenizer.json")
    return [
        {"name": "digits", "task": "image-classification", "path": "models/digits"},
        {"name": "spoken", "task": "audio-classification", "path": "models/spoken-digits"},
        {"name": "words", "task": "feature-extraction", "path": str(folder / "words"), "processor": {"max_length": 16}},
        {"name": "one", "path": str(folder / "one"), "versions": [1, 2], "aliases": {"newest": 2}},
        {"name": "pair", "path": str(folder / "pair")},
    ]


_OWN = """
import numpy as np

from serve_app.processors import Processor


class Own(Processor):
    def __init__(self, signature, folder):
        self.input = signature.inputs[0]

    def preprocess(self, payload):
        return self.example(1, 0)

    def example(self, rows, bucket):
        return {self.input.name: np.zeros((rows, *self.input.shape[1:]), np.float32)}

    def postprocess(self, payload, outputs, inputs):
        return None
"""


def described(models: list[dict[str, Any]], *steps: dict[str, Any], **outputs: str) -> ModelInfo:
    """The one pipeline of some steps; its inputs are those that they use."""
    used = {
        str(value).split(".")[0]
        for step in steps
        for key, given in step.items()
        if key not in {"name", "model"}
        for value in (given.values() if isinstance(given, dict) else given if isinstance(given, list) else [given])
    }
    inputs = {name: given for name, given in INPUTS.items() if name in used or name in outputs.values()}
    outputs = outputs or {"out": steps[-1]["name"]}
    pipeline = {"name": "chain", "inputs": inputs, "steps": list(steps), "outputs": outputs}
    config = with_versions(read_args({"models": models, "pipelines": [pipeline]}))
    (info,) = pipeline_infos(config, describe_models(config))
    return info


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(
            [{"name": "a", "model": "digit", "input": "picture"}],
            "steps[0]: model: there is no model 'digit'; did you mean digits?",
            id="unknown model",
        ),
        pytest.param(
            [{"name": "a", "model": "chain", "input": "picture"}],
            "steps[0]: model: 'chain' is a pipeline; a step is a model: write its steps here",
            id="a pipeline",
        ),
        pytest.param(
            [{"name": "a", "model": "digits", "input": "sound"}],
            "steps[0]: input: digits takes a picture, and sound is a sound",
            id="a sound for a picture",
        ),
        pytest.param(
            [{"name": "a", "model": "words", "input": "numbers"}],
            "steps[0]: input: words takes text, and numbers is FP32 [-1, 4]",
            id="a tensor for text",
        ),
        pytest.param(
            [{"name": "a", "model": "digits", "input": "picture", "parameters": {"topk": 1}}],
            "steps[0]: parameters.topk: unknown; did you mean top_k?",
            id="unknown parameter",
        ),
        pytest.param(
            [{"name": "a", "model": "words", "input": "text", "parameters": {"normalize": "yes"}}],
            "steps[0]: parameters.normalize: expected `bool | null`, got `str`",
            id="a parameter of another type",
        ),
        pytest.param(
            [{"name": "a", "model": "pair", "inputs": {"INPUT0": "whole", "INPUT1": "numbers"}}],
            "steps[0]: pair takes INT32 [-1, 16] as INPUT1, and numbers is FP32 [-1, 4]",
            id="another datatype",
        ),
        pytest.param(
            [{"name": "a", "model": "pair", "inputs": {"INPUT0": "whole"}}],
            "steps[0]: inputs: pair also takes INPUT1",
            id="an input is missing",
        ),
        pytest.param(
            [{"name": "a", "model": "pair", "inputs": {"INPUT0": "whole", "INPUT2": "whole"}}],
            "steps[0]: inputs: pair has no input 'INPUT2'; did you mean INPUT1?",
            id="unknown input",
        ),
        pytest.param(
            [{"name": "a", "model": "pair", "input": "whole"}],
            "steps[0]: input: pair takes INPUT0, INPUT1; say what each of them gets in inputs",
            id="two inputs",
        ),
        pytest.param(
            [{"name": "a", "model": "one", "version": 3, "input": "numbers"}],
            "steps[0]: version: one has no version '3'; versions: 1, 2",
            id="unknown version",
        ),
        pytest.param(
            [
                {"name": "a", "model": "digits", "input": "picture"},
                {"name": "b", "equal": ["a.0.lable", "a.0.label"]},
            ],
            "steps[1].equal[0]: a.0 has no 'lable'; did you mean label?",
            id="unknown member",
        ),
        pytest.param(
            [{"name": "a", "model": "digits", "input": "picture"}, {"name": "b", "equal": ["a.label", "a.0.label"]}],
            "steps[1].equal[0]: a is a list of an object with label, score: say which one, as in a.0.label",
            id="a member of a list",
        ),
        pytest.param(
            [{"name": "a", "model": "digits", "map": "picture"}],
            "steps[0]: map: picture is a picture; it takes a list, or the rows of a tensor",
            id="a map over one thing",
        ),
        pytest.param(
            [{"name": "a", "concat": ["numbers", "whole"]}],
            "steps[0]: concat: FP32 [-1, 4] and INT32 [-1, 16] are of two datatypes",
            id="two datatypes put together",
        ),
        pytest.param(
            [{"name": "a", "switch": "picture", "cases": {"x": "text"}, "default": None}],
            "steps[0]: switch: picture is a picture, which is no value to choose by",
            id="a switch on a picture",
        ),
        pytest.param(
            [{"name": "a", "switch": "numbers", "cases": {1: "text"}, "default": None}],
            "steps[0]: switch: numbers is FP32 [-1, 4], which has more values than the one to choose by",
            id="a switch on a row of numbers",
        ),
        pytest.param(
            [{"name": "a", "join": {"x": "picture"}}],
            "outputs.out: is a picture, which has no JSON form; name what a step makes of it",
            id="a picture in an output",
        ),
    ],
)
def test_what_does_not_fit_is_told(models: list[dict[str, Any]], steps: list[dict[str, Any]], expected: str) -> None:
    """With its place, in one line."""
    with pytest.raises(ConfigError) as caught:
        described(models, *steps)
    assert caught.value.problems == (f"args.pipelines[0].{expected}",)


def test_what_a_class_of_the_operators_takes_is_its_own_matter(models: list[dict[str, Any]], tmp_path: Path) -> None:
    """Its parameters are whatever it reads of them."""
    shutil.copytree(Path("models/digits"), tmp_path / "model")
    (tmp_path / "model" / "own.py").write_text(_OWN)
    own = {
        "name": "own",
        "task": "image-classification",
        "path": str(tmp_path / "model"),
        "processor": {"class": "own.py:Own"},
    }
    step = {"name": "a", "model": "own", "input": "picture", "parameters": {"anything": 1}}

    assert described([*models, own], step).pipeline is not None


@pytest.mark.parametrize("task", ["image-classification", "feature-extraction"])
def test_what_a_class_of_the_operators_gives_is_its_own_matter(
    models: list[dict[str, Any]], tmp_path: Path, task: str
) -> None:
    """JSON with any members, whatever the server's own processor of the task gives."""
    shutil.copytree(Path("models/digits"), tmp_path / "model")
    (tmp_path / "model" / "own.py").write_text(_OWN)
    own = {"name": "own", "task": task, "path": str(tmp_path / "model"), "processor": {"class": "own.py:Own"}}
    given = "picture" if task.startswith("image") else "text"
    info = described([*models, own], {"name": "a", "model": "own", "input": given}, all="a", scores="a.scores")
    assert [(spec.name, spec.datatype, spec.shape) for spec in info.signature.outputs] == [
        ("all", "BYTES", (1,)),
        ("scores", "BYTES", (1,)),
    ]


def test_vectors_of_a_class_of_the_operators_may_be_passed_on(models: list[dict[str, Any]], tmp_path: Path) -> None:
    """It is known when they are there whether it gives such."""
    shutil.copytree(Path("models/digits"), tmp_path / "model")
    (tmp_path / "model" / "own.py").write_text(_OWN)
    own = {"path": str(tmp_path / "model"), "processor": {"class": "own.py:Own"}}
    vectors = {"name": "vectors", "task": "feature-extraction", **own}
    labels = {"name": "labels", "task": "text-classification", **own}
    last = {"name": "b", "model": "one", "input": "a"}

    assert described([*models, vectors], {"name": "a", "model": "vectors", "input": "text"}, last).pipeline is not None
    with pytest.raises(ConfigError, match=r"steps\[1\]: one takes FP32 \[-1, -1\] as x, and a is JSON"):
        described([*models, labels], {"name": "a", "model": "labels", "input": "text"}, last)


def test_what_fits_becomes_a_plan(models: list[dict[str, Any]]) -> None:
    """Steps come after what they need, and it is known what each model takes."""
    info = described(
        models,
        {"name": "last", "model": "one", "version": "newest", "input": "middle"},
        {"name": "middle", "model": "one", "input": "numbers"},
        out="last.y",
    )
    plan = info.pipeline
    assert plan is not None
    assert list(plan.steps) == ["middle", "last"]
    assert plan.steps["last"] == ModelStep("last", "one", "newest", Reference("middle"))
    assert [(spec.name, spec.datatype, spec.shape) for spec in info.signature.outputs] == [("out", "FP32", (-1, -1))]


def test_tensors_with_rows_are_those_of_a_model(models: list[dict[str, Any]]) -> None:
    """With `max_rows`: what is no tensor, or has no rows, cannot be an output then."""
    pipeline: dict[str, Any] = {
        "name": "chain",
        "version": 7,
        "max_rows": 4,
        "inputs": {"numbers": INPUTS["numbers"]},
        "steps": [{"name": "a", "model": "one", "input": "numbers"}, {"name": "b", "equal": ["a", "numbers"]}],
        "outputs": {"out": "a"},
    }
    config = with_versions(read_args({"models": models, "pipelines": [{**pipeline, "steps": pipeline["steps"][:1]}]}))
    (info,) = pipeline_infos(config, describe_models(config))
    assert (info.version, info.versions, info.rows, info.max_rows, info.max_request_rows) == ("7", ("7",), True, 4, 4)
    config = with_versions(
        read_args({"models": models, "pipelines": [{**pipeline, "outputs": {"out": "a", "same": "b"}}]})
    )
    with pytest.raises(ConfigError) as caught:
        pipeline_infos(config, describe_models(config))
    assert caught.value.problems == (
        "args.pipelines[0].outputs.same: must be a tensor with rows with max_rows, and b is true or false",
    )


def with_rows(
    models: list[dict[str, Any]], *steps: dict[str, Any], max_rows: int = 4, **outputs: str
) -> dict[str, Any]:
    """A configuration with one pipeline whose requests have rows of one number, of four, or of both."""
    numbers = {"type": "tensor", "datatype": "FP32"}
    inputs = {"column": {**numbers, "shape": [-1, 1]}, "wide": {**numbers, "shape": [-1, 4]}}
    used = str([*steps, *outputs.values()])
    pipeline = {
        "name": "chain",
        "max_rows": max_rows,
        "inputs": {name: given for name, given in inputs.items() if name in used},
        "steps": list(steps),
        "outputs": outputs,
    }
    return {"models": models, "pipelines": [pipeline]}


def test_rows_are_not_chosen_for_together(models: list[dict[str, Any]]) -> None:
    """A switch on a value for each row is right for one row alone, however far from the input it is."""
    again = {"name": "again", "model": "one", "input": "column"}
    way = {"name": "way", "switch": "again", "cases": {1: "wide"}, "default": "wide"}
    config = with_versions(read_args(with_rows(models, again, way, out="way")))
    infos = describe_models(config)
    with pytest.raises(ConfigError) as caught:
        pipeline_infos(config, infos)
    fault = "switch: again is FP32 [-1, -1], which has a value for each row, and it takes one; set max_rows: 1"
    assert caught.value.problems == (f"args.pipelines[0].steps[1]: {fault}",)
    alone = with_versions(read_args(with_rows(models, again, way, out="way", max_rows=1)))
    assert len(pipeline_infos(alone, infos)) == 1
    counting = {key: info._replace(joinable={"": Joinable("whole", "", rows=False)}) for key, info in infos.items()}
    assert len(pipeline_infos(config, counting)) == 1  # it may make one value of all rows


def test_what_is_no_tensor_has_no_rows(models: list[dict[str, Any]]) -> None:
    """Nor has what may be null."""
    step = {"name": "way", "switch": "same", "cases": {True: "wide"}, "default": None}
    same = {"name": "same", "equal": ["wide", "wide"]}
    config = with_versions(read_args(with_rows(models, same, step, out="way")))
    with pytest.raises(ConfigError) as caught:
        pipeline_infos(config, describe_models(config))
    assert caught.value.problems == (
        "args.pipelines[0].outputs.out: must be a tensor with rows with max_rows, and way is JSON",
    )


def test_versions_may_differ_in_what_no_step_needs(models: list[dict[str, Any]]) -> None:
    """In a size, and in an output more: what all of them have is a tensor, and goes on as one."""
    config = with_versions(
        read_args(
            with_rows(
                models,
                {"name": "a", "model": "one", "input": "wide"},
                {"name": "b", "model": "one", "version": 1, "inputs": {"x": "a.y"}},
                out="b",
                middle="a.y",
            )
        )
    )
    infos = dict(describe_models(config))
    second = next(info for info in infos.values() if (info.name, info.version) == ("one", "2"))
    for shape, expected in (((-1, 5), (-1, -1)), ((-1, 4), (-1, 4))):
        first, more = TensorSpec("y", "FP32", (-1, 4)), TensorSpec("z", "INT64", (-1,))
        one = next(info for info in infos.values() if (info.name, info.version) == ("one", "1"))
        infos[one.key] = one._replace(signature=one.signature._replace(outputs=(first,)))
        infos[second.key] = second._replace(
            signature=second.signature._replace(outputs=(first._replace(shape=shape), more))
        )
        (chain,) = pipeline_infos(config, infos)
        assert [(spec.name, spec.datatype, spec.shape) for spec in chain.signature.outputs] == [
            ("out", "FP32", (-1, 4)),
            ("middle", "FP32", expected),
        ]


def test_what_only_some_versions_give_is_no_tensor(models: list[dict[str, Any]]) -> None:
    """It is null where it is not there; and no tensor stands for what is several in one of them."""
    pipeline = {
        "name": "chain",
        "inputs": {"numbers": INPUTS["numbers"]},
        "steps": [{"name": "a", "model": "one", "input": "numbers"}],
        "outputs": {"all": "a", "y": "a.y", "z": "a.z"},
    }
    config = with_versions(read_args({"models": models, "pipelines": [pipeline]}))
    infos = dict(describe_models(config))
    second = next(info for info in infos.values() if (info.name, info.version) == ("one", "2"))
    outputs = (*second.signature.outputs, TensorSpec("z", "INT64", (-1,)))
    infos[second.key] = second._replace(signature=second.signature._replace(outputs=outputs))
    (chain,) = pipeline_infos(config, infos)
    assert {spec.name: spec.datatype for spec in chain.signature.outputs} == {"all": "BYTES", "y": "FP32", "z": "BYTES"}


def test_a_join_of_one_tensor_is_json(models: list[dict[str, Any]]) -> None:
    """As any other join: a tensor stands for what a model gives alone."""
    step = {"name": "a", "model": "one", "input": "numbers"}
    join = {"name": "doc", "join": {"vector": "a"}}
    info = described(models, step, join, doc="doc", vector="doc.vector", a="a")
    assert [(spec.name, spec.datatype) for spec in info.signature.outputs] == [
        ("doc", "BYTES"),
        ("vector", "FP32"),
        ("a", "FP32"),
    ]
    with pytest.raises(ConfigError, match=r"one takes FP32 .* as x, and doc is an object with vector"):
        described(models, step, join, {"name": "b", "model": "one", "input": "doc"})


def test_what_is_not_on_this_machine_fits_everything(models: list[dict[str, Any]]) -> None:
    """A tensor of a remote model is compared when it is there."""
    pipeline = {
        "name": "chain",
        "inputs": {"numbers": INPUTS["numbers"]},
        "steps": [
            {"name": "a", "model": "afar", "inputs": {"x": "numbers"}},
            {"name": "b", "model": "one", "inputs": {"x": "a.y"}},
        ],
        "outputs": {"out": "b"},
    }
    config = with_versions(read_args({"models": models, "pipelines": [pipeline]}))
    afar = config.models[0].model_copy(update={"name": "afar", "path": "s3://bucket/afar"})
    (info,) = pipeline_infos(config.model_copy(update={"models": (*config.models, afar)}), describe_models(config))
    assert [spec.datatype for spec in info.signature.outputs] == ["FP32"]


def test_each_version_of_a_model_gets_its_own_input(models: list[dict[str, Any]]) -> None:
    """Whatever the other one calls it."""
    pipeline = {
        "name": "chain",
        "inputs": {"numbers": INPUTS["numbers"]},
        "steps": [{"name": "a", "model": "one", "input": "numbers"}],
        "outputs": {"out": "a"},
    }
    config = with_versions(read_args({"models": models, "pipelines": [pipeline]}))
    infos = dict(describe_models(config))
    first, second = (info for info in infos.values() if info.name == "one")
    (spec,) = second.signature.inputs
    second = second._replace(signature=second.signature._replace(inputs=(spec._replace(name="other"),)))
    infos[second.key] = second
    (chain,) = pipeline_infos(config, infos)
    assert chain.pipeline is not None
    (step,) = chain.pipeline.models()
    value = np.zeros((1, 4), np.float32)
    assert [list(payload_of(step, each, value)) for each in (first, second)] == [["x"], ["other"]]


def test_pictures_texts_and_json_are_bytes_to_v2(models: list[dict[str, Any]]) -> None:
    """One element each, or as many as the list has."""
    info = described(
        models,
        {"name": "a", "model": "digits", "input": "picture"},
        {"name": "b", "model": "words", "map": "texts"},
        {"name": "c", "concat": ["b"]},
        label="a.0.label",
        vectors="c",
    )
    assert [(spec.name, spec.datatype, spec.shape) for spec in info.signature.inputs] == [
        ("picture", "BYTES", (1,)),
        ("texts", "BYTES", (-1,)),
    ]
    assert [(spec.name, spec.datatype) for spec in info.signature.outputs] == [("label", "BYTES"), ("vectors", "FP32")]


def test_only_what_every_request_runs_is_certain(models: list[dict[str, Any]]) -> None:
    """Not what a switch may choose; and that starts after what it is chosen by."""
    info = described(
        models,
        {"name": "a", "model": "digits", "input": "picture"},
        {"name": "b", "model": "words", "input": "text"},
        {"name": "s", "switch": "a.0.label", "cases": {7: "b"}, "default": None},
    )
    plan = info.pipeline
    assert plan is not None
    assert plan.certain() == {"a", "s"}
    assert plan.followers() == {"a": ("s", "b"), "b": ("s",), "s": ()}


def test_a_chart_shows_every_step_and_what_leads_to_it(models: list[dict[str, Any]]) -> None:
    """Names are escaped, and the case that leads to a step stands on its arrow."""
    info = described(
        models,
        {"name": "a", "model": "digits", "input": "picture"},
        {"name": "b", "model": "words", "input": "text"},
        {"name": "s", "switch": "a.0.label", "cases": {"<7>": "b"}, "default": None},
        {"name": "j", "join": {"x": "s", "y": "a"}},
    )
    assert info.pipeline is not None
    chart = draw(info.pipeline).splitlines()
    assert chart[0] == "flowchart LR"
    ids = {line.split('"')[1].split("<br>")[0]: re.split(r"\W", line.strip())[0] for line in chart[1:8]}
    assert {"a", "b", "s", "j", "picture", "text", "out"} == ids.keys()
    assert f'  {ids["s"]}{{{{"s<br>switch a.0.label"}}}}' in chart
    for before, arrow, after in (
        ("picture", "-->", "a"),
        ("text", "-->", "b"),
        ("a", "-->", "s"),
        ("b", '-. "#lt;7#gt;" .->', "s"),
        ("s", "-->", "j"),
        ("a", "-->", "j"),
        ("j", "-->", "out"),
    ):
        assert f"  {ids[before]} {arrow} {ids[after]}" in chart


def test_a_member_of_a_pool_may_not_be_called_as_a_pipeline(models: list[dict[str, Any]], tmp_path: Path) -> None:
    """Which members there are is known when the pool's folder has been read."""
    onnx_models.make(tmp_path / "pool" / "chain" / "1" / "model.onnx", "add_one")
    args = {
        "models": models,
        "pools": [{"name": "small", "path": f"{tmp_path}/pool/*", "memory": "64MiB"}],
        "pipelines": [
            {
                "name": "chain",
                "inputs": {"picture": {"type": "image"}},
                "steps": [{"name": "a", "model": "digits", "input": "picture"}],
                "outputs": {"out": "a"},
            }
        ],
    }
    config = expand_models(read_args(args))
    with pytest.raises(ConfigError) as caught:
        pipeline_infos(config, {})
    assert caught.value.problems == ("args.pipelines[0].name: 'chain' is also the name of a model; rename one",)
