"""Ensembles of a repository: the pipeline that each becomes, and what is told of those that become none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx import TensorProto, helper
from triton_repositories import CHAIN_STEPS, CHAIN_TENSORS, SUM_DIFF, add_chain, add_ensemble, add_model

from serve_app.composition import describe_models, read_args, with_versions
from serve_app.domain.service import ModelInfo
from serve_app.errors import ConfigError
from serve_app.pipelines.composition import pipeline_infos
from serve_app.triton.repository import read_repository

CHAIN = CHAIN_TENSORS + CHAIN_STEPS
STEPS = [
    {"name": "score", "model": "score", "inputs": {"SUM": "prepare.TOTAL", "X": "prepare.SCALED"}},
    {"name": "prepare", "model": "prepare", "inputs": {"RAW": "IMAGE"}},
    {"name": "prepare-2", "model": "prepare", "version": 1, "inputs": {"RAW": "prepare.SCALED"}},
]


def pipelines(folder: Path) -> list[dict[str, Any]]:
    """The entries of `pipelines` of a repository."""
    return read_repository(str(folder)).pipelines


def told(folder: Path, given: dict[str, Any] | None = None) -> list[str]:
    """What is told of the ensemble ``chain``, without its file."""
    notes = read_repository(str(folder), given).notes
    return [note.removeprefix(f"{folder}/chain/config.pbtxt:") for note in notes]


def faults(folder: Path, given: dict[str, Any] | None = None) -> list[str]:
    """What is wrong with it, likewise."""
    with pytest.raises(ConfigError) as caught:
        read_repository(str(folder), given)
    return [line.removeprefix(f"{folder}/chain/config.pbtxt:") for line in caught.value.problems]


def described(folder: Path) -> ModelInfo:
    """The one pipeline of a repository, as clients will see it."""
    config = with_versions(read_args({"repository": str(folder)}))
    (info,) = pipeline_infos(config, describe_models(config))
    return info


def test_steps_follow_the_tensors(tmp_path: Path) -> None:
    """In any order; a tensor may be consumed by several steps, and a model may run in several."""
    add_chain(tmp_path)
    assert pipelines(tmp_path) == [
        {
            "name": "chain",
            "max_rows": 4,
            "inputs": {"IMAGE": {"type": "tensor", "datatype": "FP32", "shape": [-1, 4]}},
            "steps": STEPS,
            "outputs": {"CLASS": "score.LOGITS", "QUARTER": "prepare-2.SCALED"},
        }
    ]
    assert told(tmp_path) == []
    info = described(tmp_path)
    assert info.pipeline is not None
    assert list(info.pipeline.steps) == ["prepare", "score", "prepare-2"]
    assert (info.rows, info.max_rows, info.max_request_rows) == (True, 4, 4)
    assert (info.labels_of("CLASS"), info.labels_of("QUARTER")) == (("red", "green", "blue"), ())


def test_without_rows_tensors_have_all_their_sizes(tmp_path: Path) -> None:
    """`max_batch_size` 0: dims are the whole shape."""
    text = CHAIN.replace("max_batch_size: 4\n", "").replace("dims: [ ", "dims: [ -1, ")
    add_chain(tmp_path, text)
    (found,) = pipelines(tmp_path)
    assert (found["inputs"]["IMAGE"]["shape"], "max_rows" in found) == ([-1, 4], False)
    assert described(tmp_path).rows is False
    (tmp_path / "chain" / "config.pbtxt").write_text(text.replace("dims: [ -1, 4 ]", "dims: [ 2, 4 ]", 1))
    (found,) = pipelines(tmp_path)
    assert found["inputs"]["IMAGE"]["shape"] == [2, 4]


def test_texts_are_tensors(tmp_path: Path) -> None:
    """`TYPE_STRING` in and out."""
    add_model(tmp_path, "echo", None, "string_identity")
    tensor = 'put { name: "%s" data_type: TYPE_STRING dims: [ -1 ] }\n'
    step = 'step { model_name: "echo" model_version: -1 %s }'
    maps = 'input_map { key: "INPUT0" value: "TEXT" } output_map { key: "OUTPUT0" value: "SAME" }'
    head = 'platform: "ensemble" max_batch_size: 4\n' + f"in{tensor % 'TEXT'}out{tensor % 'SAME'}"
    add_ensemble(tmp_path, "chain", head + f"ensemble_scheduling {{ {step % maps} }}")
    assert told(tmp_path) == []
    info = described(tmp_path)
    assert [(spec.name, spec.datatype) for spec in (*info.signature.inputs, *info.signature.outputs)] == [
        ("TEXT", "BYTES"),
        ("SAME", "BYTES"),
    ]
    assert info.pipeline is not None
    assert info.pipeline.outputs["SAME"].tensor is not None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(
            'model_name: "score"',
            'model_name: "scor"',
            "8:5: ensemble_scheduling.step[0].model_name: there is no model 'scor'; did you mean score?",
            id="unknown model",
        ),
        pytest.param(
            'value: "scaled" } input_map { key: "SUM"',
            'value: "scald" } input_map { key: "SUM"',
            "9:5: ensemble_scheduling.step[0].input_map[\"X\"]: no input is tensor 'scald', and no step makes it;"
            " did you mean scaled?",
            id="a tensor that nobody makes",
        ),
        pytest.param(
            'value: "total" }\n  },',
            'value: "scaled" }\n  },',
            "15:50: ensemble_scheduling.step[1].output_map[\"TOTAL\"]: tensor 'scaled' is made by prepare.SCALED"
            " already",
            id="two makers",
        ),
        pytest.param(
            'value: "QUARTER" }',
            'value: "IMAGE" }',
            "20:5: ensemble_scheduling.step[2].output_map[\"SCALED\"]: tensor 'IMAGE' is an input already",
            id="a step that makes an input",
        ),
        pytest.param(
            'key: "RAW" value: "IMAGE"',
            'key: "RAW" value: "QUARTER"',
            "12:3: ensemble_scheduling.step[1]: steps need each other in a circle: prepare -> prepare-2 -> prepare",
            id="circle",
        ),
        pytest.param(
            'name: "QUARTER" data_type',
            'name: "HALF" data_type',
            "5:10: output[1].name: no input is tensor 'HALF', and no step makes it; there is IMAGE, CLASS, scaled,"
            " total, QUARTER",
            id="an output that nobody makes",
        ),
        pytest.param(
            'input_map { key: "SUM" value: "total" }',
            "",
            "7:3: ensemble_scheduling.step[0]: inputs: score also takes SUM",
            id="an input of a model is missing",
        ),
        pytest.param(
            'key: "SUM"',
            'key: "SUMS"',
            "7:3: ensemble_scheduling.step[0]: inputs: score has no input 'SUMS'; did you mean SUM?",
            id="unknown input of a model",
        ),
        pytest.param(
            'output_map { key: "LOGITS"',
            'output_map { key: "LOGIT"',
            "10:5: ensemble_scheduling.step[0].output_map[\"LOGIT\"]: score has no output 'LOGIT'; did you mean"
            " LOGITS?",
            id="unknown output of a model",
        ),
        pytest.param(
            "model_version: 1",
            "model_version: 7",
            "17:3: ensemble_scheduling.step[2]: version: prepare has no version '7'; versions: 1",
            id="unknown version",
        ),
        pytest.param(
            "model_version: 1",
            "model_version: -2",
            "18:27: ensemble_scheduling.step[2].model_version: must be -1, the newest, or a number, got -2",
            id="no version",
        ),
        pytest.param(
            "TYPE_FP32 dims: [ 4 ]",
            "TYPE_INT64 dims: [ 4 ]",
            "12:3: ensemble_scheduling.step[1]: prepare takes FP32 [-1, 4] as RAW, and IMAGE is INT64 [-1, 4]",
            id="another datatype of an input",
        ),
        pytest.param(
            "dims: [ 4 ]",
            "dims: [ 5 ]",
            "12:3: ensemble_scheduling.step[1]: prepare takes FP32 [-1, 4] as RAW, and IMAGE is FP32 [-1, 5]",
            id="other dims of an input",
        ),
        pytest.param(
            '"CLASS" data_type: TYPE_FP32',
            '"CLASS" data_type: TYPE_FP16',
            "4:24: output[0].data_type: is TYPE_FP16, and score.LOGITS is TYPE_FP32",
            id="another datatype of an output",
        ),
        pytest.param(
            "dims: [ 3 ]",
            "dims: [ 2 ]",
            "4:45: output[0].dims: are [2] without its rows, and score.LOGITS is FP32[-1, 3]",
            id="other dims of an output",
        ),
        pytest.param(
            'value: "total" }\n    output_map',
            'value: "scaled" }\n    output_map',
            "7:3: ensemble_scheduling.step[0]: score takes FP32 [-1, 1] as SUM, and prepare.SCALED is FP32 [-1, 4]",
            id="a step's tensor does not fit the next",
        ),
        pytest.param("dims: [ 4 ]", "", "3:1: input[0].dims: must be sizes of at least 1, or -1, got []", id="no dims"),
        pytest.param(
            "data_type: TYPE_FP32 dims: [ 4 ]", "dims: [ 4 ]", "3:1: input[0].data_type: is missing", id="no datatype"
        ),
        pytest.param(
            'platform: "ensemble"',
            'platform: "onnxruntime_onnx"',
            "1:1: platform: must be ensemble with ensemble_scheduling",
            id="another platform",
        ),
        pytest.param(
            "max_batch_size: 4", "max_batch_size: -1", "2:1: max_batch_size: must be at least 0, got -1", id="batch"
        ),
        pytest.param(
            "max_batch_size: 4",
            'name: "chains"',
            "2:1: name: is 'chains', but the folder is 'chain'",
            id="another name",
        ),
        pytest.param(
            "max_batch_size: 4",
            "max_batch_size: 4 version_policy { specific { versions: [ 1, 3 ] } }",
            "2:47: version_policy.specific.versions: there is no folder 3",
            id="a version that is not there",
        ),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, before: str, after: str, expected: str) -> None:
    """With its place, in one line, and nothing starts."""
    assert before in CHAIN
    add_chain(tmp_path, CHAIN.replace(before, after, 1))
    assert faults(tmp_path)[0] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHAIN_TENSORS, "1:1: ensemble_scheduling: an ensemble needs at least one step"),
        (
            'platform: "ensemble" ensemble_scheduling { step { model_name: "score" } }',
            "1:44: ensemble_scheduling.step[0].input_map: is missing",
        ),
    ],
)
def test_an_ensemble_without_its_parts_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    """One line for each."""
    add_chain(tmp_path, text)
    assert expected in faults(tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(
            'model_name: "prepare" model_version: 1',
            'model_name: "other"',
            "18:5: ensemble_scheduling.step[2].model_name: 'other' is an ensemble or a pipeline, which no step can be:"
            " name its models",
            id="an ensemble as a step",
        ),
        pytest.param(
            'model_name: "prepare" model_version: 1',
            'model_name: "code"',
            "18:5: ensemble_scheduling.step[2].model_name: model 'code' is not served",
            id="a model that is not served",
        ),
        pytest.param(
            '"IMAGE"',
            '"image.0"',
            "3:9: input[0].name: an input of a pipeline must be 1 to 63 letters, digits, '-' or '_', got 'image.0'",
            id="a name",
        ),
        pytest.param(
            'output { name: "CLASS"',
            'input { name: "MORE" data_type: TYPE_FP32 dims: [ 1 ] }\noutput { name: "CLASS"',
            "4:9: input[1].name: no output needs input 'MORE'; leave it out",
            id="an input that nothing uses",
        ),
        pytest.param(
            "dims: [ 4 ]",
            "dims: [ 4 ] reshape { shape: [ 2, 2 ] }",
            "3:56: input[0].reshape: tensors are passed on with the shape that they come with",
            id="reshape",
        ),
        pytest.param(
            'key: "SCALED" value: "scaled"',
            'key: "SC D" value: "scaled"',
            (
                "6:1: ensemble_scheduling: does not fit a pipeline: steps[0].inputs.X: must be the name of an input or"
                " a step, as in image or digit.0.label, got 'prepare.SC D'"
            ),
            id="a tensor with a blank",
        ),
        pytest.param(
            "max_batch_size: 4",
            'max_batch_size: 4 model_operations { op_library_filename: "x.so" }',
            "2:19: model_operations: libraries of custom operators are not loaded",
            id="operators",
        ),
    ],
)
def test_what_cannot_be_a_pipeline_is_left_out_and_told(tmp_path: Path, before: str, after: str, expected: str) -> None:
    """The models of its steps are served all the same; with `strict` nothing starts."""
    assert before in CHAIN
    add_chain(tmp_path, CHAIN.replace(before, after))
    add_ensemble(tmp_path, "other", CHAIN)
    (add_model(tmp_path, "code") / "config.pbtxt").write_text('backend: "python"')
    line = f"{expected}: model 'chain' is not served"
    assert told(tmp_path)[0] == line
    repository = read_repository(str(tmp_path))
    assert [entry["name"] for entry in repository.served] == ["prepare", "score"]
    assert [entry["name"] for entry in repository.pipelines] == ["other"]
    with pytest.raises(ConfigError) as caught:
        read_repository(str(tmp_path), strict=True)
    assert f"{tmp_path}/chain/config.pbtxt:{line}" in caught.value.problems


def test_more_steps_than_a_pipeline_may_have_are_told_at_once(tmp_path: Path) -> None:
    """And nothing else of them."""
    add_chain(tmp_path, CHAIN_TENSORS + "ensemble_scheduling {" + 'step { model_name: "score" }\n' * 65 + "}")
    assert told(tmp_path) == [
        "6:1: ensemble_scheduling: a pipeline has at most 64 steps, got 65: model 'chain' is not served"
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            "ensemble_scheduling {",
            "ensemble_scheduling { max_inflight_requests: 16",
            (
                "6:23: ensemble_scheduling.max_inflight_requests: the queues of classes, router.limits and"
                " max_result_bytes bound what waits"
            ),
        ),
        (
            "dims: [ 4 ]",
            "dims: [ 4 ] optional: true",
            "3:56: input[0].optional: a pipeline needs all its inputs: a request without it is refused",
        ),
        (
            "dims: [ 3 ]",
            'dims: [ 3 ] label_filename: "mine.txt"',
            "4:57: output[0].label_filename: values have the labels of the model that gives them",
        ),
        (
            "max_batch_size: 4",
            "max_batch_size: 4 instance_group { count: 2 }",
            "2:19: instance_group: an ensemble has no instances: those of its models count",
        ),
        (
            "max_batch_size: 4",
            "max_batch_size: 4 response_cache { enable: true }",
            "2:36: response_cache.enable: a pipeline has no cache: those of its models count",
        ),
        (
            "max_batch_size: 4",
            "max_batch_size: 4 optimization { priority: PRIORITY_MAX }",
            "2:34: optimization.priority: has no counterpart, and counts for nothing",
        ),
        (
            "model_version: 1",
            'model_version: 1 model_namespace: "a"',
            "18:44: ensemble_scheduling.step[2].model_namespace: has no counterpart, and counts for nothing",
        ),
        (
            'output { name: "QUARTER" data_type: TYPE_FP32 dims: [ 4 ] }\n',
            "",
            "16:3: ensemble_scheduling.step[2]: no output needs it: it does not run",
        ),
    ],
)
def test_what_is_followed_otherwise_is_told(tmp_path: Path, before: str, after: str, expected: str) -> None:
    """One line; the ensemble is served."""
    assert before in CHAIN
    add_chain(tmp_path, CHAIN.replace(before, after, 1))
    assert told(tmp_path) == [expected]
    assert [entry["name"] for entry in pipelines(tmp_path)] == ["chain"]


@pytest.mark.parametrize(
    ("policy", "version", "line"),
    [
        ("", 5, None),
        ("version_policy { latest { num_versions: 1 } }", 5, None),
        ("version_policy { specific { versions: [ 2 ] } }", 2, None),
        ("version_policy { all {} }", 5, "6:1: version_policy: an ensemble has one version here, 5"),
        (
            "version_policy { latest { num_versions: 2 } }",
            5,
            "6:1: version_policy: an ensemble has one version here, 5",
        ),
        (
            "version_policy { specific { versions: [ 1, 2 ] } }",
            2,
            "6:1: version_policy: an ensemble has one version here, 2",
        ),
    ],
)
def test_an_ensemble_has_one_version(tmp_path: Path, policy: str, version: int, line: str | None) -> None:
    """Which its folders name."""
    folder = add_chain(tmp_path, CHAIN_TENSORS + policy + "\n" + CHAIN_STEPS)
    for further in ("2", "5", "05", "notes"):
        (folder / further).mkdir()
    assert told(tmp_path) == ([] if line is None else [line])
    assert described(tmp_path).versions == (str(version),)


def test_steps_may_be_models_that_are_configured_by_hand(tmp_path: Path) -> None:
    """In place of a folder, or without one; of remote ones nothing is compared."""
    add_chain(tmp_path, CHAIN.replace('"prepare"', '"by-hand"'))
    entry = {"name": "by-hand", "path": str(tmp_path / "prepare")}
    assert faults(tmp_path) == [
        f"{place}: there is no model 'by-hand'; there is prepare, score"
        for place in ("13:5: ensemble_scheduling.step[1].model_name", "18:5: ensemble_scheduling.step[2].model_name")
    ]
    assert told(tmp_path, {"models": [entry]}) == []
    assert told(tmp_path, {"models": [{"name": "by-hand", "path": "s3://bucket/prepare"}]}) == []
    assert told(tmp_path, {"pools": [{"name": "small"}]}) == []
    mine = {"models": [{**entry, "name": "chain"}]}
    assert told(tmp_path, mine) == [
        f"{tmp_path}/chain: models has an entry 'chain', which counts in place of the folder"
    ]


def test_a_pipeline_counts_in_place_of_the_folder(tmp_path: Path) -> None:
    """As a model does; and one of another name is beside it."""
    add_chain(tmp_path)
    mine = {
        "name": "chain",
        "inputs": {"x": {"type": "tensor", "datatype": "FP32", "shape": [-1, 4]}},
        "steps": [{"name": "only", "model": "prepare", "input": "x"}],
        "outputs": {"y": "only.SCALED"},
    }
    args = read_args({"repository": str(tmp_path), "pipelines": [mine]})
    assert [list(each.inputs) for each in args.pipelines] == [["x"]]
    args = read_args({"repository": str(tmp_path), "pipelines": [{**mine, "name": "mine"}]})
    assert [each.name for each in args.pipelines] == ["mine", "chain"]


def test_a_model_whose_rows_are_elsewhere_is_no_step(tmp_path: Path) -> None:
    """Between steps the rows are in front, and Triton passes tensors on as they are."""
    floats = TensorProto.FLOAT
    shape: list[int | str | None] = ["time", "rows", 4]
    (tmp_path / "over" / "1").mkdir(parents=True)
    onnx_models.write(
        tmp_path / "over" / "1" / "model.onnx",
        [helper.make_node("CumSum", ["x", "axis"], ["y"])],
        [("x", floats, shape)],
        [("y", floats, shape)],
        {"axis": np.array(0)},
    )
    text = """\
platform: "ensemble"
input { name: "A" data_type: TYPE_FP32 dims: [ -1, -1, 4 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ -1, -1, 4 ] }
ensemble_scheduling { step { model_name: "over" model_version: -1
  input_map { key: "x" value: "A" } output_map { key: "y" value: "B" } } }
"""
    add_ensemble(tmp_path, "chain", text)
    assert told(tmp_path) == []
    by_hand = {"name": "over", "path": str(tmp_path / "over"), "batching": {"axis": 1}}
    assert told(tmp_path, {"models": [by_hand]})[0] == (
        "4:30: ensemble_scheduling.step[0].model_name: over has its rows in dimension 1; leave axis out:"
        " model 'chain' is not served"
    )


def test_a_step_has_the_tensors_of_the_version_that_it_names(tmp_path: Path) -> None:
    """Whatever those of others are."""
    add_model(tmp_path, "m", "version_policy { all {} }", "add_one")
    onnx_models.identity(tmp_path / "m" / "2" / "model.onnx", {"a": TensorProto.FLOAT})
    text = """\
platform: "ensemble"
input { name: "A" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ -1, 4 ] }
ensemble_scheduling { step { model_name: "m" model_version: 1
  input_map { key: "x" value: "A" } output_map { key: "y" value: "B" } } }
"""
    folder = add_ensemble(tmp_path, "chain", text)
    assert [step["version"] for step in pipelines(tmp_path)[0]["steps"]] == [1]
    (folder / "config.pbtxt").write_text(text.replace("model_version: 1", "model_version: -1"))
    assert faults(tmp_path) == [
        "5:37: ensemble_scheduling.step[0].output_map[\"y\"]: m has no output 'y'; there is out_a"
    ]


def test_versions_of_a_step_may_have_other_sizes(tmp_path: Path) -> None:
    """And outputs more: all of them give what the ensemble needs."""
    add_model(tmp_path, "m", "version_policy { all {} }", "add_one")
    floats = TensorProto.FLOAT
    (tmp_path / "m" / "2").mkdir()
    onnx_models.write(
        tmp_path / "m" / "2" / "model.onnx",
        [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])],
        [("x", floats, ["rows", 4])],
        [("y", floats, ["rows", 4]), ("z", floats, ["rows", 4])],
    )
    text = """\
platform: "ensemble"
input { name: "A" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ -1, 4 ] }
ensemble_scheduling { step { model_name: "m" model_version: -1
  input_map { key: "x" value: "A" } output_map { key: "y" value: "M" } }
  step { model_name: "m" model_version: 2
  input_map { key: "x" value: "M" } output_map { key: "y" value: "B" } } }
"""
    add_ensemble(tmp_path, "chain", text)
    assert told(tmp_path) == []
    assert [(spec.datatype, spec.shape) for spec in described(tmp_path).signature.outputs] == [("FP32", (-1, 4))]


@pytest.mark.parametrize("bias", ["", 'input_map { key: "bias" value: "A" }'])
def test_a_step_may_leave_out_what_its_model_has_a_value_for(tmp_path: Path, bias: str) -> None:
    """Or give it another."""
    floats = TensorProto.FLOAT
    (tmp_path / "m" / "1").mkdir(parents=True)
    onnx_models.write(
        tmp_path / "m" / "1" / "model.onnx",
        [helper.make_node("Add", ["x", "bias"], ["y"])],
        [("x", floats, ["rows", 4]), ("bias", floats, [1, 4])],
        [("y", floats, ["rows", 4])],
        {"bias": np.ones((1, 4), np.float32)},
    )
    text = f"""\
platform: "ensemble"
input {{ name: "A" data_type: TYPE_FP32 dims: [ -1, 4 ] }}
output {{ name: "B" data_type: TYPE_FP32 dims: [ -1, 4 ] }}
ensemble_scheduling {{ step {{ model_name: "m" model_version: -1
  input_map {{ key: "x" value: "A" }} {bias} output_map {{ key: "y" value: "B" }} }} }}
"""
    add_ensemble(tmp_path, "chain", text)
    assert told(tmp_path) == []
    assert pipelines(tmp_path)[0]["steps"][0]["inputs"] == ({"bias": "A"} if bias else {}) | {"x": "A"}


def test_two_ensembles_of_the_same_models(tmp_path: Path) -> None:
    """Both are served, beside models of other folders."""
    add_chain(tmp_path)
    add_ensemble(tmp_path, "again", CHAIN)
    add_model(tmp_path, "sums", SUM_DIFF)
    args = read_args({"repository": str(tmp_path)})
    assert [each.name for each in args.pipelines] == ["again", "chain"]
    assert [each.name for each in args.models] == ["prepare", "score", "sums"]
