"""Logarithmic mel spectrograms, as of transformers' feature extractors.

Equal to ``transformers/audio_utils.py`` 5.24, for all frames at once. Alternatives are transformers itself and librosa,
many times larger than these two functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Samples: TypeAlias = npt.NDArray[np.float32]
_Floats: TypeAlias = npt.NDArray[np.float64]
_Scale: TypeAlias = Literal["kaldi", "slaney"]

_KALDI_FLOOR: Final = 1.192092955078125e-07
_WHISPER_FLOOR: Final = 1e-10
_PREEMPHASIS: Final = 0.97
_LINEAR_HERTZ, _LINEAR_MELS = 1000.0, 15.0
_STEP: Final = np.log(6.4) / 27.0
"""Slaney's scale is linear up to 1,000 Hz and logarithmic above."""


@dataclass(frozen=True, slots=True)
class KaldiFilterBank:
    """Kaldi's filter bank, with frames of 25 ms every 10 ms, as of AST's extractor.

    Attributes:
        rate: Samples per second.
        bins: Mel bins.
        frames: Frames of the result, cut or zero-padded.
        mean: Subtracted last, also from padding.
        std: Half of the last divisor.
    """

    rate: int
    bins: int
    frames: int
    mean: float = 0.0
    std: float = 0.5

    @property
    def shape(self) -> tuple[int, int]:
        """Of the result."""
        return self.frames, self.bins

    def __call__(self, samples: Samples) -> Samples:
        """Features of audio, `shape`. Audio shorter than a frame has none."""
        frames = _frames(samples.astype(np.float64), 400, 160)[: self.frames]
        frames = frames - frames.mean(axis=1, keepdims=True)
        emphasized = np.empty_like(frames)
        emphasized[:, 1:] = frames[:, 1:] - _PREEMPHASIS * frames[:, :-1]
        emphasized[:, 0] = frames[:, 0] * (1 - _PREEMPHASIS)
        power = _power(emphasized * np.hanning(400), 512)
        bank = np.zeros(self.shape, np.float32)
        filters = mel_filters(257, self.bins, 20.0, self.rate // 2, self.rate, "kaldi")
        bank[: len(power)] = np.log(np.maximum(_KALDI_FLOOR, power @ filters))
        return np.asarray((bank - np.float32(self.mean)) / np.float32(self.std * 2), np.float32)


@dataclass(frozen=True, slots=True)
class WhisperSpectrogram:
    """Whisper's spectrogram of audio of a fixed length, cut or padded with silence.

    Attributes:
        rate: Samples per second.
        bins: Mel bins.
        seconds: Of the result.
        window: Samples of a frame.
        hop: Samples between frames.
    """

    rate: int
    bins: int
    seconds: int
    window: int
    hop: int

    @property
    def shape(self) -> tuple[int, int]:
        """Of the result."""
        return self.bins, self.seconds * self.rate // self.hop

    def __call__(self, samples: Samples) -> Samples:
        """Features of audio, `shape`."""
        sound = np.zeros(self.seconds * self.rate, np.float64)
        present = samples[: len(sound)]
        sound[: len(present)] = present
        around = np.pad(sound, self.window // 2, mode="reflect")
        periodic = np.hanning(self.window + 1)[:-1]
        power = _power(_frames(around, self.window, self.hop) * periodic, self.window)
        filters = mel_filters(1 + self.window // 2, self.bins, 0.0, 8000.0, self.rate, "slaney")
        logs = np.log10(np.maximum(_WHISPER_FLOOR, power @ filters)).T[:, :-1]
        return np.asarray((np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0, np.float32)


@cache
def mel_filters(frequencies: int, bins: int, lowest: float, highest: float, rate: int, scale: _Scale) -> _Floats:
    """Triangular filters, (frequencies, bins): Slaney's with equal areas, Kaldi's even in mels."""
    edges = np.linspace(_mels(np.array([lowest]), scale)[0], _mels(np.array([highest]), scale)[0], bins + 2)
    if scale == "kaldi":
        at = _mels(np.arange(frequencies, dtype=np.float64) * (rate / ((frequencies - 1) * 2)), scale)
    else:
        at, edges = np.linspace(0, rate // 2, frequencies), _hertz(edges)
    steps = np.diff(edges)
    slopes = edges[None, :] - at[:, None]
    filters = np.maximum(0.0, np.minimum(-slopes[:, :-2] / steps[:-1], slopes[:, 2:] / steps[1:]))
    if scale == "slaney":
        filters = filters * (2.0 / (edges[2:] - edges[:-2]))
    filters = np.asarray(filters, np.float64)
    filters.setflags(write=False)  # it is kept for later calls
    return filters


def _mels(hertz: _Floats, scale: _Scale) -> _Floats:
    if scale == "kaldi":
        return np.asarray(1127.0 * np.log(1.0 + hertz / 700.0))
    above = _LINEAR_MELS + np.log(np.maximum(hertz, _LINEAR_HERTZ) / _LINEAR_HERTZ) / _STEP
    return np.where(hertz >= _LINEAR_HERTZ, above, 3.0 * hertz / 200.0)


def _hertz(mels: _Floats) -> _Floats:
    above = _LINEAR_HERTZ * np.exp(_STEP * (np.maximum(mels, _LINEAR_MELS) - _LINEAR_MELS))
    return np.where(mels >= _LINEAR_MELS, above, 200.0 * mels / 3.0)


def _frames(samples: _Floats, length: int, hop: int) -> _Floats:
    if len(samples) < length:
        return np.zeros((0, length))
    return np.lib.stride_tricks.sliding_window_view(samples, length)[::hop]


def _power(frames: _Floats, points: int) -> _Floats:
    # The library rounds the transform to 32 bits, before it is squared.
    transform = np.fft.rfft(frames, points).astype(np.complex64)
    return np.abs(transform).astype(np.float64) ** 2.0
