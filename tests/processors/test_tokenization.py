"""Texts become token ids, or a clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from serve_app.config.processor import TextOptions
from serve_app.errors import ConfigError, InvalidRequest
from serve_app.payloads import ModelSignature, TensorSpec
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.tokenization import TextTokenizer, mask_of

PAD, UNK, CLS, SEP, HELLO, WORLD, PLAY, ING = range(8)


def text_inputs(*names: str, tokens: int = -1, datatype: str = "INT64") -> ModelSignature:
    """A model with these inputs."""
    inputs = tuple(TensorSpec(name, datatype, (-1, tokens)) for name in names)
    return ModelSignature(inputs, (TensorSpec("y", "FP32", (-1, 4)),))


BERT = text_inputs("input_ids", "attention_mask", "token_type_ids")


def tokenizer(folder: Path, signature: ModelSignature = BERT, **options: Any) -> TextTokenizer:
    """A tokenizer for such a model."""
    return TextTokenizer.create(signature, ModelFolder(folder), TextOptions(**options))


def test_texts_become_ids_a_mask_and_types(text_folder: Path) -> None:
    """Special tokens are added, the shorter text is padded, the mask says where."""
    tensors = tokenizer(text_folder).tokenize(["Hello world", "playing hello world"])

    assert {name: (tensor.dtype.name, tensor.tolist()) for name, tensor in tensors.items()} == {
        "input_ids": ("int64", [[CLS, HELLO, WORLD, SEP, PAD, PAD], [CLS, PLAY, ING, HELLO, WORLD, SEP]]),
        "attention_mask": ("int64", [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]),
        "token_type_ids": ("int64", [[0] * 6, [0] * 6]),
    }


def test_only_the_inputs_that_the_model_has_are_made(text_folder: Path) -> None:
    """In the dtype that it takes."""
    made = tokenizer(text_folder, text_inputs("input_ids", datatype="INT32"))

    tensors = made.tokenize(["hello"])

    assert {name: tensor.dtype.name for name, tensor in tensors.items()} == {"input_ids": "int32"}
    assert mask_of(tensors).tolist() == [[True, True, True]]
    assert made.lengths(tensors) == [3]


def test_texts_of_several_lengths_can_be_told_apart_without_a_mask_of_the_model(text_folder: Path) -> None:
    """A mask says how long each is; what the model gets has none."""
    made = tokenizer(text_folder, text_inputs("input_ids"))
    tensors = made.tokenize(["hello world", "playing hello world"])
    assert made.lengths(tensors) == [4, 6] == mask_of(tensors).sum(axis=1).tolist()
    assert {name: tensor.tolist() for name, tensor in made.cut(tensors, [0], 4).items()} == {
        "input_ids": [[CLS, HELLO, WORLD, SEP]]
    }
    assert {"input_ids": (2, 8)} == {name: tensor.shape for name, tensor in made.pad(tensors, 8).items()}


def test_an_empty_text_has_special_tokens_only(text_folder: Path) -> None:
    """It is defined: [CLS] [SEP]."""
    assert tokenizer(text_folder).tokenize([""])["input_ids"].tolist() == [[CLS, SEP]]


def test_without_special_tokens_an_empty_text_is_refused(text_folder: Path) -> None:
    """There would be nothing to compute on."""
    config = json.loads((text_folder / "tokenizer.json").read_text())
    config["post_processor"] = None
    (text_folder / "tokenizer.json").write_text("\ufeff" + json.dumps(config))  # as editors write it

    with pytest.raises(InvalidRequest, match=r"^inputs\[1\]: the text has no tokens$"):
        tokenizer(text_folder).tokenize(["hello", " "])


def test_long_texts_are_cut_between_the_special_tokens(text_folder: Path) -> None:
    """The last token is still [SEP]."""
    made = tokenizer(text_folder, max_length=5)

    assert made.tokenize(["hello " * 100])["input_ids"].tolist() == [[CLS, HELLO, HELLO, HELLO, SEP]]
    assert made.tokenize(["hello " * 1_000_000])["input_ids"].tolist() == [[CLS, HELLO, HELLO, HELLO, SEP]]


def test_long_texts_are_refused_where_cutting_is_not_wanted(text_folder: Path) -> None:
    """The message says which, and how long is too long."""
    made = tokenizer(text_folder, max_length=5)

    assert made.tokenize(["hello hello hello"], truncate=False)["input_ids"].shape == (1, 5)
    for text in ("hello hello hello hello", "a " * 10_000):
        with pytest.raises(InvalidRequest, match=r"^inputs\[1\]: the text is longer than 5 tokens"):
            made.tokenize(["hello", text], truncate=False)


def test_token_ids_are_taken_as_they_are(text_folder: Path) -> None:
    """Nothing is added to them."""
    tensors = tokenizer(text_folder).tokenize([[CLS, HELLO, SEP], [WORLD]])

    assert tensors["input_ids"].tolist() == [[CLS, HELLO, SEP], [WORLD, PAD, PAD]]
    assert tensors["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "inputs: at least one text is expected, and none came"),
        ([{}], "inputs[0]: expected text, got dict"),
        (["a", 3], "inputs[1]: expected text, got int"),
        (["a", None], "inputs[1]: expected text, got null"),
        (["a", [1]], "inputs[1]: expected a text or a pair of two texts, as before it"),
        ([[1], "a"], "inputs[1]: expected a list of token ids, as before it, got str"),
        ([[]], "inputs[0]: 0 token ids, expected 1 to 8"),
        ([[1] * 9], "inputs[0]: 9 token ids, expected 1 to 8"),
        ([[1, 73]], "inputs[0]: 73 is no token id; expected a whole number from 0 to 72"),
        ([[1], [-1]], "inputs[1]: -1 is no token id; expected a whole number from 0 to 72"),
        ([[True]], "inputs[0]: True is no token id; expected a whole number from 0 to 72"),
        ([[1.0]], "inputs[0]: 1.0 is no token id; expected a whole number from 0 to 72"),
        (["ok", "bad \ud800"], "inputs[1]: half of a surrogate pair at character 4; expected valid Unicode"),
    ],
)
def test_what_is_no_text_is_refused(text_folder: Path, texts: Any, message: str) -> None:
    """The message says which input, what came and what was expected."""
    with pytest.raises(InvalidRequest) as raised:
        tokenizer(text_folder, max_length=8).tokenize(texts)

    told, _, remedy = raised.value.message.partition("; ids must come from this model's tokenizer")
    assert told == message
    assert ("no token id" in message) == ("check_embedding_ctx_length=False" in remedy)


def test_ids_may_be_refused(text_folder: Path) -> None:
    """Those of another model's tokenizer cannot be told apart."""
    refusing = tokenizer(text_folder, token_ids="refuse")

    with pytest.raises(InvalidRequest, match="this model takes no token ids: send texts; ids must come from"):
        refusing.tokenize([[1]])
    assert refusing.tokenize(["the cat"]).keys() == tokenizer(text_folder).tokenize(["the cat"]).keys()


def test_texts_are_padded_to_buckets(text_folder: Path) -> None:
    """Eighths of a doubling from 8, and the maximum; padding goes to the right."""
    made = tokenizer(text_folder, max_length=100)

    tensors = made.tokenize(["hello " * 20])
    padded = made.pad(tensors, made.bucket(tensors))

    assert made.settings.buckets == (*range(8, 64, 8), *range(64, 100, 8), 100)
    assert made.bucket(tensors) == 24
    assert {name: tensor.shape for name, tensor in padded.items()} == {
        "input_ids": (1, 24),
        "attention_mask": (1, 24),
        "token_type_ids": (1, 24),
    }
    assert padded["attention_mask"].sum() == 22
    assert (padded["input_ids"][:, 22:] == PAD).all()


def test_texts_are_cut_out_at_a_length_of_their_own(text_folder: Path) -> None:
    """Each is as long as its mask says; shorter ones lose padding, or gain some."""
    made = tokenizer(text_folder)
    tensors = made.tokenize(["hello " * 20, "hello", "hello world"])

    assert made.lengths(tensors) == [22, 3, 4]
    for length, ids in ((4, [[CLS, HELLO, WORLD, SEP], [CLS, HELLO, SEP, PAD]]), (3, [[CLS, HELLO, SEP]])):
        rows = [2, 1][-len(ids) :]
        assert made.cut(tensors, rows, length)["input_ids"].tolist() == ids
    wide = made.cut(tensors, [1], 24)
    assert {name: (array.shape, int(array.sum())) for name, array in wide.items()} == {
        "input_ids": ((1, 24), CLS + HELLO + SEP),
        "attention_mask": ((1, 24), 3),
        "token_type_ids": ((1, 24), 0),
    }


@pytest.mark.parametrize(
    ("texts", "bucket"),
    [
        (["hi"], 8),
        (["x" * 100], 32),
        (["x" * 100, "hi"], 16),
        (["é" * 100], 56),
        ([[1] * 40], 40),
        ([[1] * 41, [1] * 40], 48),
        (["x" * 100_000], 256),
        (["x" * 100_000, "hi", "hi"], 88),
    ],
)
def test_estimates_need_no_tokens(text_folder: Path, texts: Any, bucket: int) -> None:
    """About four characters make a token, half of that outside ASCII; of several texts it is the mean."""
    assert tokenizer(text_folder, max_length=256).estimate(texts) == bucket


def test_the_mean_of_several_texts_is_estimated(text_folder: Path) -> None:
    """Each runs at its own length, whether or not the model takes a mask."""
    for inputs in (["input_ids"], ["input_ids", "attention_mask"]):
        assert tokenizer(text_folder, text_inputs(*inputs), max_length=256).estimate(["x" * 100, "hi"]) == 16


def test_the_maximum_comes_from_the_files(text_folder: Path) -> None:
    """sentence_bert_config.json before tokenizer_config.json; Hugging Face's "no limit" is none; options win."""
    assert tokenizer(text_folder).settings.max_length == 512
    (text_folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 1e30}))
    assert tokenizer(text_folder).settings.max_length == 512
    (text_folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 128}))
    assert tokenizer(text_folder).settings.max_length == 128
    (text_folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64}))
    assert tokenizer(text_folder).settings.max_length == 64
    assert tokenizer(text_folder, max_length=32).settings.max_length == 32


def test_a_model_of_one_length_has_one_bucket(text_folder: Path) -> None:
    """Everything is padded to what the graph says."""
    made = tokenizer(text_folder, text_inputs("input_ids", tokens=24))

    assert (made.settings.buckets, made.settings.max_length) == ((24,), 24)


def test_the_padding_token_comes_from_the_files(text_folder: Path) -> None:
    """By name, from tokenizer_config.json."""
    (text_folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": {"content": "[UNK]"}}))

    assert tokenizer(text_folder).settings.pad_id == UNK


@pytest.mark.parametrize(
    ("signature", "options", "problem"),
    [
        (
            text_inputs("ids"),
            {},
            (
                "processor: a text model takes integers (rows, tokens) named input_ids, and may take"
                " attention_mask, token_type_ids and position_ids; this one takes ids INT64 (?, ?)"
            ),
        ),
        (
            text_inputs("input_ids", tokens=8),
            {"max_length": 9},
            "processor.max_length: 9, but the model takes 8 tokens",
        ),
        (
            text_inputs("input_ids", tokens=8),
            {"buckets": [4]},
            "processor.buckets: the model takes one length only, 8 tokens",
        ),
        (BERT, {"max_length": 2}, "processor.max_length: 2 leaves no room between the special tokens"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_at_the_start(
    text_folder: Path, signature: ModelSignature, options: dict[str, Any], problem: str
) -> None:
    """One readable line says where and why."""
    with pytest.raises(ConfigError) as raised:
        tokenizer(text_folder, signature, **options)

    assert raised.value.problems == (problem,)


def test_a_missing_or_broken_tokenizer_is_refused_at_the_start(tmp_path: Path) -> None:
    """Nothing is downloaded, nothing is guessed."""
    with pytest.raises(
        ConfigError, match=r"^processor: there is no tokenizer\.json in the model's folder; AutoTokenizer"
    ):
        tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^tokenizer\.json: cannot be read"):
        tokenizer(tmp_path)


def test_files_of_the_folder_above_a_version_count(text_folder: Path) -> None:
    """models/minilm/2/model.onnx uses models/minilm/tokenizer.json."""
    (text_folder / "2").mkdir()

    assert tokenizer(text_folder / "2").tokenize(["hello"])["input_ids"].tolist() == [[CLS, HELLO, SEP]]


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(), max_size=60), max_size=5))
def test_any_text_is_tokenized_or_refused(text_folder: Path, texts: list[str]) -> None:
    """All of Unicode, lone surrogates included, raises nothing but InvalidRequest."""
    made = tokenizer(text_folder, max_length=20)
    made.estimate(texts)
    try:
        tensors = made.tokenize(texts)
    except InvalidRequest:
        return
    assert tensors["input_ids"].shape == tensors["attention_mask"].shape
    assert tensors["input_ids"].shape[0] == len(texts)
    assert 2 <= tensors["input_ids"].shape[1] <= 20


def test_tokens_are_counted_with_special_tokens(text_folder: Path) -> None:
    """As the model reads them, after cutting, without padding."""
    made = tokenizer(text_folder, max_length=8)

    assert made.count(["hello world", "", "hello " * 50]) == 4 + 2 + 8
    assert made.count([[1, 2, 3], [4]]) == 4


def test_an_example_has_the_special_tokens_of_a_text(text_folder: Path) -> None:
    """In front and behind: some models look for the end of a text, and fail without."""
    made = tokenizer(text_folder)
    assert made.example(2, 5)["input_ids"].tolist() == [[CLS, PAD, PAD, PAD, SEP]] * 2
    assert [made.example(1, length)["input_ids"].tolist() for length in (1, 2)] == [[[CLS]], [[CLS, SEP]]]
