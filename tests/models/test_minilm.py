"""The text demo model: its embeddings are those of the reference implementation, and int8 stays close."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from training.minilm.graph import encoder

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "minilm"
FP32 = ROOT / "models" / "minilm"
INT8 = ROOT / "models" / "minilm-int8"


def load(folder: Path) -> ort.InferenceSession:
    """A session of the model, on one CPU thread."""
    path = folder / "1" / "model.onnx"
    if not path.exists():
        pytest.fail(f"{path.relative_to(ROOT)} is not built: run `make models` first")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def embed(session: ort.InferenceSession, encodings: list[Encoding], tokens: int | None = None) -> NDArray[np.float32]:
    """Embed as one batch, padded to ``tokens`` or to the longest row."""
    tokens = tokens or max(len(encoding.ids) for encoding in encodings)
    ids = np.zeros((len(encodings), tokens), np.int64)
    mask = np.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding.ids)] = encoding.ids
        mask[row, : len(encoding.ids)] = 1
    (embedding,) = session.run(["embedding"], {"input_ids": ids, "attention_mask": mask})
    return np.asarray(embedding, np.float32)


def embed_all(session: ort.InferenceSession, encodings: list[Encoding], rows: int) -> NDArray[np.float32]:
    """Embed in batches of ``rows``, in the order of the sentences: short and long ones share batches."""
    return np.concatenate([embed(session, encodings[i : i + rows]) for i in range(0, len(encodings), rows)])


def cosines(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each row of ``left`` with the same row of ``right``."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    return np.asarray((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))


@pytest.fixture(scope="module")
def fp32() -> ort.InferenceSession:
    """The FP32 model."""
    return load(FP32)


@pytest.fixture(scope="module")
def int8() -> ort.InferenceSession:
    """The int8 variant."""
    return load(INT8)


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """What the reference vectors are of."""
    return [row["text"] for row in json.loads((DATA / "sentences.json").read_text("utf-8"))]


@pytest.fixture(scope="module")
def encodings(sentences: list[str], fp32: ort.InferenceSession) -> list[Encoding]:
    """The sentences' tokens, truncated as the model's own files say."""
    tokenizer = Tokenizer.from_file(str(FP32 / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(json.loads((FP32 / "sentence_bert_config.json").read_text("utf-8"))["max_seq_length"])
    return list(tokenizer.encode_batch(sentences))


@pytest.fixture(scope="module")
def reference() -> NDArray[np.float32]:
    """The vectors that the reference implementation computed."""
    return np.asarray(np.load(DATA / "reference.npy"), np.float32)


def test_signature(fp32: ort.InferenceSession, int8: ort.InferenceSession) -> None:
    """Both models take INT64 ids and mask of any size and give one FP32 vector of 384 per row."""
    expected = (
        [("input_ids", "tensor(int64)", ["rows", "tokens"]), ("attention_mask", "tensor(int64)", ["rows", "tokens"])],
        [("embedding", "tensor(float)", ["rows", 384])],
    )
    for session in (fp32, int8):
        actual = tuple([(t.name, t.type, t.shape) for t in ts] for ts in (session.get_inputs(), session.get_outputs()))
        assert expected == actual


def test_tokens_are_those_of_the_reference(encodings: list[Encoding]) -> None:
    """The tokenizer file beside the model cuts every sentence into as many tokens as the reference did."""
    expected = json.loads((DATA / "reference.json").read_text("utf-8"))["tokens"]
    assert expected == [len(encoding.ids) for encoding in encodings]


def test_fp32_equals_the_reference(
    fp32: ort.InferenceSession, encodings: list[Encoding], reference: NDArray[np.float32], sentences: list[str]
) -> None:
    """Every one of the 200 sentences has the reference's embedding, alone and unpadded."""
    cosine = cosines(embed_all(fp32, encodings, rows=1), reference)
    assert len(sentences) == len(cosine) == 200
    worst = int(cosine.argmin())
    assert cosine.min() >= 0.9999, f"{sentences[worst][:60]!r}: {cosine[worst]}"


def test_fp32_does_not_depend_on_padding_or_neighbours(
    fp32: ort.InferenceSession, encodings: list[Encoding], reference: NDArray[np.float32]
) -> None:
    """The same holds in batches of mixed lengths, of half of them, and padded to the longest length there is."""
    assert cosines(embed_all(fp32, encodings[::2], rows=8), reference[::2]).min() >= 0.9999
    alone = embed(fp32, encodings[:4])
    np.testing.assert_allclose(embed(fp32, encodings[:4], tokens=256), alone, atol=1e-6)


def test_embeddings_have_length_one(fp32: ort.InferenceSession, encodings: list[Encoding]) -> None:
    """The graph normalises, so that a dot product is a cosine."""
    lengths = np.linalg.norm(embed(fp32, encodings[:16]), axis=1)
    np.testing.assert_allclose(lengths, np.ones(16), atol=1e-6)


def test_an_empty_padding_row_is_zero_and_harmless(fp32: ort.InferenceSession, int8: ort.InferenceSession) -> None:
    """A row whose mask is all zero, as padding a batch makes, gives zeros and not NaN."""
    ids = np.zeros((2, 5), np.int64)
    mask = np.array([[1] * 5, [0] * 5], np.int64)
    for session in (fp32, int8):
        (embedding,) = session.run(["embedding"], {"input_ids": ids, "attention_mask": mask})
        assert np.isfinite(embedding).all()
        assert np.abs(embedding[1]).max() == 0.0


@pytest.mark.parametrize(("rows", "every"), [(1, 4), (8, 1)])
def test_int8_stays_close(
    int8: ort.InferenceSession, encodings: list[Encoding], reference: NDArray[np.float32], rows: int, every: int
) -> None:
    """The variant keeps a mean cosine of 0.995 to the reference, and 0.96 for the worst of 200."""
    cosine = cosines(embed_all(int8, encodings[::every], rows), reference[::every])
    assert cosine.mean() >= 0.995
    assert cosine.min() >= 0.96


@pytest.mark.parametrize("rows", [2, 3, 8, 32])
def test_int8_is_the_same_in_any_batch(int8: ort.InferenceSession, encodings: list[Encoding], rows: int) -> None:
    """Bit for bit, at any place, beside other sentences, one token repeated, unknown tokens or an empty row."""
    generator = np.random.default_rng(rows)
    for encoding in encodings[:60:20]:
        tokens = len(encoding.ids)
        own = np.array(encoding.ids, np.int64)
        strange = [np.full(tokens, token) for token in (0, 100, 30_521)] + [generator.integers(0, 30_522, tokens)]
        alone = embed(int8, [encoding])[0]
        for place in sorted({0, rows // 2, rows - 1}):
            ids = np.stack([strange[int(generator.integers(len(strange)))] for _ in range(rows)])
            ids[place] = own
            mask = np.ones_like(ids)
            mask[(place + 1) % rows] = 0
            (embedding,) = int8.run(["embedding"], {"input_ids": ids, "attention_mask": mask})
            assert np.array_equal(alone, embedding[place])


def test_int8_does_not_depend_on_padding(int8: ort.InferenceSession, encodings: list[Encoding]) -> None:
    """A longer neighbour, which pads a sentence, moves it by FP32's last digit only."""
    for encoding in encodings[:60:10]:
        alone = embed(int8, [encoding])
        for tokens in (64, 256):
            np.testing.assert_allclose(embed(int8, [encoding], tokens=tokens), alone, rtol=0, atol=1e-6)


def test_meaning_survives(fp32: ort.InferenceSession, int8: ort.InferenceSession, encodings: list[Encoding]) -> None:
    """Paraphrases are closer to each other than to anything else, in both models."""
    pairs = [(9, 10), (13, 14)]  # the chalk drawing and the morning run, each said twice
    for session in (fp32, int8):
        vectors = embed(session, encodings[:25])
        similarity = vectors @ vectors.T - 2 * np.eye(25)
        for left, right in pairs:
            assert (right, left) == (int(similarity[left].argmax()), int(similarity[right].argmax()))


def test_reference_and_sentences_belong_together(reference: NDArray[np.float32], sentences: list[str]) -> None:
    """There is one reference vector per sentence, and no sentence twice."""
    assert reference.shape == (200, 384)
    assert 200 == len(set(sentences)) == len(sentences)


def test_another_architecture_is_refused() -> None:
    """Weights of a model that the graph does not compute are refused by the name of the setting."""
    config: dict[str, Any] = {"model_type": "bert", "hidden_act": "relu"}
    with pytest.raises(ValueError, match="hidden_act is 'relu'"):
        encoder({}, config, {})
