"""Small tokenizers of transformers' classes, trained on a few sentences that are written here."""

from __future__ import annotations

import inspect
import json
from typing import Any

import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from benchmarks.parity.texts import CORPUS

_SIZE = 170


def class_of(kind: str) -> Any:
    """The tokenizer's class of a model type, where it can be made of a small vocabulary."""
    name = TOKENIZER_MAPPING_NAMES.get(kind)
    found = getattr(transformers, name, None) if isinstance(name, str) else None
    model = getattr(found, "model", None)
    if found is None or model is None or not hasattr(model, "__name__"):
        return transformers.BertTokenizer
    return found


def tokenizer_of(cls: Any, **keys: Any) -> Any:
    """A tokenizer of a class of transformers, with these keys."""
    defaults = {name: each.default for name, each in inspect.signature(cls.__init__).parameters.items()}
    special = [
        str(defaults[name])
        for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
        if isinstance(defaults.get(name), str)
    ]
    special = list(dict.fromkeys(special)) or ["<unk>", "<s>", "</s>"]
    kind = cls.model.__name__
    trainer: Any
    if kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=str(defaults.get("unk_token", "[UNK]"))))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=_SIZE, special_tokens=special, show_progress=False)
    elif kind == "Unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=_SIZE, special_tokens=special, unk_token=str(defaults.get("unk_token", "<unk>")),
            show_progress=False,
        )  # fmt: skip
    else:
        tokenizer = Tokenizer(models.BPE())
        byte_level = "errors" in defaults or cls.__name__.startswith(("Roberta", "Qwen", "CLIP"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel() if byte_level else pre_tokenizers.Metaspace()
        alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
        trainer = trainers.BpeTrainer(
            vocab_size=_SIZE + len(alphabet), special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = _model(tokenizer)
    given: dict[str, Any] = {"vocab": model["vocab"]}
    if kind == "Unigram":
        given["vocab"] = [tuple(entry) for entry in model["vocab"]]
    if "merges" in model:
        given["merges"] = [tuple(merge) for merge in model["merges"]]
    return cls(**given, **{"model_max_length": 100, **keys})


def _model(tokenizer: Tokenizer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return found
