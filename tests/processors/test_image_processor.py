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

    assert np.abs(x[0].transpose(1, 2, 0) - reference).max() <= 1.01 / 255


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


@pytest.mark.parametrize(
    ("config", "size", "resize", "resized"),
    [
        ({"size": 224}, (224, 224), "squash", (224, 224)),
        ({"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
         (224, 224), "crop", (256, 256)),
        ({"size": 256, "do_center_crop": True, "crop_size": 224}, (224, 224), "crop", (256, 256)),
        ({"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
         (224, 224), "squash", (256, 256)),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, (224, 224), "crop", (256, 256)),
        ({"size": {"shortest_edge": 384}, "crop_pct": None}, (384, 384), "squash", (384, 384)),
        ({"size": {"shortest_edge": 224}, "crop_pct": None}, (224, 224), "crop", (256, 256)),
    ],
)  # fmt: skip
def test_the_ways_hugging_face_says_size(
    tmp_path: Path, config: dict[str, Any], size: tuple[int, int], resize: str, resized: tuple[int, int]
) -> None:
    """ViT, ResNet, CLIP, MobileNet and ConvNeXT each say it differently."""
    write(tmp_path, "preprocessor_config.json", config)

    settings = processor(tmp_path, {}, (-1, 3, -1, -1)).settings

    assert (settings.size, settings.resize, settings.resized) == (size, resize, resized)


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


@pytest.mark.parametrize(
    "config",
    [{"image_mean": ["x"]}, {"image_std": [0.0]}, {"resample": 99}, {"size": {"longest_edge": 3}}, {"size": [1, 2, 3]}],
)
def test_files_that_make_no_sense_are_refused_at_the_start(tmp_path: Path, config: dict[str, Any]) -> None:
    """The line names the file."""
    write(tmp_path, "preprocessor_config.json", config)

    with pytest.raises(ConfigError, match=r"^preprocessor_config\.json: cannot be understood"):
        processor(tmp_path, {}, (-1, 1, 28, 28))


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

    x = processor(tmp_path).preprocess(Media(file.getvalue(), "image/jpeg", {}))["x"]

    assert np.abs(x[0, 0] * 255 - reference).max() <= 3


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
