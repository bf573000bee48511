"""Labels of outputs and formats of inputs, as a configuration says them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import onnx_models
import pytest
from onnx import TensorProto, helper

from serve_app.api.open_inference.configuration import model_config
from serve_app.composition import describe_models
from serve_app.config.args import parse_args
from serve_app.domain.service import ModelInfo
from serve_app.errors import ConfigError

FOUR = ["red", "green", "blue", "none"]


def describe(folder: Path, **keys: Any) -> ModelInfo:
    """What is known of the one model in a folder."""
    config = parse_args({"models": [{"name": "m", "path": str(folder), **keys}]})
    return describe_models(config)["m"]


def problems(folder: Path, **keys: Any) -> tuple[str, ...]:
    """The faults of a configuration."""
    with pytest.raises(ConfigError) as caught:
        describe(folder, **keys)
    return caught.value.problems


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A model of one input [-1, 3, 32, 32] and one output [-1, 4], in a flat folder."""
    onnx_models.make(tmp_path / "m" / "model.onnx", "image_logits")
    return tmp_path / "m"


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    """A model with two inputs and three outputs: [-1, 2], [-1, any] and texts."""
    ends = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("x", TensorProto.FLOAT, ["n", 2]),
            ("z", TensorProto.FLOAT, ["n", "k"]),
            ("s", TensorProto.STRING, ["n", 2]),
        )
    ]
    outputs = [
        helper.make_tensor_value_info(
            name,
            end.type.tensor_type.elem_type,
            [part.dim_param or part.dim_value for part in end.type.tensor_type.shape.dim],
        )
        for name, end in zip(("two", "any", "text"), ends, strict=True)
    ]
    nodes = [helper.make_node("Identity", [end.name], [output.name]) for end, output in zip(ends, outputs, strict=True)]
    model = helper.make_model(
        helper.make_graph(nodes, "test", ends, outputs), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads" / "model.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "heads"


def test_labels_are_a_list_or_a_file(pictures: Path) -> None:
    """A file has one per line; an empty line inside is a value without a name, and at the end nothing."""
    (pictures / "names.txt").write_text("red\r\n\r\nblue\nnone\n\n", encoding="utf-8-sig")
    assert describe(pictures, labels=FOUR).labels_of("logits") == tuple(FOUR)
    named = describe(pictures, labels="names.txt")
    assert (named.labels_of("logits"), named.label_files) == (("red", "", "blue", "none"), {"logits": "names.txt"})
    by_output = describe(pictures, labels={"logits": FOUR})
    assert (by_output.labels_of("logits"), by_output.label_files) == (tuple(FOUR), {})


def test_labels_beside_a_model_are_used_and_told(pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a word in the configuration; what does not fit is not used, and that is told louder."""
    caplog.set_level(logging.INFO, "serve_app")
    (pictures / "labels.txt").write_text("\n".join(FOUR), encoding="utf-8")
    assert describe(pictures).labels_of("logits") == tuple(FOUR)
    (pictures / "labels.txt").write_text("a\nb\n", encoding="utf-8")
    assert describe(pictures).labels_of("logits") == ()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "model 'm': labels.txt beside the model names the values of logits"),
        (
            "WARNING",
            (
                "model 'm': labels.txt beside the model is not used:"
                " labels: 2 labels, but a row of output logits has 4 values"
            ),
        ),
    ]


def test_labels_of_a_version_and_of_all_are_found(tmp_path: Path) -> None:
    """Inside the version's folder, and beside the versions."""
    onnx_models.make(tmp_path / "m" / "1" / "model.onnx", "image_logits")
    (tmp_path / "m" / "labels.txt").write_text("a\nb\nc\nd\n", encoding="utf-8")
    assert describe(tmp_path / "m").labels_of("logits") == ("a", "b", "c", "d")
    (tmp_path / "m" / "1" / "labels.txt").write_text("\n".join(FOUR), encoding="utf-8")
    assert describe(tmp_path / "m").labels_of("logits") == tuple(FOUR)


def test_labels_go_to_the_outputs_that_they_fit(heads: Path) -> None:
    """By the number of values of a row, or else to what may have any number."""
    assert describe(heads, labels=["a", "b"]).output_labels == {"two": ("a", "b")}
    assert describe(heads, labels=["a", "b", "c"]).output_labels == {"any": ("a", "b", "c")}
    each = {"two": ["a", "b"], "any": ["c"]}
    assert describe(heads, labels=each).output_labels == {"two": ("a", "b"), "any": ("c",)}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["a"], "labels: 1 labels, but a row of output logits has 4 values"),
        ("gone.txt", "labels: there is no file gone.txt beside the model"),
        ("empty.txt", "labels: empty.txt holds no labels"),
        ("latin.txt", "labels: latin.txt cannot be read: UnicodeDecodeError"),
        ({"logit": FOUR}, "labels.logit: there is no output 'logit'; did you mean logits?"),
        ({"logits": ["a"]}, "labels.logits: 1 labels, but a row of output logits has 4 values"),
        ({"logits": "gone.txt"}, "labels.logits: there is no file gone.txt beside the model"),
    ],
)
def test_labels_that_do_not_fit_are_one_line(pictures: Path, labels: Any, expected: str) -> None:
    """As `serve-app validate` says it."""
    (pictures / "empty.txt").touch()
    (pictures / "latin.txt").write_bytes(b"\xe9t\xe9\n")
    assert problems(pictures, labels=labels) == (f"model 'm': {expected}",)


def test_texts_have_no_labels(heads: Path) -> None:
    """There is no highest among them."""
    expected = "model 'm': labels.text: output text BYTES[-1, 2] has no highest values, and so no labels"
    assert problems(heads, labels={"text": ["a", "b"]}) == (expected,)


def test_a_format_is_of_the_picture(pictures: Path) -> None:
    """Of the only input that can be one, or of the input named."""
    assert describe(pictures, format="NCHW").formats == {"pixels": "NCHW"}
    assert describe(pictures, format={"pixels": "NHWC"}).formats == {"pixels": "NHWC"}
    assert describe(pictures).formats == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "NCHW",
            (
                "format: 0 of the inputs can be pictures (x FP32[-1, 2], z FP32[-1, -1], s BYTES[-1, 2]);"
                " NCHW is for rows of three axes"
            ),
        ),
        ({"x": "NHWC"}, "format.x: NHWC is for rows of three axes, and the input is x FP32[-1, 2]"),
        ({"y": "NHWC"}, "format.y: there is no input 'y'; there is x, z, s"),
    ],
)
def test_a_format_that_does_not_fit_is_one_line(heads: Path, given: Any, expected: str) -> None:
    """As `serve-app validate` says it."""
    assert problems(heads, format=given) == (f"model 'm': {expected}",)


def test_vectors_may_be_longer_than_requests_have_rows(tmp_path: Path, pictures: Path) -> None:
    """A row of a model without a batch axis is one value."""
    shapes: dict[str, list[int | str | None]] = {"vector": ["n"], "pairs": ["n", 2]}
    for name, shape in shapes.items():
        (tmp_path / name).mkdir()
        nodes = [helper.make_node("Relu", ["x"], ["y"])]
        x, y = ([(end, TensorProto.FLOAT, shape)] for end in "xy")
        onnx_models.write(tmp_path / name / "model.onnx", nodes, x, y)

    most = [describe(folder).max_request_rows for folder in (tmp_path / "vector", tmp_path / "pairs", pictures)]

    assert most == [64 * 2048, 2048, 2048]


def test_every_fault_is_told(pictures: Path) -> None:
    """Of labels and of formats, at once."""
    assert len(problems(pictures, labels=["a"], format={"nothing": "NCHW"})) == 2


def test_tritons_clients_read_labels_and_formats(pictures: Path) -> None:
    """In the model's configuration, in Triton's words."""
    (pictures / "names.txt").write_text("\n".join(FOUR), encoding="utf-8")
    config = model_config(describe(pictures, labels={"logits": "names.txt"}, format="NHWC"))
    assert [tensor["format"] for tensor in config["input"]] == ["FORMAT_NHWC"]
    assert [tensor["label_filename"] for tensor in config["output"]] == ["names.txt"]
    config = model_config(describe(pictures, labels=FOUR))
    assert [tensor["format"] for tensor in config["input"]] == ["FORMAT_NONE"]
    assert [tensor["label_filename"] for tensor in config["output"]] == [""]
