"""The V2 service of gRPC, `inference.GRPCInferenceService`, independent of connections and ports.

Calls take and return serialized messages, so that this code reads and refuses them, for the router's own port and Ray
Serve's alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from serve_app.api.gateway import Gateway, Operation
from serve_app.api.grpc.call import GrpcCall, parse, shown
from serve_app.api.open_inference import administration, rest
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.api.open_inference.answer_line import AnswerLine, AnswerPlace
from serve_app.api.open_inference.codec import Selection
from serve_app.api.open_inference.infer import classified, encoding_bytes
from serve_app.api.open_inference.message_parts import check_parts
from serve_app.api.open_inference.messages import MessageCodec, delimited, request_parameters
from serve_app.api.open_inference.wire import RequestParameters
from serve_app.api.replies import answer_headers, body_parameters
from serve_app.domain.service import Answer, ModelInfo
from serve_app.errors import InvalidRequest, ModelNotFound, ModelUnavailable, ServeAppError, Unsupported
from serve_app.http.errors import code_of
from serve_app.payloads import Tensors

_M = TypeVar("_M", bound=Message)

Unary: TypeAlias = Callable[[bytes, GrpcCall], Awaitable[bytes]]
Stream: TypeAlias = Callable[[AsyncIterator[bytes], GrpcCall], AsyncIterator[bytes]]
Explain: TypeAlias = Callable[[Exception, GrpcCall, str], ServeAppError]
"""Makes the client's error of an exception, given the call and the requested model."""

AHEAD: Final = 256
"""Requests of one stream that may be in work at once. What comes beyond that waits in the connection."""

_FEW_PARTS_BYTES: Final = 16 * 1024
"""Messages up to this size are parsed whatever they are made of: it takes 2 ms at most."""

_RESPONSE: Final = pb.ModelStreamInferResponse.DESCRIPTOR.fields_by_name["infer_response"].number << 3 | 2
_FINAL_RESPONSE: Final = "triton_final_response"
"""The parameter of every answer in a stream that tells whether it is the last one to its request."""
_FINAL, _NOT_FINAL = (
    pb.ModelInferResponse(parameters={_FINAL_RESPONSE: pb.InferParameter(bool_param=final)}).SerializeToString()
    for final in (True, False)
)

_CLOSING: Final = "the server is closing; open the stream again"
_SHARED_MEMORY: Final = "shared memory is not supported here: send tensors in the message"
_SETTING: Final = {bool: "bool_param", int: "uint32_param", str: "string_param"}
"""The field of a log setting for each type of value."""
_TRACE_LEVEL: Final = "trace_level"
"""The one trace setting that is a list."""


class RpcRequest:
    """A V2 request over gRPC.

    Attributes:
        message: As received; ``None`` after decoding, since it can be larger than its tensors.
        codec: Set, like the following, after decoding.
        counts: Requested classes by output.
    """

    __slots__ = ("codec", "counts", "id", "message", "parameters", "selection")

    codec: MessageCodec
    selection: Selection
    counts: Mapping[str, int]

    def __init__(self, message: pb.ModelInferRequest, parameters: RequestParameters) -> None:
        self.id = message.id
        self.message: pb.ModelInferRequest | None = message
        self.parameters = parameters


class RpcInfer(Operation[GrpcCall, RpcRequest, bytes]):
    """V2 infer requests over gRPC, one by one or in streams.

    Args:
        typed_answers: Whether requests with typed tensors get typed answers unless they choose; else raw.
    """

    names_class = True

    def __init__(self, *, typed_answers: bool = False) -> None:
        self._typed_answers = typed_answers
        self._codecs: dict[str, MessageCodec] = {}

    def parsed_bytes(self, body: bytes) -> int:
        """`check_parts` for messages that may have many."""
        return check_parts(body) if len(body) > _FEW_PARTS_BYTES else 0

    def parse_cost(self, call: GrpcCall, nbytes: int) -> int:  # noqa: ARG002
        """Parsing is native, and a message's parts are bounded."""
        return 0

    def parse(self, call: GrpcCall, info: ModelInfo | None, body: bytes | memoryview) -> RpcRequest:  # noqa: ARG002
        """Parse the message."""
        message = parse(pb.ModelInferRequest, bytes(body), len(body))
        call.asked_model, call.asked_id = message.model_name, message.id
        return RpcRequest(message, request_parameters(message.parameters))

    def target(self, parsed: RpcRequest) -> tuple[str, str | None]:
        """The message's model and version."""
        assert parsed.message is not None
        return parsed.message.model_name, parsed.message.model_version or None

    def hints(self, parsed: RpcRequest) -> RequestParameters:
        """Its parameters."""
        return parsed.parameters

    def decode_cost(self, info: ModelInfo, parsed: RpcRequest, nbytes: int) -> int:
        """Walks only raw tensors whose values can be invalid."""
        assert parsed.message is not None
        return nbytes if self._codec(info).walks or not parsed.message.raw_input_contents else 0

    def decode(self, info: ModelInfo, parsed: RpcRequest) -> Tensors:
        """Decode the inputs, and choose the outputs."""
        codec, message = self._codec(info), parsed.message
        assert message is not None
        tensors = codec.decode(message)
        parsed.codec, parsed.selection = codec, codec.select(message, parsed.parameters)
        parsed.counts = codec.classifications(message)
        parsed.message = None
        return tensors

    def write_cost(self, info: ModelInfo, parsed: RpcRequest, answer: Answer) -> int:  # noqa: ARG002
        """As over HTTP."""
        return encoding_bytes(parsed.selection, answer.value, parsed.counts)

    def write(self, info: ModelInfo, parsed: RpcRequest, answer: Answer) -> bytes:
        """A serialized response."""
        value = classified(answer.value, parsed.counts, info) if parsed.counts else answer.value
        told = body_parameters(answer, timed=parsed.parameters.timings)
        codec = parsed.codec if parsed.codec.info is info else self._codec(info)  # another after a load
        return codec.encode(parsed.id, parsed.selection, value, answer.variant, told)

    def _codec(self, info: ModelInfo) -> MessageCodec:
        key = info.key or info.name
        codec = self._codecs.get(key)
        if codec is None or codec.info is not info:
            codec = self._codecs[key] = MessageCodec(info, typed_answers=self._typed_answers)
        return codec


class InferenceRpc:
    """Answers the service's calls.

    Args:
        explain: Makes errors presentable that end a request of a stream, not the call.
    """

    def __init__(self, gateway: Gateway, explain: Explain, *, typed_answers: bool = False) -> None:
        administration = gateway.administration
        self._gateway = gateway
        self._inference = gateway.inference
        self._administration = administration
        self._explain = explain
        self._infer = RpcInfer(typed_answers=typed_answers)
        self._reading: set[asyncio.Task[None]] = set()
        self._closing = False
        refusals = {
            "SystemSharedMemoryRegister": _SHARED_MEMORY,
            "CudaSharedMemoryRegister": _SHARED_MEMORY,
        }
        self.unary: Mapping[str, Unary] = {
            "ServerLive": _answering(pb.ServerLiveRequest, lambda _: pb.ServerLiveResponse(live=administration.live())),
            "ServerReady": _answering(
                pb.ServerReadyRequest, lambda _: pb.ServerReadyResponse(ready=administration.ready())
            ),
            "ModelReady": _answering(pb.ModelReadyRequest, self._model_ready),
            "ServerMetadata": _answering(pb.ServerMetadataRequest, _server_metadata),
            "ModelMetadata": _answering(pb.ModelMetadataRequest, self._model_metadata),
            "ModelConfig": _answering(pb.ModelConfigRequest, self._model_config),
            "ModelStatistics": self.statistics,
            "RepositoryIndex": _answering(pb.RepositoryIndexRequest, self._index),
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "SystemSharedMemoryStatus": _answering(
                pb.SystemSharedMemoryStatusRequest, lambda _: pb.SystemSharedMemoryStatusResponse()
            ),
            "CudaSharedMemoryStatus": _answering(
                pb.CudaSharedMemoryStatusRequest, lambda _: pb.CudaSharedMemoryStatusResponse()
            ),
            # There are no regions: all of them are unregistered already, and no single one can be found.
            "SystemSharedMemoryUnregister": _answering(pb.SystemSharedMemoryUnregisterRequest, _unregister_system),
            "CudaSharedMemoryUnregister": _answering(pb.CudaSharedMemoryUnregisterRequest, _unregister_cuda),
            "TraceSetting": _answering(pb.TraceSettingRequest, self._trace),
            "LogSettings": _answering(pb.LogSettingsRequest, self._log_settings),
            **{name: _refusing(reason) for name, reason in refusals.items()},
        }
        self.streams: Mapping[str, Stream] = {"ModelStreamInfer": self.stream_infer}

    async def infer(self, call: GrpcCall) -> bytes:
        """Answer one infer request."""
        answer, encoded = await self._gateway.run(self._infer, call)
        told = [(name.decode(), value.decode()) for name, value in answer_headers(answer)]
        call.tell(*told, ("x-request-id", call.request_id))
        return encoded

    async def statistics(self, body: bytes, _: GrpcCall) -> bytes:
        """The statistics of a model, or of all, over all routers."""
        request, inference = parse(pb.ModelStatisticsRequest, body), self._inference
        if request.name:
            info = inference.find(request.name, request.version or None)
            names = [info.key if info.key and request.version else info.name]
        else:
            names = list(inference.models)
        statistics = await self._administration.total_statistics(names)
        return _filled(pb.ModelStatisticsResponse(), {"model_stats": list(statistics)}).SerializeToString()

    async def stream_infer(self, requests: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes]:
        """Answer a stream's requests, in the order of `AnswerLine`; up to `AHEAD` run at once.

        If a client reads no answers, reading its requests and computing its parts soon stops.

        A failed request does not end the stream: its answer says so. The stream ends once the client's side has ended
        and all is answered, or when the server closes.

        Raises:
            ModelUnavailable: The server is closing before the client's side ended; everything read has been answered.
        """
        if self._closing:
            raise ModelUnavailable(_CLOSING)
        line = AnswerLine()
        room = asyncio.Semaphore(AHEAD)
        running: set[asyncio.Task[None]] = set()

        async def read() -> None:
            async for body in requests:
                await room.acquire()
                await line.mostly_read.wait()
                task = asyncio.create_task(self._answer_in_stream(call.again(body), line.join()))
                running.add(task)
                task.add_done_callback(running.discard)

        reader = asyncio.create_task(read())
        reader.add_done_callback(lambda _: line.close())  # also where it ends before it has begun
        self._reading.add(reader)
        try:
            async with aclosing(line.messages()) as messages:
                async for message, is_last in messages:
                    if message:
                        yield message
                    if is_last:
                        room.release()
            if self._closing and reader.cancelled():  # else the client had no more to ask
                raise ModelUnavailable(_CLOSING)
            await reader  # to hear why it ended, if not because the client was done
        finally:
            self._reading.discard(reader)
            ending = (reader, *running)
            for each in ending:
                each.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            del reader, each, ending  # whose error's traceback has this frame

    async def _answer_in_stream(self, call: GrpcCall, place: AnswerPlace) -> None:
        try:
            asked = await self._gateway.read(self._infer, call)
            if asked.info.streams:
                place.overtake()
                async with aclosing(self._gateway.parts(asked)) as parts:
                    async for _, response in parts:
                        await place.part(_in_stream(response, _NOT_FINAL))
                wanted = asked.parsed.parameters.triton_enable_empty_final_response
                place.last(_in_stream(_nothing(asked.info, asked.parsed.id), _FINAL) if wanted else b"")
            else:
                _, response = await self._gateway.answer(asked)
                place.last(_in_stream(response, _FINAL))
        except Exception as error:  # whatever it is, it concerns this request only
            place.last(self._failed_in_stream(error, call))

    def _failed_in_stream(self, error: Exception, call: GrpcCall) -> bytes:
        # Not where it was caught: the error knows that frame and the message in it, which must not know the error.
        explained = self._explain(error, call, "ModelStreamInfer")
        failed = pb.ModelInferResponse(model_name=call.asked_model, id=call.asked_id)
        failed.parameters["code"].string_param = code_of(explained)
        failed.parameters[_FINAL_RESPONSE].bool_param = True
        return pb.ModelStreamInferResponse(error_message=shown(explained), infer_response=failed).SerializeToString()

    def close(self) -> None:
        """Stop reading requests from streams, and let them end after the answers."""
        self._closing = True
        for reader in self._reading:
            reader.cancel()

    def _model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        try:
            info = self._inference.find(request.name, request.version or None)
        except ModelNotFound:  # clients poll this until it is there
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._inference.model_ready(info.key or info.name))

    def _model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        info = self._inference.find(request.name, request.version or None)
        return _filled(pb.ModelMetadataResponse(), rest.model_metadata(info))

    def _model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        info = self._inference.find(request.name, request.version or None)
        return _filled(pb.ModelConfigResponse(), {"config": rest.model_config(info)})

    def _index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        entries = rest.repository_index(self._inference, ready_only=request.ready)
        return _filled(pb.RepositoryIndexResponse(), {"models": entries})

    async def _load(self, body: bytes, _: GrpcCall) -> bytes:
        request = parse(pb.RepositoryModelLoadRequest, body)
        self._gateway.require_admin()
        administration.check_load_parameters(request.parameters)
        await self._administration.load(request.model_name)
        return pb.RepositoryModelLoadResponse().SerializeToString()

    async def _unload(self, body: bytes, _: GrpcCall) -> bytes:
        request = parse(pb.RepositoryModelUnloadRequest, body)
        self._gateway.require_admin()
        administration.check_load_parameters(request.parameters)
        await self._administration.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse().SerializeToString()

    def _trace(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        if request.model_name:
            self._inference.find(request.model_name)
        asked = {
            name: [*setting.value] if name == _TRACE_LEVEL else next(iter(setting.value), None)
            for name, setting in request.settings.items()
        }
        if asked:
            self._gateway.require_admin()
        settings = administration.update_trace_settings(asked)
        response = pb.TraceSettingResponse()
        for name, value in settings.items():
            response.settings[name].value.extend([value] if isinstance(value, str) else value)
        return response

    def _log_settings(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        asked: dict[str, Any] = {}
        for name, setting in request.settings.items():
            choice = setting.WhichOneof("parameter_choice")
            asked[name] = None if choice is None else getattr(setting, choice)
        if asked:
            self._gateway.require_admin()
        response = pb.LogSettingsResponse()
        for name, value in administration.update_log_settings(asked).items():
            setattr(response.settings[name], _SETTING[type(value)], value)
        return response


def _in_stream(response: bytes, more: bytes) -> bytes:
    """A stream's message with a response, whose further fields are in ``more``."""
    return b"".join((delimited(_RESPONSE, len(response) + len(more)), response, more))


def _nothing(info: ModelInfo, request_id: str) -> bytes:
    """A response without outputs."""
    named = pb.ModelInferResponse(model_name=info.name, model_version=info.version, id=request_id)
    return named.SerializeToString()


def _answering(kind: type[Any], answer: Callable[[Any], Message]) -> Unary:
    """A call that is answered at once."""

    async def called(body: bytes, _: GrpcCall) -> bytes:
        return answer(parse(kind, body)).SerializeToString()

    return called


def _refusing(reason: str) -> Unary:
    """A call that is always refused."""

    async def called(_: bytes, __: GrpcCall) -> NoReturn:
        raise Unsupported(reason)

    return called


def _filled(message: _M, content: dict[str, Any]) -> _M:
    """A message filled from HTTP's answer to the same question. Keys without a field are omitted."""
    return json_format.ParseDict(content, message, ignore_unknown_fields=True)


def _server_metadata(_: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
    return pb.ServerMetadataResponse(**rest.server_metadata())


def _unregister_system(request: pb.SystemSharedMemoryUnregisterRequest) -> pb.SystemSharedMemoryUnregisterResponse:
    _no_region(request.name)
    return pb.SystemSharedMemoryUnregisterResponse()


def _unregister_cuda(request: pb.CudaSharedMemoryUnregisterRequest) -> pb.CudaSharedMemoryUnregisterResponse:
    _no_region(request.name)
    return pb.CudaSharedMemoryUnregisterResponse()


def _no_region(name: str) -> None:
    if name:
        raise InvalidRequest(f"there is no shared-memory region {name[:64]!r}: {_SHARED_MEMORY}")
