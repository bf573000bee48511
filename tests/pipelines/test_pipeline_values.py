"""What passes between the steps of a pipeline: bounded when it comes, and told from what it should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from serve_app.domain.pipeline import ModelStep, Output, Pipeline, PipelineInput, Reference
from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo
from serve_app.errors import InferenceFailed, InvalidRequest, PayloadTooLarge
from serve_app.payloads import Media, ModelSignature, TensorSpec, payload_bytes
from serve_app.pipelines import values

STEP = ModelStep("each", "houses", input=Reference("x"))


def plan(*inputs: PipelineInput, outputs: Mapping[str, Output] | None = None) -> Pipeline:
    """A pipeline of these."""
    return Pipeline("chain", {each.name: each for each in inputs}, {}, outputs or {})


def model(task: str, *inputs: str) -> ModelInfo:
    """A model that takes these."""
    return ModelInfo(
        name="houses",
        version="1",
        versions=("1",),
        task=task,
        signature=ModelSignature(tuple(TensorSpec(each, "FP32", (-1, 2)) for each in inputs), ()),
        max_rows=8,
        max_request_rows=64,
        default_timeout_s=dict.fromkeys(Priority, 10.0),
        labels=(),
    )


def texts(*elements: bytes) -> Any:
    """A BYTES tensor."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def deep(levels: int) -> list[Any]:
    """Lists in each other."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_json_is_bounded_over_all_inputs_of_a_request() -> None:
    """However many values it is cut into."""
    many, other = PipelineInput("many", "json", many=True), PipelineInput("other", "json")
    value = b'"' + b"a" * (2**19 - 2) + b'"'
    read = values.read_inputs(plan(many), {"many": texts(value, value)})
    assert [len(each) for each in read["many"]] == [2**19 - 2] * 2
    expected = f"{2**20 + 1} bytes of JSON in the inputs; the most is {2**20}"
    with pytest.raises(PayloadTooLarge, match=expected):
        values.read_inputs(plan(many), {"many": texts(value, value, b"1")})
    with pytest.raises(PayloadTooLarge, match=expected):
        values.read_inputs(plan(many, other), {"many": texts(value, value), "other": texts(b"1")})


@pytest.mark.parametrize("opened", ["[", '{"a":'])
def test_json_that_is_nested_too_deeply_is_refused(opened: str) -> None:
    """With a status that says whose fault it is."""
    given = plan(PipelineInput("x", "json"))
    closed = "]" if opened == "[" else "}"
    for levels in (1, 128):
        values.read_inputs(given, {"x": texts(f"{opened * levels}1{closed * levels}".replace("[1]", "[]").encode())})
    for levels in (129, 300, 5000):
        with pytest.raises(InvalidRequest, match="x: "):
            values.read_inputs(given, {"x": texts(f"{opened * levels}1{closed * levels}".encode())})


def test_a_model_of_json_takes_texts_of_tensors() -> None:
    """As texts."""
    payload = values.payload_of(STEP, model("json"), {"a": texts(b"one", b"two"), "b": [1.5]})
    assert isinstance(payload, Media)
    assert payload.content == b'{"a":["one","two"],"b":[1.5]}'


@pytest.mark.parametrize("value", [deep(300), deep(5000), {"a": object()}], ids=["deep", "deeper", "no JSON"])
def test_what_has_no_json_form_is_told(value: Any) -> None:
    """To models, and in outputs."""
    with pytest.raises(InferenceFailed):
        values.payload_of(STEP, model("json"), value)
    with pytest.raises(InferenceFailed, match="output 'out': "):
        values.write_outputs(plan(outputs={"out": Output(Reference("x"))}), lambda _: value)


@pytest.mark.parametrize(("value", "same"), [(7, True), (8, False), ([7], False)])
def test_a_tensor_of_one_value_is_the_same_as_that_value(value: Any, same: bool) -> None:
    """Wherever it is in a result."""
    assert same is values.equal([{"count": np.array([7], np.int32)}, {"count": value}])


def test_results_may_be_nested_deeply() -> None:
    """They are counted, and compared as far as that goes."""
    assert values.nbytes_of({"a": deep(5000), "b": [1, "two", (b"3",)]}) == 1 + 1 + 8 + 3 + 1
    with pytest.raises(InferenceFailed, match="nested too deeply to be compared"):
        values.equal([deep(5000), deep(5000)])
    assert values.equal([deep(128), deep(128)])


def test_the_bytes_of_texts_count() -> None:
    """And those of the references to them: a million empty texts are not nothing."""
    array = texts(b"a" * 1000, b"bc")
    assert values.nbytes_of({"y": array}) == 1 + 16 + 1002
    assert payload_bytes({"y": array, "z": np.zeros((2, 2), np.float32)}) == 16 + 1002 + 16


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (texts(b"not", b"JSON"), r"object \[2\]"),
        (np.zeros((1, 2)), r"float64 \[1, 2\]"),
        (np.zeros(2, np.float32), r"float32 \[2\]"),
        (np.zeros((1, 3), np.float32), r"float32 \[1, 3\]"),
        ([1.0], "a list"),
    ],
)
def test_an_output_that_is_no_longer_what_was_declared_is_an_error(value: Any, got: str) -> None:
    """A model was loaded anew, with another output."""
    outputs = {"y": Output(Reference("x"), TensorSpec("y", "FP32", (-1, 2)))}
    with pytest.raises(InferenceFailed, match=rf"output 'y': expected .*, got {got}"):
        values.write_outputs(plan(outputs=outputs), lambda _: value)


def test_an_output_of_any_rank() -> None:
    """Where it is not known what it will be."""
    outputs = {"y": Output(Reference("x"), TensorSpec("y", "FP32", (-1, -1), ranked=False))}
    array = np.zeros(2, np.float32)
    assert values.write_outputs(plan(outputs=outputs), lambda _: array)["y"] is array


def test_a_model_that_takes_several_tensors_now_is_told() -> None:
    """Its step has one."""
    with pytest.raises(InvalidRequest, match="model 'houses' takes a, b, and its step has one value"):
        values.payload_of(STEP, model("tensors", "a", "b"), np.zeros((1, 2), np.float32))


def test_bytes_that_are_no_text_have_no_json() -> None:
    """Within an object, likewise."""
    outputs = {"y": Output(Reference("x"))}
    (text,) = values.write_outputs(plan(outputs=outputs), lambda _: {"a": texts(b"b")})["y"]
    assert text == b'{"a":["b"]}'
    with pytest.raises(InferenceFailed, match="output 'y': bytes that are not UTF-8 text have no JSON form"):
        values.write_outputs(plan(outputs=outputs), lambda _: {"a": texts(b"b", b"\xff")})


@pytest.mark.parametrize(
    ("value", "case"),
    [
        ("seven", "seven"),
        (7, "7"),
        (7.0, "7"),
        (7.5, "7.5"),
        (True, "true"),
        (None, "null"),
        (np.array([[7]], np.float32), "7"),
        (np.array([-0.0], np.float32), "0"),
        (np.array([2**24], np.int32), "16777216"),
        (np.array([True]), "true"),
        (np.array([b"seven"], object), "seven"),
        (np.array([np.nan], np.float32), None),
        (np.array([np.inf], np.float16), None),
        ({"label": "seven"}, None),
    ],
)
def test_a_case_is_equal_to_a_value_however_that_is_represented(value: Any, case: str | None) -> None:
    """A class's number in FP32 is that number; what is no number is no case, not even null."""
    assert values.case_of(value) == case


@pytest.mark.parametrize("shape", [(2, 1), (0,)])
def test_a_tensor_of_other_than_one_value_is_no_case(shape: tuple[int, ...]) -> None:
    """Not even the default one, which two rows would get whatever they are."""
    with pytest.raises(InvalidRequest, match=f"a switch takes one value, and the tensor has {shape[0]}"):
        values.case_of(np.ones(shape, np.float32))


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        pytest.param(model("text-classification"), "one", id="the server's own"),
        pytest.param(model("text-classification")._replace(own_processor=True), ["one"], id="a class for texts"),
        pytest.param(model("json")._replace(own_processor=True), ["one"], id="a class for JSON"),
    ],
)
def test_a_list_of_one_is_unwrapped_only_where_it_is_one_answer_per_text(info: ModelInfo, expected: Any) -> None:
    """What a class of the operator's lists may be whatever it found in the text: once two, once one."""
    assert values.result_of(info, "a text", ["one"]) == expected
    assert values.result_of(info, "a text", ["one", "two"]) == ["one", "two"]
    assert values.result_of(info, ["a text"], ["one"]) == ["one"]


def test_one_tensor_stands_for_what_a_model_gives_and_for_no_other_object() -> None:
    """Whatever that holds."""
    array = np.ones((1, 2), np.float32)
    given = values.result_of(model("tensors"), array, {"y": array})
    assert values.single(given) is array
    assert values.pick(given, Reference("a", ("y",))) is array
    assert values.single({"y": array}) == {"y": array}
