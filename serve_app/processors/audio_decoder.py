"""From the bytes of a sound to mono float samples at one rate, with bounded memory whatever the header claims."""

from __future__ import annotations

import io
import math
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from serve_app.errors import InvalidRequest, UnsupportedMedia
from serve_app.payloads import Media
from serve_app.processors.media_type import unreadable

EXAMPLES = "a WAV, FLAC, Ogg (Vorbis or Opus), MP3, AIFF, AU or CAF sound"
MEDIA_TYPES = frozenset(
    {"application/ogg", "video/ogg"}
    | {f"audio/{name}" for name in ("wav", "x-wav", "wave", "vnd.wave", "x-pn-wav", "flac", "x-flac", "ogg", "opus")}
    | {f"audio/{name}" for name in ("vorbis", "mpeg", "mp3", "mpeg3", "x-mp3", "aiff", "x-aiff", "basic", "x-caf")}
)
"""Media types that can be decoded."""

_FORMATS = {
    "WAV": "wav", "WAVEX": "wav", "RF64": "wav", "FLAC": "flac", "OGG": "ogg", "MP3": "mpeg", "AIFF": "aiff",
    "AU": "basic", "CAF": "x-caf",
}  # fmt: skip
_BLOCK_SAMPLES = 1 << 19
"""Decoded at once, 2 MiB. Sounds of one block are resampled in one call, too, which is cheaper than a stream."""
_LOWEST_RATE, _HIGHEST_RATE = 1_000, 384_000
_MOST_CHANNELS = 64
_GUESSED_BITS_PER_SECOND = 64_000
"""Between speech (32 kbit/s) and music (128 kbit/s and more) in Ogg and MP3."""

_PLAIN = frozenset({1, 3, 6, 7, 0xFFFE})
"""Kinds of WAV files whose samples take a byte or more each: PCM, float, A-law, mu-law, extensible."""

_STREAMED = 0x7FFFF000
"""Programs that write WAV into a pipe cannot know its length; they announce this (SoX) or a little more, or all ones
(FFmpeg)."""


class _Content(io.BytesIO):
    """Bytes for the decoder, which seeks wherever a damaged header points.

    It calls back from C, where an exception would only be printed. A position that did not change tells it enough.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


class WavHeader(NamedTuple):
    """The two chunks of a WAV file that matter.

    Attributes:
        bytes_per_second: Of sample data; 0 if the header does not say.
        announced: Bytes of sample data according to the header; ``None`` if it was written before they were known.
        present: Bytes of sample data that are really there.
    """

    bytes_per_second: int
    announced: int | None
    present: int


def wav_header(content: bytes) -> WavHeader | None:
    """Read a WAV header without touching samples; ``None`` if it is not a complete one."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return None
    at, bytes_per_second = 12, 0
    for _ in range(64):
        if at + 8 > len(content):
            return None
        name = content[at : at + 4]
        size = int.from_bytes(content[at + 4 : at + 8], "little")
        if name == b"data":
            streamed = size == 0xFFFF_FFFF or _STREAMED <= size <= 0x7FFF_FFFF
            return WavHeader(bytes_per_second, None if streamed else size, len(content) - at - 8)
        if name == b"fmt " and at + 8 + 16 <= len(content):
            tag, _, rate, average, block, _ = struct.unpack_from("<HHIIHH", content, at + 8)
            # The average of plain samples may be wrong, and is not needed.
            bytes_per_second = rate * block if tag in _PLAIN else average
        at += 8 + size + size % 2
    return None


def guess_seconds(content: bytes) -> float:
    """About how long the sound is, in constant time: exact for honest WAV and FLAC headers, else from the size."""
    header = wav_header(content)
    if header is not None and header.bytes_per_second:
        return min(header.present, header.present if header.announced is None else header.announced) / (
            header.bytes_per_second
        )
    if content[:4] == b"fLaC" and len(content) >= 26:
        # STREAMINFO (RFC 9639, 8.2): 20 bits of rate, 3 of channels, 5 of depth, 36 of samples from byte 18 on.
        packed = int.from_bytes(content[18:26], "big")
        rate, samples = packed >> 44, packed & ((1 << 36) - 1)
        if rate and samples:
            return samples / rate
    return len(content) * 8 / _GUESSED_BITS_PER_SECOND


def most_samples(content: bytes, rate: int) -> float:
    """At most so many samples are decoded, or come out at ``rate``; infinite where only the decoder can tell."""
    if len(content) < 44 or content[:4] != b"RIFF" or content[8:16] != b"WAVEfmt ":
        return math.inf
    tag, _, source = struct.unpack_from("<HHI", content, 20)
    return len(content) * max(1.0, rate / max(source, _LOWEST_RATE)) if tag in _PLAIN else math.inf


def check_wav(content: bytes, max_seconds: float, truncate: bool) -> None:
    """Refuse a WAV file whose header announces more than is allowed, or more than is there.

    Raises:
        InvalidRequest: It does.
    """
    header = wav_header(content)
    if header is None or header.announced is None:
        return
    if header.bytes_per_second and not truncate:
        check_length(header.announced / header.bytes_per_second, max_seconds)
    if header.present < header.announced:
        raise InvalidRequest(
            f"the audio/wav is truncated: its header announces {header.announced} bytes of samples, and"
            f" {header.present} came"
        )


def check_length(seconds: float, max_seconds: float) -> None:
    """Raises `InvalidRequest` for more than ``max_seconds``."""
    if seconds > max_seconds + 1e-6:
        raise InvalidRequest(f"the audio is {seconds:.6g} s long, at most {max_seconds:g} s")


def decode_audio(payload: Media, rate: int, max_seconds: float, truncate: bool) -> npt.NDArray[np.float32]:
    """Decode, mix the channels to one (their mean) and resample.

    Samples are decoded and resampled block by block: memory is bounded by what is really there and by
    ``max_seconds``, not by what a header says.

    Args:
        payload: The encoded sound and its declared type.
        rate: Samples per second of the result.
        max_seconds: Longer sounds are refused.
        truncate: Return the first ``max_seconds`` of longer sounds instead.

    Returns:
        (samples,), at least one, usually within -1 to 1.

    Raises:
        UnsupportedMedia: It is in a format that is not decoded here.
        InvalidRequest: It is no sound, too long, empty, damaged, or holds samples that are not finite numbers.
    """
    content = payload.content
    if not _recognized(content):
        raise unreadable(payload, "audio", MEDIA_TYPES, EXAMPLES)
    check_wav(content, max_seconds, truncate)
    try:
        with soundfile.SoundFile(_Content(content)) as sound:
            if sound.format not in _FORMATS:
                raise UnsupportedMedia(f"{sound.format} sounds are not decoded here: send {EXAMPLES}")
            name = f"audio/{_FORMATS[sound.format]}"
            samples = _read(sound, name, rate, max_seconds, truncate)
    except InvalidRequest:
        raise
    except (soundfile.SoundFileError, ValueError, OverflowError):
        raise InvalidRequest(f"the sound of {len(content)} bytes is truncated or damaged") from None
    if not samples.size:
        raise InvalidRequest(f"the {name} holds no samples")
    # Also those of finite samples whose sum over the channels is not.
    if not np.isfinite(samples).all():
        raise InvalidRequest(f"the {name} holds samples too large to be resampled")
    return samples


def _recognized(content: bytes) -> bool:
    """Whether the first bytes are those of a served format. The decoder tries dozens more, and is not asked to."""
    if content[:4] in {b"RIFF", b"RIFX", b"RF64"}:
        return content[8:12] == b"WAVE"
    if content[:4] == b"FORM":
        return content[8:12] in {b"AIFF", b"AIFC"}
    if content[:4] in {b"fLaC", b"OggS", b".snd", b"caff"} or content[:3] == b"ID3":
        return True
    # An MPEG frame: 11 bits of sync, then a version, then layer II or III.
    return len(content) > 4 and content[0] == 0xFF and content[1] & 0xE0 == 0xE0 and content[1] & 0x06 in {2, 4}


def _read(
    sound: soundfile.SoundFile, name: str, rate: int, max_seconds: float, truncate: bool
) -> npt.NDArray[np.float32]:
    if not 1 <= sound.channels <= _MOST_CHANNELS:
        raise InvalidRequest(f"the {name} has {sound.channels} channels, at most {_MOST_CHANNELS}")
    if not _LOWEST_RATE <= sound.samplerate <= _HIGHEST_RATE:
        raise InvalidRequest(
            f"the {name} has {sound.samplerate} samples per second, expected {_LOWEST_RATE} to {_HIGHEST_RATE}"
        )
    # MPEG files have no length in general: the decoder's is a guess there.
    exact = sound.format != "MP3"
    if exact and not truncate:
        check_length(sound.frames / sound.samplerate, max_seconds)
    most = round(max_seconds * sound.samplerate)
    block = max(1, _BLOCK_SAMPLES // sound.channels)
    resample = _Resampler(sound.samplerate, rate)
    decoded_frames = 0
    parts: list[npt.NDArray[np.float32]] = []
    while True:
        frames = sound.read(min(block, most - decoded_frames + 1), dtype="float32", always_2d=True)
        decoded_frames += len(frames)
        if decoded_frames > most:
            if not truncate:
                raise InvalidRequest(f"the audio is longer than {max_seconds:g} s, the most this model takes")
            frames = frames[:-1]  # one frame more than allowed was asked for, to tell "at most" from "more"
        mono = _mix(frames)
        if not np.isfinite(mono).all() and not np.isfinite(frames).all():
            raise InvalidRequest(f"the {name} holds samples that are not finite numbers (NaN or infinity)")
        done = not len(frames) or decoded_frames > most or (exact and decoded_frames >= sound.frames)
        parts.append(resample(mono, done))
        if done:
            break
    if decoded_frames == 0:
        raise InvalidRequest(f"the {name} holds no samples")
    if exact and not truncate and decoded_frames < sound.frames:
        raise InvalidRequest(
            f"the {name} is truncated: its header declares {sound.frames} frames, {decoded_frames} are present"
        )
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _mix(frames: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The mean of the channels, (frames,). Adds whole channels: numpy's mean of rows is slow where they are short."""
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
    """Resamples a sound that comes in blocks. One block that is all of it takes a faster way to the same samples.

    Args:
        source: Samples per second that come.
        target: Samples per second that go.
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
