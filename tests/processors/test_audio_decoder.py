"""Any sound becomes mono float samples at one rate, or a clear error."""

from __future__ import annotations

import contextlib
import io
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from serve_app.errors import InvalidRequest, UnsupportedMedia
from serve_app.payloads import Media
from serve_app.processors.audio_decoder import decode_audio, expected_seconds

RATE = 16_000

LOSSLESS = [
    ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_32"), ("WAV", "FLOAT"), ("WAV", "DOUBLE"), ("WAVEX", "PCM_16"),
    ("RF64", "PCM_16"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("AIFF", "PCM_16"), ("AU", "PCM_16"),
    ("CAF", "PCM_16"),
]  # fmt: skip
LOSSY = [
    ("WAV", "PCM_U8"), ("WAV", "ULAW"), ("WAV", "ALAW"), ("WAV", "IMA_ADPCM"), ("WAV", "MS_ADPCM"), ("OGG", "VORBIS"),
    ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
]  # fmt: skip


def tone(seconds: float = 1.0, rate: int = RATE, hertz: float = 440.0) -> npt.NDArray[np.float32]:
    """A sine at half of full volume."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples: npt.NDArray[Any], rate: int = RATE, kind: str = "WAV", subtype: str | None = None) -> bytes:
    """The sound as a file."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def decode(
    content: bytes, content_type: str = "", rate: int = RATE, max_seconds: float = 60.0, truncate: bool = False
) -> npt.NDArray[np.float32]:
    """Decode with the usual settings."""
    return decode_audio(Media(content, content_type, {}), rate, max_seconds, truncate)


def guess_seconds(content: bytes) -> float:
    """What the router learns of a sound."""
    return expected_seconds(content, 60.0, truncate=False)


def wav(announced: int, data: bytes, rate: int = RATE) -> bytes:
    """A 16-bit mono WAV whose header may say anything about the length of the data."""
    chunk = struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16)
    riff = min(announced + 36, 0xFFFF_FFFF)
    return b"RIFF" + struct.pack("<I", riff) + b"WAVEfmt " + chunk + b"data" + struct.pack("<I", announced) + data


@pytest.mark.parametrize(("kind", "subtype"), LOSSLESS)
def test_lossless_formats_give_the_samples_back(kind: str, subtype: str) -> None:
    """At the model's own rate nothing is changed but rounding to 16 bits."""
    samples = decode(encoded(tone(), kind=kind, subtype=subtype))

    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, tone(), atol=1 / 32_000)


@pytest.mark.parametrize(("kind", "subtype"), LOSSY)
def test_lossy_formats_keep_the_tone(kind: str, subtype: str) -> None:
    """The strongest frequency is still the one that was put in."""
    samples = decode(encoded(tone(), kind=kind, subtype=subtype))

    assert samples.size == pytest.approx(RATE, rel=0.05)
    spectrum = np.abs(np.fft.rfft(samples))
    assert int(spectrum.argmax()) * RATE / samples.size == pytest.approx(440, abs=2)


@pytest.mark.parametrize("seconds", [5, 15])
@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000])
def test_every_rate_is_resampled_as_in_one_piece(rate: int, seconds: int) -> None:
    """Block by block gives what the resampler makes of the whole sound, and so does a sound of a single block."""
    sound = tone(seconds, rate)

    samples = decode(encoded(sound, rate, subtype="FLOAT"))

    np.testing.assert_allclose(samples, soxr.resample(sound, rate, RATE), atol=1e-6)
    assert samples.size == seconds * RATE


@pytest.mark.parametrize("channels", [2, 3, 6, 8])
def test_channels_are_averaged(channels: int) -> None:
    """Mono is the mean of the channels."""
    sound = np.stack([tone(0.2, hertz=200.0 * (1 + number)) for number in range(channels)], axis=1)

    samples = decode(encoded(sound, subtype="FLOAT"))

    np.testing.assert_allclose(samples, sound.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize("rate", [RATE, 8_000])
def test_channels_whose_sum_is_too_large_are_refused(rate: int) -> None:
    """Each sample is a finite number, and their sum is not."""
    sound = np.full((800, 2), 3e38, np.float32)

    with pytest.raises(InvalidRequest, match="samples too large to be resampled"):
        decode(encoded(sound, rate, subtype="FLOAT"))


def test_a_ten_hour_header_is_refused_by_the_header() -> None:
    """Nothing of that size is allocated."""
    with pytest.raises(InvalidRequest, match="declares 1152000000 bytes of samples, and 1000 came"):
        decode(wav(36_000 * RATE * 2, b"\0" * 1000))


def test_a_header_that_announces_more_than_came_is_refused() -> None:
    """A truncated upload is no shorter sound."""
    with pytest.raises(
        InvalidRequest, match="cut off at 1044 bytes: its header declares 32000 bytes of samples, and 1000 came"
    ):
        decode(wav(32_000, b"\0" * 1000))


def test_a_flac_header_may_lie_about_its_length() -> None:
    """36 bits of samples are announced, a second is there."""
    content = bytearray(encoded(tone(), kind="FLAC"))
    content[21] |= 0x0F
    content[22:26] = b"\xff\xff\xff\xff"

    with pytest.raises(InvalidRequest, match=r"^the audio is 4\.29497e\+06 s long, at most 60 s$"):
        decode(bytes(content))


def test_a_flac_that_announces_a_little_more_is_truncated() -> None:
    """Within the limit, too, header and content must agree."""
    content = bytearray(encoded(tone(), kind="FLAC"))
    content[22:26] = struct.pack(">I", 2 * RATE)

    with pytest.raises(InvalidRequest, match="is cut off or damaged: it declares 32000 samples, and 16000 came"):
        decode(bytes(content))


@pytest.mark.parametrize(("kind", "subtype"), [("WAV", None), ("FLAC", None), ("OGG", "VORBIS"), ("MP3", None)])
def test_too_long_sounds_are_refused_or_cut(kind: str, subtype: str | None) -> None:
    """Refused by default; with truncate, exactly the beginning is heard."""
    content = encoded(tone(3.0), kind=kind, subtype=subtype)

    with pytest.raises(InvalidRequest, match="audio is"):
        decode(content, max_seconds=2.0)
    assert decode(content, max_seconds=2.0, truncate=True).size == 2 * RATE


def test_a_sound_of_exactly_the_longest_length_is_taken() -> None:
    """At most means at most."""
    assert decode(encoded(tone(2.0, 44_100), 44_100), max_seconds=2.0).size == 2 * RATE


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_samples_that_are_not_finite_are_refused(bad: float, rate: int) -> None:
    """Wherever they are, the last sample included."""
    for position in (0, 5_000, -1):
        sound = tone(0.5, rate)
        sound[position] = bad
        with pytest.raises(InvalidRequest, match="audio/wav holds samples that are not finite numbers"):
            decode(encoded(sound, rate, subtype="FLOAT"))


@pytest.mark.parametrize("kind", ["WAV", "AIFF", "AU"])
def test_a_sound_without_samples_is_refused(kind: str) -> None:
    """Zero samples are no sound."""
    with pytest.raises(InvalidRequest, match="holds no samples"):
        decode(encoded(np.zeros(0, np.float32), kind=kind))


def test_one_sample_is_a_sound_or_refused() -> None:
    """The shortest sound is defined, whatever the rates."""
    assert decode(encoded(tone()[:1])).size == 1
    with pytest.raises(InvalidRequest, match="the audio/wav holds no samples"):
        decode(encoded(tone()[:1], 96_000))


@pytest.mark.parametrize("rate", [1, 999, 400_000, 2_000_000_000])
def test_absurd_rates_are_refused(rate: int) -> None:
    """Between 1 and 384 kHz there is sound."""
    with pytest.raises(InvalidRequest, match=f"has {rate} samples per second, expected 1000 to 384000"):
        decode(wav(8, b"\0" * 8, rate), max_seconds=1e6)


def test_text_is_no_sound() -> None:
    """Bytes that no decoder recognizes are a bad request."""
    with pytest.raises(InvalidRequest) as raised:
        decode(b"hello, this is text", "audio/wav")

    assert type(raised.value) is InvalidRequest
    assert raised.value.message == (
        "the content (19 bytes) cannot be decoded as audio, though the request calls it audio/wav;"
        " send a WAV, FLAC, Ogg (Vorbis or Opus), MP3, AIFF, AU or CAF sound"
    )


@pytest.mark.parametrize("content_type", ["audio/mp4", "audio/webm", "audio/aac"])
def test_formats_that_are_not_decoded_are_unsupported_media(content_type: str) -> None:
    """Their names are known, their decoders are not here."""
    with pytest.raises(UnsupportedMedia, match=f"{content_type} cannot be decoded here: send a WAV"):
        decode(b"\0\0\0\x20ftypM4A ", content_type)


@pytest.mark.parametrize("content", [encoded(tone(), kind=kind) for kind in ("VOC", "W64", "NIST", "MAT5", "PAF")])
def test_only_the_served_formats_reach_the_decoder(content: bytes) -> None:
    """The library knows dozens more, and old ones are where its faults are."""
    with pytest.raises(InvalidRequest, match="cannot be decoded as audio"):
        decode(content)


CUT = {
    f"{kind}-{subtype}": encoded(tone(0.3, 22_050), 22_050, kind, subtype)
    for kind, subtype in [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("AIFF", "PCM_16"), ("OGG", "VORBIS"),
                          ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"), ("WAV", "IMA_ADPCM"), ("CAF", "PCM_16")]
    if not (kind == "OGG" and subtype == "OPUS")
} | {"OGG-OPUS": encoded(tone(0.3), RATE, "OGG", "OPUS")}  # fmt: skip


def test_estimates_are_exact_for_honest_headers() -> None:
    """The router learns the length of WAV and FLAC without decoding."""
    sound = tone(1.5, 44_100)

    assert guess_seconds(encoded(sound, 44_100)) == 1.5
    assert guess_seconds(encoded(np.stack([sound, sound], 1), 44_100, subtype="PCM_24")) == 1.5
    assert guess_seconds(encoded(sound, 44_100, "FLAC")) == 1.5
    assert 0.1 < guess_seconds(encoded(sound, 44_100, "MP3")) < 15
    assert guess_seconds(b"") == 0.0


@settings(max_examples=examples(300))
@given(
    content=st.binary(max_size=300), start=st.sampled_from([b"", b"RIFF\0\0\0\0WAVEfmt ", b"fLaC", b"OggS\0", b"ID3"])
)
def test_garbage_is_refused(content: bytes, start: bytes) -> None:
    """Random bytes, with the beginning of a real format or without, raise nothing but InvalidRequest."""
    with contextlib.suppress(InvalidRequest):
        guess_seconds(start + content)
    with contextlib.suppress(InvalidRequest):
        decode(start + content, max_seconds=5.0)


@settings(max_examples=examples(300))
@given(data=st.data(), kind=st.sampled_from(sorted(CUT)))
def test_damaged_files_are_refused_or_decoded(data: st.DataObject, kind: str) -> None:
    """Real files with some bytes changed raise nothing but InvalidRequest, and stay below the limit."""
    content = bytearray(CUT[kind])
    for _ in range(data.draw(st.integers(1, 6))):
        near_the_header = st.integers(0, min(80, len(content) - 1))
        position = data.draw(near_the_header | st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    try:
        guess_seconds(bytes(content))
        samples = decode(bytes(content), max_seconds=5.0)
    except InvalidRequest:
        return
    assert 1 <= samples.size <= 5 * RATE + 1
    assert np.isfinite(samples).all()
