"""Models as a user brings them: an ONNX file, a few lines of YAML, perhaps Hugging Face files beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_models
import tokenizers
import yaml

FIVE_LINES = """
- name: colours
  task: image-classification
  path: {folder}/colours
  processor: {{size: 32, mean: 0.0, std: 1.0, labels: [red, green, blue, none]}}
  batching: {{max_rows: 16}}

- name: loudness
  task: audio-classification
  path: {folder}/loudness
  processor: {{labels: labels.txt}}
  batching: {{max_rows: 8}}

- name: words
  task: feature-extraction
  path: {folder}/words
  processor: {{max_length: 16}}
  batching: {{max_rows: 8}}
"""


def bring(folder: Path) -> list[dict[str, Any]]:
    """Write the models' files and return their configuration."""
    onnx_models.make(folder / "colours" / "1" / "model.onnx", "image_logits")

    onnx_models.make(folder / "loudness" / "1" / "model.onnx", "waveform_logits")
    (folder / "loudness" / "labels.txt").write_text("mean\nmagnitude\nsquare\n")
    (folder / "loudness" / "preprocessor_config.json").write_text(json.dumps({"sampling_rate": 16000}))

    onnx_models.make(folder / "words" / "1" / "model.onnx", "seq_mean")
    vocabulary = {"[UNK]": 0, "[PAD]": 1, "one": 2, "two": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "words" / "tokenizer.json"))

    models: list[dict[str, Any]] = yaml.safe_load(FIVE_LINES.format(folder=folder))
    return models
