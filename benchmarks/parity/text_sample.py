"""Records a sample of what transformers and sentence-transformers make of texts, for the tests.

Run in the environment of the exporters:

    python -m benchmarks.parity.text_sample tests/processors/data/text_parity.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from torch import nn

from benchmarks.parity.sentence_cases import linear
from benchmarks.parity.sounds import RATE, sounds
from benchmarks.parity.texts import PAIRS, TEXTS
from benchmarks.parity.tokenizers_made import tokenizer_of

_CLASSES = tuple(
    f"{name}Tokenizer"
    for name in ("Bert", "Roberta", "XLMRoberta", "T5", "Albert", "Llama", "GPT2", "DebertaV2", "XLNet")
)
_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_BOTH = {"BertTokenizer", "RobertaTokenizer"}
_LONGEST, _WIDTH = 20, 4


def tokenized(name: str, side: str) -> dict[str, Any]:
    """A tokenizer's files, and its tokens of texts and pairs."""
    tokenizer = tokenizer_of(getattr(transformers, name), model_max_length=_LONGEST, truncation_side=side)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {file: json.loads(Path(folder, file).read_text()) for file in _FILES if Path(folder, file).exists()}
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    cases = []
    for text in [*TEXTS, *map(list, PAIRS)]:
        both = [text] if isinstance(text, str) else text
        made = tokenizer(*both, truncation=True, max_length=_LONGEST, return_token_type_ids=True)
        cases.append({"text": text, "ids": made["input_ids"], "types": made["token_type_ids"]})
    return {"name": f"{name}-{side}", "files": files, "cases": cases}


def pooled() -> dict[str, Any]:
    """Vectors of tokens, and of texts by every way to pool them, with a prompt left out and not."""
    torch.manual_seed(0)
    tokens, mask = torch.randn(3, 6, _WIDTH), torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3])
    answers = {}
    for mode in _MODES:
        for prompt in (0, 2):
            features = {"token_embeddings": tokens, "attention_mask": mask, "prompt_length": prompt}
            made = Pooling(_WIDTH, mode, include_prompt=not prompt)(features)["sentence_embedding"]
            answers[f"{mode} {prompt}"] = made.tolist()
    modules = {}
    vectors = torch.randn(3, _WIDTH)
    names = ("Tanh", "Identity", "ReLU", "GELU", "SiLU", "Sigmoid")
    made = {f"Dense {name}": linear(Dense(_WIDTH, 3, activation_function=getattr(nn, name)())) for name in names}
    made["Dense residual"] = linear(Dense(_WIDTH, 3, use_residual=True))
    made["Dense square"] = linear(Dense(_WIDTH, _WIDTH, use_residual=True))
    made["LayerNorm"] = linear(LayerNorm(_WIDTH))
    for name, module in made.items():
        with torch.no_grad():
            answer = module({"sentence_embedding": vectors})["sentence_embedding"].tolist()
        weights = {key: value.tolist() for key, value in module.state_dict().items()}
        modules[name] = {"config": module.get_config_dict(), "weights": weights, "answer": answer}
    return {"tokens": tokens.tolist(), "mask": mask.tolist(), "pooled": answers, "vectors": vectors.tolist(),
            "modules": modules}  # fmt: skip


def spectrograms() -> list[dict[str, Any]]:
    """A sound's features by the extractors of AST and Whisper."""
    content, samples = next(sounds())
    made = []
    for extractor in (transformers.ASTFeatureExtractor(num_mel_bins=16, max_length=40),
                      transformers.WhisperFeatureExtractor(feature_size=12, chunk_length=1)):  # fmt: skip
        features = extractor(samples, sampling_rate=RATE, return_tensors="np")
        (values,) = (np.asarray(each)[0] for name, each in features.items() if name.startswith("input"))
        made.append({"config": extractor.to_dict() | {"mel_filters": None}, "features": np.round(values, 6).tolist()})
    return [{"sound": content.hex(), "made": made}]


def main(target: Path) -> None:
    """Write the sample."""
    sample = {
        "tokenizers": [
            tokenized(name, side) for name in _CLASSES for side in ("right", "left")[: 2 if name in _BOTH else 1]
        ],
        **pooled(),
        "spectrograms": spectrograms(),
    }
    target.write_text(json.dumps(sample, default=str, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
