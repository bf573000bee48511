"""Fuzzes every gRPC call: ``make fuzz-grpc``.

Bytes go as messages through all that a call goes through, from reading the message to the serialized answer. Whatever
they are, a call ends well or with a status that says that the client is wrong; anything else ends the run, and
libFuzzer writes the input to a file. Arguments are libFuzzer's, e.g. ``-max_total_time=60``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final

import atheris  # type: ignore[import-untyped]
import grpc

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

with atheris.instrument_imports(include=["serve_app.api"]):
    from api.protocol_service import DOUBLE, MIRROR, WIDE, NumpyService
    from fuzz.fuzzing import fuzz, one_row

    from serve_app.api.grpc_app import RPCS, GrpcApp
    from serve_app.api.open_inference import inference_pb2 as pb
    from serve_app.http.body import BodyReader

CALLS: Final = tuple(rpc for rpc in RPCS if rpc.name != "Watch")  # which ends only when its client does
MODELS: Final = (DOUBLE, WIDE, MIRROR)
METADATA: Final = ("x-priority", "x-timeout-ms", "x-variant", "x-fallback", "x-request-id")
CLIENTS_FAULT: Final = frozenset(
    {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
)
BOUNDARY: Final = b"\xff\xfe\xff"
"""Between the messages of a stream."""


class Ended:
    """A call's context that remembers how the call ended."""

    def __init__(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._metadata = list(metadata)
        self.code = grpc.StatusCode.OK

    def peer(self) -> str:
        """Where it comes from."""
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        """What came with the call."""
        return self._metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        """How it ends."""
        self.code = code

    def set_details(self, details: str) -> None:
        """Why: it must be possible to send that."""
        details.encode()

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Of the same kind as gRPC takes."""
        for name, value in trailing_metadata:
            assert isinstance(name, str)
            assert isinstance(value, str)


LOOP = asyncio.new_event_loop()
SERVICE = NumpyService()


async def _app() -> GrpcApp:
    bodies = BodyReader(max_body=1 << 20, max_held_bytes=1 << 22, offload_above=1 << 16, decode_threads=1)
    return GrpcApp(SERVICE, SERVICE, bodies, typed_answers=True)


APP = LOOP.run_until_complete(_app())


def one_input(data: bytes) -> None:
    """Answer one call.

    Args:
        data: The first byte chooses the call, the second a name among the metadata with the next four bytes as its
            value. The rest is the message; that of a stream is several, with `BOUNDARY` between them.
    """
    choice, named = (*data[:2], 0, 0)[:2]
    rpc, body = CALLS[choice % len(CALLS)], data[6:]
    metadata = [(METADATA[named % len(METADATA)], data[2:6].decode("latin-1"))] if named else []
    context = Ended(metadata)
    LOOP.run_until_complete(_call(rpc.name, body, context, streams=rpc.streams, takes_stream=rpc.takes_stream))
    for noted in (SERVICE.calls, SERVICE.prechecks, SERVICE.refusals):
        noted.clear()  # so that what grows is a leak
    assert context.code is grpc.StatusCode.OK or context.code.name in CLIENTS_FAULT, (rpc.name, context.code)


async def _call(name: str, body: bytes, context: Ended, *, streams: bool, takes_stream: bool) -> None:
    if not streams:
        await APP.unary(name, body, context)
        return

    async def messages() -> AsyncIterator[bytes]:
        for each in body.split(BOUNDARY):
            yield each

    async for _ in APP.stream(name, messages() if takes_stream else body, context):
        pass


def seeds() -> list[bytes]:
    """Requests that are right: for each model, raw and typed, by call and by stream; and one of every other call."""
    infer, stream = (
        next(number for number, rpc in enumerate(CALLS) if rpc.name == name)
        for name in ("ModelInfer", "ModelStreamInfer")
    )
    found = [bytes([number, 0, 0, 0, 0, 0]) for number in range(len(CALLS))]
    for info in MODELS:
        request = pb.ModelInferRequest(model_name=info.name, id="a")
        request.parameters["priority"].int64_param = 1
        for spec in info.signature.inputs:
            sizes, content = one_row(spec)
            request.inputs.add(name=spec.name, datatype=spec.datatype, shape=sizes)
            request.raw_input_contents.append(content)
        message = request.SerializeToString()
        found.append(bytes([infer, 1, 104, 105, 103, 104]) + message)
        found.append(bytes([stream, 0, 0, 0, 0, 0]) + message + BOUNDARY + message)
    typed = pb.ModelInferRequest(model_name=DOUBLE.name)
    tensor = typed.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    tensor.contents.fp32_contents.extend([1.0] * 4)
    found.append(bytes([infer, 0, 0, 0, 0, 0]) + typed.SerializeToString())
    return found


if __name__ == "__main__":
    fuzz(one_input, seeds())
