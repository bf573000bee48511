"""Exports modules of sentence-transformers as one graph: a transformer, a pooling, a normalization."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from torch import nn

from benchmarks.architectures.collection import Export, export_all
from benchmarks.architectures.torch_exporters import EXPORTERS, export

KINDS = ("bert", "mpnet", "xlm-roberta", "distilbert", "modernbert")
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
WORDS = [*["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], *"abcdefghijklmnopqrstuvwxyz"]

_SMALL: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 130,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
_OWN: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 200, "pad_token_id": 0}
}


class Embedded(nn.Module):
    """Sentence embeddings of tokens and their mask."""

    def __init__(self, sentences: nn.Module) -> None:
        super().__init__()
        self.sentences = sentences

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """One vector for each row."""
        features = dict(zip(("input_ids", "attention_mask"), inputs, strict=True))
        return self.sentences(features)["sentence_embedding"]


def _sentences(kind: str, pooling: str, attention: dict[str, str], folder: Path) -> nn.Module:
    """A model of sentence-transformers, read from a folder with random weights."""
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**_OWN.get(kind, _SMALL))
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    transformer = modules.Transformer(str(folder), model_kwargs=attention)
    pooled = modules.Pooling(32, pooling_mode=pooling)
    return SentenceTransformer(modules=[transformer, pooled, modules.Normalize()], device="cpu").eval()


def write(kind: str, pooling: str, exporter: str, folder: Path) -> None:
    """Export one model."""
    tokens = torch.randint(5, 30, (2, 24))
    mask = torch.ones_like(tokens)
    mask[1, 12:] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask}
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    attention = {"attn_implementation": "eager"} if exporter == "torchscript" else {}
    with tempfile.TemporaryDirectory() as read:
        sentences = _sentences(kind, pooling, attention, Path(read))
        outputs = {"sentence_embedding": {0: "batch"}}
        export(Embedded(sentences), inputs, axes, exporter, folder, outputs)


def exports() -> Iterator[Export]:
    """Every architecture and pooling, with both exporters."""
    for exporter in EXPORTERS:
        for kind in KINDS:
            for pooling in POOLINGS:
                done = partial(write, kind, pooling, exporter)
                yield Export("sentence-transformers", f"{kind}-{pooling}", "feature-extraction", exporter, done)


def main(target: Path) -> None:
    """Export everything; what fails is noted."""
    export_all(target, exports())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
