"""Fuzzes the V2 codec: ``make fuzz-codec``.

Bodies and header lengths go through all that a request goes through, from decompression to the encoded answer. Whatever
they are, the outcome is an answer or a `ServeAppError`; anything else ends the run, and libFuzzer writes the input to
a file. Arguments are libFuzzer's, e.g. ``-max_total_time=60``.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import atheris  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

with atheris.instrument_imports(include=["serve_app.api"]):
    from api.protocol_service import BRAIN, DOUBLE, MIRROR, SCORES, TEXT, WIDE
    from fuzz.fuzzing import fuzz, one_row

    from serve_app.api.open_inference.classification import classify
    from serve_app.api.open_inference.codec import ModelCodec
    from serve_app.domain.options import parse_qos_headers, request_options
    from serve_app.domain.priorities import DEFAULT_LEVELS
    from serve_app.errors import ServeAppError
    from serve_app.http.body import BodyReader
    from serve_app.http.compression import asked_coding

CODECS = [ModelCodec(info) for info in (DOUBLE, WIDE, MIRROR, SCORES, BRAIN, TEXT)]
BODIES = BodyReader(max_body=1 << 20, max_held_bytes=1 << 22, offload_above=1 << 16, decode_threads=1)
HEADERS = (b"x-priority", b"x-timeout-ms", b"x-variant", b"x-fallback", b"accept-encoding")


def one_input(data: bytes) -> None:
    """Decode, check and answer one request.

    Args:
        data: The first byte chooses the model, the second the header length: none, 0, what the JSON takes, or what
            follows up to a line break. The third chooses a coding and a header with the next four as its value. The
            rest is the body.
    """
    choice, how, extra = (*data[:3], 0, 0, 0)[:3]
    codec, header, body = CODECS[choice % len(CODECS)], None, data[7:]
    match how % 5:
        case 1:
            header = b"0"
        case 2:
            header = b"%d" % (body.rfind(b"}}") + 2)
        case 3:
            header, _, body = body.partition(b"\n")
        case 4:
            header = b"%d" % how
    headers = {HEADERS[extra % len(HEADERS)]: data[3:7]} if extra else {}
    try:
        if extra & 128:
            body = BODIES.expand(body, (b"gzip", b"deflate")[extra & 1])
        asked_coding(headers)
        parsed = codec.parse(body, header)
        parameters = parsed.parameters
        request_options(
            codec.info,
            headers,
            len(body),
            parameters,
            parse_qos_headers(headers, DEFAULT_LEVELS),
        )
        tensors = codec.decode(parsed)
        selection = codec.select(parsed)
        names = (spec.name for spec in codec.info.signature.outputs)
        outputs = classify(
            dict(zip(names, tensors.values(), strict=True)),
            (counts := codec.classifications(parsed.request.outputs)),
            dict.fromkeys(counts, ()),
        )
        codec.encode(parsed.request.id, selection, outputs)
    except ServeAppError as error:
        error.message.encode()


def seeds() -> list[bytes]:
    """Requests that are right, for each model, to begin with: in JSON, with binary tensors, and raw."""
    found = []
    for number, codec in enumerate(CODECS):
        in_json: list[dict[str, Any]] = []
        in_binary: list[dict[str, Any]] = []
        tail = b""
        for spec in codec.info.signature.inputs:
            sizes, data = one_row(spec)
            count = math.prod(sizes)
            value: Any = {"BOOL": True, "BYTES": "a"}.get(spec.datatype, 1)
            tensor = {"name": spec.name, "datatype": spec.datatype, "shape": sizes}
            in_json.append({**tensor, "data": [value] * count})
            in_binary.append({**tensor, "parameters": {"binary_data_size": len(data)}})
            tail += data
        numbers = [spec.name for spec in codec.info.signature.outputs if spec.datatype not in {"BOOL", "BYTES"}]
        outputs = [{"name": name, "parameters": {"classification": 1, "binary_data": True}} for name in numbers]
        parameters = {"priority": 1, "timeout": 1000, "binary_data_output": True, "timings": True}
        options = {"id": "a", "outputs": outputs, "parameters": parameters}
        found.append(bytes([number, 0, 0, 0, 0, 0, 0]) + json.dumps({"inputs": in_json, **options}).encode())
        found.append(bytes([number, 2, 0, 0, 0, 0, 0]) + json.dumps({"inputs": in_binary, **options}).encode() + tail)
        found.append(bytes([number, 1, 0, 0, 0, 0, 0]) + tail)
    return found


if __name__ == "__main__":
    fuzz(one_input, seeds())
