"""What a model is warmed up with, as configured: its faults, and its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import edge_case_models
import fsspec
import numpy as np
import pytest

from serve_app.api.open_inference.sample import decode_sample
from serve_app.backends.onnx.signature import read_signature
from serve_app.composition import describe_models
from serve_app.composition.model import find_files, make_samples
from serve_app.config.args import parse_args
from serve_app.config.model import ModelConfig
from serve_app.errors import ConfigError

INT64 = "whole numbers from -9223372036854775808 to 9223372036854775807"

REQUEST = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [2, 1], "data": [1001, 1002]}]}


def args(folder: Path, warm_up: Any, **keys: Any) -> dict[str, Any]:
    """Arguments with a model that takes ids from 1000 to 1007, at home in ``folder``."""
    file = folder / "models" / "ids" / "1" / "model.onnx"
    if not file.exists():
        edge_case_models.ids(file)
    return {"models": [{"name": "ids", "path": str(folder / "models" / "ids"), "warm_up": warm_up, **keys}]}


def faults(given: Any) -> tuple[str, ...]:
    """What parsing, or reading the models, finds."""
    with pytest.raises(ConfigError) as caught:
        describe_models(parse_args(given))
    return caught.value.problems


def made(folder: Path, warm_up: Any, rows: int = 3) -> Any:
    """The ids that the model is warmed up with."""
    config: ModelConfig = parse_args(args(folder, warm_up)).models[0]
    signature = read_signature(find_files(config)[""].model_file, model="ids")
    samples = make_samples(config, signature, decode_sample, {"SERVE_APP_HOME": str(folder)})
    return next(samples.candidates())(rows, 0)["ids"].tolist()


@pytest.mark.parametrize(
    ("warm_up", "expected"),
    [
        ({"sample": []}, "args.models[0].warm_up.sample: unknown key; did you mean samples?"),
        (
            {"samples": ["a.txt"]},
            "args.models[0].warm_up.samples: 'a.txt' must end with .npz (arrays) or .json (a V2 infer request)",
        ),
        ({"inputs": {"ids": {}}}, "args.models[0].warm_up.inputs.ids: needs range, values, file or shape"),
        (
            {"inputs": {"ids": {"range": [5, 1]}}},
            "args.models[0].warm_up.inputs.ids.range: the lowest value comes first, got [5, 1]",
        ),
        (
            {"inputs": {"ids": {"range": [1, 5], "values": [3]}}},
            "args.models[0].warm_up.inputs.ids.values: range says what the values are; leave one of them out",
        ),
        ({"inputs": {"ids": {"values": []}}}, "args.models[0].warm_up.inputs.ids.values: needs at least 1, got 0"),
        (
            {"inputs": {"ids": {"shape": [0]}}},
            "args.models[0].warm_up.inputs.ids.shape[0]: must be at least 1, got 0",
        ),
        (
            {"inputs": {"ids": {"range": [0, "9"]}}},
            "args.models[0].warm_up.inputs.ids.range[1]: must be a whole number, got '9'; or must be a number, got '9'",
        ),
        (
            {"inputs": {"idz": {"range": [0, 9]}}},
            "model 'ids': warm_up.inputs.idz: the model has no input 'idz'; it takes 'ids'",
        ),
        (
            {"inputs": {"ids": {"values": [True]}}},
            f"model 'ids': warm_up.inputs.ids.values: input 'ids' takes INT64: {INT64}, got True",
        ),
    ],
)
def test_faults_are_told_with_their_place(tmp_path: Path, warm_up: Any, expected: str) -> None:
    """One line each, before anything starts."""
    assert (expected,) == faults(args(tmp_path, warm_up))


def test_a_task_with_media_needs_no_inputs(tmp_path: Path) -> None:
    """Its processor makes them."""
    given = args(tmp_path, {}, task="feature-extraction")
    assert faults(given) == (
        "args.models[0].warm_up: the task feature-extraction makes inputs of its own; leave this out",
    )


def test_samples_are_arrays_or_requests(tmp_path: Path) -> None:
    """Located as models are, and joined row by row."""
    np.savez(tmp_path / "a.npz", ids=np.array([[1003]]))
    (tmp_path / "b.json").write_text(json.dumps(REQUEST))
    memory = fsspec.filesystem("memory")
    memory.pipe("/samples/b.json", json.dumps(REQUEST).encode())

    assert made(tmp_path, {"samples": ["a.npz", "b.json"]}) == [[1003], [1001], [1002]]
    assert made(tmp_path, {"samples": [str(tmp_path / "b.json")]}) == [[1001], [1002], [1001]]
    assert made(tmp_path, {"samples": ["memory://samples/b.json"]}) == [[1001], [1002], [1001]]
    assert made(tmp_path, {"inputs": {"ids": {"range": [1000, 1000], "shape": [2]}}}, 1) == [[1000, 1000]]
    memory.rm("/samples", recursive=True)


def test_raw_files_hold_rows(tmp_path: Path) -> None:
    """As V2's binary tensors; the shape is the model's, or what is said of it."""
    (tmp_path / "ids.bin").write_bytes(np.array([1001, 1002, 1003, 1004], np.int64).tobytes())
    raw = {"file": "ids.bin", "shape": [2]}
    assert made(tmp_path, {"inputs": {"ids": raw}}) == [[1001, 1002], [1003, 1004], [1001, 1002]]
    edge_case_models.numbers(tmp_path / "m" / "1" / "model.onnx")
    texts = [b"5", b"6", b"7", b"80"]
    (tmp_path / "text.bin").write_bytes(b"".join(len(text).to_bytes(4, "little") + text for text in texts))
    warm_up = {"inputs": {"text": {"file": str(tmp_path / "text.bin")}}}
    (config,) = parse_args({"models": [{"name": "m", "path": str(tmp_path / "m"), "warm_up": warm_up}]}).models
    signature = read_signature(find_files(config)[""].model_file, model="m")
    assert next(make_samples(config, signature, decode_sample).candidates())(1, 0)["text"].tolist() == [
        ["5", "6", "7", "80"]
    ]
    (tmp_path / "text.bin").write_bytes(b"\2\0\0\0a")
    with pytest.raises(ConfigError, match="ends inside of text 0"):
        make_samples(config, signature, decode_sample)
    (tmp_path / "text.bin").write_bytes(b"\1\0\0\0\xff")
    with pytest.raises(ConfigError, match="text 0 is not UTF-8"):
        make_samples(config, signature, decode_sample)


@pytest.mark.parametrize(
    ("content", "rule", "expected"),
    [
        (b"123", {"shape": [1]}, "3 bytes are no whole values of INT64"),
        (b"", {"shape": [1]}, "0 values are no whole rows of [1]"),
        (b"12345678", {"shape": [2]}, "1 values are no whole rows of [2]"),
        (b"12345678", {}, "say the shape of input 'ids', which is [-1]"),
        (None, {"shape": [1]}, "no such file"),
    ],
)
def test_faults_of_raw_files(tmp_path: Path, content: bytes | None, rule: dict[str, Any], expected: str) -> None:
    """Told with the place."""
    path = tmp_path / "ids.bin"
    if content is not None:
        path.write_bytes(content)
    (line,) = faults(args(tmp_path, {"inputs": {"ids": {"file": str(path), **rule}}}))
    assert line.startswith(f"model 'ids': warm_up.inputs.ids.file ({path}): {expected}")


def test_texts_come_from_either_kind_of_file(tmp_path: Path) -> None:
    """Numpy's texts and a request's."""
    edge_case_models.numbers(tmp_path / "m" / "1" / "model.onnx")
    np.savez(tmp_path / "a.npz", text=np.array([["1", "2", "3", "4"]]))
    request = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 4], "data": ["5", "6", "7", "8"]}]}
    (tmp_path / "b.json").write_text(json.dumps(request))
    samples = [str(tmp_path / "a.npz"), str(tmp_path / "b.json")]
    (config,) = parse_args(
        {"models": [{"name": "m", "path": str(tmp_path / "m"), "warm_up": {"samples": samples}}]}
    ).models
    signature = read_signature(find_files(config)[""].model_file, model="m")

    texts = next(make_samples(config, signature, decode_sample).candidates())(2, 0)["text"]

    assert texts.tolist() == [["1", "2", "3", "4"], [b"5", b"6", b"7", b"8"]]


def _objects(path: Path) -> None:
    np.savez(path, ids=np.array([[None]], dtype=np.object_))


def _cut(path: Path) -> None:
    """An archive whose array is overwritten."""
    np.savez(path, ids=np.full((64, 64), 1003))
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"x" * 100 + content[300:])


def _one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([[1]]))


@pytest.mark.parametrize(
    ("name", "write", "expected"),
    [
        ("a.npz", None, "no such file (looked for {path})"),
        ("a.npz", lambda path: path.write_bytes(b"PK nothing"), "is not a file that numpy.savez writes"),
        ("a.npz", lambda path: path.write_bytes(b""), "is not a file that numpy.savez writes"),
        ("a.npz", lambda path: path.write_bytes(b"words"), "is not a file that numpy.savez writes"),
        ("a.npz", _one_array, "is one array, not arrays by name; write it with numpy.savez"),
        ("a.npz", _objects, "holds Python objects; save texts as numpy's str, numbers as numbers"),
        ("a.npz", _cut, "is broken; write it again with numpy.savez"),
        ("a.json", lambda path: path.write_text("{"), "the body: not valid JSON: input data was truncated"),
        (
            "a.json",
            lambda path: path.write_text(json.dumps({"inputs": []})),
            "inputs: 'ids' missing; model 'ids' takes all of 'ids'",
        ),
        (
            "a.npz",
            lambda path: np.savez(path, ids=np.array([[1.0]])),
            "input 'ids' takes INT64 (numpy's int64), got float64; save it with that dtype",
        ),
    ],
)
def test_a_sample_that_cannot_be_used_is_one_line(tmp_path: Path, name: str, write: Any, expected: str) -> None:
    """With the model and the file."""
    path = tmp_path / name
    if write is not None:
        write(path)
    (line,) = faults(args(tmp_path, {"samples": [str(path)]}))
    assert line == f"model 'ids': warm_up.samples[0] ({path}): {expected.format(path=path)}"
