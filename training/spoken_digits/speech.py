"""Speaks words with espeak-ng."""

from __future__ import annotations

import io
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import soundfile
from rich.progress import track

from training.spoken_digits.voices import BASE, WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from training.spoken_digits.voices import Utterance

RATE = 22_050
"""Samples per second of what espeak-ng speaks."""


class SpeechError(Exception):
    """espeak-ng is missing, or lacks a voice. The message says what to install."""


def version() -> str:
    """What espeak-ng says of itself. Raises `SpeechError` when it is not installed."""
    return _run("--version").decode().split("  ")[0].strip()


def check_variants(variants: Iterable[str]) -> None:
    """Raise `SpeechError` unless espeak-ng has all of the variants; it would silently speak with another voice."""
    listed = {line.split("!v/")[1].split("  ")[0].strip() for line in _variant_lines()}
    missing = sorted({_file(variant) for variant in variants} - listed - {BASE})
    if missing:
        raise SpeechError(f"espeak-ng has no voice variants {', '.join(missing)}: install espeak-ng 1.51 with its data")


def speak(utterance: Utterance) -> NDArray[np.float32]:
    """Speak one word; mono samples at `RATE`, with the pauses that espeak-ng puts around it."""
    voice = f"{utterance.accent}+{_file(utterance.variant)}" if utterance.variant != BASE else utterance.accent
    options = {"-v": voice, "-s": utterance.speed, "-p": utterance.pitch, "-a": utterance.amplitude}
    arguments = [str(item) for pair in options.items() for item in pair]
    # A stream has no length to put into a WAV header, so espeak-ng writes a huge one; the samples are what counts.
    header = 44
    samples, _ = soundfile.read(
        io.BytesIO(_run(*arguments, "--stdout", WORDS[utterance.label])[header:]),
        format="RAW",
        subtype="PCM_16",
        samplerate=RATE,
        channels=1,
        endian="LITTLE",
        dtype="float32",
    )
    if not samples.any():
        raise SpeechError(f"espeak-ng said nothing for {utterance}")
    spoken: NDArray[np.float32] = samples
    return spoken


def speak_all(utterances: Sequence[Utterance], title: str) -> list[NDArray[np.float32]]:
    """Speak all of the words, in order."""
    with ThreadPoolExecutor(2) as pool:
        return list(track(pool.map(speak, utterances), description=title, total=len(utterances)))


def _variant_lines() -> list[str]:
    return [line for line in _run("--voices=variant").decode().splitlines() if "!v/" in line]


def _file(variant: str) -> str:
    """Variant files may have a space in their names; our lists have an underscore there."""
    return variant.replace("_", " ")


def _run(*arguments: str) -> bytes:
    try:
        return subprocess.run(["espeak-ng", *arguments], check=True, capture_output=True).stdout
    except FileNotFoundError as error:
        raise SpeechError("espeak-ng is not installed: apt-get install espeak-ng") from error
    except subprocess.CalledProcessError as error:
        raise SpeechError(f"espeak-ng failed: {error.stderr.decode(errors='replace').strip()}") from error
