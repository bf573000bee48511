"""From the bytes of a picture to an upright 8-bit grey or RGB picture, whatever it was before."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from serve_app.errors import InvalidRequest, PayloadTooLarge
from serve_app.payloads import Media
from serve_app.processors.media_type import unreadable

EXAMPLES = "a JPEG, PNG, WebP, GIF, BMP or TIFF picture"

_REFUSED_FORMATS = frozenset(
    {
        "EPS",  # Pillow would start Ghostscript, another program, on a stranger's code
        "BUFR", "GRIB", "HDF5", "WMF", "MPEG", "FPX", "MIC",  # recognized by Pillow, but not decoded
    }
)  # fmt: skip

Image.init()  # registers every format now: doing it on first use would race between threads
FORMATS = tuple(sorted(set(Image.OPEN) - _REFUSED_FORMATS))
"""Pillow's names of the formats that are decoded."""
_MEDIA_TYPES = frozenset(Image.MIME[name] for name in FORMATS if name in Image.MIME) | {"image/jpg"}


def decode_image(payload: Media, channels: int, max_pixels: int, enough: int) -> Image.Image:
    """Decode the first frame of a picture.

    Transparent parts become white; EXIF orientation is applied; 16-bit and float pixels are scaled to 8 bits (integers
    as 0 to 65,535, floats as 0 to 1 if none is larger than 1, else as 0 to 255). The size in the header is checked
    before anything of that size is allocated.

    Args:
        payload: The encoded picture and its declared type.
        channels: 1 for grey (mode ``L``), 3 for colour (mode ``RGB``).
        max_pixels: Larger pictures are refused.
        enough: Both edges may be made smaller while decoding, but not smaller than this, pixels. Only JPEG does it.

    Raises:
        PayloadTooLarge: It has more pixels than allowed.
        UnsupportedMedia: Its declared type is one that is not decoded here.
        InvalidRequest: It is no picture, or a damaged or incomplete one.
    """
    # Pillow's decoders meet hostile bytes here, and raise whatever they stumble over: struct.error, KeyError,
    # SyntaxError, zlib.error... Each of them means that the picture is not what it claims to be.
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
            image.draft(None, (enough, enough))
            image.load()
            _check_size(name, image, max_pixels)  # again: icon files may hold more than their directory says
            return _to_channels(_upright(image), channels, name)
        except InvalidRequest:
            raise
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise PayloadTooLarge(f"the {name} has too many pixels: at most {max_pixels} are decoded") from None
        except Exception as error:
            raise _damaged(name, payload, error) from None


def _check_size(name: str, image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise PayloadTooLarge(
            f"the {name} is {width} x {height} = {width * height} pixels: at most {max_pixels} are decoded"
        )
    if width < 1 or height < 1:
        raise InvalidRequest(f"the {name} is {width} x {height} pixels: there is nothing to see")


def _damaged(name: str, payload: Media, error: Exception) -> InvalidRequest:
    reason = str(error).partition("\n")[0][:100] if isinstance(error, OSError | SyntaxError) else ""
    return InvalidRequest(
        f"the {name} of {len(payload.content)} bytes is truncated or damaged{f': {reason}' if reason else ''}"
    )


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image  # the pixels are good, only the camera's notes are not


def _to_channels(image: Image.Image, channels: int, name: str) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_8_bits(image, name)
    elif image.has_transparency_data:
        if image.mode == "La":
            image = image.convert("LA")
        paper = Image.new("RGBA", image.size, "white")
        paper.alpha_composite(image.convert("RGBA"))
        image = paper.convert("RGB")
    if channels == 3:
        return image.convert("RGB")
    if image.mode not in {"1", "L", "P", "RGB"}:
        image = image.convert("RGB")  # not every mode converts to grey directly
    return image.convert("L")


def _to_8_bits(image: Image.Image, name: str) -> Image.Image:
    values = np.asarray(image).astype(np.float32)
    if image.mode == "F":
        if not np.isfinite(values).all():
            raise InvalidRequest(f"the {name} has pixels that are not finite numbers")
        if values.max() <= 1.0:
            values = values * 255.0
    else:
        values = values / 257.0  # 65,535 becomes 255
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))
