"""Log-mel features, written so that numpy and an ONNX graph can compute them alike.

Frames of 25 ms every 10 ms, a Hann window, power in 40 triangular bands on HTK's mel scale, 2595 log10(1 + f / 700).
Levels count down from the loudest value of the whole recording: 1 there, 0 at 60 dB below and under, so that the gain
does not matter and padding looks like silence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
FRAME = 400
HOP = 160
BANDS = 40
MARGIN_BEFORE = FRAME // 2
MARGIN_AFTER = FRAME
"""Zeros around the recording: every sample lies inside some frame, however short the recording is."""

FLOOR = 1e-8
"""Power, where a full-scale tone has about 1e4. Keeps the logarithm finite in silence."""
RANGE = 6.0 * float(np.log(10.0))
"""60 dB in natural logarithms of power."""
SMALLEST_PEAK = 1e-6

_LOWEST_HERTZ = 60.0
_HIGHEST_HERTZ = 7600.0


def fourier_basis() -> NDArray[np.float32]:
    """Windowed cosines, then sines: float32 (2 * (FRAME / 2 + 1), FRAME)."""
    positions = np.arange(FRAME)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * positions / FRAME)
    angles = 2 * np.pi * np.outer(np.arange(FRAME // 2 + 1), positions) / FRAME
    return np.concatenate([np.cos(angles), -np.sin(angles)]).astype(np.float32) * window.astype(np.float32)


def mel_filters() -> NDArray[np.float32]:
    """Weights of the Fourier powers in each band: float32 (BANDS, FRAME / 2 + 1)."""
    edges = _hertz(np.linspace(_mel(_LOWEST_HERTZ), _mel(_HIGHEST_HERTZ), BANDS + 2))
    frequencies = np.arange(FRAME // 2 + 1) * (RATE / FRAME)
    rising = (frequencies - edges[:-2, np.newaxis]) / np.diff(edges)[:-1, np.newaxis]
    falling = (edges[2:, np.newaxis] - frequencies) / np.diff(edges)[1:, np.newaxis]
    filters = np.maximum(np.minimum(rising, falling), 0.0)
    return filters.astype(np.float32)


def features(waveform: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Compute the features of one recording.

    Args:
        waveform: Mono samples at 16 kHz, any length.

    Returns:
        Levels in 0 to 1, float32 (frames, BANDS), and which frames hold anything but digital silence, bool (frames).
    """
    padded = np.pad(waveform, (MARGIN_BEFORE, MARGIN_AFTER))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::HOP]
    active = np.abs(frames).max(axis=1) > 0
    spectrum = (frames / max(float(np.abs(padded).max()), SMALLEST_PEAK)) @ _BASIS.T
    power = spectrum[:, : FRAME // 2 + 1] ** 2 + spectrum[:, FRAME // 2 + 1 :] ** 2
    levels = np.log(power @ _FILTERS.T + FLOOR)
    relative = np.maximum((levels - levels.max()) / RANGE + 1.0, 0.0) * active[:, np.newaxis]
    return relative.astype(np.float32), active


def _mel(hertz: float) -> float:
    return float(2595.0 * np.log10(1.0 + hertz / 700.0))


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    hertz: NDArray[np.float64] = 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    return hertz


_BASIS = fourier_basis()
_FILTERS = mel_filters()
