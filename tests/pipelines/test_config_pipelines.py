"""Pipelines under ``args:``: every kind of fault with its exact words, and the steps made of them."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.config.args import parse_args
from serve_app.domain.pipeline import Constant, Reference, SwitchStep
from serve_app.errors import ConfigError
from serve_app.pipelines.config import StepConfig

MODELS = [{"name": "digits", "path": "models/digits"}, {"name": "words", "path": "models/words"}]
INPUTS = {"picture": {"type": "image"}}
FIRST = {"name": "first", "model": "digits", "input": "picture"}


def pipeline(*steps: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A pipeline whose output is its first step, with some keys changed."""
    return {"name": "chain", "inputs": INPUTS, "steps": [FIRST, *steps], "outputs": {"out": "first"}} | keys


def problems(*pipelines: dict[str, Any]) -> tuple[str, ...]:
    """The faults that parsing finds."""
    with pytest.raises(ConfigError) as caught:
        parse_args({"models": MODELS, "pipelines": list(pipelines)})
    return caught.value.problems


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(
            pipeline(name="digits"),
            "args.pipelines[0].name: 'digits' is also the name of models[0]; rename one",
            id="a model's name",
        ),
        pytest.param(
            pipeline(inputs={"first": {"type": "image"}, "picture": {"type": "image"}}),
            "args.pipelines[0].steps[0].name: 'first' is also the name of an input; rename",
            id="an input's name",
        ),
        pytest.param(
            pipeline({**FIRST, "input": "pictur", "name": "second"}, outputs={"out": "second"}),
            "args.pipelines[0].steps[1].input: there is no input or step 'pictur'; did you mean picture?",
            id="unknown reference",
        ),
        pytest.param(
            pipeline(outputs={"out": "first", "more": "nothing"}),
            "args.pipelines[0].outputs.more: there is no input or step 'nothing'; there is picture, first",
            id="unknown output",
        ),
        pytest.param(
            pipeline(
                {"name": "a", "equal": ["b", "first"]},
                {"name": "b", "join": {"x": "c"}},
                {"name": "c", "concat": ["a"]},
                outputs={"out": "a"},
            ),
            "args.pipelines[0].steps[1]: steps need each other in a circle: a -> b -> c -> a",
            id="circle",
        ),
        pytest.param(
            pipeline(steps=[{"name": "first", "join": {"x": "first"}}]),
            "args.pipelines[0].steps[0]: steps need each other in a circle: first -> first",
            id="itself",
        ),
        pytest.param(
            pipeline(inputs={**INPUTS, "sound": {"type": "audio"}}),
            "args.pipelines[0].inputs.sound: no step and no output uses it; leave it out",
            id="unused input",
        ),
        pytest.param(
            pipeline({**FIRST, "name": "second"}),
            "args.pipelines[0].steps[1]: no output needs step 'second': it would never run; leave it out",
            id="unused step",
        ),
        pytest.param(
            pipeline({"name": "s", "switch": "first.0.label", "cases": {7: "first"}}, outputs={"out": "s"}),
            "args.pipelines[0].steps[1].default: required for a switch, but missing; null is one",
            id="switch without default",
        ),
        pytest.param(
            pipeline({"name": "s", "switch": "first", "default": "first"}, outputs={"out": "s"}),
            "args.pipelines[0].steps[1].cases: required for a switch, but missing",
            id="switch without cases",
        ),
        pytest.param(
            pipeline({"name": "s", "switch": "first", "cases": {7: "x", "7": "first"}, "default": None}),
            "args.pipelines[0].steps[1].cases: two cases are for '7': values are compared as text",
            id="two equal cases",
        ),
        pytest.param(
            pipeline({"name": "s", "switch": "first", "cases": {float("nan"): "x"}, "default": None}),
            "args.pipelines[0].steps[1].cases: nan is equal to no value, so that it would never be chosen",
            id="a case that never is",
        ),
        pytest.param(
            pipeline({"name": "s"}, outputs={"out": "s"}),
            "args.pipelines[0].steps[1]: a step has one of model, switch, equal, concat, join, got none of them",
            id="no kind",
        ),
        pytest.param(
            pipeline({**FIRST, "name": "s", "equal": ["first", "first"]}, outputs={"out": "s"}),
            "args.pipelines[0].steps[1]: a step has one of model, switch, equal, concat, join, got model and equal",
            id="two kinds",
        ),
        pytest.param(
            pipeline({**FIRST, "name": "s", "map": "picture"}, outputs={"out": "s"}),
            "args.pipelines[0].steps[1].model: needs one of input, inputs, map, got input and map",
            id="input and map",
        ),
        pytest.param(
            pipeline({**FIRST, "name": "s", "axis": 1}, outputs={"out": "s"}),
            "args.pipelines[0].steps[1].axis: is not for a step with model; leave it out",
            id="a key of another kind",
        ),
        pytest.param(
            pipeline({**FIRST, "name": "a.b"}),
            "args.pipelines[0].steps[1].name: must be 1 to 63 letters, digits, '-' or '_', got 'a.b'",
            id="dot in a name",
        ),
        pytest.param(
            pipeline({**FIRST, "name": "s", "input": "a b"}),
            "args.pipelines[0].steps[1].input: must be the name of an input or a step, as in image or digit.0.label,"
            " got 'a b'",
            id="no reference",
        ),
        pytest.param(
            pipeline(inputs={"picture": {"type": "tensor"}}),
            "args.pipelines[0].inputs.picture.datatype: required for a tensor, but missing",
            id="tensor without datatype",
        ),
        pytest.param(
            pipeline(inputs={"picture": {"type": "image", "shape": [1]}}),
            "args.pipelines[0].inputs.picture.shape: is for type: tensor, and this is type: image; leave it out",
            id="shape of a picture",
        ),
        pytest.param(
            pipeline(max_rows=4),
            "args.pipelines[0].inputs.picture.type: must be tensor with max_rows, got image",
            id="rows of a picture",
        ),
        pytest.param(
            pipeline(max_rows=4, inputs={"picture": {"type": "tensor", "datatype": "FP32", "shape": [2, 4]}}),
            "args.pipelines[0].inputs.picture.shape: must begin with -1, the rows, with max_rows, got [2, 4]",
            id="a fixed number of rows",
        ),
        pytest.param(
            pipeline(steps=[FIRST] * 65), "args.pipelines[0].steps: may have at most 64, got 65", id="too many steps"
        ),
        pytest.param(
            pipeline(max_parts=5000), "args.pipelines[0].max_parts: must be at most 4096, got 5000", id="too many parts"
        ),
    ],
)
def test_each_fault_is_told_with_its_place(given: dict[str, Any], expected: str) -> None:
    """In one line, that says what to do."""
    assert expected in problems(given)


def test_a_step_with_a_fault_is_a_step() -> None:
    """Where it is the only one, nothing is told of their number."""
    given = pipeline(steps=[{"name": "first", "equal": ["picture"]}])
    assert problems(given) == ("args.pipelines[0].steps[0].equal: needs at least 2, got 1",)


def test_two_pipelines_cannot_have_one_name() -> None:
    """The second one is told."""
    assert problems(pipeline(), pipeline()) == (
        "args.pipelines[1].name: 'chain' is also the name of pipelines[0]; rename one",
    )


def test_cases_are_compared_as_text() -> None:
    """YAML reads numbers, truth values and null, which become what values are compared as."""
    step = StepConfig.model_validate(
        {"name": "s", "switch": "a.b", "cases": {7.0: "c", True: {"value": 1}, None: "e", "no": None}, "default": "d"}
    )
    assert step.value() == SwitchStep(
        "s",
        Reference("a", ("b",)),
        {"7": Reference("c"), "true": Constant(1), "null": Reference("e"), "no": Constant(None)},
        Reference("d"),
    )
