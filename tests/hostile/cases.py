"""Hostile requests of every kind. A case follows from its number and the seed alone, so that it can be asked again."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import soundfile

from hostile.mutation import PATHS, hostile_value, spoil, spoilt_document

_DATA = Path(__file__).resolve().parents[1] / "data"
_LARGEST_SEED = 24 * 1024
_HOST = b"Host: localhost\r\nX-Timeout-Ms: 120000\r\n"  # how quick this machine is, is not in question


class Case(NamedTuple):
    """One thing to send.

    Attributes:
        kind: What is hostile about it.
        wire: The bytes.
        whole: Whether it is a whole request, which must be answered. Otherwise the client hangs up after it.
        http: Whether its head is sound HTTP; otherwise the server may also hang up without a word.
    """

    kind: str
    wire: bytes
    whole: bool = True
    http: bool = True


def case(seed: int, number: int) -> Case:
    """The case of this number."""
    rng = Random(f"{seed}/{number}")
    kind = KINDS[number % len(KINDS)]
    return kind(rng)


def request(target: str | bytes, body: bytes, headers: Mapping[str, str] | None = None, method: str = "POST") -> bytes:
    """A whole HTTP/1.1 request."""
    path = target.encode("utf-8", "surrogateescape") if isinstance(target, str) else target
    lines = b"".join(f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in (headers or {}).items())
    length = b"Content-Length: %d\r\n" % len(body)
    return b"%s %s HTTP/1.1\r\n%s%s%s\r\n" % (method.encode(), path, _HOST, lines, length) + body


# --- Media ----------------------------------------------------------------------------------------------------------

_PICTURES = "/v1/models/digits/predict"
_SOUNDS = "/v1/models/spoken-digits/predict"
_TYPES = (
    "image/png",
    "image/jpeg",
    "image/webp",
    "image/tiff",
    "image/svg+xml",
    "audio/wav",
    "audio/flac",
    "audio/ogg",
    "audio/mpeg",
    "application/octet-stream",
    "text/plain",
    "image/*",
    "",
)


def picture(rng: Random) -> Case:
    """A spoilt picture."""
    seeds = _pictures()
    body = spoil(rng, rng.choice(seeds), rng.choice(seeds))
    return Case("picture", request(_PICTURES, body, {"Content-Type": rng.choice(_TYPES)}))


def sound(rng: Random) -> Case:
    """A spoilt sound."""
    seeds = _sounds()
    body = spoil(rng, rng.choice(seeds), rng.choice(seeds))
    return Case("sound", request(_SOUNDS, body, {"Content-Type": rng.choice(_TYPES)}))


def media_bomb(rng: Random) -> Case:
    """A few bytes that say they are a large picture or a long sound."""
    large = rng.choice((5_000, 20_000, 65_535, 2**31 - 1))
    other = rng.choice((1, 5_000, 65_535, 2**31 - 1))
    match rng.randrange(5):
        case 0:
            target, kind, body = _PICTURES, "image/png", _png(large, other, rng.choice((0, 2, 3, 6)))
        case 1:
            head = b"GIF89a" + struct.pack("<HHBBB", large & 0xFFFF, other & 0xFFFF, 0x80, 0, 0) + bytes(6)
            frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, large & 0xFFFF, other & 0xFFFF, 0) + b"\x02\x02\x4c\x01\0"
            target, kind, body = _PICTURES, "image/gif", head + frame * rng.randint(1, 200) + b";"
        case 2:
            info = struct.pack("<IiiHHIIiiII", 40, large, other, 1, rng.choice((1, 8, 24, 32)), 0, 0, 0, 0, 0, 0)
            target, kind, body = _PICTURES, "image/bmp", b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + info + bytes(64)
        case 3:
            rate = rng.choice((0, 1, 8000, 2**32 - 1))
            format_ = struct.pack("<HHIIHH", 1, rng.choice((0, 1, 255, 65535)), rate, rate, 2, 16)
            chunks = b"WAVEfmt " + struct.pack("<I", 16) + format_ + b"data" + struct.pack("<I", 2**32 - 1)
            target, kind, body = _SOUNDS, "audio/wav", b"RIFF" + struct.pack("<I", 2**32 - 1) + chunks + bytes(100)
        case _:
            target, kind, body = _SOUNDS, "audio/flac", _silent_flac(rng.choice((8000, 192_000)), rng.choice((60, 300)))
    return Case("media bomb", request(target, body, {"Content-Type": kind}))


def form(rng: Random) -> Case:
    """A form with hostile boundaries, names and parts."""
    boundary = rng.choice(("x", "--", "", "a" * 100, 'a"b', "x; y", "\xff"))
    parts = []
    for _ in range(rng.choice((0, 1, 2, 5, 500))):
        name = rng.choice(("file", "parameters", "files", "", rng.choice(PATHS)[:200]))
        file = f'; filename="{rng.choice(PATHS)[:200]}"' if rng.random() < 0.6 else ""
        content = rng.choice((b"", b"{}", rng.randbytes(20), rng.choice(_pictures())[:4000]))
        head = f'Content-Disposition: form-data; name="{name}"{file}\r\nContent-Type: {rng.choice(_TYPES)}\r\n\r\n'
        parts.append(f"--{boundary}\r\n{head}".encode("latin-1", "replace") + content + b"\r\n")
    body = b"".join(parts) + (f"--{boundary}--\r\n".encode("latin-1") if rng.random() < 0.7 else b"")
    if rng.random() < 0.5:
        body = spoil(rng, body)
    target = rng.choice((_PICTURES, _SOUNDS, "/v1/models/words/predict"))
    return Case("form", request(target, body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}))


@cache
def _pictures() -> list[bytes]:
    return [file.read_bytes() for file in sorted((_DATA / "digits").iterdir()) if _is_seed(file)]


@cache
def _sounds() -> list[bytes]:
    wave = np.sin(np.arange(1600) / 5).astype(np.float32)
    written = []
    for kind, subtype in (("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", None)):
        file = io.BytesIO()
        soundfile.write(file, wave, 16000, format=kind, subtype=subtype)
        written.append(file.getvalue())
    return written


def _is_seed(file: Path) -> bool:
    return file.suffix not in {".md", ".npz"} and file.stat().st_size <= _LARGEST_SEED


def _png(width: int, height: int, colour: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(100_000))) + chunk(b"IEND", b"")


@cache
def _silent_flac(rate: int, seconds: int) -> bytes:
    """Minutes of silence, which compress to next to nothing."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(rate * seconds, np.int16), rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


# --- Documents ------------------------------------------------------------------------------------------------------


def document(rng: Random) -> Case:
    """A JSON body with something in it that does not belong there."""
    target, good = rng.choice(_DOCUMENTS)
    body = spoilt_document(rng, good)
    kind = rng.choice(("application/json", "application/json", "application/json; charset=utf-16", "text/json", ""))
    headers = {"Content-Type": kind}
    if rng.random() < 0.2:
        headers[rng.choice(_OPTIONS)] = str(hostile_value(rng))[:1000].replace("\r", "").replace("\n", "")
    return Case("document", request(target, body, headers))


def binary(rng: Random) -> Case:
    """Binary tensors that are not as long, not as many or not of the kind that their head says."""
    rows = rng.randint(1, 4)
    data = np.arange(rows * 16, dtype=np.int32).tobytes()
    texts = b"".join(struct.pack("<I", size) + b"a" * 3 for size in rng.choices((3, 3, 0, 2**32 - 1), k=rows))
    text = rng.random() < 0.4
    body = texts if text else data
    size = rng.choice((len(body), len(body), len(body) - 1, 0, -1, 2**31, 2**63, "1", None, 1.5))
    tensor = {
        "name": "INPUT0",
        "shape": rng.choice(([rows, 1 if text else 16], [rows, -4], [2**31, 2**31], [0, 16], [], [1] * 300, "x")),
        "datatype": "BYTES" if text else rng.choice(("INT32", "INT32", "FP64", "BOOL", "BF16", "UINT64", "x")),
        "parameters": {"binary_data_size": size},
    }
    tensors = [tensor] * rng.choice((1, 1, 2, 300)) if text else [tensor, {**tensor, "name": "INPUT1"}]
    body *= len(tensors) if len(tensors) <= 2 else 1
    head = json.dumps({"inputs": tensors}).encode()
    if rng.random() < 0.3:
        head = spoil(rng, head)
    length: Any = rng.choice((len(head), len(head), len(head), 0, -1, len(head) + len(body) + 1, 2**63, "0x10", "1e3"))
    model = "strings" if text else "sum_diff"
    headers = {"Inference-Header-Content-Length": str(length), "Content-Type": "application/octet-stream"}
    return Case("binary", request(f"/v2/models/{model}/infer", head + body, headers))


def compressed(rng: Random) -> Case:
    """A compressed body that is a bomb, is cut, or is compressed in another way than it says."""
    target, good = rng.choice(_DOCUMENTS)
    plain = json.dumps(good).encode()
    match rng.randrange(6):
        case 0:
            body = _bomb()
        case 1:
            body = _bomb_in_bomb()
        case 2:
            body = gzip.compress(plain, mtime=0)[: rng.randrange(40)]
        case 3:
            body = spoil(rng, gzip.compress(plain, mtime=0))
        case 4:
            body = zlib.compress(plain) * rng.choice((1, 2, 100))
        case _:
            body = gzip.compress(spoilt_document(rng, good)[:100_000], mtime=0)
    coding = rng.choice(("gzip", "gzip", "deflate", "br", "zstd", "gzip, gzip", "identity", "x" * 100, "gzip;q=0"))
    return Case("compressed", request(target, body, {"Content-Encoding": coding, "Content-Type": "application/json"}))


@cache
def _bomb() -> bytes:
    """A quarter of a gigabyte in as much of a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(2**20)
    return b"".join(packer.compress(block) for _ in range(256)) + packer.flush()


@cache
def _bomb_in_bomb() -> bytes:
    return gzip.compress(_bomb(), mtime=0)


# --- Paths and heads ------------------------------------------------------------------------------------------------


def path(rng: Random) -> Case:
    """A path that leads elsewhere if anybody follows it."""
    name = rng.choice(PATHS).replace(" ", "%20")
    before = rng.choice(
        ("/v2/models/", "/v2/", "/v1/models/", "/docs/", "/models/", "/", "/v2/models/sum_diff/versions/")
    )
    after = rng.choice(("", "/infer", "/predict", "/config", "/stats", "/ready", "/versions/1/infer", "?x=" + name))
    target = before + name + after
    if rng.random() < 0.3:
        target = (
            spoil(rng, target.encode()).replace(b" ", b"").replace(b"\r", b"").replace(b"\n", b"").decode("latin-1")
        )
    method = rng.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"))
    body = b"" if method in {"GET", "HEAD"} else rng.choice((b"", b"{}", json.dumps(hostile_value(rng)).encode()))
    raw = (
        b"/" + target.encode("latin-1", "replace").lstrip(b"/")
        if rng.random() < 0.9
        else target.encode("latin-1", "replace")
    )
    return Case("path", request(raw, body, {"Content-Type": "application/json"}, method), http=False)


def head(rng: Random) -> Case:
    """A head that is no HTTP, or means two things at once."""
    body = b'{"inputs":[]}'
    good = request("/v2/models/sum_diff/infer", body, {"Content-Type": "application/json"})
    match rng.randrange(9):
        case 0:
            wire = spoil(rng, good)
        case 1:
            wire = good.replace(
                b"\r\n\r\n", b"\r\n" + b"X-Filler: %s\r\n" % (b"a" * rng.choice((1000, 100_000))) + b"\r\n"
            )
        case 2:
            lines = b"".join(b"X-%d: 1\r\n" % number for number in range(rng.choice((10, 300, 3000))))
            wire = good.replace(b"\r\n\r\n", b"\r\n" + lines + b"\r\n", 1)
        case 3:
            wire = good.replace(
                b"Content-Length: 13", b"Content-Length: %s" % rng.choice((b"-1", b"1e9", b"99999999999", b"13, 14"))
            )
        case 4:
            wire = good.replace(b"Content-Length: 13", b"Content-Length: 13\r\nTransfer-Encoding: chunked")
        case 5:
            chunks = rng.choice(
                (b"FFFFFFFFFFFFFFFFF\r\n", b"-1\r\nx\r\n", b"1\r\nab\r\n0\r\n\r\n", b"0\r\nX: y\r\n\r\n")
            )
            wire = good.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
        case 6:
            wire = good.replace(b"HTTP/1.1", rng.choice((b"HTTP/9.9", b"HTTP/1.0", b"HTTP/2", b"", b"HTTP/1.1 x")))
        case 7:
            wire = rng.randbytes(rng.randint(1, 200))
        case _:
            wire = good.replace(
                b"/v2/models", rng.choice((b"http://127.0.0.1:1/v2", b"*", b"//", b"\x00", b"/" * 9000))
            )
    return Case("head", wire, whole=False, http=False)


def cut(rng: Random) -> Case:
    """A sound request of which only the first part comes before the client hangs up."""
    target, good = rng.choice(_DOCUMENTS)
    wire = request(target, json.dumps(good).encode(), {"Content-Type": "application/json"})
    return Case("cut", wire[: rng.randrange(1, len(wire))], whole=False)


_OPTIONS = (
    "X-Priority",
    "X-Variant",
    "X-Fallback",
    "X-Request-Id",
    "Accept-Encoding",
    "Cache-Control",
    "traceparent",
    "Range",
    "X-Stream-Timeout-Ms",
)


def _tensors(rows: int) -> list[dict[str, Any]]:
    tensor = {"shape": [rows, 16], "datatype": "INT32", "data": list(range(rows * 16))}
    return [{"name": name, **tensor} for name in ("INPUT0", "INPUT1")]


_DOCUMENTS: Sequence[tuple[str, Any]] = (
    (
        "/v2/models/sum_diff/infer",
        {"id": "a", "inputs": _tensors(2), "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]},
    ),
    (
        "/v2/models/sum_diff/versions/1/infer",
        {"inputs": _tensors(1), "parameters": {"priority": 2, "timeout": 5_000_000, "timings": True}},
    ),
    (
        "/v2/models/strings/infer",
        {"inputs": [{"name": "INPUT0", "shape": [2, 1], "datatype": "BYTES", "data": ["a", "b"]}]},
    ),
    (
        "/v2/models/sum_diff/generate",
        {"id": "a", "INPUT0": list(range(16)), "INPUT1": [list(range(16))], "priority": 1},
    ),
    ("/v2/models/sum_diff/generate_stream", {"INPUT0": [1] * 32, "parameters": {"INPUT1": [2] * 32, "timeout": 10**6}}),
    ("/v2/models/strings/versions/1/generate_stream", {"INPUT0": ["a", "b"], "stream_timeout": 10**6, "other": {}}),
    ("/v1/models/words/predict", {"inputs": "the cat", "parameters": {"normalize": True}}),
    ("/v1/models/moods/predict", {"inputs": ["good day", "bad day"], "parameters": {"top_k": 2}}),
    ("/v1/models/moods/predict", {"inputs": "good", "parameters": {"candidate_labels": ["joy", "fear"]}}),
    ("/v1/models/digits/predict", {"inputs": "iVBORw0KGgo=", "parameters": {"top_k": 3}}),
    ("/v1/embeddings", {"model": "words", "input": ["the cat", "a dog"], "dimensions": 2, "encoding_format": "base64"}),
    ("/v2/repository/index", {"ready": True}),
    ("/v2/logging", {"log_verbose_level": 0}),
)

KINDS: Sequence[Callable[[Random], Case]] = (
    picture,
    sound,
    document,
    binary,
    path,
    compressed,
    document,
    form,
    head,
    picture,
    binary,
    media_bomb,
    cut,
    document,
)
"""In this order, again and again. Documents come often since they have the most to get wrong."""
