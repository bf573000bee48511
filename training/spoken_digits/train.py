"""Trains the audio demo model and writes it: ``python -m training.spoken_digits.train``. Needs espeak-ng.

Writes ``models/spoken-digits`` and the held-out figures, ``docs/models/spoken-digits.json``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import soxr
from rich.progress import track

from training.fitting import cross_entropy, fit, use_one_thread
from training.model_folder import write_classifier, write_figures
from training.spoken_digits import features, network, speech, voices
from training.spoken_digits.augmentation import LONGEST, augment
from training.spoken_digits.evaluation import evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from training.fitting import Parameters

SEED = 5
STEPS = 3600
ROWS = 128
COPIES = 4
"""Changed copies of every recording."""

_FRAMES = (LONGEST + features.MARGIN_BEFORE + features.MARGIN_AFTER - features.FRAME) // features.HOP + 1


def main() -> None:
    """Speak, train, write the model and measure it."""
    use_one_thread()
    speech.check_variants(voices.VARIANTS + voices.VALIDATION_VARIANTS + voices.HELD_OUT_VARIANTS)
    voices.check(lambda utterance: speech.speak(utterance).tobytes())
    generator = np.random.default_rng(SEED)
    said = voices.training(generator)
    watched = voices.validation(generator)
    recordings = speech.speak_all(said, "voices to train on")
    copies = [
        augment(recording, generator)
        for recording in track(recordings, description="changed copies")
        for _ in range(COPIES)
    ]
    levels, active = _stack(copies)
    labels = np.repeat([utterance.label for utterance in said], COPIES)
    watched_levels, watched_active = _stack(
        [
            soxr.resample(recording, speech.RATE, features.RATE).astype(np.float32)[:LONGEST]
            for recording in speech.speak_all(watched, "voices to validate by")
        ]
    )
    watched_labels = np.asarray([utterance.label for utterance in watched])
    infer = jax.jit(network.apply)

    def loss(parameters: Parameters, key: jax.Array, batch: tuple[jax.Array, ...]) -> jax.Array:
        batch_levels, batch_active, batch_labels = batch
        masks, dropout = jax.random.split(key)
        masked = _mask(masks, batch_levels.astype(jnp.float32))
        return cross_entropy(network.apply(parameters, masked, batch_active, dropout), batch_labels)

    def validate(parameters: Parameters) -> float:
        answers = jnp.argmax(infer(parameters, watched_levels.astype(np.float32), watched_active), axis=1)
        return float(jnp.mean(answers == watched_labels))

    parameters = fit(
        loss,
        network.initialise(jax.random.key(SEED)),
        (levels, active, labels),
        steps=STEPS,
        rows=ROWS,
        learning_rate=2e-3,
        weight_decay=2e-2,
        seed=SEED,
        title="spoken digits",
        validate=validate,
    )
    path = write_classifier(
        "spoken-digits",
        network.to_onnx(parameters, {"seed": str(SEED), "task": "audio-classification"}),
        voices.WORDS,
        configuration={"architectures": ["SpokenDigitsClassifier"]},
        preprocessor={
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "sampling_rate": features.RATE,
            "feature_size": 1,
            "do_normalize": False,
            "padding_value": 0.0,
            "padding_side": "right",
            "return_attention_mask": False,
        },
    )
    held_out = voices.held_out(generator)
    measured = evaluate(path, held_out, speech.speak_all(held_out, "held-out voices"), generator)
    figures = {
        "model": "spoken-digits",
        "seed": SEED,
        "steps": STEPS,
        "rows_per_step": ROWS,
        "speech": speech.version(),
        "trained_on": {"recordings": len(said), "voices": len({(one.accent, one.variant) for one in said})},
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "validation_accuracy": validate(parameters),
        "held_out": measured,
    }
    write_figures("spoken-digits", figures)
    print(f"{path}: held-out accuracy {measured['accuracy']:.2%}")


def _stack(recordings: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.float16], NDArray[np.float32]]:
    """Features of recordings of up to `LONGEST` samples: (rows, BANDS, frames) and activity (rows, 1, frames)."""
    levels = np.zeros((len(recordings), features.BANDS, _FRAMES), np.float16)
    active = np.zeros((len(recordings), 1, _FRAMES), np.float32)
    for row, recording in enumerate(track(recordings, description="features")):
        found, sounding = features.features(recording)
        levels[row, :, : len(found)] = found.T
        active[row, 0, : len(found)] = sounding
    return levels, active


def _mask(key: jax.Array, levels: jax.Array) -> jax.Array:
    """Blank out a stripe of bands and one of frames (Park et al., SpecAugment, 2019)."""
    keys = jax.random.split(key, 4)

    def stripe(width_key: jax.Array, start_key: jax.Array, length: int, widest: int) -> jax.Array:
        width = jax.random.randint(width_key, (levels.shape[0], 1), 0, widest + 1)
        start = jax.random.randint(start_key, (levels.shape[0], 1), 0, length)
        positions = jnp.arange(length)
        return (positions < start) | (positions >= start + width)

    bands = stripe(keys[0], keys[1], levels.shape[1], 7)
    frames = stripe(keys[2], keys[3], levels.shape[2], 12)
    return levels * bands[:, :, jnp.newaxis] * frames[:, jnp.newaxis, :]


if __name__ == "__main__":
    main()
