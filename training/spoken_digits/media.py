"""Makes the tests' recordings: ``python -m training.spoken_digits.media``. Needs espeak-ng.

Writes ``tests/data/speech``: words of held-out voices at held-out speeds, as files of many kinds, named
``<word>_<accent>_<variant>_<words per minute>wpm_<samples per second>_<kind>.<format>``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import soundfile
import soxr

from training.paths import TEST_DATA
from training.spoken_digits import speech, voices

FOLDER = TEST_DATA / "speech"
SEED = 23
PER_WORD = 7


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of file: its ending, its sample rate and channels, and what `soundfile` calls its coding."""

    name: str
    ending: str
    rate: int
    channels: int
    subtype: str
    noise: float = 0.0  # root mean square, full scale is 1


_KINDS = (
    _Kind("mono", "wav", 8000, 1, "PCM_16"),
    _Kind("ulaw", "wav", 8000, 1, "ULAW"),
    _Kind("mono", "wav", 16_000, 1, "PCM_16"),
    _Kind("noisy", "wav", 16_000, 1, "PCM_16", noise=0.01),
    _Kind("mono", "wav", 22_050, 1, "PCM_16"),
    _Kind("stereo", "wav", 22_050, 2, "PCM_16"),
    _Kind("float", "wav", 11_025, 1, "FLOAT"),
    _Kind("8bit", "wav", 16_000, 1, "PCM_U8"),
    _Kind("stereo", "flac", 44_100, 2, "PCM_16"),
    _Kind("mono", "flac", 48_000, 1, "PCM_24"),
    _Kind("stereo", "ogg", 44_100, 2, "VORBIS"),
    _Kind("mono", "ogg", 16_000, 1, "OPUS"),
    _Kind("mono", "mp3", 22_050, 1, "MPEG_LAYER_III"),
    _Kind("stereo", "mp3", 48_000, 2, "MPEG_LAYER_III"),
)


def main() -> None:
    """Write the recordings."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    generator = np.random.default_rng(SEED)
    said = voices.held_out(generator)
    for label, word in enumerate(voices.WORDS):
        of_word = [utterance for utterance in said if utterance.label == label]
        for number, chosen in enumerate(generator.permutation(len(of_word))[:PER_WORD]):
            _write(of_word[chosen], word, _KINDS[(label * PER_WORD + number) % len(_KINDS)], generator)
    files = list(FOLDER.iterdir())
    print(f"{FOLDER}: {len(files)} files, {sum(path.stat().st_size for path in files)} bytes")


def _write(utterance: voices.Utterance, word: str, kind: _Kind, generator: np.random.Generator) -> None:
    samples = soxr.resample(speech.speak(utterance), speech.RATE, kind.rate)
    samples = np.clip(samples + kind.noise * generator.standard_normal(samples.size), -1.0, 1.0)
    if kind.channels == 2:
        samples = np.stack([samples, samples * generator.uniform(0.3, 0.9)], axis=1)
    name = f"{word}_{utterance.accent}_{utterance.variant}_{utterance.speed}wpm_{kind.rate}_{kind.name}.{kind.ending}"
    soundfile.write(FOLDER / name, samples, kind.rate, subtype=kind.subtype)


if __name__ == "__main__":
    main()
