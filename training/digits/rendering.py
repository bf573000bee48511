"""Draws digits as images of any size, and prepares images for the model as the server's processor does."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZE = 28
MEAN = 0.5
STANDARD_DEVIATION = 0.5

KERNELS = (
    Image.Resampling.NEAREST,
    Image.Resampling.BILINEAR,
    Image.Resampling.BICUBIC,
    Image.Resampling.LANCZOS,
)


def render(ink: NDArray[np.uint8], size: int, kernel: Image.Resampling, *, dark_ink: bool) -> Image.Image:
    """Draw one digit (8, 8) as a greyscale image of ``size`` x ``size`` pixels.

    Args:
        ink: The digit.
        size: Width and height in pixels.
        kernel: How pixels between the samples are found.
        dark_ink: Black on white instead of white on black.
    """
    image = Image.fromarray(255 - ink if dark_ink else ink)
    return image if image.size == (size, size) else image.resize((size, size), kernel)


def prepare(image: Image.Image) -> NDArray[np.uint8]:
    """Bring an image to the model's size: greyscale, bilinear, antialiased when shrinking; uint8 (28, 28)."""
    return np.asarray(image.convert("L").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def normalise(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scale prepared images (rows, 28, 28) to the graph's input, float32 (rows, 1, 28, 28) in -1 to 1."""
    scaled = pixels.astype(np.float32) / 255.0
    return ((scaled - MEAN) / STANDARD_DEVIATION)[:, np.newaxis]


def bank(ink: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
    """Draw every digit in many ways and prepare each drawing.

    Sizes run from 8 to 2,048 pixels, by all kernels; some drawings are reduced to two levels, as scans are, or pass
    through a coarse JPEG. Ink is light: the other polarity is the negative, which training makes by itself.

    Args:
        ink: uint8 (samples, 8, 8).
        generator: Chooses sizes between the fixed ones, kernels, thresholds and qualities.

    Returns:
        uint8 (samples, drawings, 28, 28).
    """
    sizes = (8, 8, 12, 16, 20, 28, 28, 40, 64, 64, 128, 256)
    rows = []
    for digit in ink:
        drawings = []
        for size in (*sizes, int(generator.integers(9, 64)), int(generator.integers(64, 512)), *_large(generator)):
            kernel = KERNELS[generator.integers(len(KERNELS))]
            drawings.append(prepare(render(digit, size, kernel, dark_ink=False)))
        for size in (16, 28, 64, 200):
            image = render(digit, size, KERNELS[generator.integers(1, len(KERNELS))], dark_ink=False)
            threshold = int(generator.integers(80, 176))
            drawings.append(prepare(image.point([255 * (level > threshold) for level in range(256)])))
        for size in (28, 64):
            image = render(digit, size, KERNELS[generator.integers(len(KERNELS))], dark_ink=False)
            drawings.append(prepare(_through_jpeg(image, quality=int(generator.integers(15, 60)))))
        rows.append(drawings)
    return np.asarray(rows, dtype=np.uint8)


def _large(generator: np.random.Generator) -> tuple[int, ...]:
    return (int(generator.choice((1024, 2048))),)


def _through_jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=quality)
    return Image.open(buffer)
