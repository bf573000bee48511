"""Sounds become the tensors that a model was trained on."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from serve_app.errors import ConfigError, InvalidRequest, UnsupportedMedia
from serve_app.payloads import Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors import create_processor
from serve_app.processors.audio import AudioProcessor
from serve_app.processors.processor import Cost

RATE = 16_000
WAVEFORM = TensorSpec("waveform", "FP32", (-1, -1))
LENGTH = TensorSpec("length", "INT64", (-1,))
MASK = TensorSpec("attention_mask", "INT64", (-1, -1))
LOGITS = (TensorSpec("logits", "FP32", (-1, 3)),)


def processor(
    folder: Path, options: dict[str, Any] | None = None, inputs: tuple[TensorSpec, ...] = (WAVEFORM,)
) -> AudioProcessor:
    """A processor at 16 kHz, unless the options say otherwise."""
    made = create_processor(
        "audio-classification", ModelSignature(inputs, LOGITS), folder, {"sampling_rate": RATE, **(options or {})}
    )
    assert isinstance(made, AudioProcessor)
    return made


def wav(seconds: float, rate: int = RATE, kind: str = "WAV", **parameters: Any) -> Media:
    """Noise, as a client sends it."""
    noise = np.random.default_rng(3).uniform(-0.5, 0.5, round(seconds * rate)).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, noise, rate, format=kind)
    return Media(file.getvalue(), f"audio/{kind.lower()}", parameters)


def test_a_sound_becomes_one_row_and_is_padded_to_its_bucket(tmp_path: Path) -> None:
    """Padding is silence at the end."""
    made = processor(tmp_path)

    tensors = made.preprocess(wav(0.7))
    bucket = made.bucket(tensors)
    padded = made.pad(tensors, bucket)["waveform"]

    assert tensors["waveform"].shape == (1, 11_200)
    assert tensors["waveform"].dtype == np.float32
    assert (bucket, padded.shape) == (12_000, (1, 12_000))
    np.testing.assert_array_equal(padded[:, :11_200], tensors["waveform"])
    assert not padded[:, 11_200:].any()


def test_lengths_and_masks_tell_the_model_where_the_sound_ends(tmp_path: Path) -> None:
    """Padding changes neither the length nor the part of the mask that is set."""
    made = processor(tmp_path, {}, (WAVEFORM, LENGTH, MASK))

    tensors = made.pad(made.preprocess(wav(0.7)), 24_000)

    assert tensors["length"].tolist() == [11_200]
    assert tensors["length"].dtype == np.int64
    assert tensors["attention_mask"].shape == (1, 24_000)
    assert tensors["attention_mask"].sum() == 11_200
    assert tensors["attention_mask"][0, :11_200].all()


def test_the_default_buckets_grow_by_an_eighth_at_most(tmp_path: Path) -> None:
    """From half a second on, in eighths of a doubling; the last one is the longest sound."""
    made = processor(tmp_path)

    seconds = [bucket / RATE for bucket in made.buckets]
    eighths = [(8 + step) / 8 * 2**power for power in range(-1, 6) for step in range(8)]
    assert seconds == [*(each for each in eighths if each < 60), 60]
    assert processor(tmp_path, {"max_seconds": 0.2}).buckets == (3_200,)
    assert processor(tmp_path, {"max_seconds": 2, "buckets": [1.0, 0.25, 9]}).buckets == (4_000, 16_000, 32_000)


def test_estimates_read_headers_only(tmp_path: Path) -> None:
    """Exact for WAV and FLAC, from the size otherwise; garbage costs little and is refused by who decodes it."""
    made = processor(tmp_path)

    assert made.estimate(wav(0.7)) == Cost(1, 12_000)
    assert made.estimate(wav(1.7, 44_100, "FLAC")) == Cost(1, 28_000)
    assert made.estimate(wav(3.0, kind="MP3")).bucket in made.buckets
    assert made.estimate(Media(b"no sound", "", {})) == Cost(1, 8_000)


def test_a_ten_hour_header_is_refused_before_it_is_queued(tmp_path: Path) -> None:
    """The router sees it at a glance."""
    content = bytearray(wav(0.1).content)
    content[40:44] = (36_000 * RATE * 2).to_bytes(4, "little")

    with pytest.raises(InvalidRequest, match="declares 1152000000 bytes of samples, and 3200 came"):
        processor(tmp_path).estimate(Media(bytes(content), "", {}))


def test_normalizing_brings_mean_0_and_variance_1(tmp_path: Path) -> None:
    """As wav2vec models expect; the file beside the model says so."""
    config = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": True, "sampling_rate": 8_000}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    made = processor(tmp_path, {"sampling_rate": None})

    samples = made.preprocess(wav(0.5))["waveform"]

    assert samples.shape == (1, 4_000)
    assert samples.dtype == np.float32
    assert abs(float(samples.mean())) < 1e-4
    assert float(samples.var()) == pytest.approx(1.0, abs=1e-3)


def test_a_clients_own_tensors_have_a_bucket_and_a_limit(tmp_path: Path) -> None:
    """By the longest of samples and mask; what is longer than any sound is refused."""
    inputs = (TensorSpec("x", "FP32", (-1, -1)), TensorSpec("mask", "INT64", (-1, -1)))
    made = processor(tmp_path, {"max_seconds": 2.0}, inputs)

    def tensors(samples: int, mask: int) -> Tensors:
        return {"x": np.zeros((1, samples), np.float32), "mask": np.ones((1, mask), np.int64)}

    assert [made.bucket(tensors(length, length)) for length in (1, 8_001, 32_000)] == [8_000, 9_000, 32_000]
    assert made.bucket(tensors(1, 8_001)) == 9_000
    with pytest.raises(InvalidRequest, match="input 'x' has 32001 samples; this model takes at most 32000"):
        made.bucket(tensors(32_001, 1))
    with pytest.raises(InvalidRequest, match="input 'mask' has 32001 samples"):
        made.bucket(tensors(1, 32_001))


def test_a_model_of_one_length_takes_sounds_up_to_it(tmp_path: Path) -> None:
    """Shorter sounds are padded, longer ones refused, or cut where that is configured."""
    inputs = (TensorSpec("x", "FP32", (-1, 8_000)),)
    made = processor(tmp_path, {}, inputs)

    short = made.preprocess(wav(0.2))
    assert made.buckets == (8_000,)
    assert made.pad(short, made.bucket(short))["x"].shape == (1, 8_000)
    with pytest.raises(InvalidRequest, match=r"the audio is 0\.6 s long, at most 0\.5 s"):
        made.preprocess(wav(0.6))
    assert processor(tmp_path, {"truncate": True}, inputs).preprocess(wav(0.6))["x"].shape == (1, 8_000)


@pytest.mark.parametrize(
    ("options", "inputs", "problem"),
    [
        (
            {"sampling_rate": None},
            (WAVEFORM,),
            "processor.sampling_rate: say how many samples per second the model takes",
        ),
        (
            {"max_seconds": 2},
            (TensorSpec("x", "FP32", (-1, 8_000)),),
            "processor.max_seconds: 2 s, but the model takes 0.5 s of 16000 per second",
        ),
        (
            {"buckets": [1]},
            (TensorSpec("x", "FP32", (-1, 8_000)),),
            "processor.buckets: the model takes one length only, 0.5 s",
        ),
        (
            {},
            (TensorSpec("input_features", "FP32", (-1, 80, 3_000)),),
            (
                "processor: an audio model takes one float tensor (rows, samples), and may take integers (rows,) for"
                " lengths and (rows, samples) for a mask; this one takes input_features FP32 (?, 80, 3000)."
                " Spectrograms are made where preprocessor_config.json names ASTFeatureExtractor or"
                " WhisperFeatureExtractor"
            ),
        ),
    ],
)
def test_what_does_not_fit_the_model_is_refused_at_the_start(
    tmp_path: Path, options: dict[str, Any], inputs: tuple[TensorSpec, ...], problem: str
) -> None:
    """One readable line says where and why."""
    with pytest.raises(ConfigError) as raised:
        processor(tmp_path, options, inputs)

    assert raised.value.problems == (problem,)


@pytest.mark.parametrize(
    ("payload", "error", "message"),
    [
        (Media(b"", "audio/wav", {}), InvalidRequest, "the audio is empty: 0 bytes came"),
        (Media(b"x", "image/png", {}), UnsupportedMedia, "this model takes audio, and got image/png: send"),
        (Texts(["x"], {}), UnsupportedMedia, "this model takes audio, and got text: send"),
        (Media(b"x", "", {"top_k": "3"}), InvalidRequest, "parameters.top_k: expected `int | null`, got `str`"),
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


def test_the_answer_is_hugging_face_s(tmp_path: Path) -> None:
    """Labels with scores, best first."""
    (tmp_path / "labels.txt").write_text("yes\nno\nmaybe\n")
    made = processor(tmp_path)

    answer = made.postprocess(wav(0.1, function_to_apply="none"), {"logits": np.array([[0.5, -1.0, 2.0]], np.float32)})

    assert answer == [
        {"label": "maybe", "score": 2.0},
        {"label": "yes", "score": 0.5},
        {"label": "no", "score": -1.0},
    ]
    assert made.labels == ("yes", "no", "maybe")


def test_sounds_that_are_too_short_for_the_model_are_refused(tmp_path: Path) -> None:
    """By the convolutions of wav2vec2 and its kin."""
    (tmp_path / "config.json").write_text(json.dumps({"conv_kernel": [10, 3], "conv_stride": [5, 2]}))
    made = processor(tmp_path)

    assert made.preprocess(wav(20 / RATE))["waveform"].shape == (1, 20)
    with pytest.raises(InvalidRequest, match="this model needs at least 20"):
        made.preprocess(wav(19 / RATE))


@pytest.mark.parametrize("key", [{"padding_side": "left"}, {"padding_value": 0.7}])
def test_other_padding_than_zeros_at_the_end_is_refused_where_all_sounds_are_padded(
    tmp_path: Path, key: dict[str, Any]
) -> None:
    """A model of any length is padded only where that changes nothing."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(key))
    processor(tmp_path)

    with pytest.raises(ConfigError, match=next(iter(key))):
        processor(tmp_path, {}, (TensorSpec("waveform", "FP32", (-1, 8_000)),))
