"""Any picture becomes upright 8-bit grey or RGB, or a clear error."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from PIL import Image

from serve_app.errors import InvalidRequest, PayloadTooLarge, UnsupportedMedia
from serve_app.payloads import Media
from serve_app.processors.image_decoder import FORMATS, decode_image

MODES = ("1", "L", "P", "RGB", "RGBA", "LA", "PA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16")
MAX_PIXELS = 1_000_000
FORMATS_WITH_FIXED_SIZES = {"ICNS", "ICO", "XVTHUMB", "BLP"}


def halves(mode: str, width: int = 64, height: int = 32) -> Image.Image:
    """A picture whose left half is black and whose right half is white, in any mode."""
    grey = Image.new("L", (width, height), 0)
    grey.paste(255, (width // 2, 0, width, height))
    if mode == "F":
        return Image.fromarray(np.asarray(grey, np.float32))
    if mode == "I;16":
        return Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    if mode == "I":
        return Image.fromarray(np.asarray(grey).astype(np.int32) * 257)
    if mode == "LAB":
        flat = Image.new("L", grey.size, 128)
        return Image.merge("LAB", (grey, flat, flat))
    if mode == "PA":
        return grey.convert("P").convert("PA")
    return grey.convert("RGB").convert(mode) if mode in {"CMYK", "YCbCr", "HSV", "RGBA"} else grey.convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    """The picture as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def every_kind() -> list[tuple[str, str]]:
    """Format and mode of everything that Pillow can write and read."""
    kinds = []
    for kind in sorted(set(Image.SAVE) & set(FORMATS) - FORMATS_WITH_FIXED_SIZES):
        for mode in MODES:
            try:
                encoded(halves(mode), kind)
            except (OSError, ValueError, KeyError, TypeError, DeprecationWarning):
                continue
            kinds.append((kind, mode))
    return kinds


EVERY_KIND = every_kind()


def decode(content: bytes, channels: int = 1, content_type: str = "", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode without making the picture smaller."""
    return decode_image(Media(content, content_type, {}), channels, max_pixels, enough=100_000).image


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("kind", "mode"), EVERY_KIND)
def test_every_format_and_mode_keeps_what_is_to_be_seen(kind: str, mode: str, channels: int) -> None:
    """Black stays dark and white stays bright, in every format and mode that Pillow writes and reads."""
    image = decode(encoded(halves(mode), kind), channels)

    assert image.size == (64, 32)
    assert image.mode == {1: "L", 3: "RGB"}[channels]
    pixels = np.asarray(image)
    assert pixels[:, :28].max() < 30
    assert pixels[:, 36:].min() > 225


def test_the_usual_formats_are_among_those_tested() -> None:
    """The list above is not empty by accident."""
    usual = {"AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP"}
    assert usual - {kind for kind, _ in EVERY_KIND} == set()
    assert {mode for _, mode in EVERY_KIND} >= {"1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "LAB", "F", "I;16"}


@pytest.mark.parametrize("kind", ["ICO", "ICNS"])
def test_icons_are_read(kind: str) -> None:
    """Formats with prescribed sizes work, too."""
    image = decode(encoded(halves("RGBA", 64, 64), kind), 3, max_pixels=1 << 20)

    assert np.asarray(image)[:, : image.width // 3].max() < 30


@pytest.mark.parametrize(
    ("orientation", "undo"),
    [
        (1, None),
        (2, Image.Transpose.FLIP_LEFT_RIGHT),
        (3, Image.Transpose.ROTATE_180),
        (4, Image.Transpose.FLIP_TOP_BOTTOM),
        (5, Image.Transpose.TRANSPOSE),
        (6, Image.Transpose.ROTATE_90),
        (7, Image.Transpose.TRANSVERSE),
        (8, Image.Transpose.ROTATE_270),
    ],
)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied(kind: str, orientation: int, undo: Image.Transpose | None) -> None:
    """A picture that lies as the camera was held is turned upright."""
    upright = Image.new("L", (48, 32), 0)
    upright.paste(255, (0, 0, 24, 16))  # the upper left quarter is white
    stored = upright if undo is None else upright.transpose(undo)
    exif = Image.Exif()
    exif[0x0112] = orientation

    image = decode(encoded(stored.convert("RGB"), kind, exif=exif.tobytes()), 1)

    assert image.size == (48, 32)
    assert np.abs(np.asarray(image).astype(int) - np.asarray(upright)).mean() < 8


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_spoil_a_good_picture() -> None:
    """Notes that cannot be read are ignored."""
    content = encoded(halves("RGB"), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + b"\xff" * 40)

    assert decode(content).size == (64, 32)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_parts_become_white(mode: str) -> None:
    """Nothing is seen through a transparent pixel but the paper."""
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0)).convert(mode)

    assert decode(encoded(image, "PNG"), 3).getpixel((3, 3)) == (255, 255, 255)


def test_half_transparent_black_is_grey() -> None:
    """Alpha is a mixture, not a switch."""
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 128))

    assert decode(encoded(image, "PNG")).getpixel((3, 3)) == 127


def test_a_transparent_palette_colour_becomes_white() -> None:
    """GIF and PNG can make one colour of the palette transparent."""
    image = Image.new("P", (8, 8), 0)
    image.putpalette([0, 0, 0, 255, 0, 0])

    assert decode(encoded(image, "PNG", transparency=0), 3).getpixel((3, 3)) == (255, 255, 255)
    assert decode(encoded(image, "GIF", transparency=0), 3).getpixel((3, 3)) == (255, 255, 255)


def png_of_16_bits(colour_type: int, pixels: list[int], transparent: list[int]) -> bytes:
    """A PNG of one row, with a colour that is transparent."""
    channels = len(transparent)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", len(pixels) // channels, 1, 16, colour_type, 0, 0, 0),
        b"tRNS": struct.pack(f">{channels}H", *transparent),
        b"IDAT": zlib.compress(b"\0" + struct.pack(f">{len(pixels)}H", *pixels)),
        b"IEND": b"",
    }
    packed = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def test_a_transparent_colour_of_16_bits_becomes_white() -> None:
    """That colour, and none that differs in the last bit."""
    grey = decode(png_of_16_bits(0, [257, 258, 25_700], [257]), 1)
    colour = decode(png_of_16_bits(2, [0x1234, 0x1200, 0x1100, 0x1235, 0x1200, 0x1100], [0x1234, 0x1200, 0x1100]), 3)

    assert [grey.getpixel((column, 0)) for column in range(3)] == [255, 1, 100]
    assert [colour.getpixel((column, 0)) for column in range(2)] == [(255, 255, 255), (0x12, 0x12, 0x11)]


@pytest.mark.parametrize(("level", "expected"), [(0, 0), (128, 0), (129, 1), (257, 1), (32896, 128), (65535, 255)])
def test_16_bit_grey_is_scaled_not_clipped(level: int, expected: int) -> None:
    """65,535 is white, and everything below is in proportion."""
    image = Image.fromarray(np.full((4, 4), level, np.uint16))

    assert decode(encoded(image, "PNG")).getpixel((1, 1)) == expected
    assert decode(encoded(image, "TIFF"), 3).getpixel((1, 1)) == (expected,) * 3


@pytest.mark.parametrize(("level", "expected"), [(0.0, 0), (0.5, 128), (1.0, 255), (200.0, 200), (1e9, 255), (-5.0, 0)])
def test_float_pixels_count_to_1_or_to_255(level: float, expected: int) -> None:
    """Both conventions for float TIFFs are understood; what lies outside is clipped."""
    image = Image.fromarray(np.full((4, 4), level, np.float32))

    assert decode(encoded(image, "TIFF")).getpixel((1, 1)) == expected


def test_float_pixels_that_are_not_numbers_are_refused() -> None:
    """NaN is not a brightness."""
    content = encoded(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "TIFF")

    with pytest.raises(InvalidRequest, match="the image/tiff has pixels that are not finite numbers"):
        decode(content)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_an_animation_is_taken(kind: str) -> None:
    """A model for pictures sees one picture."""
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("white", "black", "black")]
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])

    assert decode(content).getpixel((4, 4)) == 255


def png_that_announces(width: int, height: int) -> bytes:
    """A well-formed PNG header with next to nothing behind it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100))


@pytest.mark.parametrize("size", [(1001, 1000), (12_000, 12_000), (100_000, 100_000)])
def test_a_decompression_bomb_is_refused_by_its_header(size: tuple[int, int]) -> None:
    """Below and above Pillow's own limits, nothing is decoded."""
    with pytest.raises(PayloadTooLarge, match="at most 1000000 are decoded"):
        decode(png_that_announces(*size))


def test_a_bomb_inside_an_icon_is_refused() -> None:
    """The directory of an icon file may lie about the picture in it."""
    inner = png_that_announces(5_000, 5_000)
    directory = struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inner), 22)

    with pytest.raises(InvalidRequest):
        decode(directory + inner)


@pytest.mark.parametrize("kind", ["AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"])
def test_pictures_cut_anywhere_are_refused_or_complete(kind: str) -> None:
    """Cut after any number of bytes, a file gives a clear error, or the picture if only its trailer is missing."""
    noise = np.random.default_rng(7).integers(0, 255, (24, 24, 3), np.uint8)
    content = encoded(Image.fromarray(noise), kind)

    refused = []
    for length in range(0, len(content), 7):
        try:
            assert decode(content[:length]).size == (24, 24)
        except InvalidRequest as error:
            refused.append(error.code)
    assert set(refused) == {"invalid_request"}
    assert len(refused) > 0.9 * len(range(0, len(content), 7))


def test_a_truncated_picture_is_named_as_such() -> None:
    """The message says what came and what is wrong with it."""
    content = encoded(halves("RGB"), "JPEG")[:400]

    with pytest.raises(InvalidRequest) as raised:
        decode(content, content_type="image/jpeg")

    assert raised.value.message.startswith("the image/jpeg of 400 bytes is truncated or damaged")


def test_text_is_no_picture() -> None:
    """Bytes that no decoder recognizes are a bad request, and no address of an object is shown."""
    with pytest.raises(InvalidRequest) as raised:
        decode(b"hello, this is text")

    expected = "the content (19 bytes) cannot be decoded as image; send a JPEG, PNG, WebP, GIF, BMP or TIFF picture"
    assert raised.value.message == expected


def test_a_declared_type_that_does_not_fit_is_mentioned() -> None:
    """Who sends text as a PNG is told so."""
    with pytest.raises(InvalidRequest, match="though the request calls it image/png"):
        decode(b"hello", content_type="image/png")


def test_a_format_that_is_not_decoded_is_an_unsupported_medium() -> None:
    """SVG and HEIC are pictures, but not here."""
    with pytest.raises(UnsupportedMedia, match="image/svg\\+xml cannot be decoded here"):
        decode(b"<svg xmlns='http://www.w3.org/2000/svg'/>", content_type="image/svg+xml")


def test_postscript_is_never_run() -> None:
    """Pillow would hand it to another program."""
    with pytest.raises(InvalidRequest, match="cannot be decoded as image"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")


def test_a_jpeg_may_be_decoded_smaller_but_not_too_small() -> None:
    """Large photographs are cheap: both edges shrink while decoding, and neither below what was asked for."""
    content = encoded(halves("RGB", 800, 400), "JPEG")

    image = decode_image(Media(content, "", {}), 1, MAX_PIXELS, enough=56).image

    assert image.size == (200, 100)


@pytest.mark.filterwarnings("ignore")  # a server runs without warnings as errors
@settings(max_examples=examples(200))
@given(content=st.binary(max_size=400))
def test_garbage_is_refused(content: bytes) -> None:
    """Random bytes never raise anything but InvalidRequest."""
    with contextlib.suppress(InvalidRequest):
        decode(content)


SEEDS = {kind: encoded(halves("RGB" if kind != "GIF" else "P", 16, 16), kind) for kind in (
    "AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "SGI", "TGA", "TIFF", "WEBP", "DDS", "QOI"
)}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # a server runs without warnings as errors
@settings(max_examples=examples(300))
@given(data=st.data(), kind=st.sampled_from(sorted(SEEDS)))
def test_damaged_files_are_refused_or_decoded(data: st.DataObject, kind: str) -> None:
    """Real files with some bytes changed never raise anything but InvalidRequest, and stay below the pixel limit."""
    content = bytearray(SEEDS[kind])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        image = decode(bytes(content), data.draw(st.sampled_from([1, 3])), max_pixels=10_000)
    except InvalidRequest:
        return
    assert image.width * image.height <= 10_000


def test_a_jpeg_of_red_green_and_blue_is_decoded_as_grey() -> None:
    """Decoding asks for brightness alone; files that do not store it apart from colour have it, too."""
    file = io.BytesIO()
    Image.new("RGB", (800, 400), (255, 0, 0)).save(file, "JPEG", keep_rgb=True, quality=95)

    decoded = decode_image(Media(file.getvalue(), "", {}), 1, MAX_PIXELS, enough=50)

    assert decoded.image.mode == "L"
    assert (decoded.width, decoded.height) == (800, 400)
    assert decoded.box == (0, 0, 100, 50)
    assert abs(np.asarray(decoded.image).astype(int) - 76).max() <= 2


def test_every_pixel_is_decoded_when_asked() -> None:
    """Without a size that is enough, a JPEG is not made smaller."""
    decoded = decode_image(Media(encoded(halves("RGB", 800, 400), "JPEG"), "", {}), 1, MAX_PIXELS, enough=None)

    assert decoded.image.size == (800, 400)
    assert decoded.box == (0, 0, 800, 400)
