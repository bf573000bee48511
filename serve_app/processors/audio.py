"""Classifies audio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.config.processor import AudioOptions
from serve_app.domain.facts import Fact
from serve_app.errors import ConfigError, InvalidRequest
from serve_app.payloads import DTYPES, Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors.audio_decoder import EXAMPLES, MEDIA_TYPES, decode_audio, expected_seconds
from serve_app.processors.audio_folder import AudioFolder, Spectrogram, read_audio_folder, shortest_sound
from serve_app.processors.buckets import bucket_for, bucket_of, size_classes, widen
from serve_app.processors.media_type import expect_media
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.processor import Cost
from serve_app.processors.ranking import FLOATS, Ranking, RankingProcessor, describe

_INTEGERS = frozenset({"INT32", "INT64"})
_DEFAULT_MAX_SECONDS = 60.0
_STEPS = 16
"""Lengths per second, up to one second."""


@dataclass(frozen=True, slots=True)
class AudioSettings:
    """How audio becomes tensors.

    Attributes:
        waveform: Input of samples, (rows, samples).
        length: Input of the number of samples before padding, (rows,), if any.
        mask: Input with 1 for samples and 0 for padding, (rows, samples), if any.
        integer: Dtype of ``length`` and ``mask``.
        sampling_rate: Samples per second for the model.
        buckets: Padded lengths, samples, ascending. The last is the longest audio.
        max_seconds: Longer audio is refused, or cut.
        truncate: Whether to cut it.
        normalize: Whether to scale to mean 0 and variance 1.
        least: The shortest audio that the model can read, samples.
        spectrogram: Makes the model's input from audio; ``None``: the samples are the input.
    """

    waveform: str
    dtype: np.dtype[Any]
    length: str | None
    mask: str | None
    integer: np.dtype[Any]
    sampling_rate: int
    buckets: tuple[int, ...]
    max_seconds: float
    truncate: bool
    normalize: bool
    least: int = 1
    spectrogram: Spectrogram | None = None


class AudioProcessor(RankingProcessor):
    """Processor of ``audio-classification``. The cost bucket is the padded length in samples; spectrograms have one.

    Args:
        facts: Settings read from the folder and the options, with their sources.
    """

    def __init__(self, settings: AudioSettings, ranking: Ranking, facts: tuple[Fact, ...] = ()) -> None:
        self.settings = settings
        self.ranking = ranking
        self.facts = facts

    @classmethod
    def create(cls, signature: ModelSignature, folder: ModelFolder, options: AudioOptions) -> AudioProcessor:
        """Make one from the model, its files and the configuration. Raises `ConfigError`."""
        settings = _audio_settings(signature, folder, options)
        ranking = Ranking.create(signature, folder, options, "softmax")
        return cls(settings, ranking, tuple(folder.facts))

    @property
    def buckets(self) -> tuple[int, ...]:
        """Padded lengths, samples."""
        return self.settings.buckets

    def estimate(self, payload: Media | Texts) -> Cost:
        """One row; the bucket from the header or the size. Refuses a header that declares too much."""
        media = self._expect(payload)
        self.ranking.parameters(media.parameters)
        settings = self.settings
        seconds = expected_seconds(media.content, settings.max_seconds, settings.truncate)
        if settings.spectrogram is not None:
            return Cost(1, 0)
        samples = math.ceil(min(seconds, settings.max_seconds) * settings.sampling_rate)
        return Cost(1, bucket_for(samples, settings.buckets))

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Decode, mix to mono and resample. Raises what `decode_audio` raises."""
        media = self._expect(payload)
        self.ranking.parameters(media.parameters)
        settings = self.settings
        samples = decode_audio(media, settings.sampling_rate, settings.max_seconds, settings.truncate)
        if settings.spectrogram is not None:
            return {settings.waveform: settings.spectrogram(samples)[None].astype(settings.dtype, copy=False)}
        if len(samples) < settings.least:
            raise InvalidRequest(
                f"the sound is {len(samples)} samples long at {settings.sampling_rate} per second, and this model needs"
                f" at least {settings.least}"
            )
        samples = samples[: settings.buckets[-1]]  # resampling may round the longest sound up by a sample
        if settings.normalize:
            # As Hugging Face's Wav2Vec2FeatureExtractor does, its epsilon included.
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
        return self._tensors(samples[None, :])

    def bucket(self, tensors: Tensors) -> int:
        """The padded length, samples. Raises `InvalidRequest` for tensors beyond the longest audio."""
        if (spectrogram := self.settings.spectrogram) is not None:
            tensor = tensors.get(self.settings.waveform)
            if tensor is None or tensor.shape[1:] != spectrogram.shape:
                found = "is missing" if tensor is None else f"has shape {list(tensor.shape)}"
                wanted = ", ".join(map(str, spectrogram.shape))
                raise InvalidRequest(f"input {self.settings.waveform!r} {found}; expected [rows, {wanted}]")
            return 0
        names = filter(None, (self.settings.waveform, self.settings.mask))
        return bucket_of(tensors, names, self.settings.buckets, "samples")

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        """Append silence up to ``bucket`` samples."""
        if self.settings.spectrogram is not None:
            return tensors
        return {
            name: tensor if name == self.settings.length else widen(tensor, bucket, 0)
            for name, tensor in tensors.items()
        }

    def example(self, rows: int, bucket: int) -> Tensors:
        """Silence, for warm-up."""
        if (spectrogram := self.settings.spectrogram) is not None:
            row = spectrogram(np.zeros(self.settings.sampling_rate, np.float32))
            return {self.settings.waveform: np.repeat(row[None].astype(self.settings.dtype), rows, axis=0)}
        return self._tensors(np.zeros((rows, bucket), np.float32))

    @staticmethod
    def _expect(payload: Media | Texts) -> Media:
        return expect_media(payload, "audio", MEDIA_TYPES, EXAMPLES)

    def _tensors(self, samples: npt.NDArray[np.float32]) -> Tensors:
        settings = self.settings
        rows, length = samples.shape
        tensors: Tensors = {settings.waveform: samples.astype(settings.dtype, copy=False)}
        if settings.length is not None:
            tensors[settings.length] = np.full(rows, length, settings.integer)
        if settings.mask is not None:
            tensors[settings.mask] = np.ones((rows, length), settings.integer)
        return tensors


def _audio_settings(signature: ModelSignature, folder: ModelFolder, options: AudioOptions) -> AudioSettings:
    found = read_audio_folder(folder, options.ignore_keys)
    spectrogram = found.spectrogram
    waveform, length, mask = _inputs_of(signature, found)
    rate = options.sampling_rate or found.rate
    if rate is None:
        raise ConfigError(("processor.sampling_rate: say how many samples per second the model takes",))
    if spectrogram is not None and rate != spectrogram.rate:
        raise ConfigError(
            (f"processor.sampling_rate: {rate}, but {found.file} makes spectrograms of {spectrogram.rate}",)
        )
    folder.note("sampling rate", rate, "processor.sampling_rate" if options.sampling_rate else found.file)
    fixed = waveform.shape[1] if spectrogram is None else 0
    max_seconds = options.max_seconds or (fixed / rate if fixed > 0 else _DEFAULT_MAX_SECONDS)
    if fixed > 0 and round(max_seconds * rate) > fixed:
        raise ConfigError(
            (f"processor.max_seconds: {max_seconds:g} s, but the model takes {fixed / rate:g} s of {rate} per second",)
        )
    if fixed > 0 and options.buckets is not None:
        raise ConfigError((f"processor.buckets: the model takes one length only, {fixed / rate:g} s",))
    if spectrogram is not None and (options.buckets is not None or options.normalize is not None):
        raise ConfigError(("processor: buckets and normalize have no effect on spectrograms",))
    if fixed > 0 and (problem := found.padded_otherwise) is not None:
        raise ConfigError((f"{problem}: the model takes one length, to which sounds are padded with zeros at the end",))
    if fixed > 0:
        folder.note("padding", "zeros at the end, behind normalization", "the model's file")
    integer = next((spec.datatype for spec in (length, mask) if spec is not None), "INT64")
    normalize = found.normalize if options.normalize is None else options.normalize
    if spectrogram is not None:
        folder.note("spectrogram", f"{type(spectrogram).__name__} of {spectrogram.shape}", found.file)
        buckets: tuple[int, ...] = (0,)
    else:
        source = found.file if options.normalize is None else "processor.normalize"
        folder.note("normalization", "mean 0, variance 1" if normalize else "none", source)
        buckets = (fixed,) if fixed > 0 else _grid(rate, max_seconds, options.buckets)
    cut = "cut" if options.truncate else "refused"
    folder.note(
        "longest sound", f"{max_seconds:g} s, longer ones are {cut}", "processor" if options.max_seconds else "default"
    )
    return AudioSettings(
        waveform=waveform.name,
        dtype=DTYPES[waveform.datatype],
        length=length.name if length else None,
        mask=mask.name if mask else None,
        integer=DTYPES[integer],
        sampling_rate=rate,
        buckets=buckets,
        max_seconds=max_seconds,
        truncate=options.truncate,
        normalize=normalize,
        least=1 if fixed > 0 else shortest_sound(folder),
        spectrogram=spectrogram,
    )


def _grid(rate: int, max_seconds: float, chosen: list[float] | None) -> tuple[int, ...]:
    """Lengths at most an eighth apart, from half a second on, since models may have a minimum."""
    most = round(max_seconds * rate)
    if chosen is None:
        return tuple(size for size in size_classes(rate // _STEPS, most) if size == most or 2 * size >= rate)
    return (*sorted({round(length * rate) for length in chosen if round(length * rate) < most}), most)


def _inputs_of(
    signature: ModelSignature, found: AudioFolder
) -> tuple[TensorSpec, TensorSpec | None, TensorSpec | None]:
    known = ", ".join(f"{spec.name} {describe(spec)}" for spec in signature.inputs)
    if (spectrogram := found.spectrogram) is not None:
        first, *others = signature.inputs
        sizes = zip(first.shape[1:], spectrogram.shape, strict=False)
        if others or len(first.shape) != 3 or any(size not in {-1, wanted} for size, wanted in sizes):
            fault = f"{found.file}: makes a spectrogram of (rows, {', '.join(map(str, spectrogram.shape))})"
            raise ConfigError((f"{fault}, and the model takes {known}",))
        return first, None, None
    waveform = length = mask = None
    for spec in signature.inputs:
        rank = len(spec.shape)
        if spec.datatype in FLOATS and rank == 2 and waveform is None:
            waveform = spec
        elif spec.datatype in _INTEGERS and rank == 1 and length is None:
            length = spec
        elif spec.datatype in _INTEGERS and rank == 2 and mask is None:
            mask = spec
        else:
            waveform = None
            break
    if waveform is None or (length and mask and length.datatype != mask.datatype):
        fault = (
            "processor: an audio model takes one float tensor (rows, samples), and may take integers (rows,) for"
            f" lengths and (rows, samples) for a mask; this one takes {known}. Spectrograms are made where"
            " preprocessor_config.json names ASTFeatureExtractor or WhisperFeatureExtractor"
        )
        raise ConfigError((fault,))
    return waveform, length, mask
