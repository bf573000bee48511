"""Pictures in, labels out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from serve_app.config.processor import DEFAULT_REDUCING_GAP, ImageOptions
from serve_app.errors import ConfigError, InvalidRequest
from serve_app.payloads import DTYPES, Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors.image_decoder import EXAMPLES, Decoded, decode_image
from serve_app.processors.media_type import expect_media
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.processor import Cost, Processor
from serve_app.processors.ranking import FLOATS, Ranking, describe


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """How a picture becomes a tensor.

    Attributes:
        input: Name of the model's input.
        dtype: Numpy dtype of the input.
        layout: Order of its axes.
        channels: 1 for grey, 3 for colour.
        size: Height and width that the model takes, pixels.
        resize: ``squash`` resizes to ``resized`` whatever the picture's proportions; ``crop`` keeps them and resizes
            the shorter edge to the shorter of ``resized``. Then the centre of ``size`` is cut out.
        resized: Height and width after resizing, at least ``size``.
        resample: Filter for resizing.
        scale: Multiplies pixels of 0 to 255.
        mean: Subtracted after scaling, one per channel.
        std: Divides after that, one per channel.
        max_pixels: Larger pictures are refused before they are decoded.
        reducing_gap: JPEG pictures are decoded smaller where so many times the pixels wanted are left per edge;
            0.0 decodes all of them.
    """

    input: str
    dtype: np.dtype[Any]
    layout: Literal["NCHW", "NHWC"]
    channels: int
    size: tuple[int, int]
    resize: Literal["squash", "crop"]
    resized: tuple[int, int]
    resample: Image.Resampling
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_pixels: int
    reducing_gap: float = DEFAULT_REDUCING_GAP


class ImageProcessor(Processor):
    """Processor of ``image-classification``.

    Args:
        settings: How a picture becomes a tensor.
        ranking: How logits become an answer.
    """

    buckets: tuple[int, ...] = (0,)
    bucket_invariant = True

    def __init__(self, settings: ImageSettings, ranking: Ranking) -> None:
        self.settings = settings
        self.ranking = ranking
        edge = min(settings.resized) if settings.resize == "crop" else max(settings.resized)
        self._enough = math.ceil(settings.reducing_gap * edge) or None
        self._levels = _Levels(settings)

    @classmethod
    def create(cls, signature: ModelSignature, folder: ModelFolder, options: ImageOptions) -> ImageProcessor:
        """Make one from the model, the files beside it and the configuration. Raises `ConfigError`."""
        return cls(_image_settings(signature, folder, options), Ranking.create(signature, folder, options))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.ranking.labels

    def estimate(self, payload: Media | Texts) -> Cost:
        """One row; every picture costs the model the same."""
        self.ranking.parameters(self._expect(payload).parameters)
        return Cost(1, 0)

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Decode, turn upright, resize and normalize one picture. See `decode_image` for what it raises."""
        media = self._expect(payload)
        self.ranking.parameters(media.parameters)
        settings = self.settings
        image = self._resize(decode_image(media, settings.channels, settings.max_pixels, self._enough))
        return {settings.input: self._normalize(image)}

    def bucket(self, tensors: Tensors) -> int:
        """Always 0: there is one size only. Raises `InvalidRequest` for tensors of a larger one."""
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
        """Grey pictures, for warming up."""
        height, width = self.settings.size
        grey = Image.new("L" if self.settings.channels == 1 else "RGB", (width, height), 0x808080)
        return {self.settings.input: np.repeat(self._normalize(grey), rows, axis=0)}

    def postprocess(
        self,
        payload: Media | Texts,
        outputs: Tensors,
        inputs: Tensors | None = None,  # noqa: ARG002 - as every processor
    ) -> list[dict[str, Any]]:
        """``[{"label": ..., "score": ...}, ...]``, the highest score first."""
        return self.ranking.rank(outputs, self.ranking.parameters(payload.parameters))[0]

    @staticmethod
    def _expect(payload: Media | Texts) -> Media:
        return expect_media(payload, "image", (), EXAMPLES)

    def _resize(self, decoded: Decoded) -> Image.Image:
        """Resize and cut in one step: the picture between the two never exists, however long and thin it would be."""
        settings = self.settings
        width, height = decoded.width, decoded.height
        if settings.resize == "crop":
            edge = min(settings.resized)
            shorter = min(width, height)
            resized_height, resized_width = (edge * height // shorter, edge * width // shorter)
        else:
            resized_height, resized_width = settings.resized
        wanted_height, wanted_width = settings.size
        before, above = (resized_width - wanted_width) // 2, (resized_height - wanted_height) // 2
        left, top, right, bottom = decoded.box
        across, down = (right - left) / resized_width, (bottom - top) / resized_height
        box = (
            left + before * across,
            top + above * down,
            min(left + (before + wanted_width) * across, right),
            min(top + (above + wanted_height) * down, bottom),
        )
        if decoded.image.size == (wanted_width, wanted_height) and box == (0.0, 0.0, wanted_width, wanted_height):
            return decoded.image  # `resize` would copy
        return decoded.image.resize((wanted_width, wanted_height), settings.resample, box)

    def _normalize(self, image: Image.Image) -> npt.NDArray[Any]:
        """From a picture of the model's size to one row of its input."""
        settings = self.settings
        row = np.empty((1, settings.channels, *settings.size), settings.dtype)
        for channel, band in enumerate(image.getbands()):
            # One band at a time: its bytes are contiguous, and they are copied once.
            pixels = np.frombuffer(image.tobytes("raw", band), np.uint8).reshape(settings.size)
            self._levels.write(channel, pixels, row[0, channel])
        return row if settings.layout == "NCHW" else np.ascontiguousarray(row.transpose(0, 2, 3, 1))


class _Levels:
    """What each of the 256 levels becomes, per channel.

    For the usual input of 32-bit floats that is one multiplication and one subtraction per pixel, which processors do
    many at a time: within 1e-6 of exact arithmetic, relative to the largest value. For other types it is looked up.
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
        """Convert the pixels of a channel into ``plane``, of the same shape and of the input's type."""
        if self._table is not None:
            # Clipping changes no level. It only spares the buffer in which bad indexes would be found.
            np.take(self._table[channel], pixels, out=plane, mode="clip")
            return
        np.multiply(pixels, self._factors[channel], out=plane)
        np.subtract(plane, self._offsets[channel], out=plane)


def _image_settings(signature: ModelSignature, folder: ModelFolder, options: ImageOptions) -> ImageSettings:
    spec = _input_of(signature)
    layout, channels, fixed = _axes(spec, options)
    files = _FileSettings(folder.json("preprocessor_config.json"))
    size = _size(spec, fixed, files, options)
    resize, resized = _resizing(size, files, options)
    # A model that takes UINT8 scales and normalizes by itself; what the files say is then done inside it.
    raw = spec.datatype == "UINT8"
    return ImageSettings(
        input=spec.name,
        dtype=DTYPES[spec.datatype],
        layout=layout,
        channels=channels,
        size=size,
        resize=resize,
        resized=resized,
        resample=Image.Resampling[options.resample.upper()] if options.resample else files.resample,
        scale=options.scale or (1.0 if raw else files.scale),
        mean=_per_channel("mean", options.mean, None if raw else files.mean, 0.0, channels),
        std=_per_channel("std", options.std, None if raw else files.std, 1.0, channels),
        max_pixels=options.max_pixels,
        reducing_gap=options.reducing_gap,
    )


def _input_of(signature: ModelSignature) -> TensorSpec:
    usable = [spec for spec in signature.inputs if len(spec.shape) == 4 and spec.datatype in FLOATS | {"UINT8"}]
    if len(signature.inputs) != 1 or not usable:
        known = ", ".join(f"{spec.name} {describe(spec)}" for spec in signature.inputs)
        raise ConfigError(
            (f"processor: an image model takes one float or UINT8 tensor of 4 axes; this one takes {known}",)
        )
    return usable[0]


def _axes(spec: TensorSpec, options: ImageOptions) -> tuple[Literal["NCHW", "NHWC"], int, tuple[int, int]]:
    _, first, middle, last = spec.shape
    layout = options.layout
    if layout is None:
        if (first in {1, 3}) == (last in {1, 3}):
            raise ConfigError((f"processor.layout: say NCHW or NHWC; {spec.name} {describe(spec)} does not tell",))
        layout = "NCHW" if first in {1, 3} else "NHWC"
    channels = first if layout == "NCHW" else last
    if channels not in {1, 3}:
        raise ConfigError((f"processor.layout: as {layout}, {spec.name} {describe(spec)} has not 1 or 3 channels",))
    return layout, channels, ((middle, last) if layout == "NCHW" else (first, middle))


def _size(spec: TensorSpec, fixed: tuple[int, int], files: _FileSettings, options: ImageOptions) -> tuple[int, int]:
    given, source = files.size, "preprocessor_config.json"
    if options.size is not None:
        given = (options.size, options.size) if isinstance(options.size, int) else options.size
        source = "processor.size"
    if given is None:
        if min(fixed) < 1:
            raise ConfigError((f"processor.size: {spec.name} {describe(spec)} takes pictures of any size; say which",))
        return fixed
    if any(wanted != size > 0 for wanted, size in zip(given, fixed, strict=True)):
        raise ConfigError(
            (f"{source}: size {given[0]} x {given[1]}, but the model takes {spec.name} {describe(spec)}",)
        )
    return given


def _resizing(
    size: tuple[int, int], files: _FileSettings, options: ImageOptions
) -> tuple[Literal["squash", "crop"], tuple[int, int]]:
    resize = options.resize or ("crop" if options.edge else files.resize)
    if resize == "squash":
        if options.edge is not None:
            raise ConfigError(("processor.edge: only resize: crop has an edge",))
        resized = files.resized if files.resize == "squash" and options.size is None else None
        resized = resized or size
    else:
        edge = options.edge or (min(files.resized) if files.resized and files.resize == "crop" else max(size))
        resized = (edge, edge)
    if resized[0] < size[0] or resized[1] < size[1]:
        raise ConfigError((f"processor.edge: {min(resized)} is too short to cut {size[0]} x {size[1]} pixels out of",))
    return resize, resized


def _per_channel(
    name: str, option: float | list[float] | None, file: list[float] | None, default: float, channels: int
) -> tuple[float, ...]:
    if option is None and file is not None:
        source, values = f"preprocessor_config.json: image_{name}", tuple(file) * (channels if len(file) == 1 else 1)
    else:
        source = f"processor.{name}"
        value = default if option is None else option
        values = tuple(value) if isinstance(value, Sequence) else (value,) * channels
    if len(values) != channels:
        raise ConfigError(
            (f"{source}: {len(values)} values, but the model takes {channels} channel{'s' if channels > 1 else ''}",)
        )
    return values


class _FileSettings:
    """What a Hugging Face ``preprocessor_config.json`` says, in our words."""

    def __init__(self, config: dict[str, Any]) -> None:
        try:
            self._read(config)
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError((f"preprocessor_config.json: cannot be understood: {error!r}",)) from error

    def _read(self, config: dict[str, Any]) -> None:
        self.scale = float(config.get("rescale_factor", 1.0 / 255.0)) if config.get("do_rescale", True) else 1.0
        normalizes = config.get("do_normalize", "image_mean" in config or "image_std" in config)
        self.mean = _numbers(config.get("image_mean")) if normalizes else None
        self.std = _numbers(config.get("image_std")) if normalizes else None
        if self.scale <= 0 or not all(std > 0 for std in self.std or ()):
            raise ValueError("rescale_factor and image_std must be positive")
        self.resample = Image.Resampling(config.get("resample", Image.Resampling.BILINEAR))
        self.resize: Literal["squash", "crop"] = "squash"
        self.size: tuple[int, int] | None = None
        self.resized: tuple[int, int] | None = None
        size = config.get("size")
        if not config.get("do_resize", True) or size is None:
            return
        shortest = size.get("shortest_edge") if isinstance(size, dict) else None
        if isinstance(size, int):
            shortest = size if config.get("do_center_crop") or "crop_pct" in config else None
        if shortest is None:
            self.resized = self.size = _height_width(size)
        elif "crop_pct" in config:
            # ConvNeXT: below 384 pixels the picture is resized a little larger and cut, from there on squashed.
            self.size = (shortest, shortest)
            if shortest < 384:
                self.resize = "crop"
                self.resized = (int(shortest / (config["crop_pct"] or 224 / 256)),) * 2
        else:
            self.resize = "crop"
            self.resized = (shortest, shortest)
            self.size = (shortest, shortest)
        if config.get("do_center_crop") and config.get("crop_size") is not None:
            self.size = _height_width(config["crop_size"])


def _numbers(value: Any) -> list[float] | None:
    if value is None:
        return None
    return list(map(float, value)) if isinstance(value, list) else [float(value)]


def _height_width(size: Any) -> tuple[int, int]:
    if isinstance(size, dict):
        if "shortest_edge" in size:
            return int(size["shortest_edge"]), int(size["shortest_edge"])
        return int(size["height"]), int(size["width"])
    if isinstance(size, list | tuple):
        height, width = size
        return int(height), int(width)
    return int(size), int(size)
