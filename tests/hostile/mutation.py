"""How good bytes and good documents are spoilt."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
_MOST_STEPS = 8
_LONGEST_INSERTION = 64

PATHS = (
    "../../../../../../etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "..\\..\\..\\windows\\win.ini",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/environ",
    "/dev/zero",
    "file:///etc/passwd",
    "http://127.0.0.1:1/",
    "http://169.254.169.254/latest/meta-data/",
    "ftp://127.0.0.1/x",
    "\\\\127.0.0.1\\share",
    "data:text/plain;base64,AAAA",
    "....//....//etc/passwd",
    "%c0%ae%c0%ae/etc/passwd",
    "x%00.onnx",
    "|id",
    "$(id)",
    "`id`",
    "{{7*7}}",
    "${jndi:ldap://127.0.0.1:1/x}",
    "CON",
    "a" * 4096,
)
"""Names that lead elsewhere where they are taken for paths, addresses, commands or templates."""


def spoil(rng: Random, data: bytes, other: bytes = b"") -> bytes:
    """Some changes to bytes: flips, numbers at the edge, and pieces cut, repeated, put in, or taken from elsewhere.

    Args:
        rng: Decides.
        data: Good bytes.
        other: What pieces may be taken from.
    """
    spoilt = bytearray(data)
    for _ in range(rng.randint(1, _MOST_STEPS)):
        at = rng.randrange(len(spoilt) + 1)
        match rng.randrange(8):
            case 0 if spoilt:
                spoilt[at % len(spoilt)] ^= 1 << rng.randrange(8)
            case 1 if spoilt:
                spoilt[at % len(spoilt)] = rng.choice(_EDGES) & 0xFF
            case 2:
                size = rng.choice((2, 4, 8))
                edge = rng.choice(_EDGES) % (1 << (8 * size))
                spoilt[at : at + size] = edge.to_bytes(size, rng.choice(("big", "little")))
            case 3:
                del spoilt[at : at + rng.randint(1, _LONGEST_INSERTION)]
            case 4:
                del spoilt[at:]
            case 5:
                spoilt[at:at] = rng.randbytes(rng.randint(1, _LONGEST_INSERTION))
            case 6:
                spoilt[at:at] = spoilt[at : at + rng.randint(1, _LONGEST_INSERTION)]
            case _ if other:
                start = rng.randrange(len(other))
                spoilt[at : at + _LONGEST_INSERTION] = other[start : start + rng.randint(1, _LONGEST_INSERTION)]
    return bytes(spoilt)


def hostile_value(rng: Random) -> Any:
    """Something that does not belong where it is put."""
    match rng.randrange(12):
        case 0:
            return rng.choice((None, True, False, {}, [], "", [[]], [{}], {"": None}))
        case 1:
            return rng.choice((-1, 0, 2**31, -(2**31), 2**53 + 1, 2**63, -(2**63) - 1, 10**40))
        case 2:
            return rng.choice((1e308, -1e308, 5e-324, -0.0, 1.5, float("nan"), float("inf"), float("-inf")))
        case 3 | 4:
            return rng.choice(PATHS)
        case 5:
            return "".join(chr(rng.choice((0, 0x20, 0x7F, 0xA0, 0x202E, 0xFEFF, 0x1F600, 0xFFFF))) for _ in range(8))
        case 6:
            return rng.choice(("a", "0", "\n", "é")) * rng.choice((100, 10_000, 70_000))
        case 7:
            return [rng.randint(-9, 9)] * rng.choice((1, 63, 64, 1025, 5000))
        case 8:
            return [[0.0] * rng.randint(0, 3) for _ in range(rng.randint(1, 6))]  # ragged
        case 9:
            return {str(number): number for number in range(rng.choice((3, 1000)))}
        case 10:
            return rng.choice(("FP32", "INT64", "BYTES", "BF16", "fp32", "FP128", "OBJECT"))
        case _:
            return nested(rng.choice((5, 100, 500)))


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def spoilt_document(rng: Random, document: Any) -> bytes:
    """JSON of a document with some of its values replaced, removed or added; sometimes no JSON any more."""
    spoilt = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        _spoil_node(rng, spoilt)
    match rng.randrange(20):
        case 0:
            opening = rng.choice(("[", '{"a":', "[[],"))
            return (opening * rng.choice((1000, 100_000))).encode()
        case 1:
            return json.dumps(spoilt).encode(rng.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7")), "replace")
        case 2 | 3:
            return spoil(rng, json.dumps(spoilt).encode())
        case 4:
            return json.dumps(spoilt).encode() + rng.choice((b"\0", b"{}", b"}", b" " * 1000, b"\xff"))
    return json.dumps(spoilt, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def _spoil_node(rng: Random, document: Any) -> None:
    node = document
    while True:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        match rng.randrange(4):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[str(hostile_value(rng))[:64]] = hostile_value(rng)
            case _:
                node[key] = hostile_value(rng)
        return
