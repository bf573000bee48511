"""Makes up English texts of 1 to 200 words: to balance the int8 variant with, and to measure it on."""

from __future__ import annotations

import json
import random
from pathlib import Path

_WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_name("words.json").read_text("utf-8"))
_JOINTS = ("and", "but", "because", "although", "while", "so", "when", "after")


def make_texts(count: int, seed: int, most_words: int = 200) -> list[str]:
    """Make texts whose lengths grow from one word to ``most_words``, as many short ones as long ones.

    Args:
        count: How many, at least 2.
        seed: The same seed gives the same texts.
        most_words: Of the longest.
    """
    maker = random.Random(seed)
    return [_text(maker, round(most_words ** (number / (count - 1)))) for number in range(count)]


def _text(maker: random.Random, words: int) -> str:
    if words == 1:
        return maker.choice(_WORDS["nouns"])
    if words == 2:
        return f"{maker.choice(_WORDS['adjectives'])} {maker.choice(_WORDS['nouns'])}"
    found: list[str] = []
    while len(found) < words:
        found.extend(_sentence(maker).split())
    text = " ".join(found[:words])
    return text if text.endswith((".", "?")) else f"{text}."


def _sentence(maker: random.Random) -> str:
    kind = maker.randrange(5)
    if kind == 0:
        return f"Where is the {_thing(maker)} that the {maker.choice(_WORDS['nouns'])} {maker.choice(_WORDS['verbs'])}?"
    if kind == 1:
        return f"{_clause(maker)} {maker.choice(_JOINTS)} {_clause(maker)}.".capitalize()
    if kind == 2:
        return f"{maker.choice(_WORDS['places'])}, {_clause(maker)}.".capitalize()
    return f"{_clause(maker)} {maker.choice(_WORDS['places'])}.".capitalize()


def _clause(maker: random.Random) -> str:
    verb, article = maker.choice(_WORDS["verbs"]), maker.choice(("a", "the", "my", "every"))
    return f"the {_thing(maker)} {verb} {article} {_thing(maker)}"


def _thing(maker: random.Random) -> str:
    return (
        f"{maker.choice(_WORDS['adjectives'])} {maker.choice(_WORDS['nouns'])}"
        if maker.random() < 0.6
        else maker.choice(_WORDS["nouns"])
    )
