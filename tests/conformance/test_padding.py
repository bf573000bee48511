"""Models that padding changes, or company: texts and sounds are answered as the model alone answers them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import onnx_models
import pytest
import soundfile
from local_server import LocalServer, make_tokenizer
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

from conformance.serving import server_args

_NODE = helper.make_node


def _leaking(path: Path, *, late: bool) -> None:
    """A mean of tokens by Softmax, masked with -5 only; or one masked well to which long inputs add 1."""
    path.parent.mkdir(parents=True)
    mask = [
        _NODE("Gather", ["table", "input_ids"], ["tokens"]),
        _NODE("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        _NODE("Sub", ["mask", "one"], ["padding"]),
        _NODE("Mul", ["padding", "much"], ["bias"]),
        _NODE("Softmax", ["bias"], ["part"], axis=1),
        _NODE("Unsqueeze", ["part", "last"], ["parts"]),
        _NODE("Mul", ["tokens", "parts"], ["weighed"]),
        _NODE("ReduceSum", ["weighed", "middle"], ["mean"], keepdims=0),
        _NODE("Shape", ["input_ids"], ["length"], start=1, end=2),
        _NODE("Div", ["length", "many"], ["times"]),
        _NODE("Cast", ["times"], ["more"], to=TensorProto.FLOAT),
        _NODE("Add", ["mean", "more"], ["embedding"]),
    ]
    constants: dict[str, Any] = {
        "table": onnx_models.token_table(),
        "one": np.array(1, np.float32),
        "much": np.array(10_000 if late else 5, np.float32),
        "many": np.array([100 if late else 10_000], np.int64),
        "last": np.array([2], np.int64),
        "middle": np.array([1], np.int64),
    }
    ins = [(name, TensorProto.INT64, ["rows", "length"]) for name in ("input_ids", "attention_mask")]
    onnx_models.write(path, mask, ins, [("embedding", TensorProto.FLOAT, ["rows", 8])], constants)


@pytest.mark.parametrize("late", [False, True], ids=["a weak mask", "only for long texts"])
def test_what_padding_changes_is_found_out_at_the_start(late: bool, tmp_path: Path) -> None:
    """Whether the padding shows at once, or only in the largest size."""
    _leaking(tmp_path / "m" / "1" / "model.onnx", late=late)
    make_tokenizer(tmp_path / "m" / "tokenizer.json")
    model = {
        "name": "m",
        "task": "feature-extraction",
        "path": str(tmp_path / "m"),
        "processor": {"max_length": 128, "normalize": False},
    }
    with LocalServer(server_args([model])) as server, urlopen(f"{server.url}/v2/models/m") as page:
        told = json.load(page)["parameters"]["joinable_reason"]
    assert "only requests of one size share runs" in told


_LONG = " ".join(["the cat sat on a mat and the dog sat on the sun"] * 3)
_TEXTS = ["the cat", _LONG, "good day", "the cat", "bad"]


def _classifier(path: Path, *, reads: str, mask: bool, mixes: bool) -> None:
    """A classifier by all tokens or the last one, whatever its mask says; it may subtract the mean of the batch."""
    path.parent.mkdir(parents=True)
    nodes = [
        _NODE("Gather", ["table", "input_ids"], ["tokens"]),
        _NODE("ReduceMean", ["tokens"], ["read"], axes=[1], keepdims=0)
        if reads == "mean"
        else _NODE("Gather", ["tokens", "end"], ["read"], axis=1),
        _NODE("MatMul", ["read", "weights"], ["own"]),
        _NODE("ReduceMean", ["own"], ["of_all"], axes=[0], keepdims=1),
        _NODE("Mul", ["of_all", "part"], ["taken"]),
        _NODE("Sub", ["own", "taken"], ["logits"]),
    ]
    if not mixes:
        nodes[3:] = [_NODE("Identity", ["own"], ["logits"])]
    constants: dict[str, Any] = {
        "table": onnx_models.token_table(),
        "weights": np.cos(np.arange(16, dtype=np.float32)).reshape(8, 2) * 3,
        "part": np.array(0.5, np.float32),
        "end": np.array(-1, np.int64),
    }
    names = ["input_ids", *(["attention_mask"] if mask else [])]
    ins = [(name, TensorProto.INT64, ["rows", "length"]) for name in names]
    onnx_models.write(path, nodes, ins, [("logits", TensorProto.FLOAT, ["rows", 2])], constants)


def _scores(url: str, texts: Sequence[str]) -> list[list[float]]:
    """Of both labels, by name."""
    body = json.dumps({"inputs": list(texts), "parameters": {"function_to_apply": "none"}}).encode()
    with urlopen(Request(f"{url}/v1/models/m/predict", body, {"Content-Type": "application/json"})) as answer:
        found = json.load(answer)
    return [[one["score"] for one in sorted(row, key=lambda one: str(one["label"]))] for row in found]


@pytest.mark.parametrize("mixes", [False, True], ids=["rows by themselves", "rows mixed"])
@pytest.mark.parametrize("mask", [False, True], ids=["no mask", "a mask ignored"])
@pytest.mark.parametrize("reads", ["mean", "last"], ids=["mean of tokens", "last token"])
def test_texts_together_are_answered_as_alone(reads: str, mask: bool, mixes: bool, tmp_path: Path) -> None:
    """Whatever padding or company would do: nothing is padded then, and rows that mix run one by one."""
    file = tmp_path / "m" / "1" / "model.onnx"
    _classifier(file, reads=reads, mask=mask, mixes=mixes)
    make_tokenizer(tmp_path / "m" / "tokenizer.json")
    session = InferenceSession(str(file), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    tokenizer.no_padding()
    expected = []
    for text in _TEXTS:
        ids = np.array([tokenizer.encode(text).ids], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)} if mask else {"input_ids": ids}
        expected.append(session.run(["logits"], inputs)[0][0].tolist())
    model = {"name": "m", "task": "text-classification", "path": str(tmp_path / "m"), "processor": {"max_length": 64}}
    with LocalServer(server_args([model])) as server:
        for texts in (_TEXTS, _TEXTS[:1], _TEXTS[2:4]):
            at = [_TEXTS.index(text) for text in texts]
            np.testing.assert_allclose(_scores(server.url, texts), [expected[number] for number in at], rtol=1e-5)
        with urlopen(f"{server.url}/status") as page:
            told = json.load(page)["models"]["m"]["joinable"][""]
    assert ("changes", not mixes) == (told["padding"], told["verdict"] in {"exact", "close"}), told


def test_vectors_of_a_model_without_a_mask_are_those_of_each_text(tmp_path: Path) -> None:
    """Of each text by itself, and so are similarities and the tokens that are counted."""
    file = tmp_path / "m" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    nodes = [_NODE("Gather", ["table", "input_ids"], ["hidden"])]
    ins = [("input_ids", TensorProto.INT64, ["rows", "length"])]
    outs = [("hidden", TensorProto.FLOAT, ("rows", "length", 8))]
    onnx_models.write(file, nodes, ins, outs, {"table": onnx_models.token_table()})
    make_tokenizer(tmp_path / "m" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [tokenizer.encode(text).ids for text in _TEXTS]
    expected = np.array([onnx_models.token_table()[each].mean(axis=0) for each in ids])
    model = {"name": "m", "task": "feature-extraction", "path": str(tmp_path / "m"), "processor": {"max_length": 64}}
    with LocalServer(server_args([model])) as server:

        def ask(path: str, body: dict[str, Any]) -> Any:
            request = Request(f"{server.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urlopen(request) as answer:
                return json.load(answer)

        found = ask("/v1/embeddings", {"model": "m", "input": _TEXTS})
        np.testing.assert_allclose([each["embedding"] for each in found["data"]], expected, rtol=1e-4, atol=1e-6)
        assert sum(map(len, ids)) == found["usage"]["prompt_tokens"]
        asked = {"inputs": _TEXTS[1:], "parameters": {"source_sentence": _TEXTS[0]}}
        unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(ask("/v1/models/m/predict", asked), unit[1:] @ unit[0], rtol=1e-4)


def _wav(samples: NDArray[np.float32]) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()


def test_sounds_without_a_mask_are_heard_as_long_as_they_are(tmp_path: Path) -> None:
    """A model of the mean loudness, which silence behind a sound would change."""
    file = tmp_path / "m" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    nodes = [
        _NODE("Abs", ["x"], ["loud"]),
        _NODE("ReduceMean", ["loud"], ["mean"], axes=[1], keepdims=1),
        _NODE("Mul", ["mean", "both"], ["logits"]),
    ]
    ins = [("x", TensorProto.FLOAT, ["rows", "samples"])]
    constants = {"both": np.array([[1, 3]], np.float32)}
    onnx_models.write(file, nodes, ins, [("logits", TensorProto.FLOAT, ["rows", 2])], constants)
    options = {"sampling_rate": 16_000, "activation": "none", "max_seconds": 4}
    model = {"name": "m", "task": "audio-classification", "path": str(tmp_path / "m"), "processor": options}
    rng = np.random.default_rng(0)
    with LocalServer(server_args([model])) as server:
        for seconds in (0.1, 0.6, 1.0, 1.1, 3.99):
            samples = rng.uniform(-1, 1, round(16_000 * seconds)).astype(np.float32)
            request = Request(f"{server.url}/v1/models/m/predict", _wav(samples), {"Content-Type": "audio/wav"})
            with urlopen(request) as answer:
                found = sorted(one["score"] for one in json.load(answer))
            assert pytest.approx([np.abs(samples).mean(), 3 * np.abs(samples).mean()], rel=1e-4) == found
