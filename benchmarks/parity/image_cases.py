"""Writes folders of image models, and what transformers, timm and torchvision make of pictures by them.

    python -m benchmarks.parity.image_cases OUT

runs in an environment with these libraries; `benchmarks.parity.image_check` compares the server. Nothing is downloaded.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import timm
import timm.data
import torch
import transformers
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

Array: TypeAlias = npt.NDArray[np.float32]
Apply: TypeAlias = Callable[[Image.Image], Any]

_SEED = 7
_FEW, _LARGE = 4, 30_000
"""Of larger results than that, only few pictures are kept."""
_SMALL = {"height": 48, "width": 48}
_IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@dataclass(frozen=True, slots=True)
class Case:
    """A folder, and what its library makes of pictures.

    Attributes:
        group: The class, ``timm`` or ``torchvision``.
        name: Of the variant.
        files: JSON files of the folder.
        apply: What each backend makes of an RGB picture: ``pil``, and ``default`` where that is another one. Called
            with the folder.
        options: What `processor:` must say; the folder says the rest.
    """

    group: str
    name: str
    files: dict[str, dict[str, Any]]
    apply: dict[str, Callable[[Path], Apply]]
    options: dict[str, Any] = field(default_factory=dict)


def main(out: Path) -> None:
    """Write every case: its files, `case.json` and `expected.npz`."""
    pictures = make_pictures()
    (out / "pictures").mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        (out / "pictures" / name).write_bytes(content)
    count = 0
    for case in [*transformers_cases(), *timm_cases(), *torchvision_cases()]:
        _write(case, pictures, out / case.group / case.name)
        count += 1
    print(f"{count} folders in {out}")


def make_pictures() -> dict[str, bytes]:
    """Small pictures of every mode and of odd sizes, by file name. Names with `~` hold what is converted otherwise."""
    random = np.random.default_rng(_SEED)

    def picture(width: int, height: int) -> Image.Image:
        down, across = np.mgrid[0:height, 0:width]
        smooth = np.stack([across * 255 / width, down * 255 / height, (across + down) * 255 / (width + height)], axis=2)
        noise = random.integers(-60, 60, (height, width, 3))
        return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))

    alpha = Image.fromarray(random.integers(0, 256, (60, 80), dtype=np.uint8))
    clear = picture(80, 60).convert("RGBA")
    clear.putalpha(alpha)
    grey_clear = picture(80, 60).convert("LA")
    grey_clear.putalpha(alpha)
    deep = Image.fromarray(random.integers(0, 65536, (50, 70), dtype=np.uint16))
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "rgb-landscape.png": _encoded(picture(101, 67), "PNG"),
        "rgb-portrait.png": _encoded(picture(53, 120), "PNG"),
        "rgb-even.png": _encoded(picture(128, 96), "PNG"),
        "rgb-tiny.png": _encoded(picture(9, 7), "PNG"),
        "rgb-1-high.png": _encoded(picture(40, 1), "PNG"),
        "rgb-1-wide.png": _encoded(picture(1, 33), "PNG"),
        "rgb-long.png": _encoded(picture(301, 11), "PNG"),
        "l.png": _encoded(picture(75, 50).convert("L"), "PNG"),
        "p.png": _encoded(picture(75, 51).convert("P", palette=Image.Palette.ADAPTIVE), "PNG"),
        "1.png": _encoded(picture(64, 77).convert("1"), "PNG"),
        "ycbcr.jpg": _encoded(picture(333, 250), "JPEG", quality=90),
        "cmyk.jpg": _encoded(picture(90, 61).convert("CMYK"), "JPEG", quality=90),
        "turned.jpg": _encoded(picture(91, 60), "JPEG", quality=90, exif=exif.tobytes()),
        "rgba~.png": _encoded(clear, "PNG"),
        "la~.png": _encoded(grey_clear, "PNG"),
        "i16~.png": _encoded(deep, "PNG"),
    }


def transformers_cases() -> Iterator[Case]:
    """Each class that a classification model of transformers can have, with its defaults and with other settings."""
    for name, kind in _classes().items():
        cls = getattr(transformers, name)
        saved = json.loads(cls().to_json_string())
        variants: dict[str, dict[str, Any]] = {
            "saved": saved,
            "class-only": {"image_processor_type": name},
            "fast-of-4": {
                **dict.fromkeys(cls.valid_kwargs.__annotations__),
                **saved,
                "image_processor_type": name + "Fast",
            },
            **{variant: {"image_processor_type": name, **changes} for variant, changes in _CHANGES.items()},
            **{
                f"saved-{variant}": {**saved, **changes}
                for variant, changes in _CHANGES.items()
                if all(key in cls.valid_kwargs.__annotations__ for key in changes)
            },
        }
        old = name.replace("ImageProcessor", "FeatureExtractor")
        variants["feature-extractor"] = {"feature_extractor_type": old, "size": 60}
        backends = {"pil": "pil", "default": None} if hasattr(transformers, name + "Pil") else {"default": None}
        apply = {key: _of_transformers(backend) for key, backend in backends.items()}
        for variant, config in variants.items():
            yield Case(name, variant, {"preprocessor_config.json": config}, apply)
        by_type = {"preprocessor_config.json": {"size": saved.get("size")}, "config.json": {"model_type": kind}}
        yield Case(name, "by-model-type", by_type, apply)
        yield Case(name, "nested", {"processor_config.json": {"image_processor": saved}}, apply)


_CHANGES: dict[str, dict[str, Any]] = {
    "square": {"size": _SMALL},
    "oblong": {"size": {"height": 50, "width": 37}},
    "number": {"size": 51},
    "pair": {"size": [40, 52]},
    "number-cut": {"size": 67, "do_center_crop": True, "crop_size": 48},
    "shorter": {"size": {"shortest_edge": 57}},
    "shorter-cut": {"size": {"shortest_edge": 57}, "do_center_crop": True, "crop_size": {"height": 48, "width": 40}},
    "oblong-cut": {"size": {"height": 61, "width": 70}, "do_center_crop": True, "crop_size": [48, 40]},
    "padded": {"size": {"shortest_edge": 31}, "do_center_crop": True, "crop_size": 48},
    "no-cut": {"size": {"shortest_edge": 57}, "do_center_crop": False},
    "longer": {"size": {"longest_edge": 57}},
    "both": {"size": {"shortest_edge": 40, "longest_edge": 57}},
    "most": {"size": {"max_height": 40, "max_width": 57}},
    "kept": {"do_resize": False, "do_center_crop": True, "crop_size": 48},
    "kept-whole": {"do_resize": False, "do_center_crop": False},
    "raw": {"size": _SMALL, "do_rescale": False, "do_normalize": False},
    "not-rescaled": {"size": _SMALL, "do_rescale": False},
    "not-normalized": {"size": _SMALL, "do_normalize": False},
    "normalized": {"size": _SMALL, "do_normalize": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
    "offset": {"size": _SMALL, "rescale_factor": 1 / 127.5, "rescale_offset": True},
    "no-top": {"size": _SMALL, "include_top": False},
    "rgb": {"size": {"shortest_edge": 50}, "do_flip_channel_order": False},
    "part": {"size": {"shortest_edge": 64}, "crop_pct": 0.7, "crop_size": 64},
    "part-square": {"size": {"height": 50, "width": 50}, "crop_pct": 0.8, "crop_size": 48},
    "part-oblong": {"size": {"height": 50, "width": 40}, "crop_pct": 0.8, "crop_size": 40},
    "short": {"resize_short": 70, "crop_size": 64},
    "not-square": {"size": 51, "default_to_square": False, "do_center_crop": True, "crop_size": 40},
    **{
        f"filter-{each.name.lower()}": {"size": {"shortest_edge": 57}, "crop_size": 44, "resample": each.value}
        for each in Image.Resampling
    },
    **{
        f"square-{each.name.lower()}": {"size": {"height": 57, "width": 57}, "crop_size": 44, "resample": each.value}
        for each in Image.Resampling
    },
    "unknown-key": {"size": _SMALL, "sharpen": 2},
    "pad": {"size": _SMALL, "do_pad": True, "pad_size": {"height": 60, "width": 60}},
    "bad-size": {"size": "large"},
    "bad-std": {"size": _SMALL, "image_std": [0, 0, 0]},
    "bad-filter": {"size": _SMALL, "resample": 17},
}


def _classes() -> dict[str, str]:
    """Names of the image processors, each with a ``model_type`` that it belongs to."""
    found: dict[str, str] = {}
    for kind in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind)
        if names and "torchvision" in names:
            found.setdefault(names["torchvision"], kind)
    return found


def _of_transformers(backend: str | None) -> Callable[[Path], Apply]:
    def load(folder: Path) -> Apply:
        more = {} if backend is None else {"backend": backend}
        processor = transformers.AutoImageProcessor.from_pretrained(folder, **more)
        return lambda picture: processor(picture, return_tensors="pt")["pixel_values"][0]

    return load


_TIMM: dict[str, dict[str, Any]] = {
    "defaults": {"input_size": None},
    "center": {"input_size": [3, 64, 64], "crop_pct": 0.875, "interpolation": "bicubic", **_IMAGENET},
    "odd": {"input_size": [3, 63, 63], "crop_pct": 0.9, "interpolation": "bilinear", **_IMAGENET},
    "whole": {"input_size": [3, 64, 64], "crop_pct": 1.0, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    "oblong": {"input_size": [3, 64, 48], "crop_pct": 0.9},
    "oblong-border": {"input_size": [3, 48, 64], "crop_pct": 0.9, "crop_mode": "border"},
    "squash": {"input_size": [3, 64, 64], "crop_pct": 0.9, "crop_mode": "squash", "interpolation": "lanczos"},
    "border": {"input_size": [3, 64, 64], "crop_pct": 1.0, "crop_mode": "border", **_IMAGENET},
    "border-cut": {"input_size": [3, 63, 63], "crop_pct": 0.875, "crop_mode": "border"},
    "one-mean": {"input_size": [3, 64, 64], "mean": [0.5], "std": [0.25]},
    "test-size": {"input_size": [3, 56, 56], "test_input_size": [3, 64, 64], "test_crop_pct": 1.0, "crop_pct": 0.9},
    "labels": {"input_size": [3, 64, 64], "label_names": ["a", "b", "c"], "num_classes": 3, "pool_size": [7, 7]},
    "random-filter": {"input_size": [3, 64, 64], "interpolation": "random"},
    "unknown-key": {"input_size": [3, 64, 64], "sharpen": 2},
    **{f"filter-{each.name.lower()}": {"input_size": [3, 61, 61], "interpolation": each.name.lower()}
       for each in Image.Resampling},
}  # fmt: skip


def timm_cases() -> Iterator[Case]:
    """Settings of timm, by its own transforms and by transformers' wrapper, and a folder that it wrote."""
    apply = {"pil": _of_timm, "default": _of_transformers(None)}
    for name, pretrained in _TIMM.items():
        model = {"architecture": "test_vit", "num_classes": 3, "num_features": 64, "pretrained_cfg": pretrained}
        yield Case("timm", name, {"config.json": model}, apply)
    saved = Path(sys.argv[1]) / "timm-saved"
    net = timm.create_model("test_vit", num_classes=3)
    timm.models.save_for_hf(net, saved, model_config={"label_names": ["cat", "dog", "bird"]})
    config = json.loads((saved / "config.json").read_text())
    yield Case("timm", "saved", {"config.json": config}, apply)
    wrapper = transformers.AutoConfig.from_pretrained(saved)
    yield Case(
        "timm", "saved-by-transformers", {"config.json": json.loads(wrapper.to_json_string(use_diff=False))}, apply
    )


def _of_timm(folder: Path) -> Apply:
    pretrained = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    transform = timm.data.create_transform(
        **timm.data.resolve_data_config(pretrained_cfg=pretrained), is_training=False
    )
    return cast("Apply", transform)


def torchvision_cases() -> Iterator[Case]:
    """Presets of torchvision's weights. It writes no files, so `processor:` says all."""
    for kind, edge, size in (
        (InterpolationMode.BILINEAR, 72, 63),
        (InterpolationMode.BILINEAR, 73, 64),
        (InterpolationMode.BICUBIC, 65, 64),
        (InterpolationMode.BICUBIC, 64, 64),
        (InterpolationMode.LANCZOS, 71, 60),
    ):
        options = {"resize": "crop", "edge": edge, "size": size, "resample": kind.value, "crop_margin": "round"}
        options |= {"layout": "NCHW", **_IMAGENET}
        yield Case(
            "torchvision", f"{kind.value}-{edge}-{size}", {}, {"pil": _of_torchvision(kind, edge, size)}, options
        )


def _of_torchvision(kind: InterpolationMode, edge: int, size: int) -> Callable[[Path], Apply]:
    preset = ImageClassification(crop_size=size, resize_size=edge, interpolation=kind)
    return lambda _: preset


def _write(case: Case, pictures: dict[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, settings in case.files.items():
        (folder / file).write_text(json.dumps(settings, indent=2))
    found: dict[str, dict[str, Array]] = {}
    problem = ""
    for backend, load in case.apply.items():
        try:
            found[backend] = _results(load(folder), pictures)
        except Exception as error:  # whatever a library says of settings that make no sense
            # The default backend knows fewer filters: the other one is the reference.
            if backend == next(iter(case.apply)):
                problem = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    # Pictures that one of the backends fails for are left out.
    names = set(pictures).intersection(*found.values())
    arrays = {f"{backend}/{name}": made[name] for backend, made in found.items() for name in sorted(names)}
    if not problem and len({each.shape for each in arrays.values()}) > 1:
        problem = "the size of the result varies"
    told = {"group": case.group, "name": case.name, "options": case.options, "problem": problem}
    (folder / "case.json").write_text(json.dumps(told, indent=2))
    np.savez_compressed(folder / "expected.npz", **({} if problem else arrays))  # type: ignore[arg-type]


def _results(apply: Apply, pictures: dict[str, bytes]) -> dict[str, Array]:
    """What becomes of each picture. Of those that the library fails for, nothing; if it is all, it raises."""
    found: dict[str, Array] = {}
    failure: Exception | None = None
    for name, content in pictures.items():
        if len(found) >= _FEW and next(iter(found.values())).size > _LARGE:
            break
        with Image.open(io.BytesIO(content)) as opened:
            # As transformers' pipelines do it: load_image.
            picture = ImageOps.exif_transpose(opened).convert("RGB")
        try:
            found[name] = torch.as_tensor(apply(picture)).to(torch.float32).numpy()
        except Exception as error:
            failure = error
    if not found and failure is not None:
        raise failure
    return found


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
