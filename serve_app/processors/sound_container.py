"""Reads the structure of an audio file: its format, the position of its audio, and its declared length.

Nothing is decoded. A header declares a length, or was written before the length was known: to a pipe, or by a killed
recorder. Missing content of a declared length means a truncated file. An unknown length ends with the content, and the
decoder gets a corrected header. An MP3 without a frame count has an unknown length: an incomplete last frame is
omitted, as decoders do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

from serve_app.errors import InvalidRequest, UnsupportedMedia
from serve_app.processors.mpeg_frames import behind_tags, first_frame, measure, with_info_frame

_Order: TypeAlias = Literal["big", "little"]

MOST_CHUNKS: Final = 1_000
"""Chunks that are looked at in one file, a third of a millisecond. Programs write some ten."""

_PLACEHOLDERS: Final = (0x7F00_0000, 0x7FFF_F000, 0x8000_0000, 0xFFFF_FFFF)
"""Written as sizes that are not known (SoX, arecord, FFmpeg), give or take the size of a header."""

_GUESSED_BITS_PER_SECOND: Final = 64_000
"""Between speech (32 kbit/s) and music (128 kbit/s and more) in Ogg and MP3."""

_MPEG: Final = 0x55
PLAIN_WAV: Final = frozenset({1, 3, 6, 7, 0xFFFE})
"""Codecs of WAV files whose samples take a byte or more each: PCM, float, A-law, mu-law, extensible."""
_WAV_CODECS: Final = PLAIN_WAV | {2, 0x11, 0x31, 0x38, 0x40, _MPEG}
_WAV_NAMES: Final = {0x45: "G.726", 0x50: "MPEG layer II", 0x64: "G.726", 0x65: "G.722", 0xFF: "AAC", 0x161: "WMA",
                     0x28F: "G.722", 0x2000: "AC-3", 0xF1AC: "FLAC"}  # fmt: skip
_WAVE_GUID: Final = bytes.fromhex("000000001000800000aa00389b71")
_AU_BITS: Final = {1: 8, 2: 8, 3: 16, 4: 24, 5: 32, 6: 32, 7: 64, 23: 4, 25: 3, 26: 5, 27: 8}
_AIFF_BITS: Final = {
    b"NONE": 0, b"twos": 0, b"sowt": 0, b"raw ": 8, b"in24": 24, b"ni24": 24, b"42n1": 24, b"in32": 32, b"23ni": 32,
    b"fl32": 32, b"FL32": 32, b"fl64": 64, b"FL64": 64, b"ulaw": 8, b"ULAW": 8, b"alaw": 8, b"ALAW": 8,
}  # fmt: skip
"""Bits of a sample; 0 where the header says how many."""
_AIFF_PACKED: Final = frozenset({b"ima4", b"GSM ", b"DWVW"})
_CAF_CODECS: Final = frozenset({b"lpcm", b"ulaw", b"alaw", b"alac"})
_OGG_CODECS: Final = {b"\x7fFLAC": "FLAC", b"Speex   ": "Speex", b"\x80theora": "Theora"}
_LARGEST_PAGE: Final = 27 + 255 + 255 * 255
_BEHIND: Final = 64 * 1024
"""Bytes behind the last page of an Ogg file, such as a tag, that are looked past."""


class Sound(NamedTuple):
    """A file that is complete as far as it declares its length.

    Attributes:
        name: Media type.
        seconds: Approximate duration.
        exact: Whether the header declares it exactly.
        counted: Whether the decoder knows the length from the file, so that fewer samples are an error.
        needed: Least duration, seconds, where the decoder may silently stop at damage; 0: none.
        tolerance: Samples that may be missing: some MP3 encoders count their first frame, which holds none.
        content: Unchanged.
        start: Start of the audio.
        patches: Corrections of the header for the decoder: (position, bytes).
        frames: Start and end of MP3 frames, if any.
    """

    name: str
    seconds: float
    exact: bool
    counted: bool
    content: bytes
    needed: float = 0.0
    tolerance: int = 0
    start: int = 0
    patches: tuple[tuple[int, bytes], ...] = ()
    frames: tuple[int, int] | None = None

    def decodable(self) -> bytes | bytearray:
        """The file with corrections for the decoder."""
        if self.frames is not None:
            return with_info_frame(self.content, *self.frames)
        if not self.start and not self.patches:
            return self.content
        copy = bytearray(memoryview(self.content)[self.start :])
        for position, patch in self.patches:
            copy[position - self.start : position - self.start + len(patch)] = patch
        return copy


class _Data(NamedTuple):
    """Start of the samples, their declared bytes, and place and form of the declaration."""

    start: int
    size: int
    place: int
    width: int
    order: _Order
    extra: int = 0  # bytes before the samples that the header counts, and `size` does not


def read_sound(content: bytes) -> Sound | None:
    """Read a file's structure, and compare its declared length with the content.

    Bounded and cheap: runs in the router's event loop.

    Returns:
        ``None`` for unknown formats.

    Raises:
        InvalidRequest: It is truncated, or has too many chunks.
        UnsupportedMedia: The sample format is not supported.
    """
    at = behind_tags(content, 0)
    if at > len(content):
        raise InvalidRequest(f"the audio is cut off inside its ID3 tag, which ends at {at} bytes; {len(content)} came")
    magic, form = content[at : at + 4], content[at + 8 : at + 12]
    if magic in {b"RIFF", b"RIFX", b"RF64", b"BW64"} and form == b"WAVE":
        return _wav(content, at, magic)
    if magic == b"FORM" and form in {b"AIFF", b"AIFC"}:
        return _aiff(content, at)
    if magic == b".snd":
        return _au(content, at)
    if magic == b"caff":
        return _caf(content, at)
    if magic == b"fLaC":
        return _flac(content, at)
    if magic == b"OggS":
        return _ogg(content, at)
    start = first_frame(content, at)
    return None if start is None else _mpeg("audio/mpeg", content, start, len(content))


def holds_several(sound: Sound) -> bool:
    """Whether an Ogg file holds a second stream, before which the decoder would stop. Reads the whole file."""
    at, content = sound.start, sound.content
    for _ in range(64):
        at = content.find(b"OggS\0\2", at + 1)
        if at < 0:
            return False
        if _ogg_packet(content, at).startswith((b"\x01vorbis", b"OpusHead")):
            return True
    return False


def _wav(content: bytes, at: int, magic: bytes) -> Sound:
    order: _Order = "big" if magic == b"RIFX" else "little"
    wide = magic in {b"RF64", b"BW64"}
    patches = [(at, b"RF64")] if magic == b"BW64" else []
    form_end = 0 if wide else _end(content, at, order)
    codec, bits_per_second, sizes = 0, 0, 0
    for name, start, size in _chunks("audio/wav", content, at + 12, order):
        if name == b"ds64" and wide:
            sizes = start
        elif name == b"fmt " and start + 16 <= len(content):
            codec, bits_per_second = _wav_format(content, start, size, order)
        elif name == b"data":
            data = _Data(start, size, start - 4, 4, order)
            if sizes and size == 0xFFFF_FFFF:
                in_sizes = int.from_bytes(content[sizes + 8 : sizes + 16], "little")
                data = _Data(start, in_sizes, sizes + 8, 8, order)
            sound = _sized("audio/wav", content, at, data, bits_per_second, form_end)
            if codec == _MPEG:
                return _mpeg("audio/wav", content, start, len(content) if sound.patches else start + data.size)
            return sound._replace(exact=sound.exact and codec in PLAIN_WAV, patches=(*patches, *sound.patches))
    raise _headless("audio/wav", content)


def _wav_format(content: bytes, start: int, size: int, order: _Order) -> tuple[int, int]:
    """Codec number, and bits per second."""
    layout = ">HHIIH" if order == "big" else "<HHIIH"
    codec, _, rate, average, block = struct.unpack_from(layout, content, start)
    if codec == 0xFFFE and size >= 40 and content[start + 26 : start + 40] == _WAVE_GUID:
        codec = int.from_bytes(content[start + 24 : start + 26], order)
    if codec not in _WAV_CODECS:
        raise _undecoded("audio/wav", _WAV_NAMES.get(codec, f"codec 0x{codec:04X}"))
    # The average of plain samples may be wrong, and is not needed.
    return codec, 8 * (rate * block if codec in PLAIN_WAV else average)


def _aiff(content: bytes, at: int) -> Sound:
    form_end = _end(content, at, "big")
    samples: tuple[int, int] | None = None
    frames, frame_bits, rate = 0, 0, 0.0
    for name, start, size in _chunks("audio/aiff", content, at + 12, "big"):
        if name == b"COMM" and start + 18 <= len(content):
            channels, frames, bits, exponent, mantissa = struct.unpack_from(">HIHHQ", content, start)
            rate = mantissa * 2.0 ** (exponent - 16383 - 63) if exponent < 16383 + 64 else 0.0
            codec = content[start + 18 : start + 22] if content[at + 8 : at + 12] == b"AIFC" else b"NONE"
            if codec not in _AIFF_BITS and codec not in _AIFF_PACKED:
                raise _undecoded("audio/aiff", repr(codec.decode("latin-1")))
            frame_bits = channels * (_AIFF_BITS[codec] or (bits + 7) // 8 * 8) if codec in _AIFF_BITS else 0
        elif name == b"SSND" and start + 8 <= len(content):
            samples = start, size
        if samples and rate:
            break
    if samples is None:
        raise _headless("audio/aiff", content)
    start, size = samples
    data = _Data(start + 8, max(0, size - 8), start - 4, 4, "big", 8)
    sound = _sized("audio/aiff", content, at, data, frame_bits * rate, form_end)
    needed, present = frames * frame_bits // 8, data.size if not sound.patches else len(content) - data.start
    if needed > present and not _is_placeholder(needed) and not _is_placeholder(frames):
        raise _cut_off("audio/aiff", content, needed, present)
    return sound


def _au(content: bytes, at: int) -> Sound:
    if at + 24 > len(content):
        raise _headless("audio/basic", content)
    offset, size, encoding, rate, channels = struct.unpack_from(">5I", content, at + 4)
    if encoding not in _AU_BITS:
        raise _undecoded("audio/basic", "G.722" if encoding == 24 else f"encoding {encoding}")
    start = at + offset
    if start > len(content):
        raise _headless("audio/basic", content)
    data = _Data(start, size, at + 8, 4, "big")
    return _sized("audio/basic", content, at, data, _AU_BITS[encoding] * rate * channels)


def _caf(content: bytes, at: int) -> Sound:
    bits_per_second = 0.0
    for name, start, size in _chunks("audio/x-caf", content, at + 8, "big", 8):
        if name == b"desc" and start + 32 <= len(content):
            rate, codec, flags, packet, frames = struct.unpack_from(">d4sIII", content, start)
            if codec not in _CAF_CODECS or (codec == b"alac" and not flags):  # those of FFmpeg have another header
                raise _undecoded("audio/x-caf", repr(codec.decode("latin-1")))
            bits_per_second = 8 * packet * rate / max(1, frames) if 0 < rate < 1e9 else 0.0
        elif name == b"data":
            # In front of the samples is a number of edits, 4 bytes.
            data = _Data(start + 4, max(0, size - 4), start - 8, 8, "big", 4)
            return _sized("audio/x-caf", content, at, data, bits_per_second)
    raise _headless("audio/x-caf", content)


def _flac(content: bytes, at: int) -> Sound:
    if at + 26 > len(content):
        raise _headless("audio/flac", content)
    # STREAMINFO (RFC 9639, 8.2): 20 bits of rate, 3 of channels, 5 of depth, 36 of samples from byte 18 on. 0 samples
    # are an unknown number.
    packed = int.from_bytes(content[at + 18 : at + 26])
    rate, samples = packed >> 44, packed & ((1 << 36) - 1)
    known = bool(rate and samples)
    seconds = samples / rate if known else _seconds(len(content) - at, 0)
    return Sound("audio/flac", seconds, known, bool(samples), content, start=at)


def _ogg(content: bytes, at: int) -> Sound:
    packet = _ogg_packet(content, at)
    for magic, name in _OGG_CODECS.items():
        if packet.startswith(magic):
            raise _undecoded("audio/ogg", name)
    # The last page of a stream is marked as such (RFC 3533, 6).
    last = content.rfind(b"OggS\0", max(at, len(content) - _LARGEST_PAGE - _BEHIND))
    if last < 0 or last + 27 > len(content) or not content[last + 5] & 4:
        raise InvalidRequest(f"the audio/ogg is cut off at {len(content)} bytes: no page is marked as its last")
    lacing = content[last + 27 : last + 27 + content[last + 26]]
    end = last + 27 + content[last + 26] + sum(lacing)
    if end > len(content):
        raise InvalidRequest(f"the audio/ogg is cut off at {len(content)} bytes: its last page ends at {end}")
    samples = int.from_bytes(content[last + 6 : last + 14], "little")
    seconds = guess = _seconds(len(content), 0)
    if packet.startswith(b"OpusHead"):
        seconds = max(0, samples - int.from_bytes(packet[10:12], "little")) / 48_000
    elif packet.startswith(b"\x01vorbis") and (rate := int.from_bytes(packet[12:16], "little")):
        seconds = samples / rate
    needed = 0.0 if seconds == guess else seconds
    return Sound("audio/ogg", seconds, False, True, content, needed, start=at)


def _mpeg(name: str, content: bytes, start: int, end: int) -> Sound:
    stream = measure(content, start, end)
    counted = stream.frames is not None
    return Sound(name, stream.seconds, False, counted, content, tolerance=stream.tolerance, frames=(start, end))


def _ogg_packet(content: bytes, at: int) -> bytes:
    """The beginning of a page's first packet."""
    start = at + 27 + (content[at + 26] if at + 26 < len(content) else 0)
    return content[start : start + 16]


def _chunks(name: str, content: bytes, at: int, order: _Order, width: int = 4) -> Iterator[tuple[bytes, int, int]]:
    """Name, content position and declared size of each chunk. With 4-byte sizes, chunks are padded to even lengths."""
    for _ in range(MOST_CHUNKS):
        start = at + 4 + width
        if start > len(content):
            return
        size = int.from_bytes(content[at + 4 : start], order)
        yield content[at : at + 4], start, size
        at = start + size + (size % 2 if width == 4 else 0)
    raise InvalidRequest(f"the {name} has more than {MOST_CHUNKS} chunks before its samples")


def _end(content: bytes, at: int, order: _Order) -> int:
    """The file's declared end; 0 if unknown."""
    size = int.from_bytes(content[at + 4 : at + 8], order)
    return 0 if _is_placeholder(size) else at + 8 + size


def _sized(name: str, content: bytes, at: int, data: _Data, bits_per_second: float, form_end: int = 0) -> Sound:
    """Make the result for a declared size, or patch a size written before it was known.

    ``form_end`` is the file's declared end, 0 if unknown. Raises `InvalidRequest` if content is missing.
    """
    came = len(content) - data.start
    # Of no samples with other chunks behind them, the size of the whole file is right.
    if 0 < data.size <= came or (data.size == 0 and len(content) - 1 <= form_end <= len(content) + 1):
        return Sound(name, _seconds(data.size, bits_per_second), bits_per_second > 0, True, content, start=at)
    if data.size and not _is_placeholder(data.size + data.extra):
        raise _cut_off(name, content, data.size, came)
    if form_end > len(content) + 1:
        raise _cut_off(name, content, form_end - data.start, came)
    patch = data.place, min(came + data.extra, 0xFFFF_FFFE).to_bytes(data.width, data.order)
    return Sound(name, _seconds(came, bits_per_second), False, True, content, start=at, patches=(patch,))


def _is_placeholder(size: int) -> bool:
    return size == 0 or size >> 62 > 0 or any(abs(size - known) < 0x1000 for known in _PLACEHOLDERS)


def _seconds(nbytes: int, bits_per_second: float) -> float:
    return max(0, nbytes) * 8 / (bits_per_second or _GUESSED_BITS_PER_SECOND)


def _cut_off(name: str, content: bytes, declared: int, came: int) -> InvalidRequest:
    return InvalidRequest(
        f"the {name} is cut off at {len(content)} bytes: its header declares {declared} bytes of samples,"
        f" and {max(0, came)} came"
    )


def _headless(name: str, content: bytes) -> InvalidRequest:
    return InvalidRequest(f"the {name} of {len(content)} bytes is cut off before its samples, or damaged")


def _undecoded(name: str, codec: str) -> UnsupportedMedia:
    return UnsupportedMedia(
        f"the {name} holds samples in {codec}, which is not decoded here: send a WAV of PCM samples, FLAC, Ogg Vorbis,"
        " Ogg Opus or MP3"
    )
