"""Every container: whole sounds are decoded whole, unknown lengths to the end, and cut-off ones are refused."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from serve_app.errors import InvalidRequest, UnsupportedMedia
from serve_app.payloads import Media
from serve_app.processors.audio_decoder import decode_audio, expected_seconds
from serve_app.processors.sound_container import MOST_CHUNKS, read_sound

RATE = 16_000
SPEECH = Path(__file__).parents[1] / "data" / "speech"
NOISE = np.random.default_rng(7).normal(0, 0.1, 4 * RATE).astype(np.float32)
"""Four seconds, for several pages of Ogg."""


def encoded(kind: str, subtype: str | None = None, endian: str = "FILE", samples: Any = NOISE[:6_000]) -> bytes:
    """The sound as a file."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=kind, subtype=subtype, endian=endian)
    return file.getvalue()


def written() -> dict[str, bytes]:
    """A sound in each container, codec and byte order that can be written, and read again."""
    files = {}
    for kind in ("WAV", "WAVEX", "RF64", "AIFF", "AU", "CAF", "FLAC", "OGG", "MP3"):
        for subtype in soundfile.available_subtypes(kind):
            for endian in ("FILE", "BIG", "LITTLE") if kind in {"WAV", "AIFF", "CAF"} else ("FILE",):
                samples = NOISE if kind == "OGG" else NOISE[:6_000]
                try:
                    content = encoded(kind, subtype, endian, samples)
                    soundfile.read(io.BytesIO(content))
                except (soundfile.LibsndfileError, ValueError):
                    continue
                files[f"{kind}-{subtype}-{endian}"] = content
    return files


WRITTEN = written()
RECORDED = {
    path.name: path.read_bytes()
    for path in sorted(SPEECH.iterdir())
    if path.suffix in {".wav", ".flac", ".ogg", ".mp3"}
}
WAV, FLAC, MP3, OGG = (
    WRITTEN[f"{name}-FILE"] for name in ("WAV-PCM_16", "FLAC-PCM_16", "MP3-MPEG_LAYER_III", "OGG-VORBIS")
)
FRAMES = MP3[MP3.index(b"\xff\xf3", 4) :]
"""The MP3 without the frame that counts the others."""


def decode(
    content: bytes, rate: int = RATE, *, truncate: bool = False, max_seconds: float = 60.0
) -> npt.NDArray[np.float32]:
    """The samples at their own rate."""
    return decode_audio(Media(content, "", {}), rate, max_seconds, truncate)


def decoded(content: bytes) -> tuple[npt.NDArray[np.float32], int]:
    """What the library alone makes of it, mixed to mono."""
    samples, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    return samples.mean(axis=1), rate


def with_bytes(content: bytes, *changes: tuple[int, bytes]) -> bytes:
    """The content with other bytes at some places."""
    changed = bytearray(content)
    for position, value in changes:
        changed[position : position + len(value)] = value
    return bytes(changed)


@pytest.mark.parametrize("files", [WRITTEN, RECORDED], ids=["written", "recorded"])
def test_whole_sounds_are_decoded_as_the_library_does(files: dict[str, bytes]) -> None:
    """All their samples."""
    for name, content in files.items():
        samples, rate = decoded(content)
        found = decode(content, rate)
        assert found.size == samples.size, name
        np.testing.assert_allclose(found, samples, atol=1e-6, err_msg=name)


def test_a_cut_sound_is_refused() -> None:
    """Wherever it is cut: every one of these files says how long it is."""
    every = {**WRITTEN, **{name: RECORDED[name] for name in list(RECORDED)[::6]}}
    for name, content in every.items():
        for part in range(50):
            cut = content[: len(content) * part // 50]
            with pytest.raises(InvalidRequest):
                pytest.fail(f"{name}, {len(cut)} of {len(content)} bytes: {decode(cut).size} samples")


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("content", [OGG[: OGG.rindex(b"OggS")], FLAC[:-100], MP3[:-300], WAV[:-2]])
def test_a_cut_sound_is_refused_also_where_longer_ones_are_cut(content: bytes, truncate: bool) -> None:
    """A part that is shorter than asked for is no beginning."""
    with pytest.raises(InvalidRequest, match="is cut off"):
        decode(content, truncate=truncate)


SIZES = {
    name: (content, content.index(mark) + offset, width, "little" if name in {"WAV", "RF64"} else "big")
    for name, content, mark, offset, width in [
        ("WAV", WAV, b"data", 4, 4),
        ("RIFX", WRITTEN["WAV-PCM_16-BIG"], b"data", 4, 4),
        ("RF64", WRITTEN["RF64-PCM_16-FILE"], b"ds64", 16, 8),
        ("AIFF", WRITTEN["AIFF-PCM_16-FILE"], b"SSND", 4, 4),
        ("AIFF frames", WRITTEN["AIFF-PCM_16-FILE"], b"COMM", 10, 4),
        ("AU", WRITTEN["AU-PCM_16-FILE"], b".snd", 8, 4),
        ("CAF", WRITTEN["CAF-PCM_16-FILE"], b"data", 4, 8),
    ]
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("more", [1, 2, 100, 10_000, 1_000_000, 1 << 29])
def test_a_declared_length_that_did_not_come_is_refused(name: str, more: int) -> None:
    """One frame or a gigabyte; the message has both numbers."""
    content, place, width, order = SIZES[name]
    size = int.from_bytes(content[place : place + width], order)  # type: ignore[arg-type]
    changed = with_bytes(content, (place, (size + 2 * more).to_bytes(width, order)))  # type: ignore[arg-type]

    with pytest.raises(
        InvalidRequest, match=r"is cut off at \d+ bytes: its header declares \d+ bytes of samples, and 12000 came"
    ):
        read_sound(changed)
    with pytest.raises(InvalidRequest, match="is cut off"):
        decode(changed)


UNKNOWN = [0, 0x7F000000, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0x80000000 - 44, 0xFFFFFFD3, 0xFFFFFFDB, 0xFFFFFFFF]


@pytest.mark.parametrize("name", [name for name in SIZES if name != "AIFF frames"])
def test_an_unknown_length_is_read_to_the_end(name: str) -> None:
    """Programs that write into a pipe, or are killed, leave one of these numbers. All of the file's size fit them."""
    content, place, width, order = SIZES[name]
    whole = decode(content)
    unknown = [*UNKNOWN, *([0xFFFF_FFFF_FFFF_FFFF] if width == 8 else [])]
    for size in unknown:
        changed = with_bytes(content, (place, size.to_bytes(width, order)))  # type: ignore[arg-type]
        if content[:4] in {b"RIFF", b"RIFX", b"FORM"}:
            changed = with_bytes(changed, (4, size.to_bytes(4, order)))  # type: ignore[arg-type]
        np.testing.assert_array_equal(decode(changed), whole, err_msg=hex(size))
        assert expected_seconds(changed, 60.0, False) == 6_000 / RATE
        if name == "AIFF":  # that tells the number of frames, too
            changed = with_bytes(changed, (changed.index(b"COMM") + 10, size.to_bytes(4)))
        np.testing.assert_array_equal(decode(changed[:-1000]), whole[:-500], err_msg=hex(size))


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
def test_the_size_of_the_file_tells_the_length_too(size: int) -> None:
    """A WAV file whose samples are of unknown length is cut off where the file itself was to be longer."""
    place = WAV.index(b"data") + 4
    changed = with_bytes(WAV, (place, struct.pack("<I", size)))

    with pytest.raises(InvalidRequest, match="declares 12000 bytes of samples, and 6000 came"):
        decode(changed[:-6_000])


def test_no_samples_before_other_chunks_are_none() -> None:
    """A WAV file that is whole, and has no samples: the chunk behind them is not decoded."""
    header = WAV[: WAV.index(b"data")]
    content = with_bytes(header + b"data\0\0\0\0LIST\4\0\0\0INFO", (4, struct.pack("<I", len(header) + 12)))

    with pytest.raises(InvalidRequest, match="holds no samples"):
        decode(content)


@pytest.mark.parametrize("name", ["IMA_ADPCM", "MS_ADPCM", "GSM610", "ULAW", "PCM_24", "FLOAT"])
def test_packed_samples_of_unknown_length_are_all_decoded(name: str) -> None:
    """Also where the count of samples is wrong."""
    content = WRITTEN[f"WAV-{name}-FILE"]
    fact = content.find(b"fact")
    changed = with_bytes(content, (content.index(b"data") + 4, b"\xff" * 4), (4, b"\xff" * 4))
    if fact > 0:
        changed = with_bytes(changed, (fact + 8, b"\0" * 4))

    np.testing.assert_array_equal(decode(changed), decode(content))


def test_a_flac_of_unknown_length_is_read_to_the_end() -> None:
    """0 samples are an unknown number (RFC 9639, 8.2); what is cut inside a frame is damaged."""
    unknown = with_bytes(FLAC, (21, bytes([FLAC[21] & 0xF0])), (22, b"\0" * 4))

    np.testing.assert_array_equal(decode(unknown), decode(FLAC))
    with pytest.raises(InvalidRequest, match="cut off or damaged"):
        decode(unknown[:-100])


def test_bw64_is_read_as_rf64() -> None:
    """The same structure by another name (ITU-R BS.2088)."""
    content = WRITTEN["RF64-PCM_16-FILE"]

    np.testing.assert_array_equal(decode(b"BW64" + content[4:]), decode(content))


def tag(nbytes: int, version: int = 4, footer: bool = False) -> bytes:
    """An ID3v2 tag."""
    size = bytes(nbytes >> shift & 0x7F for shift in (21, 14, 7, 0))
    head = bytes([version, 0, 0x10 if footer else 0]) + size
    return b"ID3" + head + bytes(nbytes) + (b"3DI" + head if footer else b"")


FRONTS = {
    "tag": tag(16_000), "tag-v2.2": tag(300, 2), "footer": tag(50, footer=True), "two": tag(10) + tag(300_000, 3),
}  # fmt: skip


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("content", [WAV, FLAC, MP3, OGG, WRITTEN["AIFF-PCM_16-FILE"], WRITTEN["CAF-PCM_16-FILE"]])
def test_tags_in_front_cost_no_samples(front: str, content: bytes) -> None:
    """Of any container, and a cut is still noticed."""
    np.testing.assert_array_equal(decode(FRONTS[front] + content), decode(content))
    with pytest.raises(InvalidRequest):
        decode(FRONTS[front] + content[: len(content) // 2])
    with pytest.raises(InvalidRequest):
        decode(FRONTS[front][:-1])


@pytest.mark.parametrize(
    "front",
    [b"\0", bytes(2048), tag(20) + bytes(500_000), FRAMES[37:100], b"junk" * 100],
    ids=["0", "2K", "tag", "cut", "junk"],
)
def test_junk_before_the_first_frame_is_skipped(front: bytes) -> None:
    """Zeros, and the rest of a frame in which a stream began."""
    np.testing.assert_array_equal(decode(front + MP3), decode(MP3))
    np.testing.assert_array_equal(decode(front + FRAMES), decode(FRAMES))


def ape(nbytes: int) -> bytes:
    """An APE tag with a header and a footer."""
    head = b"APETAGEX" + struct.pack("<II", 2000, nbytes + 32)
    return head + bytes(16) + b"\xff" * nbytes + head + bytes(16)


@pytest.mark.parametrize("behind", [b"TAG" + bytes(125), ape(200), ape(200_000), bytes(3_000)], ids=len)
@pytest.mark.parametrize("content", [MP3, FRAMES])
def test_marks_behind_an_mp3_are_not_decoded(content: bytes, behind: bytes) -> None:
    """ID3v1, APE and padding."""
    np.testing.assert_array_equal(decode(content + behind), decode(content))


def test_an_mp3_that_counts_no_frames_is_decoded_to_its_end() -> None:
    """Its bit rate varies: the library's guess, by the first frame, would stop early. A last frame in part is left."""
    found = decode(FRAMES)

    np.testing.assert_array_equal(found[: decode(MP3).size - 1200], decode(FRAMES + FRAMES)[: decode(MP3).size - 1200])
    assert found.size >= 6_000
    assert found.size - 1152 <= decode(FRAMES[:-20]).size < found.size


def test_mp3_files_that_were_joined_are_all_decoded() -> None:
    """The first one's count is of its own frames."""
    assert decode(MP3 + MP3).size >= 12_000
    assert decode(MP3 + b"TAG" + bytes(125) + tag(100_000) + MP3).size >= 12_000


def test_a_count_of_frames_that_is_one_too_many_is_no_cut() -> None:
    """Where all bytes came that the same frame declares."""
    place = MP3.index(b"Xing") + 8
    more = with_bytes(MP3, (place, (int.from_bytes(MP3[place : place + 4]) + 1).to_bytes(4)))

    np.testing.assert_array_equal(decode(more)[:6_000], decode(MP3))
    with pytest.raises(InvalidRequest, match="is cut off"):
        decode(more[:-1])


def vbri(frames: int) -> bytes:
    """A frame of Fraunhofer's that counts the others, of the kind of those in `FRAMES`."""
    notes = b"VBRI" + struct.pack(">HHHII", 1, 0, 75, 0, frames)
    return (FRAMES[:2] + b"\x88" + FRAMES[3:4] + bytes(32) + notes).ljust(288, b"\0")


def test_fraunhofers_count_is_believed() -> None:
    """Whole, it is decoded; a frame less, it is cut off."""
    count = struct.unpack(">I", MP3[MP3.index(b"Xing") + 8 :][:4])[0]

    np.testing.assert_array_equal(decode(vbri(count) + FRAMES), decode(FRAMES)[: decode(vbri(count) + FRAMES).size])
    with pytest.raises(InvalidRequest, match="is cut off"):
        decode(vbri(count) + FRAMES[:-10])


def test_mp3_in_wav_is_decoded_whole() -> None:
    """As FFmpeg writes it: no frame counts the others, and the count of samples is an estimate."""
    form = struct.pack("<HHIIHHHHIHHH", 0x55, 1, RATE, 4000, 1, 0, 12, 1, 2, 576, 1, 1393)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"fact" + struct.pack("<II", 4, 99_999)
    chunks += b"data" + struct.pack("<I", len(FRAMES)) + FRAMES
    content = b"RIFF" + struct.pack("<I", len(chunks)) + chunks

    np.testing.assert_array_equal(decode(content), decode(FRAMES))
    with pytest.raises(InvalidRequest, match="the audio/wav is cut off"):
        decode(content[:-10])


def test_ogg_sounds_that_were_joined_are_refused() -> None:
    """The decoder would stop behind the first."""
    with pytest.raises(InvalidRequest, match="holds several sounds, one behind the other"):
        decode(OGG + OGG)


def wav_of(codec: int) -> bytes:
    """A WAV of samples in this codec."""
    return with_bytes(WAV, (20, struct.pack("<H", codec)))


UNDECODED = {
    "G.722": wav_of(0x28F), "G.726": wav_of(0x45), "AAC": wav_of(0xFF), "codec 0x1234": wav_of(0x1234),
    "in FLAC,": b"OggS\0\2" + bytes(20) + b"\1\x33\x7fFLAC\1" + bytes(44),
    "in Speex": b"OggS\0\2" + bytes(20) + b"\1\x50Speex   " + bytes(72),
    "'alac'": with_bytes(WRITTEN["CAF-ALAC_16-FILE"], (32, bytes(4))),
    "'aac '": with_bytes(WRITTEN["CAF-PCM_16-FILE"], (28, b"aac ")),
    "'QDM2'": with_bytes(WRITTEN["AIFF-ULAW-FILE"], (WRITTEN["AIFF-ULAW-FILE"].index(b"ulaw"), b"QDM2")),
    "in G.722": with_bytes(WRITTEN["AU-PCM_16-FILE"], (12, struct.pack(">I", 24))),
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "MP4": b"\0\0\0\x20ftypM4A \0\0\0\0M4A mp42isom",
    "WebM": b"\x1aE\xdf\xa3\x9fB\x86\x81\1", "AAC can": b"\xff\xf1\x50\x80\x02\x1f\xfc" + bytes(100),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDECODED)
def test_what_is_not_decoded_is_named(name: str) -> None:
    """By its codec or its format, and not called damaged."""
    with pytest.raises(UnsupportedMedia, match=name):
        decode(UNDECODED[name])


def test_a_file_of_too_many_chunks_is_refused() -> None:
    """Some hundred chunks are walked over; a million are not."""
    noted = WAV[:36] + b"note\0\0\0\0" * 900 + WAV[36:]

    np.testing.assert_array_equal(decode(noted), decode(WAV))
    with pytest.raises(InvalidRequest, match="is cut off"):
        decode(noted[:-2])
    with pytest.raises(InvalidRequest, match=f"has more than {MOST_CHUNKS} chunks before its samples"):
        expected_seconds(WAV[:36] + b"note\0\0\0\0" * 100_000 + WAV[36:], 60.0, False)


def test_lengths_are_known_before_decoding() -> None:
    """Exactly where a header tells."""
    seconds = {name: expected_seconds(content, 60.0, False) for name, content in WRITTEN.items()}

    lossless = {name for name in WRITTEN if name.split("-")[1] in {"PCM_16", "FLOAT", "VORBIS", "OPUS"}}
    assert {seconds[name] for name in lossless} == {6_000 / RATE, 4.0}
    assert seconds["MP3-MPEG_LAYER_III-FILE"] == pytest.approx(6_000 / RATE, abs=0.15)
    with pytest.raises(InvalidRequest, match=r"0\.375 s long, at most 0\.1 s"):
        expected_seconds(WRITTEN["AIFF-PCM_16-FILE"], 0.1, False)


def test_a_flac_with_a_tag_behind_it_is_decoded_whole() -> None:
    """As other sounds."""
    for tail in (b"TAG".ljust(128, b"\0"), bytes(10)):
        np.testing.assert_array_equal(decode(encoded("FLAC") + tail), decode(encoded("FLAC")))


def test_an_mp3_that_is_damaged_inside_is_refused() -> None:
    """Though as many bytes came as it declares."""
    content = bytearray(MP3)
    content[2000:4000] = bytes(2000)

    with pytest.raises(InvalidRequest, match="cut off or damaged"):
        decode(bytes(content))


def test_an_ogg_whose_last_page_is_damaged_is_refused() -> None:
    """The decoder stops at the page before it, without a word."""
    content = bytearray(encoded("OGG"))
    content[-20] ^= 1

    with pytest.raises(InvalidRequest, match=r"cut off or damaged|holds no samples"):
        decode(bytes(content))
