"""Texts that tokenizers are trained on, and texts to ask."""

from __future__ import annotations

CORPUS = (
    "the cat sat on the mat and the dog ran in the park",
    "a good day for a walk, a bad day for a swim; what do you think?",
    "The Queen said: 'Off with her head!' and Alice laughed.",
    "naive cafe, uber, resume; numbers 1 23 456 7890",
    "servers answer requests in order of their deadlines and priorities",
)
TEXTS = (
    "the cat",
    "The Cat sat on THE mat.",
    "",
    "A good day",
    "naïve café, Ünïcödé ß — 漢字 テスト 🙂",
    "tabs\tand\nnew lines   and   spaces ",
    "literal </s> and [SEP] and <s> and [CLS] and <pad> in a text",
    "what do you think? " * 60,
    " ".join(f"dog{number}" for number in range(90)),
)
"""Short, empty, of other scripts, with names of special tokens, and too long."""
PAIRS = (
    ("the cat sat", "the dog ran"),
    ("a good day for a walk " * 20, "bad"),
    ("bad", "a good day for a walk " * 20),
    ("", "The Queen"),
)
