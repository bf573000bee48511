"""Sounds to ask, made here."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np

RATE = 16_000
_SECONDS = (0.31, 1.0, 0.6, 2.37)


def sounds() -> Iterator[tuple[bytes, Any]]:
    """WAV files, and their samples."""
    random = np.random.default_rng(0)
    for number, seconds in enumerate(_SECONDS):
        times = np.arange(int(seconds * RATE)) / RATE
        tone = 0.3 * np.sin(2 * np.pi * (220 * (number + 1)) * times) + 0.05 * random.standard_normal(len(times))
        samples = np.clip(np.rint(tone * 32_767), -32_768, 32_767).astype("<i2")
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(RATE)
            writer.writeframes(samples.tobytes())
        yield file.getvalue(), (samples.astype(np.float32) / 32_768.0)
