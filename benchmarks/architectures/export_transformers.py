"""Exports small models of the architectures of transformers: run in an environment of its own.

Every model has the real code of its architecture and random weights of a few thousand numbers. What an exporter writes
depends on the code and not on the weights, so the graphs are those of the published models, with fewer layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.architectures.collection import PAD, Export, export_all
from benchmarks.architectures.torch_exporters import EXPORTERS, Chosen, export

VOCABULARY = 200

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
    "pad_token_id": PAD,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "num_labels": 3,
    "embedding_size": 32,
    "emb_dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "n_inner": 64,
    "dim": 32,
    "hidden_dim": 64,
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 8,
    "d_head": 8,
    "d_inner": 64,
    "num_layers": 2,
    "num_heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "ffn_dim": 64,
    "word_embed_proj_dim": 32,
}
"""What configurations of text models call their sizes. A configuration takes those that it has."""

TEXT: dict[str, dict[str, Any]] = {
    "albert": {},
    "bart": {},
    "bert": {},
    "big_bird": {"attention_type": "original_full"},
    "bloom": {},
    "camembert": {},
    "canine": {},
    "convbert": {},
    "ctrl": {"dff": 64},
    "data2vec-text": {},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "norm_rel_ebd": "layer_norm"},
    "distilbert": {},
    "electra": {},
    "ernie": {},
    "esm": {"mask_token_id": 4, "position_embedding_type": "rotary"},
    "eurobert": {},
    "falcon": {"head_dim": None, "new_decoder_architecture": False, "alibi": False},
    "flaubert": {},
    "fnet": {"tpu_short_seq_length": 16},
    "funnel": {"num_hidden_layers": None, "block_sizes": [1, 1]},
    "gemma": {},
    "gemma2": {"sliding_window": 16},
    "gemma3_text": {"sliding_window": 16},
    "glm": {"partial_rotary_factor": 0.5},
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gpt_neox": {},
    "gptj": {"rotary_dim": 4},
    "ibert": {},
    "jina_embeddings_v3": {},
    "layoutlm": {},
    "llama": {},
    "longformer": {"attention_window": 8},
    "luke": {"entity_vocab_size": 8, "entity_emb_size": 16},
    "mbart": {},
    "megatron-bert": {},
    "mistral": {"sliding_window": 16},
    "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 16},
    "mpnet": {},
    "mt5": {},
    "nomic_bert": {},
    "nystromformer": {"segment_means_seq_len": 64, "num_landmarks": 8},
    "opt": {},
    "olmo": {},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"partial_rotary_factor": 1.0},
    "plbart": {},
    "qwen2": {},
    "qwen3": {},
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 32},
    "roberta": {},
    "roberta-prelayernorm": {},
    "roc_bert": {
        "shape_vocab_size": 20,
        "pronunciation_vocab_size": 20,
        "enable_pronunciation": False,
        "enable_shape": False,
    },
    "roformer": {},
    "smollm3": {},
    "squeezebert": {},
    "stablelm": {},
    "starcoder2": {},
    "t5": {},
    "umt5": {},
    "xlm": {},
    "xlm-roberta": {},
    "xlm-roberta-xl": {},
    "xlnet": {},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "yoso": {},
}
"""Architectures that read texts, with what their small configurations need besides `_SMALL`."""

ENCODERS_ONLY = {"t5", "mt5", "umt5", "bart", "mbart", "plbart"}
"""Of which the encoder makes embeddings."""


def configuration(kind: str, own: dict[str, Any]) -> Any:
    """A small configuration of an architecture."""
    cls = transformers.CONFIG_MAPPING[kind]
    known = cls()
    attributes = {name: value for name, value in _SMALL.items() if hasattr(known, name) or name == "num_labels"}
    return cls(**{name: value for name, value in {**attributes, **own}.items() if value is not None})


def model_of(kind: str, task: str, attention: str | None) -> nn.Module:
    """A small model with random weights."""
    config = configuration(kind, TEXT[kind])
    if hasattr(config, "use_cache"):
        config.use_cache = False
    torch.manual_seed(0)
    auto = transformers.AutoModelForSequenceClassification if task == "text-classification" else transformers.AutoModel
    model = auto.from_config(config, **({"attn_implementation": attention} if attention else {}))
    if task == "feature-extraction" and kind in ENCODERS_ONLY:
        model = model.get_encoder()
    return model.eval()


def write(kind: str, task: str, exporter: str, folder: Path) -> None:
    """Export one model."""
    model = model_of(kind, task, "eager" if exporter == "torchscript" else None)
    texts = torch.randint(5, VOCABULARY, (2, 24))
    texts[:, -1] = 3  # the end, which some models look for
    inputs = {"input_ids": texts, "attention_mask": torch.ones_like(texts)}
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    export(Chosen(model, list(inputs), {"return_dict": True}), inputs, axes, exporter, folder)


def exports() -> Iterator[Export]:
    """Every architecture, for two tasks, with both exporters."""
    for kind in TEXT:
        for task in ("text-classification", "feature-extraction"):
            for exporter in EXPORTERS:
                yield Export("transformers", kind, task, exporter, partial(write, kind, task, exporter))


def main(target: Path) -> None:
    """Export everything; what fails is noted."""
    export_all(target, exports())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
