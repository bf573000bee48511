"""Files of models' folders are followed, or refused by file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import folder_keys_page
import numpy as np
import pytest

from serve_app.config.processor import EmbeddingOptions, TextOptions
from serve_app.domain.facts import WARNING
from serve_app.errors import ConfigError, InvalidRequest
from serve_app.payloads import GraphEnds, ModelSignature, TensorSpec, Texts
from serve_app.processors import create_processor
from serve_app.processors.model_folder import ModelFolder, module_files
from serve_app.processors.tokenization import TextTokenizer

PAD, UNK, CLS, SEP, HELLO, WORLD = range(6)
INPUTS = tuple(TensorSpec(name, "INT64", (-1, -1)) for name in ("input_ids", "attention_mask"))
LOGITS = TensorSpec("logits", "FP32", (-1, 3))
TOKENS = TensorSpec("last_hidden_state", "FP32", (-1, -1, 2))
CONFIG = "tokenizer_config.json"
BERT = {"tokenizer_class": "BertTokenizer", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def write(folder: Path, files: dict[str, Any]) -> None:
    """Write JSON files."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content), "utf-8")


def tokens(folder: Path, text: str, **options: Any) -> list[int]:
    """The ids of a text."""
    made = TextTokenizer.create(ModelSignature(INPUTS, (LOGITS,)), ModelFolder(folder), TextOptions(**options))
    ids: list[int] = made.tokenize([text])["input_ids"][0].tolist()
    return ids


def problems(folder: Path, task: str = "text-classification", *outputs: TensorSpec, **options: Any) -> str:
    """What is said of a folder that is refused."""
    with pytest.raises(ConfigError) as raised:
        create_processor(task, ModelSignature(INPUTS, outputs or (LOGITS,)), folder, options)
    return "\n".join(raised.value.problems)


def test_the_page_has_the_keys_of_the_code() -> None:
    """`make folder-keys` writes it."""
    page = folder_keys_page.PAGE.read_text("utf-8")

    assert folder_keys_page.with_tables(page) == page


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({CONFIG: {"new_key": 1}}, "tokenizer_config.json: new_key: not understood (its value is 1)"),
        ({CONFIG: {"auto_map": {"AutoTokenizer": "x"}}}, "tokenizer_config.json: auto_map: "),
        ({CONFIG: {"truncation_side": "middle"}}, "tokenizer_config.json: truncation_side: must be left or right"),
        ({CONFIG: {"tokenizer_class": "XTokenizer", "do_lower_case": True}}, ""),
        ({"config.json": {"problem_type": "odd"}}, "config.json: problem_type: 'odd' is not known"),
        ({"sentence_bert_config.json": {"max_seq_length": 8, "odd": 1}}, "sentence_bert_config.json: odd: "),
        (
            {"config_sentence_transformers.json": {"model_type": "CrossEncoder", "activation_fn": "x.Y"}},
            "activation_fn",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(text_folder: Path, files: dict[str, Any], problem: str) -> None:
    """Unless the configuration says that it does not matter."""
    write(text_folder, files)
    if not problem:
        create_processor("text-classification", ModelSignature(INPUTS, (LOGITS,)), text_folder, {})
        return

    assert problem in problems(text_folder)


def test_keys_can_be_ignored(text_folder: Path) -> None:
    """By name."""
    write(text_folder, {CONFIG: {"new_key": 1}})

    assert tokens(text_folder, "hello", ignore_keys=["new_key"]) == [CLS, HELLO, SEP]


def test_the_keys_of_berts_tokenizer_win_over_tokenizer_json(text_folder: Path) -> None:
    """Also those that are left out: the class's defaults. Of other classes, tokenizer.json counts."""
    assert tokens(text_folder, "HELLO") == [CLS, HELLO, SEP]
    write(text_folder, {CONFIG: {**BERT, "do_lower_case": False}})
    assert tokens(text_folder, "HELLO") == [CLS, UNK, SEP]
    write(text_folder, {CONFIG: {**BERT, "tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}})
    assert HELLO in tokens(text_folder, "HELLO", ignore_keys=["do_lower_case"])


def test_letters_are_made_small_for_sentence_transformers(text_folder: Path) -> None:
    """Whatever the tokenizer does."""
    write(text_folder, {CONFIG: {**BERT, "do_lower_case": False}, "sentence_bert_config.json": {"do_lower_case": True}})

    assert tokens(text_folder, "HELLO") == [CLS, HELLO, SEP]


def test_a_vocabulary_is_enough_for_bert(text_folder: Path) -> None:
    """A token a line."""
    vocabulary = json.loads((text_folder / "tokenizer.json").read_text())["model"]["vocab"]
    (text_folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)) + "\n")
    (text_folder / "tokenizer.json").unlink()
    assert "save_pretrained" in problems(text_folder)
    write(text_folder, {CONFIG: BERT})

    assert tokens(text_folder, "Hello world") == [CLS, HELLO, WORLD, SEP]


@pytest.mark.parametrize(
    ("files", "longest", "warned"),
    [
        ({}, 512, False),
        ({"config.json": {"max_position_embeddings": 32}}, 32, False),
        ({"config.json": {"max_position_embeddings": 32}, CONFIG: {"model_max_length": 64}}, 32, True),
        ({"config.json": {"max_position_embeddings": 32}, CONFIG: {"model_max_length": 16}}, 16, False),
        ({"config.json": {"max_position_embeddings": 32}, CONFIG: {"model_max_length": int(1e30)}}, 32, False),
        ({"config.json": {"max_position_embeddings": 34, "model_type": "roberta", "pad_token_id": 1}}, 32, False),
        ({"config.json": {"n_positions": 32, "model_type": "t5"}}, 512, False),
        ({CONFIG: {"model_max_length": 64}, "sentence_bert_config.json": {"max_seq_length": 24}}, 24, False),
        ({CONFIG: {"model_max_length": 24}, "sentence_bert_config.json": {"max_seq_length": None}}, 24, False),
    ],
)
def test_the_longest_text_is_the_least_that_a_file_names(
    text_folder: Path, files: dict[str, Any], longest: int, warned: bool
) -> None:
    """A warning says that a file names more than the model has positions for."""
    write(text_folder, files)
    folder = ModelFolder(text_folder)
    made = TextTokenizer.create(ModelSignature(INPUTS, (LOGITS,)), folder, TextOptions.model_validate({}))

    assert made.settings.max_length == longest
    assert made.tokenize(["hello " * 1000])["input_ids"].shape == (1, longest)
    assert any(fact.name == WARNING for fact in folder.facts) == warned


def test_a_mask_that_the_graph_ignores_is_said(text_folder: Path) -> None:
    """Padding would be text to it."""
    folder = ModelFolder(text_folder)
    TextTokenizer.create(
        ModelSignature(INPUTS, (LOGITS,), ends=GraphEnds({}, ("attention_mask",))),
        folder,
        TextOptions.model_validate({}),
    )

    assert [fact.source for fact in folder.facts if fact.name == WARNING] == ["the model's file"]


def test_long_texts_are_cut_at_the_end_that_the_folder_names(text_folder: Path) -> None:
    """And a request may say otherwise."""
    write(text_folder, {CONFIG: {"truncation_side": "left", "model_max_length": 4}})
    made = TextTokenizer.create(
        ModelSignature(INPUTS, (LOGITS,)), ModelFolder(text_folder), TextOptions.model_validate({})
    )

    assert made.tokenize(["hello hello hello world"])["input_ids"].tolist() == [[CLS, HELLO, WORLD, SEP]]
    assert made.tokenize(["world hello hello hello"], side="right")["input_ids"].tolist() == [[CLS, WORLD, HELLO, SEP]]


def test_texts_of_words_longer_than_any_token_are_read_to_their_end(text_folder: Path) -> None:
    """A word without a token is one unknown token, however long it is."""
    text = ("x" * 900 + " ") * 4 + "hello"

    assert tokens(text_folder, text, max_length=8) == [CLS, UNK, UNK, UNK, UNK, HELLO, SEP]


def test_pairs_have_types_and_can_be_too_long(text_folder: Path) -> None:
    """The longer one is cut; token ids are no pairs."""
    inputs = (*INPUTS, TensorSpec("token_type_ids", "INT64", (-1, -1)))
    made = TextTokenizer.create(
        ModelSignature(inputs, (LOGITS,)), ModelFolder(text_folder), TextOptions.model_validate({"max_length": 7})
    )

    tensors = made.tokenize(["hello", ["hello", "world"], ["hello " * 9, "world"]])

    assert tensors["input_ids"].tolist() == [
        [CLS, HELLO, SEP, PAD, PAD, PAD, PAD],
        [CLS, HELLO, SEP, WORLD, SEP, PAD, PAD],
        [CLS, HELLO, HELLO, HELLO, SEP, WORLD, SEP],
    ]
    assert tensors["token_type_ids"].tolist() == [[0] * 7, [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1]]
    with pytest.raises(InvalidRequest, match=r"inputs\[1\]: expected a text or a pair"):
        made.tokenize(["hello", ["a", "b", "c"]])


def test_positions_are_counted(text_folder: Path) -> None:
    """For graphs that take them; behind padding's in RoBERTa and its kin."""
    inputs = (*INPUTS, TensorSpec("position_ids", "INT64", (-1, -1)))
    signature = ModelSignature(inputs, (LOGITS,))
    made = TextTokenizer.create(signature, ModelFolder(text_folder), TextOptions.model_validate({}))
    assert made.tokenize(["hello"])["position_ids"].tolist() == [[0, 1, 2]]
    write(text_folder, {"config.json": {"model_type": "roberta", "pad_token_id": 1}})
    made = TextTokenizer.create(signature, ModelFolder(text_folder), TextOptions.model_validate({}))

    assert made.tokenize(["hello"])["position_ids"].tolist() == [[2, 3, 4]]


MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "pool"},
]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"modules.json": [{"type": "mine.Module", "path": "1"}]}, "modules.json: mine.Module is code of the folder"),
        ({"modules.json": [{"type": "sentence_transformers.models.WordWeights", "path": "1"}]}, "WordWeights"),
        ({"modules.json": [{"type": "sentence_transformers.models.Pooling", "path": "../x"}]}, "leads out"),
        ({"modules.json": [{}]}, "modules.json: entry 0: must have a type and a path"),
        ({"modules.json": MODULES, "pool/config.json": {"pooling_mode": "median"}}, "pool/config.json: pooling_mode"),
        ({"modules.json": MODULES, "pool/config.json": {"odd": 1}}, "pool/config.json: odd: not understood"),
        ({"modules.json": MODULES}, "pool/config.json: there is no such file"),
        ({"1_Pooling/config.json": {"pooling_mode": "cls"}}, "1_Pooling/config.json: there is no modules.json"),
        (
            {"modules.json": [*MODULES, MODULES[1]], "pool/config.json": {"pooling_mode": "cls"}},
            "Pooling must come once",
        ),
        (
            {
                "modules.json": [*MODULES, {"type": "sentence_transformers.models.Dense", "path": "2"}],
                "pool/config.json": {"pooling_mode": "cls"},
                "2/config.json": {"in_features": 2, "out_features": 3},
            },
            "2/model.safetensors: there is no such file",
        ),
        ({"sentence_bert_config.json": {"max_seq_length": -1}}, "max_seq_length: must be above 0"),
        ({"sentence_roberta_config.json": {"odd": 1}}, "sentence_roberta_config.json: odd: not understood"),
        ({"config_sentence_transformers.json": {"prompts": {"a": 1}}}, "prompts must map names to texts"),
        ({"config_sentence_transformers.json": {"prompts": ["a"]}}, "prompts: must be an object, not ['a']"),
        ({"config_sentence_transformers.json": {"default_prompt_name": "x"}}, "there is no prompt 'x'"),
        ({"config_sentence_transformers.json": {"model_type": "SparseEncoder"}}, "model_type: 'SparseEncoder'"),
    ],
)
def test_chains_that_are_not_understood_are_refused(text_folder: Path, files: dict[str, Any], problem: str) -> None:
    """By file and key."""
    write(text_folder, files)

    assert problem in problems(text_folder, "feature-extraction", TOKENS)


def test_scores_are_no_vectors(text_folder: Path) -> None:
    """A classifier is not taken for a model of vectors, unless its output is named."""
    assert "logits, which are scores" in problems(text_folder, "feature-extraction")
    create_processor("feature-extraction", ModelSignature(INPUTS, (LOGITS,)), text_folder, {"output": "logits"})


def test_prompts_stand_before_texts_and_may_be_left_out_of_the_mean(text_folder: Path) -> None:
    """The default one too; not before token ids, which nothing can stand before."""
    write(
        text_folder,
        {
            "modules.json": MODULES,
            "pool/config.json": {"pooling_mode": "mean", "include_prompt": False},
            "config_sentence_transformers.json": {
                "prompts": {"query": "world ", "none": ""},
                "default_prompt_name": "query",
            },
        },
    )
    made = create_processor("feature-extraction", ModelSignature(INPUTS, (TOKENS,)), text_folder, {})
    inputs = made.preprocess(Texts(["hello"], {}))
    assert inputs["input_ids"].tolist() == [[CLS, WORLD, HELLO, SEP]]
    hidden = np.arange(8, dtype=np.float32).reshape(1, 4, 2)

    answer = made.postprocess(Texts(["hello"], {}), {"last_hidden_state": hidden}, inputs)

    assert answer.vectors.tolist() == [[5.0, 6.0]]
    assert made.preprocess(Texts(["hello"], {"prompt_name": "none"}))["input_ids"].tolist() == [[CLS, HELLO, SEP]]
    with pytest.raises(InvalidRequest, match="this model's prompt"):
        made.preprocess(Texts([[HELLO]], {}))


def test_files_of_modules_belong_to_the_model() -> None:
    """Not those outside the folder."""
    found = module_files(json.dumps([*MODULES, {"path": "../x"}, {"path": "/x"}, 3]))

    assert "pool/config.json" in found
    assert all(name.startswith("pool/") for name in found)
    assert module_files("{") == module_files("{}") == ()


def test_options_of_pooling_are_those_of_the_library() -> None:
    """And none."""
    for mode in ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "none"):
        assert EmbeddingOptions.model_validate({"pooling": mode}).pooling == mode


def test_tokens_that_the_model_does_not_know_are_refused(text_folder: Path) -> None:
    """With the text that has one, so that the others of a request can be sent again."""
    write(text_folder, {CONFIG: {"pad_token": "[NEW]"}, "config.json": {"vocab_size": 71}})
    made = TextTokenizer.create(
        ModelSignature(INPUTS, (LOGITS,)), ModelFolder(text_folder), TextOptions.model_validate({})
    )

    assert made.tokenize(["hello"])["input_ids"].tolist() == [[CLS, HELLO, SEP]]
    with pytest.raises(InvalidRequest, match=r"inputs\[1\]: the model does not know the token '\[NEW\]'"):
        made.tokenize(["hello", "a [NEW] b"])


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"tokenizer_config.json": {"add_prefix_space": True}}, "add_prefix_space: True, but"),
        ({"tokenizer_config.json": {"additional_special_tokens": ["[ENT]"]}}, "'[ENT]' has no id"),
        ({"added_tokens.json": {"[ENT]": 90}}, "added_tokens.json: '[ENT]' is 90, and None"),
        ({"tokenizer_config.json": {"model_max_length": "512"}}, "model_max_length: must be a number, not '512'"),
        (
            {"tokenizer_config.json": {"tokenizer_class": "AlbertTokenizer", "do_lower_case": False}},
            "do_lower_case: False, but",
        ),
        (
            {"config_sentence_transformers.json": {"prompts": {"a": "b "}, "default_prompt_name": "a"}},
            "prompts are not put",
        ),
        ({"modules.json": [{"type": "sentence_transformers.x.LogitScore", "path": ""}]}, "LogitScore is not supported"),
    ],
)
def test_files_that_disagree_are_refused(text_folder: Path, files: dict[str, Any], problem: str) -> None:
    """By file and key; releases of the library would follow one or the other."""
    write(text_folder, files)

    assert problem in problems(text_folder)
