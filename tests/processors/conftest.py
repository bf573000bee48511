"""A small tokenizer, made here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "play", "##ing", "##ed", "this", "text", "is", "about"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz.,!?"]


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """A model's folder with the tokenizer.json of a tiny BERT: 13 words, then letters as whole words and as pieces."""
    words = [*WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path
