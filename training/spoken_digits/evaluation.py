"""Measures the exported model on voices and speeds that it was not trained on."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import soxr
from rich.progress import track

from training.spoken_digits import speech, voices
from training.spoken_digits.features import RATE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


def evaluate(
    model: Path,
    utterances: Sequence[voices.Utterance],
    recordings: Sequence[NDArray[np.float32]],
    generator: np.random.Generator,
) -> dict[str, Any]:
    """Give the share of right answers in several conditions, and for clean speech per accent, variant, speed and word.

    Args:
        model: The ONNX file.
        utterances: What was said, by whom.
        recordings: The samples of each, at espeak-ng's rate.
        generator: Makes the noise.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    right: dict[str, list[bool]] = defaultdict(list)
    parts: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    pairs = list(zip(utterances, recordings, strict=True))
    for utterance, recording in track(pairs, description="held-out voices"):
        waveform = soxr.resample(recording, speech.RATE, RATE).astype(np.float32)
        narrow = soxr.resample(recording, speech.RATE, 8000)
        changed = {
            "clean": waveform,
            "noise 20 dB below": _noisy(waveform, 20.0, generator),
            "noise 10 dB below": _noisy(waveform, 10.0, generator),
            "telephone (8 kHz)": soxr.resample(narrow, 8000, RATE).astype(np.float32),
        }
        for condition, samples in changed.items():
            (logits,) = session.run(["logits"], {"waveform": samples[np.newaxis]})
            right[condition].append(int(np.argmax(logits)) == utterance.label)
        answer = right["clean"][-1]
        parts["accent"][utterance.accent].append(answer)
        parts["variant"][utterance.variant].append(answer)
        parts["speed"][str(utterance.speed)].append(answer)
        parts["word"][voices.WORDS[utterance.label]].append(answer)
    known = [answer for name in voices.ACCENTS for answer in parts["accent"][name]]
    unknown = [answer for name in voices.HELD_OUT_ACCENTS for answer in parts["accent"][name]]
    return {
        "recordings": len(pairs),
        "accuracy": _share(right["clean"]),
        "accuracy_in_known_accents": _share(known),
        "accuracy_in_unknown_accents": _share(unknown),
        "accuracy_by_condition": {name: _share(answers) for name, answers in right.items()},
        **{
            f"accuracy_by_{part}": {name: _share(answers) for name, answers in groups.items()}
            for part, groups in parts.items()
        },
    }


def _noisy(waveform: NDArray[np.float32], decibels: float, generator: np.random.Generator) -> NDArray[np.float32]:
    """Add white noise, ``decibels`` below the mean power of the recording."""
    loudness = np.sqrt(np.mean(waveform**2)) * 10 ** (-decibels / 20)
    noisy: NDArray[np.float32] = waveform + (loudness * generator.standard_normal(waveform.size)).astype(np.float32)
    return noisy


def _share(answers: Sequence[bool]) -> float:
    return round(float(np.mean(answers)), 5)
