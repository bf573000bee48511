"""Exports small models of Keras by tf2onnx."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
import tf2onnx
from keras import applications, layers

from benchmarks.architectures.collection import Export, export_all

_IMAGES = (64, 64, 3)
_WORDS = 200


def _dense() -> Any:
    return keras.Sequential(
        [keras.Input((16,)), layers.Dense(32, "relu"), layers.Dropout(0.1), layers.Dense(3, "softmax")]
    )


def _convolutions(normalization: Callable[[], Any]) -> Any:
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 3, padding="same"),
            normalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.SeparableConv2D(16, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(3, "softmax"),
        ]
    )


def _recurrent(cell: Callable[[], Any], masked: bool) -> Any:
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(_WORDS, 16, mask_zero=masked),
            cell(),
            layers.Dense(3, "softmax"),
        ]
    )


def _transformer() -> Any:
    tokens = keras.Input((None,), dtype="int32")
    states = layers.Embedding(_WORDS, 32)(tokens)
    attended = layers.MultiHeadAttention(4, 8)(states, states)
    states = layers.LayerNormalization()(states + attended)
    states = layers.LayerNormalization()(states + layers.Dense(32)(layers.Dense(64, "relu")(states)))
    return keras.Model(tokens, layers.Dense(3, "softmax")(layers.GlobalAveragePooling1D()(states)))


def _application(make: Callable[..., Any], **sizes: Any) -> Any:
    return make(weights=None, input_shape=_IMAGES, classes=10, **sizes)


MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "convolutions": ("image-classification", partial(_convolutions, layers.BatchNormalization)),
    "convolutions-layer": ("image-classification", partial(_convolutions, layers.LayerNormalization)),
    "convolutions-group": ("image-classification", partial(_convolutions, partial(layers.GroupNormalization, 4))),
    "dense": ("classification", _dense),
    "efficientnet-b0": ("image-classification", partial(_application, applications.EfficientNetB0)),
    "gru": ("text-classification", partial(_recurrent, partial(layers.GRU, 16), False)),
    "lstm": ("text-classification", partial(_recurrent, partial(layers.LSTM, 16), False)),
    "lstm-both-ways": (
        "text-classification",
        partial(_recurrent, lambda: layers.Bidirectional(layers.LSTM(16)), False),
    ),
    "lstm-masked": ("text-classification", partial(_recurrent, partial(layers.LSTM, 16), True)),
    "mobilenet": ("image-classification", partial(_application, applications.MobileNet, alpha=0.25)),
    "mobilenet-v2": ("image-classification", partial(_application, applications.MobileNetV2, alpha=0.35)),
    "mobilenet-v3": ("image-classification", partial(_application, applications.MobileNetV3Small, minimalistic=True)),
    "nasnet": ("image-classification", partial(_application, applications.NASNetMobile)),
    "transformer": ("text-classification", _transformer),
}
"""Models with random weights, and their tasks."""


def write(make: Callable[[], Any], folder: Path) -> None:
    """Export one model.

    Of Keras 3, tf2onnx reads functions and not models.
    """
    keras.utils.set_random_seed(0)
    model = make()
    given = model.inputs[0]
    signature = [tf.TensorSpec(given.shape, given.dtype, name="input")]
    function = tf.function(lambda inputs: model(inputs, training=False), input_signature=signature)
    tf2onnx.convert.from_function(function, input_signature=signature, opset=17, output_path=str(folder / "model.onnx"))


def exports() -> Iterator[Export]:
    """Every model."""
    for name, (task, make) in MODELS.items():
        yield Export("keras", name, task, "tf2onnx", partial(write, make))


def main(target: Path) -> None:
    """Export everything; what fails is noted."""
    export_all(target, exports())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
