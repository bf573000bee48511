"""Reads the files of an image model: of transformers' image processors, and timm's.

A file is read exactly as by its library, transformers 5 or timm 1.0, or refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NoReturn, TypeAlias

from PIL import Image

from serve_app.errors import ConfigError
from serve_app.processors.folder_keys import check_keys
from serve_app.processors.image_classes import (
    CLASS_OF_TYPE,
    CLASSES,
    COMMON,
    IMAGENET,
    KEYS,
    NOT_FOLLOWED,
    REFUSED,
    TIMM_KEYS,
)
from serve_app.processors.model_folder import ModelFolder

Size: TypeAlias = tuple[int, int]
"""Height and width, pixels."""
Resize: TypeAlias = Literal["squash", "crop", "cover", "pad", "part", "keep"]
CropMargin: TypeAlias = Literal["floor", "round"]

TIMM: Final = "TimmWrapperImageProcessor"


@dataclass(frozen=True, slots=True)
class ImageRules:
    """The files' settings. Fields shared with `serve_app.processors.image.ImageSettings` have the same meaning.

    Attributes:
        name: The class that defines the rules; empty if unnamed.
        file: Their source.
        said: Keys in the file; others have the class's defaults.
        channels: Of the model, if given.
        fault: Why ``resize``, ``resized`` and ``size`` are unsupported.
    """

    name: str = ""
    file: str = "preprocessor_config.json"
    said: frozenset[str] = frozenset()
    channels: int | None = None
    fault: str = ""
    resize: Resize = "squash"
    resized: Size | None = None
    size: Size | None = None
    resample: Image.Resampling = Image.Resampling.BILINEAR
    scale: float = 1 / 255
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    bgr: bool = False
    margin: CropMargin = "floor"
    fill: tuple[int, ...] = (0,)

    def source(self, *keys: str) -> str:
        """The source of a setting: the file, if it has one of these keys, else a default of the class or server."""
        found = [key for key in keys if key in self.said]
        return f"{self.file}: {', '.join(found)}" if found else f"default of {self.name}" if self.name else "default"


def image_rules(
    folder: ModelFolder, chosen: str | None, fixed: Size, ignored: list[str], *, needed: bool = True
) -> ImageRules:
    """Read the folder's image settings.

    Args:
        chosen: The class in the configuration.
        fixed: Declared height and width, -1 if variable.
        ignored: ``processor.ignore_keys``.
        needed: Whether the model needs a mean that only a file can give.

    Raises:
        ConfigError: A file is unsupported or missing. Names the key and the remedy.
    """
    model = folder.json("config.json")
    file, config = folder.preprocessor("image_processor")
    timm = _timm_config(model)
    if chosen == TIMM or (timm is not None and chosen is None and config is None):
        return _timm_rules(timm or {}, fixed, ignored)
    if timm is not None and chosen is None:
        _fail(file, "", "", "config.json has timm's pretrained_cfg, too; remove one, or name the one that counts"
              f" as processor.image_processor: {TIMM}, or the class of {file}")  # fmt: skip
    kind, channels = model.get("model_type"), model.get("num_channels")
    channels = channels if _is_pixels(channels) else None
    if config is None and chosen is None and kind is not None and needed:
        _fail(file, "", "", f"is missing, and the mean and std of {kind} are not known without it; save it with"
              " AutoImageProcessor's save_pretrained, or say processor.mean and processor.std")  # fmt: skip
    if config is None and chosen is None:
        return ImageRules(channels=channels)
    config = config or {}
    said = {key: value for key, value in config.items() if value is not None and key not in ignored}
    named = chosen or said.get("image_processor_type") or said.get("feature_extractor_type")
    named = named or model.get("image_processor_type") or CLASS_OF_TYPE.get(str(kind))
    if named is None and config and kind is not None:
        _fail(file, "image_processor_type", "", f"must name the class: that of model_type {kind} is not known")
    name = "" if named is None else _class_name(str(named), chosen, file)
    check_keys(file, config, KEYS, ignored)
    rules = _ImageFolderReader(file, said, name).rules()
    return rules if channels is None else replace(rules, channels=channels)


def timm_labels(model: Mapping[str, Any]) -> tuple[str, ...]:
    """The class names in timm's ``config.json``, in order; may be empty. Raises `ConfigError`."""
    timm = _timm_config(model)
    names = None if timm is None else model.get("label_names") or timm.get("label_names")
    if isinstance(names, dict):
        numbered = {str(number): str(name) for number, name in names.items()}
        names = [numbered.get(str(number)) for number in range(len(numbered))]
    if not isinstance(names, list | None) or None in (names or ()):
        raise ConfigError(
            ("config.json: label_names: must be a list, or number the names from 0; use processor.labels",)
        )
    return tuple(map(str, names or ()))


def _timm_config(model: Mapping[str, Any]) -> dict[str, Any] | None:
    """Timm's ``pretrained_cfg``; its first versions had these keys at the top level."""
    config = model.get("pretrained_cfg")
    if isinstance(config, dict):
        return config
    return dict(model) if "architecture" in model and "input_size" in model else None


def _class_name(named: str, chosen: str | None, file: str) -> str:
    """Its name in version 5: older names have a backend suffix, or are feature extractors."""
    name = named.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
    if name in CLASSES:
        return name
    reason = f": it {REFUSED[name]}" if name in REFUSED else ""
    problem = f"{file}: image_processor_type: {named} is not supported{reason}"
    remedy = "if another class does the same, name it as processor.image_processor, for example ViTImageProcessor"
    if chosen:
        problem, remedy = f"processor.image_processor: {named} is not supported{reason}", ", ".join(sorted(CLASSES))
    raise ConfigError((f"{problem}; {remedy}",))


def _fail(file: str, key: str, value: Any, problem: str) -> NoReturn:
    raise ConfigError((f"{file}: {f'{key}: ' if key else ''}{f'{value!r} ' if value != '' else ''}{problem}",))


class _Varies(Exception):
    """The file implies images of variable size, or is unsupported."""


class _ImageFolderReader:
    """Reads the settings of one transformers class; without a class (``""``), only those that do not depend on it."""

    def __init__(self, file: str, config: dict[str, Any], name: str) -> None:
        self._file, self._said, self._name = file, config, name
        if name:
            defaults = CLASSES[name]
            taken = defaults.keys() - NOT_FOLLOWED.get(name, set())
        else:
            normalizes = "image_mean" in config or "image_std" in config
            defaults = COMMON | {"do_normalize": normalizes, "size": None, "image_mean": None, "image_std": None}
            taken = set(KEYS)
        self._config = defaults | {key: value for key, value in config.items() if key in taken}

    def rules(self) -> ImageRules:
        """The resulting rules. Raises `ConfigError`."""
        scale = self._number("rescale_factor") if self._flag("do_rescale") else 1.0
        # The steps of every class are one multiplication and one subtraction.
        shift = 1.0 if self._flag("do_rescale") and self._flag("rescale_offset") else 0.0
        mean: tuple[float, ...] = (shift,)
        std: tuple[float, ...] = (1.0,)
        if self._flag("do_normalize"):
            mean = tuple(shift + value for value in self._numbers("image_mean"))
            std = self._numbers("image_std")
        if self._flag("include_top"):
            again = self._numbers("image_std")
            std = tuple(once * twice for once, twice in zip(std * (len(again) // len(std)), again, strict=True))
        if not all(value > 0 for value in std):
            _fail(self._file, "image_std", self._config["image_std"], "must be positive")
        fault = ""
        try:
            resize, resized, size = self._geometry()
        except _Varies as error:
            resize, resized, size = "squash", None, None
            fault = f"{self._file}: {error}; say processor.resize and processor.size"
        normalizes = (mean, std) != ((0.0,), (1.0,))
        return ImageRules(
            name=self._name,
            file=self._file,
            said=frozenset(self._said),
            channels=len(mean) if len(mean) > 1 else None,
            fault=fault,
            resize=resize,
            resized=resized,
            size=size,
            resample=self._filter(),
            scale=scale,
            mean=mean if normalizes else None,
            std=std if normalizes else None,
            bgr=self._flag("do_flip_channel_order"),
        )

    def _geometry(self) -> tuple[Resize, Size | None, Size | None]:
        """How images are resized, to what size, and what is cut."""
        cut = self._cut()
        if not self._flag("do_resize"):
            if self._name in {"PerceiverImageProcessor", "PPLCNetImageProcessor"}:
                raise _Varies(f"do_resize: false is not supported with {self._name}")
            if cut is None:
                raise _Varies("do_resize: false without do_center_crop leaves pictures as large as they come")
            return "keep", cut, cut
        if "resize_short" in self._config:
            edge = _edges(self._config["resize_short"], square=False)
            if not isinstance(edge, int) or self._config["size_divisor"] != 1 or (cut is not None and edge < max(cut)):
                raise _Varies("resize_short: must be a number, not less than crop_size, with a size_divisor of 1")
            return "cover", (edge, edge), self._needed(cut, edge)
        if self._config["size"] is None:
            return "squash", None, cut
        size = self._size()
        if self._name == "PerceiverImageProcessor" and cut is not None:
            if isinstance(size, int) or size[0] > cut[0] or size[1] > cut[1]:
                raise _Varies(f"size: {self._config['size']!r} must be height and width, at most those of crop_size")
            return "part", cut, size
        if "crop_pct" in self._config:
            return self._resized_more(size, cut)
        if not isinstance(size, int):
            return "squash", size, cut or size
        edge = int((256 / 224) * size) if self._name == "LevitImageProcessor" else size
        return "crop", (edge, edge), self._needed(cut, self._config["size"])

    def _resized_more(self, size: Size | int, cut: Size | None) -> tuple[Resize, Size, Size]:
        """ConvNext and PoolFormer resize beyond the size, by ``crop_pct``, before the cut."""
        part = self._number("crop_pct")
        if not self._name:
            raise _Varies("crop_pct: means different things to ConvNextImageProcessor and PoolFormerImageProcessor;"
                          " name the class as image_processor_type")  # fmt: skip
        if self._name == "PoolFormerImageProcessor":
            if not isinstance(size, int) and size[0] != size[1]:
                resized = int(size[0] / part), int(size[1] / part)
                return "squash", resized, cut or resized
            edge = int((size if isinstance(size, int) else size[0]) / part)
            return "crop", (edge, edge), self._needed(cut, self._config["size"])
        if not isinstance(size, int):
            raise _Varies(f"size: {self._config['size']!r}: ConvNextImageProcessor takes shortest_edge only")
        square = (size, size)
        if size >= 384:
            return "squash", square, cut or square
        if cut not in {None, square}:
            raise _Varies(f"crop_size: {self._config['crop_size']!r} would cut a second time")
        edge = int(size / part)
        return "crop", (edge, edge), square

    def _cut(self) -> Size | None:
        """The size of the central cut, if any."""
        if not self._flag("do_center_crop"):
            return None
        cut = _edges(self._config["crop_size"], square=True)
        if isinstance(cut, tuple):
            return cut
        raise _Varies(f"crop_size: {self._config['crop_size']!r} is not a number, or height and width")

    def _size(self) -> Size | int:
        """Height and width, or the length of the shorter edge."""
        value = self._config["size"]
        if not self._name and isinstance(value, int) and self._flag("do_center_crop"):
            raise _Varies(
                f"size: {value} is the shorter edge to some classes and a square to others; write shortest_edge"
            )
        size = _edges(value, square=self._flag("default_to_square"))
        if size is None:
            raise _Varies(f"size: {value!r} is not supported, only a number, height and width, or shortest_edge")
        return size

    def _needed(self, cut: Size | None, size: Any) -> Size:
        if cut is None:
            raise _Varies(f"size: {size!r} without do_center_crop gives every picture its own size")
        return cut

    def _flag(self, key: str) -> bool:
        value = self._config.get(key, False)
        if not isinstance(value, bool):
            _fail(self._file, key, value, "must be true or false")
        return value

    def _number(self, key: str) -> float:
        value = self._config[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            _fail(self._file, key, value, "must be a positive number")
        return float(value)

    def _numbers(self, key: str) -> tuple[float, ...]:
        value = self._config[key]
        values = value if isinstance(value, list) and value else [value]
        if not all(isinstance(each, int | float) and math.isfinite(each) for each in values):
            _fail(self._file, key, value, "must be a number, or one per channel")
        return tuple(map(float, values))

    def _filter(self) -> Image.Resampling:
        value = self._config["resample"]
        if self._name == "PPLCNetImageProcessor" and str(value) not in {"1", "2", "3"}:
            # The class has no backend that uses Pillow, and torchvision has no such filters, or others by that name.
            _fail(self._file, "resample", value, f"is not supported with {self._name}, only 1, 2 and 3")
        try:
            return Image.Resampling(value)
        except ValueError:
            known = ", ".join(f"{each.value} is {each.name.lower()}" for each in Image.Resampling)
            _fail(self._file, "resample", value, f"is no filter: {known}")


def _edges(value: Any, *, square: bool) -> Size | int | None:
    """Height and width, or the length of the shorter edge; ``None``: neither is given."""
    if isinstance(value, list) and len(value) == 2:
        value = {"height": value[0], "width": value[1]}
    if _is_pixels(value):
        return (int(value), int(value)) if square else int(value)
    if not isinstance(value, dict):
        return None
    said = {key: edge for key, edge in value.items() if edge is not None}
    if not all(map(_is_pixels, said.values())):
        return None
    if said.keys() == {"height", "width"}:
        return int(said["height"]), int(said["width"])
    return int(said["shortest_edge"]) if said.keys() == {"shortest_edge"} else None


def _is_pixels(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _timm_rules(config: dict[str, Any], fixed: Size, ignored: list[str]) -> ImageRules:
    """Follow ``timm.data.create_transform`` without training; at the test size if there is one."""
    file = "config.json: pretrained_cfg"
    check_keys(file, config, TIMM_KEYS, ignored)
    config = {key: value for key, value in config.items() if key not in ignored}
    part = config.get("crop_pct") or 0.875
    size = config.get("input_size") or [3, 224, 224]
    test = config.get("test_input_size") or size
    if not all(isinstance(each, list) and len(each) == 3 and all(map(_is_pixels, each)) for each in (size, test)):
        _fail(file, "input_size, test_input_size", [size, test], "must be channels, height and width")
    if tuple(test[1:]) == fixed != tuple(size[1:]):
        size, part = test, config.get("test_crop_pct") or part
    if isinstance(part, bool) or not isinstance(part, int | float) or part <= 0:
        _fail(file, "crop_pct", part, "must be a positive number")
    channels, height, width = size
    values = {}
    for key in ("mean", "std"):
        given = config.get(key) or IMAGENET[f"image_{key}"]
        if not isinstance(given, list) or not all(isinstance(each, int | float) for each in given):
            _fail(file, key, given, "must be one number per channel")
        values[key] = tuple(map(float, given)) * (channels if len(given) == 1 else 1)
    resized = (math.floor(height / part), math.floor(width / part))
    mode = config.get("crop_mode") or "center"
    resizes: dict[str, Resize] = {"squash": "squash", "border": "pad"}
    return ImageRules(
        name=TIMM,
        file=file,
        said=frozenset(config),
        channels=channels,
        resize=resizes.get(mode, "crop" if resized[0] == resized[1] else "cover"),
        resized=resized,
        size=(height, width),
        resample=Image.Resampling[(config.get("interpolation") or "bicubic").upper()],
        mean=values["mean"],
        std=values["std"],
        margin="round",
        fill=tuple(round(255 * value) for value in values["mean"]) if mode == "border" else (0,),
    )
