"""Makes the tests' images from held-out digits: ``python -m training.digits.media``.

Writes ``tests/data/digits``: picture files of many sizes, formats and colour modes, named
``<label>_<index in the data set>_<size>px_<ink>_<mode>.<format>``, and all held-out digits as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from training.digits import samples
from training.digits.rendering import KERNELS, render
from training.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FOLDER = ROOT / "tests" / "data" / "digits"
SEED = 11
SIZES = (8, 10, 16, 28, 33, 64, 100, 200, 320, 512, 1024, 2048)

_ORIENTATION = 0x0112  # EXIF tag
_ROTATED_LEFT = 6  # its value for "turn by 90 degrees clockwise to see it upright"


def main() -> None:
    """Write the pictures and the held-out digits."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    *_, held_out = samples.split()
    np.savez_compressed(FOLDER / "held_out.npz", index=held_out.index, ink=held_out.ink, labels=held_out.labels)
    generator = np.random.default_rng(SEED)
    for number, chosen in enumerate(generator.permutation(held_out.labels.size)[: 5 * len(_WRITERS)]):
        # The steps have no common factor, so that formats meet all sizes, kernels and inks in turn.
        write = _WRITERS[number % len(_WRITERS)]
        size = SIZES[(number * 5 + number // len(_WRITERS)) % len(SIZES)]
        dark_ink = bool(generator.integers(2))
        image = render(held_out.ink[chosen], size, KERNELS[number % len(KERNELS)], dark_ink=dark_ink)
        ink = "dark" if dark_ink else "light"
        write(image, FOLDER / f"{held_out.labels[chosen]}_{held_out.index[chosen]:04}_{size}px_{ink}")
    print(
        f"{FOLDER}: {len(list(FOLDER.iterdir()))} files, {sum(path.stat().st_size for path in FOLDER.iterdir())} bytes"
    )


def _name(stem: Path, ending: str) -> Path:
    return stem.with_name(f"{stem.name}_{ending}")


def _transparent(image: Image.Image, stem: Path) -> None:
    """Black ink on nothing, or white ink on opaque black: what viewers show on a white page."""
    light_paper = stem.name.endswith("dark")
    alpha = ImageOps.invert(image) if light_paper else Image.new("L", image.size, 255)
    ink = Image.new("L", image.size, 0) if light_paper else image
    Image.merge("RGBA", (ink, ink, ink, alpha)).save(_name(stem, "rgba.png"), optimize=True)


def _sixteen_bits(image: Image.Image, stem: Path) -> None:
    deep = np.asarray(image).astype(np.uint16) * 257
    Image.fromarray(deep).save(_name(stem, "16bit.png"), optimize=True)


def _turned(image: Image.Image, stem: Path) -> None:
    """Lying pixels that the EXIF orientation puts upright."""
    exif = Image.Exif()
    exif[_ORIENTATION] = _ROTATED_LEFT
    turned = image.transpose(Image.Transpose.ROTATE_90)
    turned.save(_name(stem, "turned.jpg"), quality=70, exif=exif)


def _coloured(image: Image.Image, stem: Path) -> None:
    """Dark blue against light yellow."""
    ImageOps.colorize(image, black=(20, 20, 90), white=(255, 250, 200)).save(_name(stem, "colour.webp"), quality=70)


_WRITERS: tuple[Callable[[Image.Image, Path], None], ...] = (
    lambda image, stem: image.save(_name(stem, "grey.png"), optimize=True),
    lambda image, stem: image.convert("RGB").save(_name(stem, "rgb.jpg"), quality=70),
    _transparent,
    lambda image, stem: image.quantize(16).save(_name(stem, "palette.png"), optimize=True),
    lambda image, stem: image.convert("CMYK").save(_name(stem, "cmyk.jpg"), quality=70),
    _sixteen_bits,
    lambda image, stem: image.convert("1", dither=Image.Dither.NONE).save(_name(stem, "1bit.png"), optimize=True),
    _turned,
    _coloured,
    lambda image, stem: image.save(_name(stem, "palette.gif")),
    lambda image, stem: image.save(_name(stem, "grey.bmp")),
    lambda image, stem: image.convert("RGB").save(_name(stem, "rgb.tiff"), compression="tiff_lzw"),
    lambda image, stem: image.convert("LA").save(_name(stem, "greyalpha.png"), optimize=True),
)


if __name__ == "__main__":
    main()
