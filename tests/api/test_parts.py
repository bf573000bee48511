"""Values of a pipeline's inputs in JSON: taken apart within bounds, and as they were sent."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest

from serve_app.api.parts import Parts, parse_parts, tensors_of, write_parts
from serve_app.domain.pipeline import PIPELINE, Output, Pipeline, PipelineInput, Reference
from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo
from serve_app.errors import InvalidRequest
from serve_app.payloads import ModelSignature, Tensors, TensorSpec


def info(*inputs: PipelineInput) -> ModelInfo:
    """A pipeline that takes these."""
    return ModelInfo(
        name="chain",
        version="1",
        versions=("1",),
        task=PIPELINE,
        signature=ModelSignature((), ()),
        max_rows=1,
        max_request_rows=64,
        default_timeout_s=dict.fromkeys(Priority, 10.0),
        labels=(),
        pipeline=Pipeline("chain", {each.name: each for each in inputs}, {}, {}, max_parts=4),
    )


def tensor(datatype: str, *shape: int) -> PipelineInput:
    """An input that is a tensor."""
    return PipelineInput("x", "tensor", datatype=datatype, shape=shape)


TEXTS = PipelineInput("x", "text", many=True)


def read(given: PipelineInput, body: bytes) -> Tensors:
    """What the service gets of a body."""
    served = info(given)
    return tensors_of(served, parse_parts(served, body))


@pytest.mark.parametrize(
    ("given", "value", "expected"),
    [
        (TEXTS, b"[" + b"0," * 2**19 + b"0]", "x: more than 4 parts (max_parts)"),
        (tensor("FP32", -1, -1), b"[" + b"[1]," * 2**18 + b"[1]]", "x: 262145 rows; the most in one request is 64"),
        (tensor("FP32", -1), b"[" + b"1," * 2**19 + b"1]", "x: 524289 rows; the most in one request is 64"),
        (tensor("FP32", -1, -1), b"[[1]" + b",0" * 2**19 + b"]", "x: nested lists have unequal lengths"),
        (tensor("FP32", -1, 1), b"[" + b"0," * 2**19 + b"0]", "x: expected FP32 values in lists, 2 deep"),
        (tensor("FP32", -1, 2), b"[[" + b"0," * 2**19 + b"0]]", "x: expected the shape [-1, 2], got [1, 524289]"),
        (tensor("BYTES", -1, 1), b"[" + b'[""],' * 2**18 + b'[""]]', "x: 262145 rows; the most in one request is 64"),
    ],
)
def test_lists_that_are_too_long_are_refused_before_anything_is_made_of_them(
    given: PipelineInput, value: bytes, expected: str
) -> None:
    """A value of a megabyte takes a few, not some for every element."""
    body = b'{"x":' + value + b"}"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as caught:
            read(given, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.message == expected
    assert peak < 16 * 2**20


def test_members_that_are_no_input_are_not_kept() -> None:
    """The first ends it, however many there are."""
    body = orjson.dumps({f"a{at}": 0 for at in range(100_000)})
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="'a0' is no input; pipeline 'chain' takes x"):
            read(TEXTS, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (tensor("FP32", -1), [1.0, 2.0]),
        (tensor("INT32", -1, 2), [[1, 2], [3, 4], [5, 6]]),
        (tensor("FP32", -1, -1, 2), [[[1.0, 2.0]], [[3.0, 4.0]]]),
        (tensor("FP32", -1, -1), [[], []]),
        (tensor("FP32", -1, -1, -1), [[[]], [[]]]),
        (tensor("FP32", -1, -1), np.arange(60_000.0).reshape(60, 1000).tolist()),
        (tensor("BYTES", -1), ["a,[b", 'c"]', "\\"]),
        (tensor("BYTES", -1, 2), [["a,b", "]["], ['"', "\\"]]),
        (tensor("BYTES", -1, 1), [["[,]" * 50_000], ["x"]]),
    ],
)
def test_tensors_are_what_was_sent(given: PipelineInput, value: list[Any]) -> None:
    """Of any rank; empty ones, long ones, and texts with brackets and commas."""
    array = read(given, orjson.dumps({"x": value}))["x"]
    expected = np.array(value)
    assert array.shape == expected.shape
    found = array.tolist()
    assert (np.vectorize(bytes.decode)(array).tolist() if given.datatype == "BYTES" else found) == value


@pytest.mark.parametrize(
    ("given", "value", "expected"),
    [
        (tensor("FP32", -1, 2), b"5", "x: expected FP32 values in lists, 2 deep"),
        (tensor("FP32", -1), b'"[1]"', "x: expected FP32 values in lists, 1 deep"),
        (tensor("FP32", -1, 1), b'[["[["]]', "x[0][0]: expected number, got string"),
        (tensor("FP32", -1, 1), b'[["a"]]', "x[0][0]: expected number, got string"),
        (tensor("FP32", -1, -1), b"[[],1,1]", "x: nested lists have unequal lengths"),
        (tensor("FP32", -1, 2), b"[[1,2],[3]]", "x: nested lists have unequal lengths"),
        (tensor("FP32", -1, 2), b"[[1],[2,3,4]]", "x: expected the shape [-1, 2], got [2, 1]"),
        (tensor("FP32", 2), b"[1,2,3]", "x: expected the shape [2], got [3]"),
        (TEXTS, b"5", "x: expected a list"),
    ],
)
def test_what_is_no_such_list_is_told(given: PipelineInput, value: bytes, expected: str) -> None:
    """In one line."""
    with pytest.raises(InvalidRequest) as caught:
        read(given, b'{"x":' + value + b"}")
    assert caught.value.message == expected


@pytest.mark.parametrize("part", [b" [[1, 2]] ", b"[" * 100_000, b"\xff", b"[[1,2]", b""])
def test_a_part_of_a_form_may_be_no_json(part: bytes) -> None:
    """Nobody has looked at it before."""
    served = info(tensor("FP32", -1, 2))
    if part.startswith(b" "):
        assert tensors_of(served, Parts({"x": [part]}))["x"].tolist() == [[1.0, 2.0]]
        return
    with pytest.raises(InvalidRequest):
        tensors_of(served, Parts({"x": [part]}))


def test_inputs_have_equally_many_rows() -> None:
    """Where dimension 0 is rows."""
    served = info(tensor("FP32", -1)._replace(name="a"), tensor("FP32", -1)._replace(name="b"))
    with pytest.raises(InvalidRequest, match="the inputs have 1 and 2 rows; dimension 0 is rows"):
        tensors_of(served, parse_parts(served, b'{"a": [1, 2], "b": [1]}'))


def test_a_list_of_as_many_as_there_may_be() -> None:
    """In their order."""
    assert read(TEXTS, b' { "x" : [ "a", "b", "", "d" ] } ')["x"].tolist() == [b"a", b"b", b"", b"d"]


def test_bytes_that_are_no_text_have_no_json() -> None:
    """They are refused, and not changed into other ones."""
    outputs = {"y": Output(Reference("x"), TensorSpec("y", "BYTES", (-1,)))}
    served = info()._replace(pipeline=Pipeline("chain", {}, {}, outputs, max_parts=4))
    assert write_parts(served, {"y": np.array(["zwölf".encode()], np.object_)}) == '{"y":["zwölf"]}'.encode()
    with pytest.raises(InvalidRequest, match="output 'y' is not UTF-8 text, which JSON needs"):
        write_parts(served, {"y": np.array([b"a", b"\xff\xd8"], np.object_)})
