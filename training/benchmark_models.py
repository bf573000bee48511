"""Builds the benchmark models: ``python -m training.benchmark_models [name ...] [--out models]``.

Run it in the environment of ``requirements/models.txt``. Weights are random and seeded: what these models are for is
their cost, so answers only have to be finite, and different for different rows. Every model takes ``x`` and gives
``y``, FP32, with any number of rows.

============  =============================  ==========  =======================================================
model         ``x``                          ``y``       stands for
============  =============================  ==========  =======================================================
``tiny``      (rows, 64)                     (rows, 10)  the server's overhead: an MLP that costs next to nothing
``wide``      (rows, 2048)                   (rows, 2048)  memory-bound: four 2048 x 2048 layers, cheaper in batches
``resnet50``  (rows, 3, 224, 224)            (rows, 1000)  compute-bound: the real architecture
``pool``      (rows, 3, 224, 224)            (rows, 3)   moving large tensors: an average, hardly any compute
============  =============================  ==========  =======================================================
"""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from training.artifacts import BuildError, build_if_stale
from training.paths import MODELS, REQUIREMENTS, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx
    from numpy.typing import NDArray

    from training.onnx_graph import GraphBuilder

_SEED = 20_260
_CENTRED_GAIN = math.sqrt(1.0 / (1.0 - 1.0 / math.pi))  # a ReLU of noise keeps this much less around its mean
_SOURCES = (
    Path(__file__),
    ROOT / "training" / "onnx_graph.py",
    REQUIREMENTS / "models.txt",
)


class Layers:
    """Adds layers with random weights to a graph. He initialisation: activations keep their size through ReLUs.

    He et al., "Delving Deep into Rectifiers" (2015), uniform form. Uniform numbers are the same on every platform;
    normal ones need a logarithm and are not.
    """

    def __init__(self, builder: GraphBuilder, seed: int = _SEED) -> None:
        self.builder = builder
        self._random = np.random.default_rng(seed)

    def weights(self, *shape: int, fan_in: int, gain: float = 1.0) -> NDArray[np.float32]:
        """Uniform in +-gain * sqrt(6 / fan_in)."""
        limit = np.float32(gain * math.sqrt(6.0 / fan_in))
        uniform: NDArray[np.float32] = self._random.random(shape, dtype=np.float32)
        return (uniform * np.float32(2) - np.float32(1)) * limit

    def dense(self, tensor: str, fan_in: int, fan_out: int, *, centred: bool = False, output: str | None = None) -> str:
        """A dense layer with biases near 0; see `convolve` for ``centred``."""
        if centred:
            half = self.weights(fan_in // 2, fan_out, fan_in=fan_in, gain=_CENTRED_GAIN)
            weight = np.concatenate([half, -half], axis=0)
        else:
            weight = self.weights(fan_in, fan_out, fan_in=fan_in)
        bias = self.weights(fan_out, fan_in=fan_in, gain=0.1)
        constant = self.builder.constant
        return self.builder.node("Gemm", tensor, constant(weight), constant(bias), output=output)

    def convolve(
        self,
        tensor: str,
        fan_in: int,
        fan_out: int,
        kernel: int,
        *,
        stride: int = 1,
        gain: float = 1.0,
        centred: bool = True,
    ) -> str:
        """A convolution with biases near 0, as it is after its batch normalisation was folded into it.

        A ``centred`` layer has the weights of half its inputs and their negatives for the other half. They sum to 0,
        so the mean that ReLUs leave in every input cancels. It would grow from layer to layer otherwise, until the
        answers to all rows are alike.
        """
        fan = fan_in * kernel * kernel
        if centred:
            half = self.weights(fan_out, fan_in // 2, kernel, kernel, fan_in=fan, gain=gain * _CENTRED_GAIN)
            weight = np.concatenate([half, -half], axis=1)
        else:
            weight = self.weights(fan_out, fan_in, kernel, kernel, fan_in=fan, gain=gain)
        bias = self.weights(fan_out, fan_in=fan, gain=0.1)
        side = kernel // 2
        constant = self.builder.constant
        return self.builder.node(
            "Conv",
            tensor,
            constant(weight),
            constant(bias),
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[side] * 4,
        )

    def relu(self, tensor: str) -> str:
        """A rectified linear unit."""
        return self.builder.node("Relu", tensor)


def tiny(layers: Layers) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A 64-128-10 MLP."""
    layers.dense(layers.relu(layers.dense("x", 64, 128)), 128, 10, output="y")
    return (64,), (10,)


def wide(layers: Layers) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Four 2048 x 2048 layers with ReLUs between them: 67 MB to read for every batch, whatever its size."""
    tensor = "x"
    for _ in range(3):
        tensor = layers.relu(layers.dense(tensor, 2048, 2048))
    layers.dense(tensor, 2048, 2048, output="y")
    return (2048,), (2048,)


def resnet50(layers: Layers) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """ResNet-50, version 1.5: the stride of a downsampling block is in its 3 x 3 convolution.

    He et al., "Deep Residual Learning for Image Recognition" (2015). 25.5 million weights, 4.1 billion
    multiplications per row.
    """
    node = layers.builder.node
    tensor = layers.relu(layers.convolve("x", 3, 64, kernel=7, stride=2, centred=False))
    tensor = node("MaxPool", tensor, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            branch = layers.relu(layers.convolve(tensor, channels, width, kernel=1))
            branch = layers.relu(layers.convolve(branch, width, width, kernel=3, stride=stride))
            # Without batch normalisation sixteen full-size branches would double the variance sixteen times.
            branch = layers.convolve(branch, width, 4 * width, kernel=1, gain=0.25)
            if block == 0:
                tensor = layers.convolve(tensor, channels, 4 * width, kernel=1, stride=stride, gain=math.sqrt(0.5))
            channels = 4 * width
            tensor = layers.relu(node("Add", branch, tensor))
    pooled = node("Flatten", node("GlobalAveragePool", tensor), axis=1)
    layers.dense(pooled, channels, 1000, centred=True, output="y")
    return (3, 224, 224), (1000,)


def pool(layers: Layers) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The average of every channel of a picture."""
    layers.builder.node("Flatten", layers.builder.node("GlobalAveragePool", "x"), axis=1, output="y")
    return (3, 224, 224), (3,)


MODELS_BY_NAME: dict[str, Callable[[Layers], tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "tiny": tiny,
    "wide": wide,
    "resnet50": resnet50,
    "pool": pool,
}
"""Functions that add a model between ``x`` and ``y`` and return the shapes of both, without rows."""


def graph(name: str) -> onnx.ModelProto:
    """Make one of the models."""
    from training.onnx_graph import GraphBuilder  # noqa: PLC0415 - verifying a model does without onnx

    builder = GraphBuilder(name)
    x, y = MODELS_BY_NAME[name](Layers(builder))
    return builder.model(
        {"x": ("rows", *x)},
        {"y": ("rows", *y)},
        description=f"Benchmark model {name}: random weights",
        metadata={"seed": str(_SEED)},
    )


def main() -> None:
    """Build what is missing or stale."""
    parser = argparse.ArgumentParser(description="Build the benchmark models.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which (default: {' '.join(MODELS_BY_NAME)})")
    parser.add_argument("--out", type=Path, default=MODELS, help="folder of the models (default: %(default)s)")
    arguments = parser.parse_args()
    for name in set(arguments.names) - MODELS_BY_NAME.keys():
        parser.error(f"no benchmark model is called {name!r}; there are {', '.join(MODELS_BY_NAME)}")
    try:
        for name in arguments.names or MODELS_BY_NAME:
            build_if_stale(arguments.out.resolve() / name, _SOURCES, partial(_build, name))
    except BuildError as error:
        sys.exit(f"error: {error}")


def _build(name: str, folder: Path) -> None:
    from training.onnx_graph import save  # noqa: PLC0415 - verifying a model does without onnx

    save(graph(name), folder / "1" / "model.onnx")


if __name__ == "__main__":
    main()
