"""The clients of the load: ours, with its retries, and plain ones that send once, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp
import grpc
import grpc.aio
import numpy as np
import orjson
from typing_extensions import override

from benchmarks.chaos.questions import Known, Question, known_of
from benchmarks.chaos.records import End
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.payloads import DTYPES
from serve_app_client import AsyncClient, ConnectionFailed, DeadlineExceeded, ServeAppClientError

GRACE_S = 3.0
"""How long after its deadline a request may still end before it counts as hung: everything shares two cores."""

_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_CODES = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "deadline_exceeded",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "overloaded",
    grpc.StatusCode.UNAVAILABLE: "model_unavailable",
    grpc.StatusCode.INTERNAL: "inference_failed",
}


class Ending(NamedTuple):
    """How a request ended, and the code or mistake that tells more."""

    end: End
    code: str = ""


class Client(ABC):
    """Sends questions. Used inside one event loop, closed at the end.

    Attributes:
        kind: For reports.
    """

    kind: str

    async def ask(self, question: Question, priority: str, timeout_s: float) -> Ending:
        """Send one request and compare its answer."""
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                ending = await self._ask(question, priority, timeout_s)
        except TimeoutError:
            return Ending(End.HUNG)
        return as_expected(question, ending) if question.refusals else ending

    @abstractmethod
    async def _ask(self, question: Question, priority: str, timeout_s: float) -> Ending:
        """Send one request; it is cancelled when it has hung."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    @staticmethod
    def takes(question: Question) -> bool:  # noqa: ARG004 - most take all
        """Whether this client can send such a question."""
        return True


class Retrying(Client):
    """The project's own client with its default retries.

    Args:
        url: Of the server.
        kind: For reports.
    """

    def __init__(self, url: str, kind: str) -> None:
        self.kind = kind
        self._client = AsyncClient(url)

    @override
    async def _ask(self, question: Question, priority: str, timeout_s: float) -> Ending:
        options: Any = {"priority": priority, "timeout": timeout_s}
        try:
            if question.tensors is not None:
                outputs = (await self._client.infer(question.model, question.tensors, **options)).outputs
                answer: Known = np.asarray(next(iter(outputs.values())), np.float32).ravel()
            else:
                assert question.media is not None
                answer = known_of((await self._client.predict(question.model, question.media, **options)).value)
        except ConnectionFailed as error:
            unsent = "connect" in error.message.lower() and "attempts" in error.message.lower()
            return Ending(End.UNREACHABLE if unsent else End.CUT, error.message)
        except DeadlineExceeded as error:
            return Ending(End.REFUSED, error.code if error.status else "client_deadline")
        except ServeAppClientError as error:
            return Ending(End.REFUSED, error.code or f"status_{error.status}")
        return _compared(question, answer)

    @override
    async def close(self) -> None:
        await self._client.close()


class Plain(Client):
    """An HTTP client that sends every request once.

    Args:
        url: Of the server.
        kind: For reports.
        connections: Most connections.
    """

    def __init__(self, url: str, kind: str, connections: int) -> None:
        self.kind = kind
        self._url = url
        # Serve's port ends idle connections soon, and a request on one that is just ending is lost.
        connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=1.0)
        traces = aiohttp.TraceConfig()
        traces.on_connection_reuseconn.append(_note_kept)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), trace_configs=[traces]
        )

    @override
    async def _ask(self, question: Question, priority: str, timeout_s: float) -> Ending:
        headers = {**question.request.headers, "X-Priority": priority, "X-Timeout-Ms": f"{timeout_s * 1e3:.0f}"}
        seen: set[str] = set()
        try:
            async with self._session.post(
                self._url + question.path, data=question.request.body, headers=headers, trace_request_ctx=seen
            ) as answer:
                content = await answer.read()
        except aiohttp.ClientConnectorError as error:
            return Ending(End.UNREACHABLE, str(error))
        except aiohttp.ClientError as error:
            return Ending(End.CUT, f"{type(error).__name__}{''.join(seen)}: {error}")
        if answer.status != 200:
            return Ending(End.REFUSED, code_of(answer.status, content))
        return read_answer(question, {name.lower(): value for name, value in answer.headers.items()}, content)

    @override
    async def close(self) -> None:
        await self._session.close()


class Grpc(Client):
    """A gRPC client that sends every request once.

    Args:
        address: ``host:port``.
        kind: For reports.
    """

    def __init__(self, address: str, kind: str) -> None:
        self.kind = kind
        options = [
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            # By default a channel that failed to connect waits up to two minutes before it looks again.
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        self._channel = grpc.aio.insecure_channel(address, options)
        self._call: Any = self._channel.unary_unary(_INFER, response_deserializer=pb.ModelInferResponse.FromString)

    @override
    async def _ask(self, question: Question, priority: str, timeout_s: float) -> Ending:
        assert question.tensors is not None
        request = pb.ModelInferRequest(model_name=question.model)
        for name, array in question.tensors.items():
            request.inputs.add(name=name, datatype=_DATATYPES[array.dtype], shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        metadata = (("x-priority", priority), ("x-timeout-ms", f"{timeout_s * 1e3:.0f}"))
        try:
            answer = await self._call(request.SerializeToString(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return _grpc_ending(error)
        return _compared(question, np.frombuffer(answer.raw_output_contents[0], np.float32))

    @override
    async def close(self) -> None:
        await self._channel.close()

    @staticmethod
    @override
    def takes(question: Question) -> bool:
        return question.tensors is not None


async def _note_kept(_session: object, context: SimpleNamespace, _parameters: object) -> None:
    """Servers and proxies may end such a connection in the moment of a request (RFC 9112, 9.3.1)."""
    context.trace_request_ctx.add(" on a kept connection")


def as_expected(question: Question, ending: Ending) -> Ending:
    """What the end of a request means that must be refused."""
    if ending.end is End.REFUSED and ending.code in question.refusals:
        return Ending(End.RIGHT, ending.code)
    if ending.end in {End.RIGHT, End.WRONG}:
        return Ending(End.WRONG, f"answered instead of refused with {' or '.join(question.refusals)}")
    return ending


def _compared(question: Question, answer: Known) -> Ending:
    mistake = question.mistake(answer)
    return Ending(End.RIGHT) if mistake is None else Ending(End.WRONG, mistake)


def read_answer(question: Question, headers: dict[str, str], content: bytes) -> Ending:
    """How a request ended that was answered with 200; headers by lower-case name."""
    try:
        return _compared(question, question.read(headers, content))
    except (ValueError, LookupError, TypeError) as error:
        return Ending(End.WRONG, f"not an answer of the protocol ({error}): {content[:100]!r}")


def code_of(status: int, content: bytes) -> str:
    """Our code where the body has one; a proxy's answer has none."""
    try:
        return str(orjson.loads(content)["code"])
    except (ValueError, LookupError, TypeError):
        return f"status_{status}"


def _grpc_ending(error: grpc.aio.AioRpcError) -> Ending:
    """UNAVAILABLE is said of connections, too: then the words are those of gRPC's core, as CANCELLED always is."""
    status, details = error.code(), error.details() or ""
    if status is grpc.StatusCode.CANCELLED:
        return Ending(End.CUT, details)
    if status is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details.lower():
        return Ending(End.UNREACHABLE, details)
    if status is grpc.StatusCode.UNAVAILABLE and _of_core(details):
        return Ending(End.CUT, details)
    return Ending(End.REFUSED, _CODES.get(status, status.name.lower()))


def _of_core(details: str) -> bool:
    words = ("socket closed", "connection reset", "goaway", "stream removed", "rst_stream", "broken pipe", "recvmsg")
    return any(word in details.lower() for word in words)
