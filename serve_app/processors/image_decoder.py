"""Decodes an image of any kind to an upright 8-bit grey or RGB image."""

from __future__ import annotations

import io
import math
from typing import NamedTuple, TypeAlias

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from serve_app.errors import InvalidRequest, PayloadTooLarge
from serve_app.payloads import Media
from serve_app.processors.media_type import unreadable

EXAMPLES = "a JPEG, PNG, WebP, GIF, BMP or TIFF picture"

_REFUSED_FORMATS = frozenset(
    {
        "EPS",  # Pillow would start Ghostscript, another program, on code of a client
        "BUFR", "GRIB", "HDF5", "WMF", "MPEG", "FPX", "MIC",  # recognized by Pillow, but not decoded
    }
)  # fmt: skip

Image.init()  # registers every format now: doing it on first use would race between threads
_USUAL_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
FORMATS = (*_USUAL_FORMATS, *sorted(set(Image.OPEN) - _REFUSED_FORMATS - set(_USUAL_FORMATS)))
"""Pillow's names of the formats that are decoded, in the order in which they are tried. Several without a signature
are tried by reading the picture: the usual ones do not wait for them."""
_MEDIA_TYPES = frozenset(Image.MIME[name] for name in FORMATS if name in Image.MIME) | {"image/jpg"}


_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_SHORT = 16 * 1024

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom, pixels."""


class Decoded(NamedTuple):
    """An image, possibly reduced.

    Attributes:
        image: Upright, mode ``L`` or ``RGB``.
        width: Of the stored image when upright, pixels.
        height: Likewise.
        box: The part of ``image`` with the stored image. If an edge is no multiple of the reduction, it ends inside the
            last column or row.
    """

    image: Image.Image
    width: int
    height: int
    box: Box


def decode_image(payload: Media, channels: int, max_pixels: int, enough: int | None) -> Decoded:
    """Decode the first frame of an image.

    Transparent parts become white; EXIF orientation is applied; 16-bit and float pixels are scaled to 8 bits (integers
    as 0 to 65,535, floats as 0 to 1 if none is larger than 1, else as 0 to 255). The header's size is checked before
    allocation.

    Args:
        channels: 1 for grey (mode ``L``), 3 for colour (mode ``RGB``).
        enough: Least length of both edges, pixels, to which decoding may reduce. Only JPEG supports it, and then omits
            colours beyond ``channels``. ``None``: every pixel is decoded.

    Raises:
        PayloadTooLarge: It has too many pixels.
        UnsupportedMedia: The declared type is not supported.
        InvalidRequest: The content is no image, or damaged or incomplete.
    """
    # Pillow's decoders meet hostile bytes here, and raise whatever they stumble over: struct.error, KeyError,
    # SyntaxError, zlib.error... Each of them means a damaged image.
    try:
        image = Image.open(io.BytesIO(payload.content), formats=FORMATS)
    except UnidentifiedImageError:
        raise unreadable(payload, "image", _MEDIA_TYPES, EXAMPLES) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PayloadTooLarge(f"the image has too many pixels: at most {max_pixels} are decoded") from None
    except Exception as error:
        declared = payload.content_type
        raise _damaged(declared if declared in _MEDIA_TYPES else "image", payload, error) from None
    with image:
        name = Image.MIME.get(image.format or "", "image")
        _check_size(name, image, max_pixels)
        try:
            stored = image.size
            drafted = None
            if enough is not None:
                drafted = image.draft("L" if channels == 1 else None, (enough, enough))
            deep = [tile.args for tile in image.tile] == ["RGB;16B"] and "transparency" in image.info
            image.load()
            if deep:
                _clear_colour(image, payload.content)
            _check_size(name, image, max_pixels)  # again: icon files may hold more than their directory says
            right, bottom = image.size if drafted is None else drafted[1][2:]
            if drafted is None:
                stored = image.size
            orientation = _turn_upright(image)
            width, height = stored[::-1] if orientation in _SWAPPED else stored
            box = _upright_box(right, bottom, image.size, orientation)
            return Decoded(_to_channels(image, channels, name), width, height, box)
        except InvalidRequest:
            raise
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise PayloadTooLarge(f"the {name} has too many pixels: at most {max_pixels} are decoded") from None
        except Exception as error:
            raise _damaged(name, payload, error) from None


def png_pixels(content: bytes) -> float:
    """The pixels of a short PNG by its header; infinite for other content, or content that may expand further."""
    if len(content) > _SHORT or content[:16] != _PNG or b"iCCP" in content or b"iTXt" in content or b"zTXt" in content:
        return math.inf
    return int.from_bytes(content[16:20]) * int.from_bytes(content[20:24])


def _check_size(name: str, image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise PayloadTooLarge(
            f"the {name} is {width} x {height} = {width * height} pixels: at most {max_pixels} are decoded"
        )
    if width < 1 or height < 1:
        raise InvalidRequest(f"the {name} is empty: {width} x {height} pixels")


def _damaged(name: str, payload: Media, error: Exception) -> InvalidRequest:
    reason = str(error).partition("\n")[0][:100] if isinstance(error, OSError | SyntaxError) else ""
    return InvalidRequest(
        f"the {name} of {len(payload.content)} bytes is truncated or damaged{f': {reason}' if reason else ''}"
    )


_SWAPPED = frozenset({5, 6, 7, 8})  # EXIF orientations whose rows are columns when upright
_FROM_RIGHT = frozenset({2, 3, 6, 7})  # whose filled part ends up at the right edge
_FROM_BOTTOM = frozenset({3, 4, 7, 8})  # and at the bottom


def _turn_upright(image: Image.Image) -> int:
    """Apply the EXIF orientation in place. Returns it, 1 to 8; 1 for no change."""
    before = image.im
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        if orientation == 1:
            return 1
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # the pixels are good, only the camera's notes are not
        orientation = 1 if image.im is before else orientation
    return orientation if image.im is not before else 1


def _upright_box(right: float, bottom: float, size: tuple[int, int], orientation: int) -> Box:
    """Map the upper left ``right`` x ``bottom`` pixels of a stored image to the upright one of that size."""
    width, height = (bottom, right) if orientation in _SWAPPED else (right, bottom)
    left = size[0] - width if orientation in _FROM_RIGHT else 0.0
    top = size[1] - height if orientation in _FROM_BOTTOM else 0.0
    return left, top, left + width, top + height


def _to_channels(image: Image.Image, channels: int, name: str) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_8_bits(image, name)
    elif image.has_transparency_data:
        if image.mode == "La":
            image = image.convert("LA")
        paper = Image.new("RGBA", image.size, "white")
        paper.alpha_composite(image.convert("RGBA"))
        image = paper.convert("RGB")
    if image.mode == ("L" if channels == 1 else "RGB"):
        return image  # `convert` would copy
    if channels == 3:
        return image.convert("RGB")
    if image.mode not in {"1", "L", "P", "RGB"}:
        image = image.convert("RGB")  # not every mode converts to grey directly
    return image.convert("L")


def _clear_colour(image: Image.Image, content: bytes) -> None:
    """Apply the transparent colour of a 16-bit RGB PNG, of which Pillow keeps the upper bytes."""
    colour = np.array(image.info.pop("transparency"))
    with Image.open(io.BytesIO(content), formats=("PNG",)) as lower:
        lower.tile = [tile._replace(args="RGB;16L") for tile in lower.tile]  # takes the other byte of each pair
        lower.load()
        clear = (np.asarray(image) == colour >> 8).all(axis=2) & (np.asarray(lower) == colour & 0xFF).all(axis=2)
    image.putalpha(Image.fromarray(np.where(clear, 0, 255).astype(np.uint8)))


def _to_8_bits(image: Image.Image, name: str) -> Image.Image:
    stored = np.asarray(image)
    values = stored.astype(np.float32)
    if image.mode == "F":
        if not np.isfinite(values).all():
            raise InvalidRequest(f"the {name} has pixels that are not finite numbers")
        if values.max() <= 1.0:
            values = values * 255.0
    else:
        values = values / 257.0  # 65,535 becomes 255
        if isinstance(transparent := image.info.get("transparency"), int):
            values[stored == transparent] = 255.0
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))
