"""Classifies images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from serve_app.config.processor import DEFAULT_REDUCING_GAP, ImageOptions
from serve_app.domain.facts import Fact
from serve_app.errors import ConfigError, InvalidRequest
from serve_app.payloads import DTYPES, Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors.image_decoder import EXAMPLES, Box, Decoded, decode_image
from serve_app.processors.image_folder import CropMargin, ImageRules, Resize, Size, image_rules
from serve_app.processors.media_type import expect_media
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.processor import Cost
from serve_app.processors.ranking import FLOATS, Ranking, RankingProcessor, describe

_MOST_RESIZED = 4_000_000
"""Pixels of a resized picture, of which a part is cut out. Larger ones, which are long and thin, are never made."""


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """How an image becomes a tensor.

    Attributes:
        layout: Order of the axes.
        channels: 1 for grey, 3 for colour.
        size: The model's height and width, pixels. The resized image is cut to it around the centre, or padded.
        resize: ``squash`` resizes to ``resized`` regardless of proportions. The others keep them: ``crop`` resizes the
            shorter edge to the shorter of ``resized``, ``cover`` to at least and ``pad`` to at most ``resized``,
            rounding the other edge; ``part`` first cuts a central rectangle, ``size`` / ``resized`` of the shorter
            edge; ``keep`` does not resize.
        resized: Height and width after resizing.
        resample: Filter.
        scale: Factor for pixels of 0 to 255.
        mean: Subtracted after scaling, per channel, red first.
        std: Divisor after that, per channel, red first.
        max_pixels: Larger images are refused before decoding.
        reducing_gap: JPEG images are decoded smaller if this many times the wanted pixels remain per edge; 0.0 decodes
            all.
        bgr: Whether the model takes blue first.
        margin: Whether the cut leaves the smaller half of odd margins above and left (``floor``, like transformers), or
            the even half (``round``, like torchvision and timm).
        fill: Padding of an image smaller than ``size``, levels, one per channel or one.
    """

    input: str
    dtype: np.dtype[Any]
    layout: Literal["NCHW", "NHWC"]
    channels: int
    size: Size
    resize: Resize
    resized: Size
    resample: Image.Resampling
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_pixels: int
    reducing_gap: float = DEFAULT_REDUCING_GAP
    bgr: bool = False
    margin: CropMargin = "floor"
    fill: tuple[int, ...] = (0,)


class ImageProcessor(RankingProcessor):
    """Processor of ``image-classification``.

    Args:
        facts: Settings read from the folder and the options, with their sources.
    """

    buckets: tuple[int, ...] = (0,)
    bucket_invariant = True

    def __init__(self, settings: ImageSettings, ranking: Ranking, facts: tuple[Fact, ...] = ()) -> None:
        self.settings = settings
        self.facts = facts
        self.ranking = ranking
        edge = min(settings.resized) if settings.resize == "crop" else max(settings.resized)
        resizes_first = settings.resize not in {"part", "keep"}
        self._enough = (math.ceil(settings.reducing_gap * edge) or None) if resizes_first else None
        self._levels = _Levels(settings)

    @classmethod
    def create(cls, signature: ModelSignature, folder: ModelFolder, options: ImageOptions) -> ImageProcessor:
        """Make one from the model, its files and the configuration. Raises `ConfigError`."""
        settings = _image_settings(signature, folder, options)
        ranking = Ranking.create(signature, folder, options)
        return cls(settings, ranking, tuple(folder.facts))

    def estimate(self, payload: Media | Texts) -> Cost:
        """One row; all images cost the same."""
        self.ranking.parameters(self._expect(payload).parameters)
        return Cost(1, 0)

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Decode, turn upright, resize and normalize. Raises what `decode_image` raises."""
        media = self._expect(payload)
        self.ranking.parameters(media.parameters)
        settings = self.settings
        image = self._resize(decode_image(media, settings.channels, settings.max_pixels, self._enough))
        return {settings.input: self._normalize(image)}

    def bucket(self, tensors: Tensors) -> int:
        """Always 0: there is one size. Raises `InvalidRequest` for larger tensors."""
        tensor = tensors.get(self.settings.input)
        if tensor is None or tensor.ndim != 4:
            found = "is missing" if tensor is None else f"has shape {list(tensor.shape)}"
            raise InvalidRequest(f"input {self.settings.input!r} {found}; expected {self.settings.layout}")
        height, width = tensor.shape[2:] if self.settings.layout == "NCHW" else tensor.shape[1:3]
        most_height, most_width = self.settings.size
        if height > most_height or width > most_width:
            raise InvalidRequest(
                f"input {self.settings.input!r} has {height} x {width} pixels; this model takes at most"
                f" {most_height} x {most_width}"
            )
        return 0

    def example(self, rows: int, bucket: int) -> Tensors:  # noqa: ARG002 - as every processor
        """Grey images, for warm-up."""
        height, width = self.settings.size
        grey = Image.new("L" if self.settings.channels == 1 else "RGB", (width, height), 0x808080)
        return {self.settings.input: np.repeat(self._normalize(grey), rows, axis=0)}

    @staticmethod
    def _expect(payload: Media | Texts) -> Media:
        return expect_media(payload, "image", (), EXAMPLES)

    def _resize(self, decoded: Decoded) -> Image.Image:
        """Resize, and cut or pad around the centre."""
        settings = self.settings
        if settings.resize == "part":
            edge = min(decoded.width, decoded.height)
            shares = (size / whole for size, whole in zip(settings.size, settings.resized, strict=True))
            height, width = (max(int(share * edge), 1) for share in shares)
            left, top = (decoded.width - width) // 2, (decoded.height - height) // 2
            square = decoded.image.crop((left, top, left + width, top + height))
            return square.resize(settings.size[::-1], settings.resample)
        resized = self._resized(decoded.width, decoded.height)
        if resized == settings.size:
            return self._part(decoded, resized, (0, 0, *resized[::-1]))
        top, left = (_margin(now - size, settings.margin) for now, size in zip(resized, settings.size, strict=True))
        height, width = settings.size
        part = (max(left, 0), max(top, 0), min(left + width, resized[1]), min(top + height, resized[0]))
        image = self._part(decoded, resized, part)
        if image.size == (width, height):
            return image
        fill = settings.fill if len(settings.fill) == settings.channels else settings.fill * settings.channels
        canvas = Image.new(image.mode, (width, height), fill)
        canvas.paste(image, (max(-left, 0), max(-top, 0)))
        return canvas

    def _part(self, decoded: Decoded, resized: Size, part: tuple[int, int, int, int]) -> Image.Image:
        """Resize and cut."""
        image, (height, width) = decoded.image, resized
        if image.size == (width, height) and decoded.box == (0.0, 0.0, width, height):
            return image if part == (0, 0, width, height) else image.crop(part)  # `resize` would copy
        if part == (0, 0, width, height):
            return image.resize((width, height), self.settings.resample, decoded.box)
        if self.settings.reducing_gap or height * width > _MOST_RESIZED:
            # In one step, which is faster: the picture between the two never exists. Some pixels are a level off,
            # because Pillow holds corners of the box in single precision and may begin with the other axis.
            left, top, right, bottom = part
            box = _box(decoded, resized, part)
            return image.resize((right - left, bottom - top), self.settings.resample, box)
        return image.resize((width, height), self.settings.resample, decoded.box).crop(part)

    def _resized(self, width: int, height: int) -> Size:
        """Height and width after resizing."""
        settings = self.settings
        if settings.resize == "squash":
            return settings.resized
        if settings.resize == "keep":
            return height, width
        if settings.resize == "crop":
            edge, shorter = min(settings.resized), min(width, height)
            return edge * height // shorter, edge * width // shorter
        ratios = height / settings.resized[0], width / settings.resized[1]
        ratio = min(ratios) if settings.resize == "cover" else max(ratios)
        return max(round(height / ratio), 1), max(round(width / ratio), 1)

    def _normalize(self, image: Image.Image) -> npt.NDArray[Any]:
        """Convert an image of the model's size to one row of its input."""
        settings = self.settings
        row = np.empty((1, settings.channels, *settings.size), settings.dtype)
        for channel, band in enumerate(image.getbands()):
            # One band at a time: its bytes are contiguous, and they are copied once.
            pixels = np.frombuffer(image.tobytes("raw", band), np.uint8).reshape(settings.size)
            self._levels.write(channel, pixels, row[0, 2 - channel if settings.bgr else channel])
        return row if settings.layout == "NCHW" else np.ascontiguousarray(row.transpose(0, 2, 3, 1))


def _margin(room: int, margin: CropMargin) -> int:
    """The cut's margin before the centre; negative for padding."""
    if margin == "floor":
        return room // 2
    return round(room / 2) if room > 0 else -(-room // 2)


def _box(decoded: Decoded, resized: Size, part: tuple[int, int, int, int]) -> Box:
    """Map a part of the resized image to the decoded one."""
    (height, width), (left, top, right, bottom) = resized, part
    start, above, end, below = decoded.box
    across, down = (end - start) / width, (below - above) / height
    return (
        start + left * across,
        above + top * down,
        min(start + right * across, end),
        min(above + bottom * down, below),
    )


class _Levels:
    """The result of each of the 256 levels, per channel.

    For the usual 32-bit floats this is one vectorized multiplication and subtraction per pixel: within 1e-6 of exact
    arithmetic, relative to the largest value. Other types use a table.
    """

    def __init__(self, settings: ImageSettings) -> None:
        mean, std = np.array(settings.mean), np.array(settings.std)
        self._factors = (settings.scale / std).astype(np.float32)
        self._offsets = (mean / std).astype(np.float32)
        self._table: npt.NDArray[Any] | None = None
        if settings.dtype != np.float32:
            values = (np.arange(256) * settings.scale - mean[:, None]) / std[:, None]
            if settings.dtype == np.uint8:
                values = np.clip(np.rint(values), 0, 255)
            self._table = np.asarray(values, settings.dtype)

    def write(self, channel: int, pixels: npt.NDArray[np.uint8], plane: npt.NDArray[Any]) -> None:
        """Convert a channel's pixels into ``plane``, of the same shape and the input's type."""
        if self._table is not None:
            # Clipping changes no level. It only spares the buffer in which bad indexes would be found.
            np.take(self._table[channel], pixels, out=plane, mode="clip")
            return
        np.multiply(pixels, self._factors[channel], out=plane)
        np.subtract(plane, self._offsets[channel], out=plane)


def _image_settings(signature: ModelSignature, folder: ModelFolder, options: ImageOptions) -> ImageSettings:
    spec = _input_of(signature)
    # A model that takes UINT8 scales and normalizes by itself; what the files say is then done inside it.
    raw = spec.datatype == "UINT8"
    needed = not raw and options.mean is None
    rules = image_rules(
        folder, options.image_processor, _edges(spec, options.layout), options.ignore_keys, needed=needed
    )
    layout, channels, fixed = _axes(spec, rules, options)
    size = _size(spec, fixed, rules, options)
    resize, resized = _resizing(size, rules, options)
    settings = ImageSettings(
        input=spec.name,
        dtype=DTYPES[spec.datatype],
        layout=layout,
        channels=channels,
        size=size,
        resize=resize,
        resized=resized,
        resample=Image.Resampling[options.resample.upper()] if options.resample else rules.resample,
        scale=options.scale or (1.0 if raw else rules.scale),
        mean=_per_channel("mean", options.mean, None if raw else rules.mean, 0.0, channels, rules),
        std=_per_channel("std", options.std, None if raw else rules.std, 1.0, channels, rules),
        max_pixels=options.max_pixels,
        reducing_gap=options.reducing_gap,
        bgr=channels == 3 and (options.channel_order == "BGR" if options.channel_order else rules.bgr),
        margin=options.crop_margin or rules.margin,
        fill=rules.fill,
    )
    _note(settings, rules, folder, options, raw=raw)
    return settings


def _note(settings: ImageSettings, rules: ImageRules, folder: ModelFolder, options: ImageOptions, *, raw: bool) -> None:
    """Record the settings and their sources in `ModelFolder`."""
    rescaling, normalizing = ("do_rescale", "rescale_factor"), ("do_normalize", "rescale_offset", "include_top")
    facts = (
        ("image class", rules.name or "none", "image_processor", ("image_processor_type", "feature_extractor_type")),
        ("size", _by(settings.size), "size", ("crop_size", "size", "input_size")),
        ("resize", f"{settings.resize} {_by(settings.resized)}", "resize", ("do_resize", "size", "crop_pct")),
        ("crop margin", settings.margin, "crop_margin", ()),
        ("resample", settings.resample.name.lower(), "resample", ("resample", "interpolation")),
        ("scale", f"{settings.scale:.6g}", "scale", rescaling),
        ("mean", _listed(settings.mean), "mean", (*normalizing, "image_mean", "mean")),
        ("std", _listed(settings.std), "std", (*normalizing, "image_std", "std")),
        ("channel order", "BGR" if settings.bgr else "RGB", "channel_order", ("do_flip_channel_order",)),
    )
    for name, value, option, keys in facts:
        source = "model: UINT8" if raw and option in {"scale", "mean", "std"} else rules.source(*keys)
        folder.note(name, value, f"processor.{option}" if option in options.model_fields_set else source)
    folder.note("layout", settings.layout, "processor.layout" if options.layout else "model")


def _by(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _input_of(signature: ModelSignature) -> TensorSpec:
    usable = [spec for spec in signature.inputs if len(spec.shape) == 4 and spec.datatype in FLOATS | {"UINT8"}]
    if len(signature.inputs) != 1 or not usable:
        known = ", ".join(f"{spec.name} {describe(spec)}" for spec in signature.inputs)
        raise ConfigError(
            (f"processor: an image model takes one float or UINT8 tensor of 4 axes; this one takes {known}",)
        )
    return usable[0]


def _edges(spec: TensorSpec, layout: str | None) -> Size:
    """The declared height and width; -1 if variable."""
    _, first, middle, last = spec.shape
    last_channels = layout == "NHWC" or (layout is None and last in {1, 3} and first not in {1, 3})
    return (first, middle) if last_channels else (middle, last)


def _axes(spec: TensorSpec, rules: ImageRules, options: ImageOptions) -> tuple[Literal["NCHW", "NHWC"], int, Size]:
    """Order of the axes, channels, and height and width. Exporters may leave all variable."""
    first, last = spec.shape[1], spec.shape[3]
    layout = options.layout
    if layout is None:
        if (first in {1, 3}) != (last in {1, 3}):
            layout = "NCHW" if first in {1, 3} else "NHWC"
        elif rules.name:
            layout = "NCHW"  # transformers, timm and torchvision know no other
        else:
            raise ConfigError((f"processor.layout: say NCHW or NHWC; {spec.name} {describe(spec)} does not tell",))
    channels = first if layout == "NCHW" else last
    if channels < 1:
        channels = len(options.mean) if isinstance(options.mean, list) else rules.channels or (3 if rules.name else -1)
    if channels not in {1, 3}:
        raise ConfigError((f"processor.layout: as {layout}, {spec.name} {describe(spec)} has not 1 or 3 channels",))
    return layout, channels, _edges(spec, layout)


def _size(spec: TensorSpec, fixed: Size, rules: ImageRules, options: ImageOptions) -> Size:
    given, source = rules.size, rules.source("crop_size", "size", "input_size")
    if options.size is not None:
        given = (options.size, options.size) if isinstance(options.size, int) else options.size
        source = "processor.size"
    elif rules.fault and (min(fixed) < 1 or not (options.resize or options.edge)):
        raise ConfigError((rules.fault,))
    if given is None:
        if min(fixed) < 1:
            raise ConfigError((f"processor.size: {spec.name} {describe(spec)} takes pictures of any size; say which",))
        return fixed
    if any(wanted != size > 0 for wanted, size in zip(given, fixed, strict=True)):
        raise ConfigError((f"{source}: size {_by(given)}, but the model takes {spec.name} {describe(spec)}",))
    return given


def _resizing(size: Size, rules: ImageRules, options: ImageOptions) -> tuple[Resize, Size]:
    resize: Resize = options.resize or ("crop" if options.edge else rules.resize)
    if rules.fault and not (options.resize or options.edge):
        raise ConfigError((rules.fault,))
    resized = rules.resized if rules.resize == resize else None
    if resize == "squash":
        if options.edge is not None:
            raise ConfigError(("processor.edge: only resize: crop has an edge",))
        return resize, size if resized is None or options.size is not None else resized
    if options.edge is None and resized is not None:
        if options.size is not None and (resized[0] < size[0] or resized[1] < size[1]):
            raise ConfigError((f"processor.size: {_by(size)} cannot be cut out of {_by(resized)}; say processor.edge",))
        return resize, resized
    edge = options.edge or max(size)
    if edge < max(size):
        raise ConfigError((f"processor.edge: {edge} is too short to cut {_by(size)} pixels out of",))
    return resize, (edge, edge)


def _per_channel(
    name: str,
    option: float | list[float] | None,
    file: tuple[float, ...] | None,
    default: float,
    channels: int,
    rules: ImageRules,
) -> tuple[float, ...]:
    if option is None and file is not None:
        source, values = rules.source(f"image_{name}", name), file * (channels if len(file) == 1 else 1)
    else:
        source = f"processor.{name}"
        value = default if option is None else option
        values = tuple(value) if isinstance(value, Sequence) else (value,) * channels
    if len(values) != channels:
        raise ConfigError(
            (f"{source}: {len(values)} values, but the model takes {channels} channel{'s' if channels > 1 else ''}",)
        )
    return values
