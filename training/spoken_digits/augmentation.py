"""Puts recordings through other throats, rooms, microphones, telephones and codecs, at random."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import soundfile
import soxr
from scipy.signal import fftconvolve, lfilter

from training.spoken_digits import speech
from training.spoken_digits.features import RATE

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST = int(1.6 * RATE)
"""Samples; what is longer loses its end, which is silence."""


def augment(spoken: NDArray[np.float32], generator: np.random.Generator) -> NDArray[np.float32]:
    """Give a changed copy of a word, as 16-bit samples at 16 kHz would hold it.

    Args:
        spoken: Mono samples at espeak-ng's rate.
        generator: Chooses what is done, and how much.
    """

    def now_and_then(share: float) -> bool:
        return bool(generator.random() < share)

    word = _without_silence(spoken)
    # Played slower or faster, pitch and formants move together, as between a larger and a smaller throat.
    throat = generator.uniform(0.86, 1.16) if now_and_then(0.6) else 1.0
    word = soxr.resample(word, speech.RATE * throat, RATE).astype(np.float32)
    if now_and_then(0.2):
        narrow = float(generator.choice((8000, 11_025)))
        word = soxr.resample(soxr.resample(word, RATE, narrow), narrow, RATE)
    if now_and_then(0.4):
        word = lfilter([1.0, generator.uniform(-0.85, 0.85)], [1.0, generator.uniform(-0.5, 0.5)], word)
    word = np.pad(word, (int(generator.uniform(0, 0.35) * RATE), int(generator.uniform(0, 0.45) * RATE)))
    if now_and_then(0.3):
        word = _in_a_room(word, generator)
    word /= np.abs(word).max()
    if now_and_then(0.65):
        word += _noise(word, generator)
    gain = 10 ** (generator.uniform(-30, 0) / 20) if now_and_then(0.8) else generator.uniform(1.0, 3.0)
    word = np.clip(word * gain / np.abs(word).max(), -1.0, 1.0).astype(np.float32)
    if now_and_then(0.1):
        word = _through_vorbis(word)
    return (np.round(word[:LONGEST] * 32_767) / 32_768).astype(np.float32)


def _without_silence(spoken: NDArray[np.float32]) -> NDArray[np.float32]:
    loud = np.flatnonzero(np.abs(spoken) > 0.003 * np.abs(spoken).max())
    return spoken[loud[0] : loud[-1] + 1]


def _in_a_room(word: NDArray[np.float32], generator: np.random.Generator) -> NDArray[np.float32]:
    """Add an echo that fades by 60 dB within 0.1 to 0.5 seconds."""
    seconds = generator.uniform(0.1, 0.5)
    time = np.arange(int(seconds * RATE)) / RATE
    tail = generator.standard_normal(time.size) * 10 ** (-3 * time / seconds)
    tail *= generator.uniform(0.1, 0.9) / np.linalg.norm(tail)
    tail[0] = 1.0
    echoed: NDArray[np.float32] = fftconvolve(word, tail)[: word.size].astype(np.float32)
    return echoed


def _noise(word: NDArray[np.float32], generator: np.random.Generator) -> NDArray[np.float32]:
    """Noise of some colour, from white to brown, or hum, 5 to 40 dB below the word."""
    if generator.random() < 0.15:
        mains = generator.choice((50, 60)) * np.arange(1, 6)[:, np.newaxis]
        time = np.arange(word.size) / RATE
        noise = (generator.random((5, 1)) * np.sin(2 * np.pi * mains * time)).sum(axis=0)
    else:
        spectrum = np.fft.rfft(generator.standard_normal(word.size))
        frequencies = np.maximum(np.fft.rfftfreq(word.size, 1 / RATE), 30.0)
        noise = np.fft.irfft(spectrum * frequencies ** -generator.uniform(0.0, 1.0), word.size)
    loudness = np.sqrt(np.mean(word[np.abs(word) > 0.01] ** 2))
    ratio = 10 ** (-generator.uniform(5, 40) / 20)
    added: NDArray[np.float32] = (noise * (loudness * ratio / np.sqrt(np.mean(noise**2)))).astype(np.float32)
    return added


def _through_vorbis(word: NDArray[np.float32]) -> NDArray[np.float32]:
    buffer = io.BytesIO()
    soundfile.write(buffer, word, RATE, format="OGG", subtype="VORBIS", compression_level=0.9)
    buffer.seek(0)
    decoded: NDArray[np.float32] = soundfile.read(buffer, dtype="float32")[0]
    return decoded
