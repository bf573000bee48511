"""Clients that ask at the same moment: over HTTP with binary tensors, over HTTP in JSON, and over gRPC.

They live in the server's own event loop. What they send in one of its turns is there before it reads any of it, so that
requests share a batch wherever the server would ever let them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias

import grpc.aio
import numpy as np
from local_server import LocalServer

from conformance.alone import Array, Tensors
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app_client.tensors import DTYPES, datatype_of, decode_answer, encode_request

CLIENTS = 8
_TIMEOUT_S = 60
_BFLOAT16 = "bfloat16"

Way: TypeAlias = Literal["binary", "json", "grpc"]


class Ask(NamedTuple):
    """One request.

    Attributes:
        model: Its model.
        inputs: By name.
        way: How it is sent.
    """

    model: str
    inputs: Tensors
    way: Way = "binary"


class Reply(NamedTuple):
    """What came back.

    Attributes:
        status: 200 where it was answered, else HTTP's status or gRPC's code.
        outputs: By name; ``None`` where it was refused.
        message: Why it was.
    """

    status: int | str
    outputs: Tensors | None
    message: str = ""


def ask_together(server: LocalServer, rounds: Sequence[Sequence[Ask]]) -> list[list[Reply]]:
    """Send every round at once, each request by a client of its own, and the next round when all have answers."""
    return server.run(_ask_rounds(server, rounds))


async def _ask_rounds(server: LocalServer, rounds: Sequence[Sequence[Ask]]) -> list[list[Reply]]:
    async with _Clients(server, max(map(len, rounds), default=0)) as clients:
        return [await clients.ask(asks) for asks in rounds]


class _Clients:
    """So many clients of one server."""

    def __init__(self, server: LocalServer, number: int) -> None:
        self._server = server
        self._number = number
        self._streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._channel: Any = None

    async def __aenter__(self) -> _Clients:
        host, port = self._server.url.removeprefix("http://").split(":")
        self._streams = [await asyncio.open_connection(host, int(port)) for _ in range(self._number)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, writer in self._streams:
            writer.close()
        for _, writer in self._streams:
            await writer.wait_closed()
        if self._channel is not None:
            await self._channel.close()

    async def ask(self, asks: Sequence[Ask]) -> list[Reply]:
        """One round."""
        sending = [
            self._ask_grpc(ask) if ask.way == "grpc" else _ask_http(ask, *self._streams[number])
            for number, ask in enumerate(asks)
        ]
        return await asyncio.wait_for(asyncio.gather(*sending), _TIMEOUT_S)

    async def _ask_grpc(self, ask: Ask) -> Reply:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._server.grpc)
        request = pb.ModelInferRequest(model_name=ask.model)
        for name, array in ask.inputs.items():
            request.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
            request.raw_input_contents.append(_bytes_of(array))
        call = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        try:
            body = await call(request.SerializeToString(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return Reply(error.code().name, None, error.details() or "")
        answer = pb.ModelInferResponse.FromString(body)
        described = zip(answer.outputs, answer.raw_output_contents, strict=True)
        return Reply(200, {output.name: _array_of(raw, output) for output, raw in described})


async def _ask_http(ask: Ask, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Reply:
    path = f"/v2/models/{ask.model}/infer"
    if ask.way == "json":
        body, more = _json_of(ask.inputs), "Content-Type: application/json"
    else:
        body, length = encode_request(ask.inputs)
        more = f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {length}"
    head = f"POST {path} HTTP/1.1\r\nHost: local\r\nX-Timeout-Ms: {1000 * _TIMEOUT_S}\r\n{more}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    told = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    status = int(told[0].split(" ")[1])
    headers = dict(line.lower().split(": ", 1) for line in told[1:] if line)
    content = await reader.readexactly(int(headers["content-length"]))
    if status != 200:
        return Reply(status, None, _message(content))
    return Reply(200, decode_answer(content, headers.get("inference-header-content-length"))[1])


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content).get("error", ""))
    except ValueError:
        return content.decode(errors="replace")


def _json_of(inputs: Tensors) -> bytes:
    described = [
        {"name": name, "datatype": datatype_of(array), "shape": array.shape, "data": array.ravel().tolist()}
        for name, array in inputs.items()
    ]
    return json.dumps({"inputs": described}).encode()


def _bytes_of(array: Array) -> bytes:
    if array.dtype != object:
        return array.tobytes()
    texts = [str(item).encode() for item in array.ravel().tolist()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _array_of(raw: bytes, output: Any) -> Array:
    shape = tuple(output.shape)
    if output.datatype == "BYTES":
        texts, at = [], 0
        while at < len(raw):
            end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
            texts.append(raw[at + 4 : end])
            at = end
        made = np.empty(len(texts), np.object_)
        made[:] = texts
        return made.reshape(shape)
    dtype = np.dtype(_BFLOAT16) if output.datatype == "BF16" else DTYPES[output.datatype]
    return np.frombuffer(raw, dtype).reshape(shape)
