"""What the libraries make of texts and sounds, recorded by `benchmarks.parity.text_sample`, is made here too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from serve_app.config.processor import TextOptions
from serve_app.payloads import ModelSignature, TensorSpec
from serve_app.processors.audio_folder import read_audio_folder
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.sentence_modules import Chain, pool, read_chain
from serve_app.processors.tokenization import TextTokenizer

SAMPLE: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "text_parity.json").read_text("utf-8"))
SIGNATURE = ModelSignature(
    tuple(TensorSpec(name, "INT64", (-1, -1)) for name in ("input_ids", "attention_mask", "token_type_ids")),
    (TensorSpec("logits", "FP32", (-1, 2)),),
)


def written(folder: Path, files: dict[str, Any]) -> ModelFolder:
    """A folder with these files."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(content), "utf-8")
    return ModelFolder(folder, versioned=False)


@pytest.mark.parametrize("tokenizer", SAMPLE["tokenizers"], ids=lambda each: each["name"])
def test_texts_become_the_tokens_of_transformers(tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    """Ids and types, of texts and pairs, cut at either end, alone and together."""
    made = TextTokenizer.create(SIGNATURE, written(tmp_path, tokenizer["files"]), TextOptions.model_validate({}))

    cases = [case for case in tokenizer["cases"] if case["ids"]]
    for case in cases:
        tensors = made.tokenize([case["text"]])
        assert tensors["input_ids"].tolist() == [case["ids"]]
        assert tensors["token_type_ids"].tolist() == [case["types"]]
    together = made.tokenize([case["text"] for case in cases])
    lengths = made.lengths(together)
    assert [row[:length].tolist() for row, length in zip(together["input_ids"], lengths, strict=True)] == [
        case["ids"] for case in cases
    ]


@pytest.mark.parametrize("name", SAMPLE["pooled"])
def test_tokens_are_pooled_as_by_sentence_transformers(name: str) -> None:
    """Every mode, with and without the tokens of a prompt, also where others made the batch longer."""
    mode, prompt = name.split()
    tokens = np.array(SAMPLE["tokens"], np.float32)
    longer = np.concatenate([tokens, np.full((3, 2, tokens.shape[2]), 9, np.float32)], axis=1)

    vectors = pool(longer, np.array(SAMPLE["mask"], np.bool_), (mode,), int(prompt))  # type: ignore[arg-type]

    np.testing.assert_allclose(vectors, SAMPLE["pooled"][name], atol=1e-6)


@pytest.mark.parametrize("name", SAMPLE["modules"])
def test_modules_make_what_those_of_sentence_transformers_make(tmp_path: Path, name: str) -> None:
    """Their weights and configurations are read from folders."""
    module = SAMPLE["modules"][name]
    kind = name.partition(" ")[0]
    chain = [
        {"type": "sentence_transformers.models.Pooling", "path": "1"},
        {"type": f"sentence_transformers.models.{kind}", "path": "2"},
    ]
    folder = written(
        tmp_path, {"modules.json": chain, "1/config.json": {"pooling_mode": "cls"}, "2/config.json": module["config"]}
    )
    weights = {key: np.array(value, np.float32) for key, value in module["weights"].items()}
    save_file(weights, tmp_path / "2" / "model.safetensors")

    made: Chain = read_chain(folder, ())

    (step,) = made.steps
    np.testing.assert_allclose(step(np.array(SAMPLE["vectors"], np.float32)), module["answer"], atol=1e-6)


@pytest.mark.parametrize(
    "made", SAMPLE["spectrograms"][0]["made"], ids=lambda each: each["config"]["feature_extractor_type"]
)
def test_sounds_become_the_spectrograms_of_transformers(tmp_path: Path, made: dict[str, Any]) -> None:
    """Those of AST and Whisper, by the keys of their folders."""
    samples = np.frombuffer(bytes.fromhex(SAMPLE["spectrograms"][0]["sound"])[44:], "<i2") / np.float32(32_768)
    config = {key: value for key, value in made["config"].items() if value is not None}

    spectrogram = read_audio_folder(written(tmp_path, {"preprocessor_config.json": config}), ()).spectrogram

    assert spectrogram is not None
    np.testing.assert_allclose(spectrogram(samples.astype(np.float32)), made["features"], atol=3e-6)
