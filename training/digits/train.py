"""Trains the image demo model and writes it: ``python -m training.digits.train``.

Writes ``models/digits`` and the held-out figures, ``docs/models/digits.json``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from training.digits import network, samples
from training.digits.augmentation import augment
from training.digits.evaluation import evaluate
from training.digits.rendering import KERNELS, MEAN, SIZE, STANDARD_DEVIATION, bank, normalise, prepare, render
from training.fitting import cross_entropy, fit, use_one_thread
from training.model_folder import write_classifier, write_figures

if TYPE_CHECKING:
    from training.fitting import Parameters

SEED = 7
STEPS = 5000
ROWS = 128


def main() -> None:
    """Train, write the model and measure it."""
    use_one_thread()
    training, validation, held_out = samples.split()
    drawings = bank(training.ink, np.random.default_rng(SEED))
    count = drawings.shape[1]
    watched = np.concatenate(
        [
            normalise(np.stack([prepare(render(digit, size, kernel, dark_ink=dark_ink)) for digit in validation.ink]))
            for size in (8, 28, 200)
            for kernel in KERNELS
            for dark_ink in (False, True)
        ]
    )
    watched_labels = np.tile(validation.labels, watched.shape[0] // validation.labels.size)
    infer = jax.jit(network.apply)

    def loss(parameters: Parameters, key: jax.Array, batch: tuple[jax.Array, ...]) -> jax.Array:
        pixels, labels = batch
        augmentation, dropout = jax.random.split(key)
        logits = network.apply(parameters, augment(augmentation, pixels), dropout)
        return cross_entropy(logits, labels)

    def validate(parameters: Parameters) -> float:
        return float(jnp.mean(jnp.argmax(infer(parameters, watched), axis=1) == watched_labels))

    parameters = fit(
        loss,
        network.initialise(jax.random.key(SEED)),
        (drawings.reshape(-1, SIZE, SIZE), np.repeat(training.labels, count)),
        steps=STEPS,
        rows=ROWS,
        learning_rate=2e-3,
        weight_decay=1e-2,
        seed=SEED,
        title="digits",
        validate=validate,
    )
    path = write_classifier(
        "digits",
        network.to_onnx(parameters, {"seed": str(SEED), "task": "image-classification"}),
        [str(digit) for digit in range(network.CLASSES)],
        configuration={"architectures": ["DigitsClassifier"], "num_channels": 1, "image_size": SIZE},
        preprocessor={
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": SIZE, "width": SIZE},
            "resample": 2,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [MEAN],
            "image_std": [STANDARD_DEVIATION],
        },
    )
    measured = evaluate(path, held_out)
    figures = {
        "model": "digits",
        "seed": SEED,
        "steps": STEPS,
        "rows_per_step": ROWS,
        "trained_on": int(training.labels.size),
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "validation_accuracy": validate(parameters),
        "held_out": measured,
    }
    write_figures("digits", figures)
    print(f"{path}: held-out accuracy {measured['accuracy']:.2%}")


if __name__ == "__main__":
    main()
