"""Which voices and speeds are trained on, and which never are.

A voice is an accent of English (how words are pronounced) with a variant (whose throat it is). Variants that are
made of one another, such as ``iven`` to ``iven4``, stay on one side of the split.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""The classes, in the order of the logits."""

BASE = ""
"""The accent's own voice, without a variant."""

# British English goes by "en": espeak-ng ignores a variant of "en-gb". New York speaks as the rest of "en-us" does.
ACCENTS = ("en", "en-us", "en-029", "en-gb-x-rp", "en-gb-x-gbcwmd")
HELD_OUT_ACCENTS = ("en-gb-scotland", "en-gb-x-gbclan")

VARIANTS = tuple(
    """
    Alex Andrea Andy Annie AnxiousAndy Demonic Diogo Gene Gene2 Henrique Hugo Jacky Lee Mario Michael Mike Mr_serious
    RicishayMax RicishayMax2 RicishayMax3 Storm Tweaky UniRobot adam anika anikaRobot announcer antonio belinda benjamin
    boris caleb ed edward edward2 f2 f4 f5 fast grandma gustave john kaukovalta klatt klatt2 klatt4 klatt5
    klatt6 linda m1 m2 m4 m7 m8 marcelo max michel miguel norbert pablo paul pedro rob robert robosoft robosoft2
    robosoft3 robosoft4 robosoft5 robosoft6 robosoft7 robosoft8 sandro victor whisper zac
    """.split()  # noqa: SIM905 - a paragraph of names reads better than a column of strings
)
VALIDATION_VARIANTS = ("Denis", "aunty", "f3", "klatt3", "m6")
HELD_OUT_VARIANTS = tuple(
    """
    Alicia Marco Nguyen croak david f1 grandpa iven iven2 iven3 iven4 m3 m5 quincy shelby steph steph2 steph3 travis
    whisperf
    """.split()  # noqa: SIM905 - a paragraph of names reads better than a column of strings
)

SPEEDS = (90, 110, 130, 160, 175, 205, 235)
"""Words per minute; 175 is espeak-ng's default."""
HELD_OUT_SPEEDS = (80, 145, 190, 260)


@dataclass(frozen=True, slots=True)
class Utterance:
    """One word to be spoken.

    Attributes:
        label: Position of the word in `WORDS`.
        accent: Language of espeak-ng.
        variant: Variant of espeak-ng, or `BASE`.
        speed: Words per minute.
        pitch: 0 to 99; 50 is the voice's own.
        amplitude: 0 to 200; 100 is usual.
    """

    label: int
    accent: str
    variant: str
    speed: int
    pitch: int
    amplitude: int


def training(generator: np.random.Generator) -> list[Utterance]:
    """Every trained-on voice says every word; the accents' own voices say it at every speed."""
    crowd = _say(ACCENTS, VARIANTS, [], generator)
    return crowd + _say(ACCENTS, [BASE], SPEEDS, generator)


def validation(generator: np.random.Generator) -> list[Utterance]:
    """Voices to watch the training by: unknown variants, known accents and speeds."""
    return _say(ACCENTS, VALIDATION_VARIANTS, [], generator)


def held_out(generator: np.random.Generator) -> list[Utterance]:
    """Unknown variants at unknown speeds, in known and unknown accents."""
    return _say(ACCENTS + HELD_OUT_ACCENTS, HELD_OUT_VARIANTS, HELD_OUT_SPEEDS, generator)


def check(fingerprint: Callable[[Utterance], bytes]) -> None:
    """Make sure that no held-out voice is, under another name, one that is trained on or validated by.

    Args:
        fingerprint: Gives something that is equal for equal sounds.

    Raises:
        ValueError: Two voices sound the same on both sides; the message names them.
    """
    known = [
        *itertools.product(ACCENTS, [BASE, *VARIANTS]),
        *itertools.product(ACCENTS, VALIDATION_VARIANTS),
    ]
    unknown = list(itertools.product(ACCENTS + HELD_OUT_ACCENTS, HELD_OUT_VARIANTS))

    def sound(accent: str, variant: str) -> bytes:
        return fingerprint(Utterance(label=7, accent=accent, variant=variant, speed=175, pitch=50, amplitude=100))

    sounds = {sound(*voice): voice for voice in known}
    for voice in unknown:
        if hedge := sounds.get(sound(*voice)):
            raise ValueError(f"held-out voice {'+'.join(voice)} sounds exactly like {'+'.join(hedge)}")


def _say(
    accents: Sequence[str], variants: Sequence[str], speeds: Sequence[int], generator: np.random.Generator
) -> list[Utterance]:
    """All combinations; with no speeds given, one of `SPEEDS` at random for each."""
    return [
        Utterance(
            label=label,
            accent=accent,
            variant=variant,
            speed=speed or int(generator.choice(SPEEDS)),
            pitch=int(generator.integers(25, 76)),
            amplitude=int(generator.integers(60, 161)),
        )
        for accent, variant, speed, label in itertools.product(accents, variants, speeds or [0], range(len(WORDS)))
    ]
