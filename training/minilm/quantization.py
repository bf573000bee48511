"""The int8 variant: weights in 8 bits, activations quantised row by row as they come."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import onnx
from tokenizers import Tokenizer

from serve_app.backends.onnx.int8.balance import find_balance
from serve_app.backends.onnx.int8.rowwise import quantize_rows
from training.minilm.texts import make_texts
from training.onnx_graph import save

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_TEXTS = 64
_SEED = 20


def quantize(folder: Path, target: Path, metadata: Mapping[str, str]) -> None:
    """Quantise every matrix product with constant weights, and the table of words, of the model in ``folder``.

    What `serve-app convert --int8 --samples` does, with made-up texts as samples. An answer does not depend on the
    other rows of its batch.
    """
    model = onnx.load(folder / "1" / "model.onnx")
    quantize_rows(model, find_balance(model, _samples(folder)))
    model.producer_name = "serve-app training"
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model)
    save(model, target)


def _samples(folder: Path) -> Iterator[dict[str, NDArray[np.int64]]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(json.loads((folder / "sentence_bert_config.json").read_text("utf-8"))["max_seq_length"])
    for encoding in tokenizer.encode_batch(make_texts(_TEXTS, _SEED)):
        ids = np.array([encoding.ids], np.int64)
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids)}
