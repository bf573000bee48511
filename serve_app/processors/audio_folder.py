"""Reads a folder's audio settings: preprocessor_config.json with the defaults of its class.

Facts of transformers 5.24: ``feature_extraction_wav2vec2.py``, ``feature_extraction_audio_spectrogram_transformer.py``,
``feature_extraction_whisper.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from serve_app.config.problems import short_repr
from serve_app.errors import ConfigError
from serve_app.processors.folder_keys import FolderKey, check_keys, followed, irrelevant, keys, limited
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.spectrogram import KaldiFilterBank, WhisperSpectrogram

_COMMON: Final[Mapping[str, FolderKey]] = {
    "feature_extractor_type": followed("the class, whose defaults hold"),
    "sampling_rate": followed("samples per second", float),
    "do_normalize": followed("whether sounds are brought to mean 0 and variance 1", bool),
    "auto_map": limited("an extractor that is code of the folder"),
    "padding_side": followed(
        "must be right where the model takes one length; else silence is added only where that"
        " changes no answer, which is tried",
        str,
    ),
    "padding_value": followed("must be 0 where the model takes one length", float),
    **keys("return_attention_mask model_input_names", irrelevant("the model's file names its inputs")),
    **keys("processor_class image_processor_type tokenizer_class transformers_version", irrelevant("other parts")),
}
_WAVEFORM: Final = {**_COMMON, "feature_size": limited("values per sample", 1)}
KEYS: Final[Mapping[str, Mapping[str, FolderKey]]] = {
    "": _WAVEFORM,
    "Wav2Vec2": _WAVEFORM,
    "AST": {
        **_COMMON,
        "feature_size": irrelevant("not used"),
        "num_mel_bins": followed("mel bins", int),
        "max_length": followed("frames: longer sounds are cut off", int),
        "mean": followed("subtracted from the spectrogram", float),
        "std": followed("divides it, twice", float),
    },
    "Whisper": {
        **_COMMON,
        "feature_size": followed("mel bins", int),
        "hop_length": followed("samples from one frame to the next", int),
        "chunk_length": followed("seconds: longer sounds are cut off", int),
        "n_fft": followed("samples of a frame", int),
        "dither": limited("noise", 0.0, 0),
        "do_normalize": irrelevant("the class does not look at it"),
        **keys("n_samples nb_max_frames mel_filters", irrelevant("follows from the other keys")),
    },
}
"""Keys of preprocessor_config.json by class; the empty one is for files that name none."""

_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "": {"do_normalize": False},
    "Wav2Vec2": {"sampling_rate": 16_000, "do_normalize": True},
    "AST": {
        "sampling_rate": 16_000, "num_mel_bins": 128, "max_length": 1024, "do_normalize": True,
        "mean": -4.2677393, "std": 4.5689974,
    },
    "Whisper": {
        "sampling_rate": 16_000, "feature_size": 80, "hop_length": 160, "chunk_length": 30, "n_fft": 400,
        "do_normalize": False,
    },
}  # fmt: skip
_CLASS_OF_MODEL: Final = {
    "wav2vec2": "Wav2Vec2", "wav2vec2-conformer": "Wav2Vec2", "hubert": "Wav2Vec2", "wavlm": "Wav2Vec2",
    "unispeech": "Wav2Vec2", "unispeech-sat": "Wav2Vec2", "data2vec-audio": "Wav2Vec2", "sew": "Wav2Vec2",
    "sew-d": "Wav2Vec2",
    "audio-spectrogram-transformer": "AST",
    "whisper": "Whisper",
}  # fmt: skip
"""The class of a model type, where the file names none."""

Spectrogram = KaldiFilterBank | WhisperSpectrogram


@dataclass(frozen=True, slots=True)
class AudioFolder:
    """A folder's audio settings.

    Attributes:
        file: Their source.
        rate: Samples per second, if given.
        normalize: Whether to scale audio to mean 0 and variance 1; spectrograms do so themselves.
        padded_otherwise: A key, with its file, that requires other padding than trailing zeros, if any.
        spectrogram: Makes features from audio; ``None``: the samples are the input.
    """

    file: str
    rate: int | None
    normalize: bool
    padded_otherwise: str | None = None
    spectrogram: Spectrogram | None = None


def read_audio_folder(folder: ModelFolder, ignored: Collection[str]) -> AudioFolder:
    """Read the settings. Raises `ConfigError` for an unknown class, key or value."""
    file, found = folder.preprocessor("feature_extractor")
    config = found or {}
    named = config.get("feature_extractor_type")
    if named is None and "image_processor_type" in config:
        raise ConfigError((f"{file}: is of an image processor, {short_repr(config['image_processor_type'])}",))
    kind = folder.json("config.json").get("model_type")
    name = named.removesuffix("FeatureExtractor") if isinstance(named, str) else _CLASS_OF_MODEL.get(str(kind), "")
    if name not in KEYS:
        known = ", ".join(f"{each}FeatureExtractor" for each in KEYS if each)
        raise ConfigError((f"{file}: feature_extractor_type: {str(named)[:60]} is not supported, only {known}",))
    check_keys(file, config, KEYS[name], ignored)
    settings = {**_DEFAULTS[name], **{key: value for key, value in config.items() if value is not None}}
    source = f"{file}: feature_extractor_type" if named else f"config.json: model_type {kind}" if name else "default"
    folder.note("feature extractor", name or "none", source)
    if isinstance(settings.get("sampling_rate"), float) and settings["sampling_rate"].is_integer():
        settings["sampling_rate"] = int(settings["sampling_rate"])
    rate, normalize = settings.get("sampling_rate"), bool(settings["do_normalize"])
    if rate is not None and (not isinstance(rate, int) or not 1_000 <= rate <= 384_000):
        raise ConfigError((f"{file}: sampling_rate {rate!r} is not between 1000 and 384000",))
    try:
        spectrogram = _MAKERS[name](settings) if name in _MAKERS else None
    except (TypeError, ValueError) as error:
        raise ConfigError((f"{file}: cannot be understood: {error}",)) from error
    side, value = config.get("padding_side"), config.get("padding_value")
    odd = "padding_side" if side not in {None, "right"} else "padding_value" if value else None
    return AudioFolder(
        file, rate, normalize and spectrogram is None, odd and f"{file}: {odd}: {short_repr(config[odd])}", spectrogram
    )


def shortest_sound(folder: ModelFolder) -> int:
    """The samples that convolutions of wav2vec2 and similar models need for one frame; 1 for other models."""
    config = folder.json("config.json")
    kernels, strides = config.get("conv_kernel"), config.get("conv_stride")
    least = 1
    if isinstance(kernels, list) and isinstance(strides, list):
        for kernel, stride in reversed(list(zip(kernels, strides, strict=False))):
            if not isinstance(kernel, int) or not isinstance(stride, int):
                return 1
            least = (least - 1) * stride + kernel
    return least


def _kaldi(found: Mapping[str, Any]) -> Spectrogram:
    mean, std = (float(found["mean"]), float(found["std"])) if found["do_normalize"] else (0.0, 0.5)
    if not (isfinite(mean) and isfinite(std) and std > 0):
        raise ValueError(f"mean {mean} and std {std} must be finite, and std above 0")
    return KaldiFilterBank(
        found["sampling_rate"], _size(found, "num_mel_bins", 512), _size(found, "max_length", 100_000), mean, std
    )


def _whisper(found: Mapping[str, Any]) -> Spectrogram:
    return WhisperSpectrogram(
        rate=found["sampling_rate"],
        bins=_size(found, "feature_size", 512),
        seconds=_size(found, "chunk_length", 600),
        window=_size(found, "n_fft", 8_000, 2),
        hop=_size(found, "hop_length", _size(found, "n_fft", 8_000, 2)),
    )


def _size(found: Mapping[str, Any], key: str, most: int, least: int = 1) -> int:
    value = found[key]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{key} must be a whole number from {least} to {most}, not {value!r}")
    return value


_MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Spectrogram]]] = {"AST": _kaldi, "Whisper": _whisper}
