"""Decodes audio to mono float samples at one rate, with bounded memory whatever the header claims."""

from __future__ import annotations

import io
import math
import struct

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from serve_app.errors import InvalidRequest
from serve_app.payloads import Media
from serve_app.processors.media_type import unreadable
from serve_app.processors.sound_container import PLAIN_WAV, Sound, holds_several, read_sound

EXAMPLES = "a WAV, FLAC, Ogg (Vorbis or Opus), MP3, AIFF, AU or CAF sound"
MEDIA_TYPES = frozenset(
    {"application/ogg", "video/ogg"}
    | {f"audio/{name}" for name in ("wav", "x-wav", "wave", "vnd.wave", "x-pn-wav", "flac", "x-flac", "ogg", "opus")}
    | {f"audio/{name}" for name in ("vorbis", "mpeg", "mp3", "mpeg3", "x-mp3", "aiff", "x-aiff", "basic", "x-caf")}
)
"""Media types that can be decoded."""

_BLOCK_SAMPLES = 1 << 19
"""Decoded at once, 2 MiB. Sounds of one block are resampled in one call, too, which is cheaper than a stream."""
_UNCERTAIN_S = 0.02
"""A packet of Opus. Where a stream ends in its last page, Ogg's formats count differently."""
_LOWEST_RATE, _HIGHEST_RATE = 1_000, 384_000
_MOST_CHANNELS = 64


class _Content(io.BytesIO):
    """Bytes for the decoder, which seeks to positions from damaged headers.

    C calls it back and would only print an exception. An unchanged position signals the error.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


class _SoundFile(soundfile.SoundFile):  # type: ignore[misc]  # the library has no types
    """A file that is read sequentially. The base class seeks, possibly for an unknown end."""

    def seekable(self) -> bool:
        return False


def expected_seconds(content: bytes, max_seconds: float, truncate: bool) -> float:
    """The estimated length by the header.

    Raises:
        InvalidRequest: It is too long, or as for `read_sound`.
    """
    sound = read_sound(content)
    if sound is None:
        return len(content) * 8 / 64_000
    if sound.exact and not truncate:
        check_length(sound.seconds, max_seconds)
    return sound.seconds


def most_samples(content: bytes, rate: int) -> float:
    """An upper bound of samples decoded, or resulting at ``rate``; infinite if only the decoder can tell."""
    if len(content) < 44 or content[:4] != b"RIFF" or content[8:16] != b"WAVEfmt ":
        return math.inf
    tag, _, source = struct.unpack_from("<HHI", content, 20)
    return len(content) * max(1.0, rate / max(source, _LOWEST_RATE)) if tag in PLAIN_WAV else math.inf


def check_length(seconds: float, max_seconds: float) -> None:
    """Raise `InvalidRequest` for more than ``max_seconds``."""
    if seconds > max_seconds + 1e-6:
        raise InvalidRequest(f"the audio is {seconds:.6g} s long, at most {max_seconds:g} s")


def decode_audio(payload: Media, rate: int, max_seconds: float, truncate: bool) -> npt.NDArray[np.float32]:
    """Decode, mix the channels to their mean, and resample.

    Decodes and resamples block by block: the actual content and ``max_seconds`` bound the memory, not the header.

    Args:
        rate: Samples per second of the result.

    Returns:
        (samples,), at least one, usually within -1 to 1. If ``truncate``, the first ``max_seconds``.

    Raises:
        UnsupportedMedia: The format is not supported.
        InvalidRequest: The content is no audio, too long, empty, damaged, or has samples that are not finite.
    """
    content = payload.content
    sound = read_sound(content)
    if sound is None:
        raise unreadable(payload, "audio", MEDIA_TYPES, EXAMPLES)
    if sound.exact and not truncate:
        check_length(sound.seconds, max_seconds)
    name = sound.name
    if name == "audio/ogg" and holds_several(sound):
        raise InvalidRequest("the audio/ogg holds several sounds, one behind the other: send one")
    try:
        with _SoundFile(_Content(sound.decodable())) as file:
            samples = _read(file, sound, rate, max_seconds, truncate)
    except InvalidRequest:
        raise
    except (soundfile.SoundFileError, ValueError, OverflowError):
        raise InvalidRequest(
            f"the {name} of {len(content)} bytes is cut off or damaged, or of a kind that is not decoded here"
        ) from None
    if not samples.size:
        raise InvalidRequest(f"the {name} holds no samples")
    # Also those of finite samples whose sum over the channels is not.
    if not np.isfinite(samples).all():
        raise InvalidRequest(f"the {name} holds samples too large to be resampled")
    return samples


def _read(
    sound: soundfile.SoundFile, said: Sound, rate: int, max_seconds: float, truncate: bool
) -> npt.NDArray[np.float32]:
    name, counted = said.name, said.counted
    if not 1 <= sound.channels <= _MOST_CHANNELS:
        raise InvalidRequest(f"the {name} has {sound.channels} channels, at most {_MOST_CHANNELS}")
    if not _LOWEST_RATE <= sound.samplerate <= _HIGHEST_RATE:
        raise InvalidRequest(
            f"the {name} has {sound.samplerate} samples per second, expected {_LOWEST_RATE} to {_HIGHEST_RATE}"
        )
    if counted and not truncate:
        check_length(sound.frames / sound.samplerate, max_seconds)
    most = round(max_seconds * sound.samplerate)
    block = max(1, _BLOCK_SAMPLES // sound.channels)
    resample = _Resampler(sound.samplerate, rate)
    decoded_frames = 0
    parts: list[npt.NDArray[np.float32]] = []
    while True:
        wanted = min(block, most - decoded_frames + 1)
        if counted:  # the decoder takes what is behind the last one, as a tag, for a damaged one
            wanted = min(wanted, sound.frames - decoded_frames)
        frames = sound.read(wanted, dtype="float32", always_2d=True)
        decoded_frames += len(frames)
        if decoded_frames > most:
            if not truncate:
                raise InvalidRequest(f"the audio is longer than {max_seconds:g} s, the most this model takes")
            frames = frames[:-1]  # one frame more than allowed was asked for, to tell "at most" from "more"
        mono = _mix(frames)
        if not np.isfinite(mono).all() and not np.isfinite(frames).all():
            raise InvalidRequest(f"the {name} holds samples that are not finite numbers (NaN or infinity)")
        done = not len(frames) or decoded_frames > most or (counted and decoded_frames >= sound.frames)
        parts.append(resample(mono, done))
        if done:
            break
    if decoded_frames == 0:
        raise InvalidRequest(f"the {name} holds no samples")
    needed = max(sound.frames if counted else 0, int((said.needed - _UNCERTAIN_S) * sound.samplerate))
    if decoded_frames + said.tolerance < min(needed, most):
        raise InvalidRequest(
            f"the {name} is cut off or damaged: it declares {needed} samples, and {decoded_frames} came"
        )
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _mix(frames: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The mean of the channels, (frames,). Adds whole channels: numpy's mean of short rows is slow."""
    channels = frames.shape[1]
    mono = frames[:, 0]
    if channels == 1:
        return mono
    with np.errstate(over="ignore", invalid="ignore"):  # the caller looks
        mono = mono + frames[:, 1]
        for channel in range(2, channels):
            mono += frames[:, channel]
        mono /= channels
    return mono


class _Resampler:
    """Resamples audio in blocks. A single complete block takes a faster way to the same samples.

    Args:
        source: Input samples per second.
        target: Output samples per second.
    """

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._stream: soxr.ResampleStream | None = None

    def __call__(self, samples: npt.NDArray[np.float32], last: bool) -> npt.NDArray[np.float32]:
        """Resample the next block, (samples,)."""
        if self._source == self._target:
            return samples
        if self._stream is None:
            if last:
                return np.asarray(soxr.resample(samples, self._source, self._target), np.float32)
            self._stream = soxr.ResampleStream(self._source, self._target, 1, dtype="float32")
        return np.asarray(self._stream.resample_chunk(samples, last=last), np.float32)
