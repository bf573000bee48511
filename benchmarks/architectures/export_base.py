"""Exports a text classifier of BERT's base size, as transformers write it, with random weights and a tokenizer."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from benchmarks.architectures.torch_exporters import Chosen, export

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def main(target: Path) -> None:
    """Write ``1/model.onnx`` and ``tokenizer.json``: 110 million weights, and a vocabulary of letters."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=3)
    model = transformers.AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()
    ids = torch.randint(4, 30, (2, 24))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    (target / "1").mkdir(parents=True, exist_ok=True)
    export(Chosen(model, list(inputs)), inputs, axes, "torchscript", target / "1")
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = (*_SPECIAL, *letters, *(f"##{letter}" for letter in letters))
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(target / "tokenizer.json"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
