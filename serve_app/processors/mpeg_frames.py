"""Finds and counts the frames of an MP3."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final, NamedTuple

_HEADER: Final = re.compile(rb"\xff[\xe2-\xe5\xf2-\xf5\xfa-\xfd][\x10-\xef]", re.DOTALL)
"""11 bits of sync, a version, layer II or III, a bit rate. Other values are reserved, or rates that no header says."""

_ZEROS: Final = re.compile(rb"\0{1,65536}")

_RATES: Final = (44_100, 48_000, 32_000)
_KILOBITS: Final = {
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""By whether it is MPEG 1, and by layer. The others have one table for both layers."""

_SEARCHED: Final = 64 * 1024
_CANDIDATES: Final = 512
"""Junk before the first frame: bytes, and places in it that look like a header."""

_MOST_TAGS: Final = 20
"""Tags that are looked past, one behind the other."""

_WALKED: Final = 200_000
"""Frames that are looked at one by one, more than an hour of sound."""


class _Frame(NamedTuple):
    """A frame's header: bytes, samples per channel, and sampling rate."""

    length: int
    samples: int
    rate: int
    bits_per_second: int
    layer: int
    side: int  # bytes between the header and the main data


def first_frame(content: bytes, at: int) -> int | None:
    """The start of the first frame, if any.

    Skips junk before three consecutive frames, e.g. a partial frame at the start of a recorded stream. One frame
    suffices at the very beginning.
    """
    found = _search(content, at)
    return at if found is None and _frame(content, at) else found


class Stream(NamedTuple):
    """Consecutive frames.

    Attributes:
        seconds: Approximate duration.
        frames: The declared number, if any.
        tolerance: Samples that may be missing. Some encoders count the first frame, which holds none: allowed if all
            declared bytes arrived.
        notes: Whether the first frame is Fraunhofer's or wrong, so that the decoder must not see it.
    """

    seconds: float
    frames: int | None = None
    tolerance: int = 0
    notes: bool = False


def measure(content: bytes, start: int, end: int) -> Stream:
    """Read the first frame of a stream, in constant time."""
    frame = _frame(content, start)
    if frame is None or frame.layer != 3:
        return Stream((end - start) * 8 / (frame.bits_per_second if frame else 64_000))
    seconds = (end - start) * 8 / frame.bits_per_second
    for at in (start + 4 + frame.side, start + 6 + frame.side):  # two bytes of checksum may be in front
        if content[at : at + 4] in {b"Xing", b"Info"}:
            flags, one, two = (int.from_bytes(content[at + 4 * n : at + 4 * n + 4]) for n in (1, 2, 3))
            count, nbytes = (one if flags & 1 else 0), (two if flags & 3 == 3 else one if flags & 2 else 0)
            break
    else:
        if content[start + 36 : start + 40] != b"VBRI":
            return Stream(seconds)
        at, count, nbytes = 0, *(int.from_bytes(content[start + n : start + n + 4]) for n in (50, 46))
    # More frames may follow those that were counted, where files were joined.
    if not count or (nbytes and _search(content, behind_tags(content, start + nbytes)) is not None):
        return Stream(seconds, notes=True)
    tolerance = frame.samples if 0 < nbytes <= end - start else 0
    return Stream(count * frame.samples / frame.rate, count, tolerance, not at)


def with_info_frame(content: bytes, start: int, end: int) -> bytes:
    """Prepend an info frame that counts the others, for the decoder.

    Without it, the decoder guesses the end from the first frame, and loses most of audio with a variable bit rate.
    """
    stream, frame = measure(content, start, end), _frame(content, start)
    if frame is None or frame.layer != 3 or (stream.frames is not None and not stream.notes):
        return content[start:end]
    if stream.notes:
        start += frame.length
    header = bytearray(content[start : start + 4])
    if _frame(header, 0) is None:
        return content[start:end]
    # Of the kind of those that follow, without a checksum, at the highest bit rate: that has room.
    header[1] |= 1
    header[2] = header[2] & 0x0D | 0xE0
    frame = _frame(header, 0)
    assert frame is not None, "This is a bug: only the bit rate was changed"
    # No frame is as short as a byte: a decoder that counts bytes stops at the end of the stream.
    count = stream.frames or min(end - start, 0x7FFF_FFFF)
    notes = header + bytes(frame.side) + b"Info" + (1).to_bytes(4) + count.to_bytes(4)
    return bytes(notes.ljust(frame.length, b"\0")) + _without_tags(content, start, end)


def behind_tags(content: bytes, at: int) -> int:
    """The end of zeros and of ID3 and APE tags; beyond the content if one is truncated."""
    for _ in range(_MOST_TAGS):
        begin = at
        if content.startswith(b"ID3", at) and at + 10 <= len(content):
            size = 0
            for byte in content[at + 6 : at + 10]:
                size = size << 7 | byte & 0x7F
            at += 10 + size + (10 if content[at + 5] & 0x10 else 0)
        elif content.startswith(b"TAG", at):
            at += 128
        elif content.startswith(b"APETAGEX", at):
            at += 32 + int.from_bytes(content[at + 12 : at + 16], "little")
        elif zeros := _ZEROS.match(content, at):
            at = zeros.end()
        if at == begin:
            break
    return at


def _without_tags(content: bytes, start: int, end: int) -> bytes:
    """The frames without tags between and after them, which may exceed the decoder's search."""
    parts: list[bytes] = []
    lengths: dict[bytes, int] = {}
    at = start
    for _ in range(_WALKED):
        if at >= end:
            break
        header = content[at : at + 3]
        if header not in lengths:
            frame = _frame(content, at)
            lengths[header] = frame.length if frame else 0
        if lengths[header]:
            at += lengths[header]
            continue
        behind = behind_tags(content, at)
        if behind == at:
            break
        parts.append(content[start:at])
        start = at = behind
    return b"".join((*parts, content[start:end]))


def _search(content: bytes, at: int) -> int | None:
    """The start of three consecutive frames."""
    for match in islice(_HEADER.finditer(content, at, at + _SEARCHED), _CANDIDATES):
        place = first = match.start()
        for _ in range(2):
            frame = _frame(content, place)
            if frame is None or not _same_kind(content, first, place + frame.length):
                break
            place += frame.length
        else:
            return first
    return None


def _frame(content: bytes | bytearray, at: int) -> _Frame | None:
    if at + 4 > len(content) or not _HEADER.match(content, at):
        return None
    version, third = content[at + 1] >> 3 & 3, content[at + 2]
    layer = 4 - (content[at + 1] >> 1 & 3)
    if third >> 2 & 3 == 3:
        return None
    first = version == 3
    rate = _RATES[third >> 2 & 3] // {3: 1, 2: 2, 0: 4}[version]
    bits = 1000 * _KILOBITS[first, layer if first else 3][third >> 4]
    samples = 576 if layer == 3 and not first else 1152
    mono = content[at + 3] >> 6 == 3
    side = (17 if mono else 32) if first else (9 if mono else 17)
    return _Frame(samples // 8 * bits // rate + (third >> 1 & 1), samples, rate, bits, layer, side)


def _same_kind(content: bytes, one: int, other: int) -> bool:
    """Whether two headers have the same version, layer and sampling rate."""
    return (
        other + 4 <= len(content)
        and _HEADER.match(content, other) is not None
        and (content[one + 1] ^ content[other + 1]) & 0xFE == 0
        and (content[one + 2] ^ content[other + 2]) & 0x0C == 0
    )
