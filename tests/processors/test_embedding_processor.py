"""Texts become vectors, and vectors become labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from serve_app.api.media import decode
from serve_app.domain.service import ModelInfo
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest, UnsupportedMedia
from serve_app.payloads import Embeddings, Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors import create_processor
from serve_app.processors.embedding import EmbeddingProcessor
from serve_app.processors.processor import Cost

INPUTS = tuple(TensorSpec(name, "INT64", (-1, -1)) for name in ("input_ids", "attention_mask"))
POOLED = TensorSpec("embedding", "FP32", (-1, 2))
TOKENS = TensorSpec("last_hidden_state", "FP32", (-1, -1, 2))
POOLER = TensorSpec("pooler_output", "FP32", (-1, 2))
SENTENCE = TensorSpec("sentence_embedding", "FP32", (-1, 2))


def processor(
    folder: Path,
    options: dict[str, Any] | None = None,
    outputs: tuple[TensorSpec, ...] = (POOLED,),
    task: str = "feature-extraction",
) -> EmbeddingProcessor:
    """A processor for a model with these outputs."""
    made = create_processor(task, ModelSignature(INPUTS, outputs), folder, options or {})
    assert isinstance(made, EmbeddingProcessor)
    return made


def floats(*rows: Any) -> Any:
    """A float32 array."""
    return np.array(rows, np.float32)


def answer(made: EmbeddingProcessor, payload: Texts, outputs: Tensors) -> Any:
    """The answer, with the model's inputs passed on and without; both must be the same."""
    passed = made.postprocess(payload, outputs, made.preprocess(payload))
    made_again = made.postprocess(payload, outputs)
    assert repr(passed) == repr(made_again)
    return passed


def test_vectors_and_tokens_are_the_answer(text_folder: Path) -> None:
    """One row per text, float32, as the model gave it; special tokens are counted, padding is not."""
    value = answer(processor(text_folder), Texts(["hello", "hello world"], {}), {"embedding": floats([3, 4], [0, 2])})

    assert isinstance(value, Embeddings)
    assert value.vectors.dtype == np.float32
    assert (value.vectors.tolist(), value.tokens) == ([[3, 4], [0, 2]], 3 + 4)


def test_vectors_are_brought_to_length_1_where_that_is_wanted(text_folder: Path) -> None:
    """By option, by the sentence-transformers files, or by the request; a zero vector stays one."""
    outputs = {"embedding": floats([3, 4], [0, 0])}
    unit = [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]
    texts = ["hello", "world"]

    assert answer(processor(text_folder, {"normalize": True}), Texts(texts, {}), outputs).vectors.tolist() == unit
    assert answer(processor(text_folder), Texts(texts, {"normalize": True}), outputs).vectors.tolist() == unit
    (text_folder / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.models.Normalize", "path": "2"}])
    )
    assert answer(processor(text_folder), Texts(texts, {}), outputs).vectors.tolist() == unit
    raw = answer(processor(text_folder), Texts(texts, {"normalize": False}), outputs).vectors.tolist()
    assert raw == [[3, 4], [0, 0]]


def test_token_vectors_are_averaged_behind_the_mask(text_folder: Path) -> None:
    """Padding does not count, neither this entry's nor what its batch added."""
    made = processor(text_folder, {}, (TOKENS,))
    # "hello" is 3 tokens and "hello world" 4; the batch was padded to 5.
    outputs = {
        "last_hidden_state": floats(
            [[1, 0], [2, 0], [3, 0], [99, 99], [99, 99]],
            [[1, 1], [2, 2], [3, 3], [6, 6], [99, 99]],
        )
    }

    value = answer(made, Texts(["hello", "hello world"], {}), outputs)

    assert value.vectors.tolist() == [[2, 0], [3, 3]]


def test_the_first_token_can_stand_for_the_text(text_folder: Path) -> None:
    """By option or by the sentence-transformers file."""
    outputs = {"last_hidden_state": floats([[1, 2], [3, 4], [5, 6]])}

    assert answer(
        processor(text_folder, {"pooling": "cls"}, (TOKENS,)), Texts(["hello"], {}), outputs
    ).vectors.tolist() == [[1, 2]]
    (text_folder / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}])
    )
    (text_folder / "1_Pooling").mkdir()
    (text_folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert processor(text_folder, {}, (TOKENS,)).settings.pooling == ("cls",)


@pytest.mark.parametrize(
    ("outputs", "options", "chosen"),
    [
        ((TOKENS, POOLER), {}, ("last_hidden_state", ("mean",))),
        ((TOKENS, SENTENCE), {}, ("sentence_embedding", ())),
        ((POOLER,), {}, ("pooler_output", ())),
        ((TOKENS, POOLER), {"output": "pooler_output"}, ("pooler_output", ())),
    ],
)
def test_the_output_to_read_is_found_by_its_name(
    text_folder: Path, outputs: tuple[TensorSpec, ...], options: dict[str, Any], chosen: tuple[str, tuple[str, ...]]
) -> None:
    """Exports of BERT and of sentence-transformers need no option."""
    settings = processor(text_folder, options, outputs).settings

    assert (settings.output, settings.pooling) == chosen


def test_candidate_labels_make_rows_behind_the_texts(text_folder: Path) -> None:
    """Texts and labels are embedded in one entry; labels stand in the template."""
    made = processor(text_folder, {"hypothesis_template": "hello {}"})
    payload = Texts(["playing"], {"candidate_labels": ["world", "text"]})

    assert made.estimate(payload) == Cost(3, 8)
    assert made.preprocess(payload)["input_ids"].tolist() == [[2, 6, 7, 3], [2, 4, 5, 3], [2, 4, 10, 3]]
    changed = Texts(["hello"], {"candidate_labels": "world, text", "hypothesis_template": "{}"})
    assert made.preprocess(changed)["input_ids"].tolist() == [[2, 4, 3], [2, 5, 3], [2, 10, 3]]


def test_zero_shot_scores_are_a_softmax_of_scaled_cosines(text_folder: Path) -> None:
    """Best first, per text; lengths of vectors do not matter."""
    made = processor(text_folder, {"zero_shot_scale": 2.0})
    payload = Texts(["hello", "world"], {"candidate_labels": ["across", "up"]})
    outputs = {"embedding": floats([5, 0], [0, 1], [2, 0], [0, 3])}

    value = answer(made, payload, outputs)

    high, low = np.exp(2.0) / (np.exp(2.0) + 1), 1 / (np.exp(2.0) + 1)
    assert value == [
        [{"label": "across", "score": pytest.approx(high)}, {"label": "up", "score": pytest.approx(low)}],
        [{"label": "up", "score": pytest.approx(high)}, {"label": "across", "score": pytest.approx(low)}],
    ]
    json.dumps(value)


def test_independent_labels_get_independent_scores(text_folder: Path) -> None:
    """With multi_label, each is a sigmoid around the midpoint."""
    made = processor(text_folder, {"zero_shot_scale": 4.0, "zero_shot_midpoint": 0.5})
    payload = Texts(["hello"], {"candidate_labels": ["across", "up"], "multi_label": True})

    value = answer(made, payload, {"embedding": floats([1, 0], [1, 0], [0, 1])})

    assert value == [
        [
            {"label": "across", "score": pytest.approx(1 / (1 + np.exp(-2.0)))},
            {"label": "up", "score": pytest.approx(1 / (1 + np.exp(2.0)))},
        ]
    ]


def test_a_source_sentence_asks_for_similarities(text_folder: Path) -> None:
    """Cosines, whatever the lengths of the vectors; the source is embedded in the same entry, behind the texts."""
    made = processor(text_folder)
    payload = Texts(["hello", "hello world", "world"], {"source_sentence": "this text"})

    assert made.estimate(payload) == Cost(4, 8)
    assert made.preprocess(payload)["input_ids"][3].tolist() == [2, 9, 10, 3]
    value = answer(made, payload, {"embedding": floats([5, 0], [3, 3], [0, -1], [0, 7])})
    assert value == [0.0, pytest.approx(np.sqrt(0.5)), -1.0]
    json.dumps(value)


def test_what_hugging_faces_client_sends_for_sentence_similarity_fits(text_folder: Path) -> None:
    """From its body to the payload to the answer that it reads: a list of numbers."""
    made = processor(text_folder)
    info = ModelInfo("m", "1", ("1",), made.task, ModelSignature(INPUTS, (POOLED,)), 8, 8, {}, ())
    body = json.dumps({"inputs": {"source_sentence": "hello", "sentences": ["hello", "world"]}}).encode()

    payload = decode(info, "text", "application/json", body).payload

    assert made.estimate(payload).rows == 3
    assert made.postprocess(payload, {"embedding": floats([1, 0], [0, 1], [2, 0])}) == [1.0, 0.0]


def test_a_clients_own_tensors_have_a_bucket_and_a_limit(text_folder: Path) -> None:
    """By the longest of them; what is longer than any text would cost more than the model was measured for."""
    made = processor(text_folder, {"max_length": 64, "buckets": [16, 32]})

    def tensors(ids: int, mask: int) -> Tensors:
        return {"input_ids": np.ones((2, ids), np.int64), "attention_mask": np.ones((2, mask), np.int64)}

    assert [made.bucket(tensors(length, length)) for length in (0, 16, 17, 64)] == [16, 16, 32, 64]
    assert made.bucket(tensors(1, 40)) == 64
    with pytest.raises(InvalidRequest, match="input 'input_ids' has 65 tokens; this model takes at most 64"):
        made.bucket(tensors(65, 65))
    with pytest.raises(InvalidRequest, match="input 'attention_mask' has 65 tokens; this model takes at most 64"):
        made.bucket(tensors(1, 65))
    with pytest.raises(InvalidRequest, match="input 'attention_mask' is missing"):
        made.bucket({"input_ids": np.ones((1, 1), np.int64)})
    with pytest.raises(InvalidRequest, match=r"input 'input_ids' has shape \[4\]; expected \[rows, tokens\]"):
        made.bucket({"input_ids": np.ones(4, np.int64)})


def test_templates_are_no_format_strings(text_folder: Path) -> None:
    """Only {} is replaced, and a label may hold braces."""
    made = processor(text_folder)
    payload = Texts(["hello"], {"candidate_labels": ["{0.__class__}"], "hypothesis_template": "{} {x}"})

    assert made.preprocess(payload)["input_ids"].shape[0] == 2


def test_prompts_stand_before_texts(text_folder: Path) -> None:
    """Retrieval models embed questions and documents differently."""
    (text_folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "hello "}}))
    made = processor(text_folder)

    ids = made.preprocess(Texts(["world"], {"prompt_name": "query"}))["input_ids"]

    assert ids.tolist() == [[2, 4, 5, 3]]
    with pytest.raises(InvalidRequest, match="prompt_name: unknown 'x'; known here: document, query"):
        made.estimate(Texts(["world"], {"prompt_name": "x"}))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (Texts([], {}), "inputs: at least one text is expected, and none came"),
        (Texts(["a"], {"candidate_labels": []}), "parameters.candidate_labels: expected one or more labels"),
        (Texts(["a"], {"candidate_labels": "a,,b"}), "parameters.candidate_labels: expected one or more labels"),
        (Texts(["a"], {"candidate_labels": ["a", 3]}), "parameters.candidate_labels[1]: expected `str`, got `int`"),
        (Texts([[1]], {"candidate_labels": ["a"]}), "inputs: expected text, not token ids, with these parameters"),
        (Texts([[1]], {"source_sentence": "a"}), "inputs: expected text, not token ids, with these parameters"),
        (Texts(["a"], {"source_sentence": ["a"]}), "parameters.source_sentence: expected `str | null`, got `array`"),
        (
            Texts(["a"], {"source_sentence": "a", "candidate_labels": ["a"]}),
            "parameters.source_sentence: cannot go with candidate_labels",
        ),
        (Texts(["a"], {"candidate_labels": ["a"], "hypothesis_template": "x"}), "parameters.hypothesis_template: must"),
        (Texts(["a"], {"candidate_labels": "a," * 1000 + "a"}), "parameters.candidate_labels: 1001 labels, at most"),
        (
            Texts(["a"], {"candidate_labels": ["a"], "hypothesis_template": "{} {}"}),
            "parameters.hypothesis_template: expected one {}",
        ),
        (
            Texts(["a"], {"candidate_labels": ["a"], "hypothesis_template": "{}" + " " * 1000}),
            "parameters.hypothesis_template: expected one {}",
        ),
        (Texts(["a"], {"normalise": True}), "parameters.normalise: unknown; did you mean normalize?"),
        (Texts(["a"], {"normalize": "yes"}), "parameters.normalize: expected `bool | null`, got `str`"),
    ],
)
def test_wrong_parameters_are_refused_before_queueing(text_folder: Path, payload: Texts, message: str) -> None:
    """The message names the parameter."""
    made = processor(text_folder)
    for method in (made.estimate, made.preprocess):
        with pytest.raises(InvalidRequest) as raised:
            method(payload)
        assert raised.value.message.startswith(message)


def test_pictures_are_unsupported(text_folder: Path) -> None:
    """A text model takes text."""
    with pytest.raises(UnsupportedMedia, match="this model takes text, and got image/png"):
        processor(text_folder).estimate(Media(b"x", "image/png", {}))


def test_zero_shot_as_a_task_needs_labels(text_folder: Path) -> None:
    """Configured by that name, every request is one."""
    made = processor(text_folder, task="zero-shot-classification")

    assert made.task == "zero-shot-classification"
    with pytest.raises(InvalidRequest, match="candidate_labels: required"):
        made.estimate(Texts(["hello"], {}))


def test_texts_may_have_to_fit(text_folder: Path) -> None:
    """truncate: false refuses what would be cut."""
    made = processor(text_folder, {"max_length": 4})

    assert made.preprocess(Texts(["hello " * 9], {}))["input_ids"].shape == (1, 4)
    with pytest.raises(InvalidRequest, match="longer than 4 tokens"):
        made.preprocess(Texts(["hello " * 9], {"truncate": False}))


def test_vectors_that_are_not_finite_are_the_model_s_failure(text_folder: Path) -> None:
    """The client is not to blame, and gets no NaN."""
    with pytest.raises(InferenceFailed, match="output embedding of the model is not a finite number"):
        processor(text_folder).postprocess(Texts(["hello"], {}), {"embedding": floats([np.nan, 1])})


@pytest.mark.parametrize(
    ("options", "outputs", "problem"),
    [
        (
            {"pooling": "mean"},
            (POOLED,),
            "processor.pooling: mean does not fit output embedding FP32 (?, 2): it is pooled already, say none",
        ),
        (
            {"pooling": "none"},
            (TOKENS,),
            (
                "processor.pooling: none does not fit output last_hidden_state FP32 (?, ?, 2):"
                " say cls, max, mean, mean_sqrt_len_tokens, weightedmean, lasttoken"
            ),
        ),
        (
            {"hypothesis_template": "x"},
            (POOLED,),
            "processor.hypothesis_template: must say where the label goes, with {}",
        ),
        (
            {},
            (TensorSpec("y", "INT64", (-1, 2)),),
            (
                "processor.output: expected a float output (rows, dimensions) or"
                " (rows, tokens, dimensions); the model has y INT64 (?, 2)"
            ),
        ),
    ],
)
def test_what_does_not_fit_the_model_is_refused_at_the_start(
    text_folder: Path, options: dict[str, Any], outputs: tuple[TensorSpec, ...], problem: str
) -> None:
    """One readable line says where and why."""
    with pytest.raises(ConfigError) as raised:
        processor(text_folder, options, outputs)

    assert raised.value.problems == (problem,)


def test_texts_can_be_cut_at_their_beginning(text_folder: Path) -> None:
    """The special tokens stay where they were."""
    made = processor(text_folder, {"max_length": 5})
    text = "hello world hello this text"

    ends = made.preprocess(Texts([text, "hello"], {}))["input_ids"]
    starts = made.preprocess(Texts([text, "hello"], {"truncation_direction": "left"}))["input_ids"]

    assert ends.tolist() == [[2, 4, 5, 4, 3], [2, 4, 3, 0, 0]]
    assert starts.tolist() == [[2, 4, 9, 10, 3], [2, 4, 3, 0, 0]]


@given(
    words=st.lists(st.sampled_from(["hello", "world", "playing", "a", "?"]), min_size=1, max_size=40),
    most=st.integers(3, 12),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_left_of_a_text_is_its_end(text_folder: Path, words: list[str], most: int) -> None:
    """As the tokenizer itself would cut it, were it told to."""
    made = processor(text_folder, {"max_length": most})
    tokenizer = Tokenizer.from_file(str(text_folder / "tokenizer.json"))
    tokenizer.enable_truncation(most, direction="left")
    text = " ".join(words)

    ids = made.preprocess(Texts([text], {"truncation_direction": "left"}))["input_ids"]

    assert ids.tolist() == [tokenizer.encode(text).ids]


def test_dimensions_are_the_first_ones(text_folder: Path) -> None:
    """Cut before they are brought to length 1."""
    made = processor(text_folder, {"normalize": True}, (TensorSpec("embedding", "FP32", (-1, 3)),))

    value = answer(made, Texts(["hello"], {"dimensions": 2}), {"embedding": floats([3, 4, 12])})

    assert np.allclose(value.vectors, [[0.6, 0.8]])
    with pytest.raises(InvalidRequest, match="dimensions: expected 1 to 3, the length of this model's vectors"):
        made.estimate(Texts(["hello"], {"dimensions": 4}))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"multi_label": False}, r"parameters\.multi_label: has an effect only together with candidate_labels"),
        ({"hypothesis_template": "{}"}, r"parameters\.hypothesis_template: has an effect only together"),
        ({"encoding_format": "base64"}, r"parameters\.encoding_format: .* POST /v1/embeddings"),
        ({"dimensions": 0}, r"parameters\.dimensions: expected `int` >= 1"),
        ({"truncation_direction": "up"}, r"parameters\.truncation_direction: invalid enum value 'up'"),
    ],
)
def test_nothing_is_ignored(text_folder: Path, parameters: dict[str, Any], message: str) -> None:
    """What would change nothing here is refused."""
    with pytest.raises(InvalidRequest, match=message):
        processor(text_folder).estimate(Texts(["hello"], parameters))
