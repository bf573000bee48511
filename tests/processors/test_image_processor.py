"""Pictures become the tensors that a model was trained on."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from serve_app.errors import ConfigError, InvalidRequest, PayloadTooLarge, UnsupportedMedia
from serve_app.payloads import Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors import create_processor
from serve_app.processors.image import ImageProcessor
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.processor import Cost

DIGITS = (-1, 1, 28, 28)


def signature(shape: tuple[int, ...] = DIGITS, classes: int = 3, datatype: str = "FP32") -> ModelSignature:
    """A model that takes pictures."""
    return ModelSignature((TensorSpec("x", datatype, shape),), (TensorSpec("logits", "FP32", (-1, classes)),))


def processor(
    folder: Path, options: dict[str, Any] | None = None, shape: tuple[int, ...] = DIGITS, datatype: str = "FP32"
) -> ImageProcessor:
    """A processor for such a model."""
    made = create_processor("image-classification", signature(shape, datatype=datatype), folder, options or {})
    assert isinstance(made, ImageProcessor)
    return made


def png(image: Image.Image, **parameters: Any) -> Media:
    """The picture as a client sends it."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return Media(file.getvalue(), "image/png", parameters)


def photo(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A smooth picture in which every place looks different."""
    down, across = np.mgrid[0:height, 0:width]
    planes = [across * 255 / width, down * 255 / height, (across + down) * 255 / (width + height)]
    return Image.fromarray(np.stack(planes, axis=2).astype(np.uint8)).convert(mode)


def write(folder: Path, name: str, content: Any) -> None:
    """Put a Hugging Face file beside the model."""
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_grey_pictures_are_converted_resized_and_normalized_in_this_order(tmp_path: Path) -> None:
    """Grey first, then bilinear to the model's size, then (x / 255 - mean) / std."""
    image = photo(300, 200)
    reference = np.asarray(image.convert("L").resize((28, 28), Image.Resampling.BILINEAR), np.float64)

    tensors = processor(tmp_path, {"mean": 0.5, "std": 0.25}).preprocess(png(image))

    assert list(tensors) == ["x"]
    assert tensors["x"].shape == (1, 1, 28, 28)
    assert tensors["x"].dtype == np.float32
    np.testing.assert_allclose(tensors["x"][0, 0], (reference / 255 - 0.5) / 0.25, atol=1e-6)


def test_colours_have_their_own_mean_and_std(tmp_path: Path) -> None:
    """One number per channel, in the order red, green, blue."""
    image = Image.new("RGB", (10, 10), (255, 128, 0))
    options = {"mean": [0.5, 0.25, 0.125], "std": [0.5, 1.0, 2.0]}

    x = processor(tmp_path, options, (-1, 3, 8, 8)).preprocess(png(image))["x"]

    np.testing.assert_allclose(x[0, :, 4, 4], [1.0, 128 / 255 - 0.25, -0.0625], atol=1e-6)


def test_channels_can_be_last(tmp_path: Path) -> None:
    """The layout follows from the model's input."""
    image = Image.new("RGB", (10, 10), (255, 0, 51))

    x = processor(tmp_path, {}, (-1, 8, 6, 3)).preprocess(png(image))["x"]

    assert x.shape == (1, 8, 6, 3)
    assert x.flags.c_contiguous
    np.testing.assert_allclose(x[0, 3, 3], [1.0, 0.0, 0.2], atol=1e-6)


def test_models_that_take_bytes_get_bytes(tmp_path: Path) -> None:
    """Without scaling: such a model does it by itself, whatever the files beside it say."""
    write(tmp_path, "preprocessor_config.json", {"image_mean": [0.5], "image_std": [0.5], "do_normalize": True})
    image = Image.new("L", (10, 10), 77)

    x = processor(tmp_path, {}, datatype="UINT8").preprocess(png(image))["x"]

    assert x.dtype == np.uint8
    assert np.unique(x).tolist() == [77]


def test_crop_keeps_proportions_and_takes_the_centre(tmp_path: Path) -> None:
    """The shorter edge is resized to the edge, then the centre is cut out, as in two steps."""
    image = photo(301, 200)
    resized = image.resize((96 * 301 // 200, 96), Image.Resampling.BICUBIC)
    left = (resized.width - 80) // 2
    reference = np.asarray(resized.crop((left, 8, left + 80, 88)), np.float64) / 255

    options = {"resize": "crop", "edge": 96, "resample": "bicubic"}
    x = processor(tmp_path, options, (-1, 3, 80, 80)).preprocess(png(image))["x"]

    np.testing.assert_allclose(x[0].transpose(1, 2, 0), reference, atol=1e-6)


@pytest.mark.parametrize(("margin", "first"), [("floor", 1), ("round", 2)])
def test_the_centre_of_odd_margins_is_where_the_library_has_it(tmp_path: Path, margin: str, first: int) -> None:
    """Three columns are left out: transformers leaves one before, torchvision and timm two."""
    columns = Image.fromarray(np.tile(np.arange(11, dtype=np.uint8), (8, 1)))

    x = processor(tmp_path, {"resize": "crop", "crop_margin": margin}, (-1, 1, 8, 8)).preprocess(png(columns))["x"]

    assert np.rint(x[0, 0, 0] * 255).tolist() == list(range(first, first + 8))


@pytest.mark.parametrize(("source", "before"), [("transformers", 2), ("timm", 1)])
def test_pictures_smaller_than_the_cut_are_padded(tmp_path: Path, source: str, before: int) -> None:
    """With black, or where timm has borders with the mean; an odd column goes where the library has it."""
    if source == "timm":
        config = {"input_size": [3, 8, 8], "crop_mode": "border", "crop_pct": 1.0, "mean": [0.2] * 3, "std": [1.0] * 3}
        write(tmp_path, "config.json", {"pretrained_cfg": config})
    else:
        config = {"do_resize": False, "do_center_crop": True, "crop_size": 8}
        write(tmp_path, "preprocessor_config.json", config)

    x = processor(tmp_path, {}, (-1, 3, 8, 8)).preprocess(png(Image.new("RGB", (5, 8), "white")))["x"]

    white = 1.0 - (0.2 if source == "timm" else 0.0)
    assert np.flatnonzero(np.isclose(x[0, 0, 4], white)).tolist() == list(range(before, before + 5))
    np.testing.assert_allclose(x[0, 0, 4, [0, 7]], 0.0, atol=1e-6)


def test_very_long_pictures_stay_small(tmp_path: Path) -> None:
    """Resized to its shorter edge, this one would have 200 million pixels; they never exist."""
    x = processor(tmp_path, {"resize": "crop"}, (-1, 1, 64, 64)).preprocess(png(Image.new("L", (50_000, 1), 9)))["x"]

    assert x.shape == (1, 1, 64, 64)
    assert np.unique(np.rint(x * 255)).tolist() == [9.0]


def test_vit_files_are_understood(tmp_path: Path) -> None:
    """Height, width, filter, mean and std come from preprocessor_config.json."""
    config = {
        "do_resize": True,
        "size": {"height": 32, "width": 40},
        "resample": 3,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.25, 0.25, 0.25],
    }
    write(tmp_path, "preprocessor_config.json", config)

    settings = processor(tmp_path, {}, (-1, 3, -1, -1)).settings

    assert (settings.size, settings.resized, settings.resize) == ((32, 40), (32, 40), "squash")
    assert settings.resample == Image.Resampling.BICUBIC
    assert (settings.mean, settings.std) == ((0.5,) * 3, (0.25,) * 3)


CROP_256 = {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}}


@pytest.mark.parametrize(
    ("config", "size", "resize", "resized"),
    [
        ({"size": 224}, (224, 224), "squash", (224, 224)),
        (CROP_256, (224, 224), "crop", (256, 256)),
        ({"image_processor_type": "CLIPImageProcessor", "size": 256}, (224, 224), "crop", (256, 256)),
        ({"feature_extractor_type": "DeiTFeatureExtractor", "size": 256}, (224, 224), "squash", (256, 256)),
        ({"image_processor_type": "DeiTImageProcessorFast", "crop_size": None}, (224, 224), "squash", (256, 256)),
        ({**CROP_256, "size": {"height": 256, "width": 256}}, (224, 224), "squash", (256, 256)),
        ({"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "crop_pct": 0.875},
         (224, 224), "crop", (256, 256)),
        ({"image_processor_type": "ConvNextImageProcessor"}, (384, 384), "squash", (384, 384)),
        ({"image_processor_type": "ConvNextImageProcessor", "size": 224, "crop_pct": None},
         (224, 224), "crop", (256, 256)),
        ({"image_processor_type": "PoolFormerImageProcessor"}, (224, 224), "crop", (248, 248)),
        ({"image_processor_type": "LevitImageProcessor"}, (224, 224), "crop", (256, 256)),
        ({"image_processor_type": "MobileViTImageProcessor"}, (256, 256), "crop", (224, 224)),
        ({"image_processor_type": "PPLCNetImageProcessor"}, (224, 224), "cover", (256, 256)),
        ({"image_processor_type": "PerceiverImageProcessor"}, (224, 224), "part", (256, 256)),
        ({"do_resize": False, "do_center_crop": True, "crop_size": 64}, (64, 64), "keep", (64, 64)),
    ],
)  # fmt: skip
def test_the_ways_hugging_face_says_size(
    tmp_path: Path, config: dict[str, Any], size: tuple[int, int], resize: str, resized: tuple[int, int]
) -> None:
    """Each class of image processors has its own."""
    write(tmp_path, "preprocessor_config.json", config)

    settings = processor(tmp_path, {}, (-1, 3, -1, -1)).settings

    assert (settings.size, settings.resize, settings.resized) == (size, resize, resized)


@pytest.mark.parametrize(
    ("config", "red"),
    [
        ({"image_processor_type": "ViTImageProcessor"}, [1, -1, -1]),
        ({"image_processor_type": "ViTImageProcessor", "do_normalize": False}, [1, 0, 0]),
        ({"image_processor_type": "EfficientNetImageProcessor"}, [2, -2, -2]),
        ({"image_processor_type": "EfficientNetImageProcessor", "include_top": False}, [1, -1, -1]),
        ({"image_processor_type": "EfficientNetImageProcessor", "include_top": False, "do_normalize": False,
          "rescale_offset": True, "rescale_factor": 1 / 127.5}, [1, -1, -1]),
        ({"image_processor_type": "MobileViTImageProcessor", "do_normalize": True, "image_mean": [0.5] * 3}, [0, 0, 1]),
        ({"image_processor_type": "MobileViTImageProcessor", "do_flip_channel_order": False}, [1, 0, 0]),
        ({"do_rescale": False, "size": 8}, [255, 0, 0]),
        ({"size": 8}, [1, 0, 0]),
        ({"size": 8, "image_mean": [0.5], "image_std": 0.25}, [2, -2, -2]),
    ],
)  # fmt: skip
def test_red_becomes_what_the_class_makes_of_it(tmp_path: Path, config: dict[str, Any], red: list[float]) -> None:
    """Keys that the file leaves out are the class's defaults; a class follows its own keys only."""
    write(tmp_path, "preprocessor_config.json", {"size": {"height": 8, "width": 8}, "do_center_crop": False, **config})

    x = processor(tmp_path, {}, (-1, 3, -1, -1)).preprocess(png(Image.new("RGB", (10, 10), "red")))["x"]

    np.testing.assert_allclose(x[0, :, 4, 4], red, atol=1e-6)


@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
@pytest.mark.parametrize(
    ("config", "model", "problem"),
    [
        ({"image_processor_type": "ViTImageProcessor", "sharpen": 2}, {}, "sharpen: not understood (its value is 2)"),
        ({"image_processor_type": "ViTImageProcessor", "do_pad": True}, {}, "do_pad: True is not supported"),
        ({"image_processor_type": "NewImageProcessor"}, {}, "image_processor_type: NewImageProcessor is not supported"),
        ({"image_processor_type": "TextNetImageProcessorFast"}, {}, "makes pictures of varying size"),
        ({"size": 8}, {"model_type": "imagegpt"}, "it makes numbers of colours"),
        ({"size": 8}, {"model_type": "new"}, "must name the class: that of model_type new is not known"),
        ({"image_processor_type": "ViTImageProcessor", "size": {"longest_edge": 9}}, {}, "size: {'longest_edge': 9}"),
        ({"size": {"shortest_edge": 9}}, {}, "without do_center_crop gives every picture its own size"),
        ({"do_resize": False}, {}, "do_resize: false without do_center_crop leaves pictures as large as they come"),
        ({"size": 9, "do_center_crop": True, "crop_size": 8}, {}, "write shortest_edge"),
        ({"size": 8, "crop_pct": 0.9}, {}, "name the class"),
        ({"size": [1, 2, 3]}, {}, "size: [1, 2, 3]"),
        ({"size": 8, "do_center_crop": True, "crop_size": "all"}, {}, "crop_size: 'all' is not a number"),
        ({"image_mean": ["x"]}, {}, "image_mean: ['x'] must be a number"),
        ({"image_std": [0.0], "image_mean": 0}, {}, "image_std: [0.0] must be positive"),
        ({"do_normalize": True}, {}, "image_mean: None must be a number"),
        ({"do_normalize": "yes"}, {}, "do_normalize: 'yes' must be true or false"),
        ({"rescale_factor": 0}, {}, "rescale_factor: 0 must be a positive number"),
        ({"resample": 99}, {}, "resample: 99 is no filter: 0 is nearest"),
        ({"image_processor_type": "PPLCNetImageProcessor", "resample": 0}, {}, "resample: 0 is not supported"),
        ({"image_processor_type": "PPLCNetImageProcessor", "do_resize": False}, {}, "do_resize: false is not"),
        ({"image_processor_type": "PerceiverImageProcessor", "size": 300}, {}, "at most those of crop_size"),
        ({"image_processor_type": "ConvNextImageProcessor", "size": [9, 9]}, {}, "takes shortest_edge only"),
        ({"image_processor_type": "ConvNextImageProcessor", "size": 64, "do_center_crop": True, "crop_size": 48}, {},
         "crop_size: 48 would cut a second time"),
    ],
)  # fmt: skip
def test_files_that_are_not_understood_are_refused_at_the_start(
    tmp_path: Path, file: str, config: dict[str, Any], model: dict[str, Any], problem: str
) -> None:
    """The line names file and key."""
    write(tmp_path, file, {"image_processor": config} if file == "processor_config.json" else config)
    write(tmp_path, "config.json", model)

    with pytest.raises(ConfigError) as raised:
        processor(tmp_path, {}, (-1, 3, -1, -1))

    assert raised.value.problems[0].startswith(f"{file}: ")
    assert problem in raised.value.problems[0]


def test_the_configuration_says_what_a_file_cannot(tmp_path: Path) -> None:
    """Another class with its defaults, keys that do not matter, and a size for pictures that would have none."""
    write(
        tmp_path, "preprocessor_config.json", {"image_processor_type": "NewOne", "sharpen": 2, "size": {"longest": 1}}
    )
    options = {"image_processor": "ViTImageProcessor", "ignore_keys": ["sharpen"], "resize": "crop", "size": 16}

    settings = processor(tmp_path, options, (-1, 3, -1, -1)).settings

    assert (settings.size, settings.resize, settings.resized, settings.mean) == ((16, 16), "crop", (16, 16), (0.5,) * 3)
    with pytest.raises(ConfigError, match=r"processor\.image_processor: Vit is not supported; BeitImageProcessor, "):
        processor(tmp_path, {"image_processor": "Vit"}, (-1, 3, -1, -1))


def test_the_mean_is_not_guessed(tmp_path: Path) -> None:
    """A model of transformers without its preprocessor_config.json needs one; one that takes bytes does not."""
    write(tmp_path, "config.json", {"model_type": "vit"})

    with pytest.raises(ConfigError, match=r"^preprocessor_config\.json: is missing, and the mean and std of vit"):
        processor(tmp_path, {}, (-1, 3, 8, 8))
    processor(tmp_path, {"mean": 0.5, "std": 0.5}, (-1, 3, 8, 8))
    processor(tmp_path, {}, (-1, 3, 8, 8), "UINT8")


@pytest.mark.parametrize(
    ("files", "options", "channels"),
    [
        ({"preprocessor_config.json": {"image_processor_type": "ViTImageProcessor"}}, {}, 3),
        ({"preprocessor_config.json": {"image_processor_type": "ViTImageProcessor", "image_mean": [0.5],
                                       "image_std": [0.5]}, "config.json": {"num_channels": 1}}, {}, 1),
        ({"config.json": {"pretrained_cfg": {"input_size": [1, 224, 224], "mean": [0.5], "std": [0.5]}}}, {}, 1),
        ({}, {"layout": "NCHW", "mean": [0.5, 0.5, 0.5], "size": 224}, 3),
    ],
)  # fmt: skip
def test_axes_that_are_all_free_are_found_in_the_files(
    tmp_path: Path, files: dict[str, Any], options: dict[str, Any], channels: int
) -> None:
    """Exporters may declare no size at all; the libraries know channels first only."""
    for name, content in files.items():
        write(tmp_path, name, content)

    settings = processor(tmp_path, options, (-1, -1, -1, -1)).settings

    assert (settings.layout, settings.channels, settings.size) == ("NCHW", channels, (224, 224))


TIMM = {"input_size": [3, 64, 64], "crop_pct": 0.9, "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.5]}


@pytest.mark.parametrize(
    ("changes", "shape", "resize", "resized", "size"),
    [
        ({}, (-1, 3, -1, -1), "crop", (71, 71), (64, 64)),
        ({"crop_mode": "squash"}, (-1, 3, -1, -1), "squash", (71, 71), (64, 64)),
        ({"crop_mode": "border", "crop_pct": None}, (-1, 3, -1, -1), "pad", (73, 73), (64, 64)),
        ({"input_size": [3, 64, 48]}, (-1, 3, -1, -1), "cover", (71, 53), (64, 48)),
        ({"test_input_size": [3, 80, 80], "test_crop_pct": 1.0}, (-1, 3, 80, 80), "crop", (80, 80), (80, 80)),
        ({"test_input_size": [3, 80, 80], "test_crop_pct": 1.0}, (-1, 3, -1, -1), "crop", (71, 71), (64, 64)),
    ],
)
def test_timm_s_folders_are_understood(
    tmp_path: Path,
    changes: dict[str, Any],
    shape: tuple[int, ...],
    resize: str,
    resized: tuple[int, int],
    size: tuple[int, int],
) -> None:
    """All is in config.json, the names of the classes, too."""
    write(tmp_path, "config.json", {"label_names": ["a", "b", "c"], "pretrained_cfg": TIMM | changes})

    made = processor(tmp_path, {}, shape)

    settings = made.settings
    assert (settings.resize, settings.resized, settings.size) == (resize, resized, size)
    assert (settings.margin, settings.mean, settings.resample) == ("round", (0.1, 0.2, 0.3), Image.Resampling.BICUBIC)
    assert made.labels == ("a", "b", "c")


@pytest.mark.parametrize(
    ("pretrained", "problem"),
    [
        ({"sharpen": 2}, "sharpen: not understood"),
        ({"interpolation": "random"}, "interpolation: 'random' is not supported"),
        ({"crop_mode": "corner"}, "crop_mode: 'corner' is not supported"),
        ({"input_size": [64, 64]}, "input_size, test_input_size: [[64, 64], [64, 64]] must be channels"),
        ({"test_input_size": 80}, "input_size, test_input_size: [[3, 224, 224], 80] must be channels"),
        ({"crop_pct": "all"}, "crop_pct: 'all' must be a positive number"),
        ({"mean": 0.5}, "mean: 0.5 must be one number per channel"),
    ],
)
def test_timm_s_settings_that_are_not_understood_are_refused(
    tmp_path: Path, pretrained: dict[str, Any], problem: str
) -> None:
    """With the file and the key."""
    write(tmp_path, "config.json", {"pretrained_cfg": pretrained})

    with pytest.raises(ConfigError) as raised:
        processor(tmp_path, {}, (-1, 3, -1, -1))

    assert raised.value.problems[0].startswith(f"config.json: pretrained_cfg: {problem}")


def test_two_files_that_say_it_are_one_too_many(tmp_path: Path) -> None:
    """The libraries do not agree on which counts; the configuration says it."""
    write(tmp_path, "config.json", {"pretrained_cfg": TIMM})
    write(tmp_path, "preprocessor_config.json", {"image_processor_type": "ViTImageProcessor"})

    with pytest.raises(ConfigError, match=r"^preprocessor_config\.json: config\.json has timm's pretrained_cfg, too"):
        processor(tmp_path, {}, (-1, 3, -1, -1))
    vit, timm = (
        processor(tmp_path, {"image_processor": name}, (-1, 3, -1, -1)).settings
        for name in ("ViTImageProcessor", "TimmWrapperImageProcessor")
    )

    assert (vit.size, timm.size) == ((224, 224), (64, 64))


def test_names_of_classes_may_be_numbered(tmp_path: Path) -> None:
    """As timm writes them if there are gaps, which are refused."""
    write(tmp_path, "config.json", {"pretrained_cfg": TIMM, "label_names": {"1": "b", "0": "a", "2": "c"}})
    assert processor(tmp_path, {}, (-1, 3, -1, -1)).labels == ("a", "b", "c")

    write(tmp_path, "config.json", {"pretrained_cfg": TIMM, "label_names": {"1": "b", "0": "a", "3": "c"}})
    with pytest.raises(ConfigError, match=r"^config\.json: label_names: must be a list"):
        processor(tmp_path, {}, (-1, 3, -1, -1))


def test_what_was_understood_is_noted_with_its_source(tmp_path: Path) -> None:
    """File and key, the class's default, the configuration or the model."""
    write(tmp_path, "preprocessor_config.json", {"image_processor_type": "ViTImageProcessor", "size": 32})
    folder = ModelFolder(tmp_path)

    create_processor("image-classification", signature((-1, 3, 32, 32)), folder, {"resample": "box"})

    facts = {name: (value, source) for name, value, source in folder.facts}
    assert facts["size"] == ("32 x 32", "preprocessor_config.json: size")
    assert facts["mean"] == ("0.5, 0.5, 0.5", "default of ViTImageProcessor")
    assert facts["resample"] == ("box", "processor.resample")
    assert facts["layout"] == ("NCHW", "model")
    assert facts["channel order"] == ("RGB", "default of ViTImageProcessor")


def test_options_win_over_files(tmp_path: Path) -> None:
    """What the configuration says is final."""
    write(tmp_path, "preprocessor_config.json", {"size": 224, "image_mean": [0.1] * 3, "image_std": [0.2] * 3})

    settings = processor(tmp_path, {"size": 64, "mean": 0.5, "std": [0.5, 0.6, 0.7]}, (-1, 3, -1, -1)).settings

    assert settings.size == (64, 64)
    assert (settings.mean, settings.std) == ((0.5,) * 3, (0.5, 0.6, 0.7))


@pytest.mark.parametrize(
    ("options", "shape", "problem"),
    [
        ({"mean": [0.1, 0.2, 0.3]}, DIGITS, "processor.mean: 3 values, but the model takes 1 channel"),
        ({"std": [0.1]}, (-1, 3, 8, 8), "processor.std: 1 values, but the model takes 3 channels"),
        ({"size": 32}, DIGITS, "processor.size: size 32 x 32, but the model takes x FP32 (?, 1, 28, 28)"),
        ({}, (-1, 3, -1, -1), "processor.size: x FP32 (?, 3, ?, ?) takes pictures of any size; say which"),
        ({}, (-1, -1, -1, -1), "processor.layout: say NCHW or NHWC; x FP32 (?, ?, ?, ?) does not tell"),
        ({"layout": "NHWC"}, DIGITS, "processor.layout: as NHWC, x FP32 (?, 1, 28, 28) has not 1 or 3 channels"),
        ({"resize": "crop", "edge": 20}, DIGITS, "processor.edge: 20 is too short to cut 28 x 28 pixels out of"),
        ({"resize": "squash", "edge": 20}, DIGITS, "processor.edge: only resize: crop has an edge"),
        ({"labels": ["a", "b"]}, DIGITS, "processor.labels: 2 labels, but output logits has 3 classes"),
        ({"labels": "names.txt"}, DIGITS, "processor.labels: there is no file names.txt in the model's folder"),
        ({"output": "y"}, DIGITS, "processor.output: the model has no output y; it has logits"),
        (
            {},
            (-1, 784),
            "processor: an image model takes one float or UINT8 tensor of 4 axes; this one takes x FP32 (?, 784)",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_refused_at_the_start(
    tmp_path: Path, options: dict[str, Any], shape: tuple[int, ...], problem: str
) -> None:
    """One readable line says where and why."""
    with pytest.raises(ConfigError) as raised:
        processor(tmp_path, options, shape)

    assert raised.value.problems == (problem,)


def test_the_answer_is_hugging_face_s(tmp_path: Path) -> None:
    """Labels with scores, best first, at most top_k of them."""
    made = processor(tmp_path, {"labels": ["cat", "dog", "bird"]})
    payload = png(photo(20, 20), top_k=2)

    answer = made.postprocess(payload, {"logits": np.log(np.array([[0.2, 0.7, 0.1]], np.float32))})

    assert [entry["label"] for entry in answer] == ["dog", "cat"]
    assert [entry["score"] for entry in answer] == pytest.approx([0.7, 0.2])
    json.dumps(answer)


def test_estimating_does_not_decode(tmp_path: Path) -> None:
    """Even a body that is no picture costs one row: what it is, the replica finds out."""
    assert processor(tmp_path).estimate(Media(b"no picture", "", {})) == Cost(1, 0)


@pytest.mark.parametrize(
    ("payload", "error", "message"),
    [
        (Media(b"", "image/png", {}), InvalidRequest, "the image is empty: 0 bytes came"),
        (Media(b"x", "text/plain", {}), UnsupportedMedia, "this model takes image, and got text/plain: send"),
        (Media(b"x", "audio/wav", {}), UnsupportedMedia, "this model takes image, and got audio/wav: send"),
        (Texts(["x"], {}), UnsupportedMedia, "this model takes image, and got text: send"),
        (Media(b"x", "", {"top_k": 0}), InvalidRequest, "parameters.top_k: expected `int` >= 1"),
        (Media(b"x", "", {"topk": 1}), InvalidRequest, "parameters.topk: unknown; did you mean top_k?"),
    ],
)
def test_what_can_be_seen_at_a_glance_is_refused_at_once(
    tmp_path: Path, payload: Media | Texts, error: type[InvalidRequest], message: str
) -> None:
    """Before it is queued, and again by who decodes it."""
    made = processor(tmp_path)
    for method in (made.estimate, made.preprocess):
        with pytest.raises(error) as raised:
            method(payload)
        assert type(raised.value) is error
        assert raised.value.message.startswith(message)


def test_the_pixel_limit_is_configured(tmp_path: Path) -> None:
    """A smaller limit refuses smaller pictures."""
    with pytest.raises(PayloadTooLarge, match="the image/png is 20 x 10 = 200 pixels: at most 100 are decoded"):
        processor(tmp_path, {"max_pixels": 100}).preprocess(png(photo(20, 10)))


def test_large_jpegs_give_what_small_decoding_steps_give(tmp_path: Path) -> None:
    """Decoding a photograph smaller than it is changes no pixel of the result by more than a few levels."""
    image = photo(1600, 1200)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95)
    reference = np.asarray(Image.open(file).convert("L").resize((28, 28), Image.Resampling.BILINEAR), np.float64)

    small, whole = (
        processor(tmp_path, options).preprocess(Media(file.getvalue(), "image/jpeg", {}))["x"][0, 0] * 255
        for options in ({"reducing_gap": 2}, {})
    )

    assert np.abs(small - reference).max() <= 3
    np.testing.assert_allclose(whole, reference, atol=1e-4)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("resize", ["squash", "crop"])
def test_a_jpeg_decoded_smaller_keeps_its_place(tmp_path: Path, resize: str, orientation: int) -> None:
    """The last column reaches over the edge if that is no multiple of the step: nothing moves, however turned."""
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo(121, 345).save(file, "JPEG", quality=95, exif=exif.tobytes())
    media = Media(file.getvalue(), "image/jpeg", {})

    small, whole = (
        processor(tmp_path, {"resize": resize, "reducing_gap": gap}, (-1, 3, 7, 7)).preprocess(media)["x"]
        for gap in (2, 0)
    )

    assert np.abs(small - whole).max() * 255 <= 3


@pytest.mark.parametrize("size", [32, 64, 100, 128, 224])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_real_photograph_decoded_smaller_stays_close(tmp_path: Path, channels: int, size: int) -> None:
    """At most 1.5 levels of 255 from every pixel decoded, on average: what the documentation promises."""
    photograph = Path(mpl.get_data_path(), "sample_data", "grace_hopper.jpg")
    media = Media(photograph.read_bytes(), "image/jpeg", {})

    small, whole = (
        processor(tmp_path, {"reducing_gap": gap}, (-1, channels, size, size)).preprocess(media)["x"] for gap in (2, 0)
    )

    assert np.abs(small - whole).mean() * 255 <= 1.5


@pytest.mark.parametrize("dtype", ["FP32", "FP16", "FP64", "UINT8"])
def test_every_level_is_normalized_exactly(tmp_path: Path, dtype: str) -> None:
    """Whatever the type of the input: as exact arithmetic, rounded to what the type can hold."""
    levels = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    options = {"mean": 0.485, "std": 0.229} if dtype != "UINT8" else {"scale": 0.5, "mean": -3.0}
    exact = (np.arange(256.0) / 255 - 0.485) / 0.229 if dtype != "UINT8" else np.rint(np.arange(256) * 0.5 + 3.0)

    x = processor(tmp_path, options, (-1, 1, 16, 16), dtype).preprocess(png(levels))["x"]

    precision = {"FP32": 1e-6, "FP16": 2e-3, "FP64": 1e-12, "UINT8": 0.0}[dtype]
    np.testing.assert_allclose(x.ravel().astype(np.float64), exact, rtol=0, atol=precision)


@pytest.mark.parametrize("gap", [0.5, -1, 65])
def test_a_reducing_gap_that_would_enlarge_is_refused(tmp_path: Path, gap: float) -> None:
    """Below 1, pictures would be decoded smaller than the model takes them."""
    with pytest.raises(ConfigError, match=r"processor\.reducing_gap"):
        processor(tmp_path, {"reducing_gap": gap})


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_clients_own_tensors_are_no_larger_than_pictures(tmp_path: Path, layout: str) -> None:
    """A model that takes any size was measured for one."""
    shape = (-1, 3, -1, -1) if layout == "NCHW" else (-1, -1, -1, 3)
    made = processor(tmp_path, {"size": [20, 24]}, shape)

    def tensors(height: int, width: int) -> Tensors:
        planes = np.zeros((2, 3, height, width), np.float32)
        return {"x": planes if layout == "NCHW" else planes.transpose(0, 2, 3, 1)}

    assert [made.bucket(tensors(20, 24)), made.bucket(tensors(4, 4))] == [0, 0]
    for height, width in ((21, 24), (20, 25)):
        with pytest.raises(
            InvalidRequest, match=f"'x' has {height} x {width} pixels; this model takes at most 20 x 24"
        ):
            made.bucket(tensors(height, width))
    with pytest.raises(InvalidRequest, match="input 'x' is missing"):
        made.bucket({})
    with pytest.raises(InvalidRequest, match=rf"input 'x' has shape \[1, 3\]; expected {layout}"):
        made.bucket({"x": np.zeros((1, 3), np.float32)})
