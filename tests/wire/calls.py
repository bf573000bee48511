"""Every call over gRPC: each with the same questions, and those that infer with their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from serve_app.api.grpc.call import CONTROL_MESSAGE_BYTES
from serve_app.api.grpc_app import RPCS
from serve_app.api.grpc_listener import GrpcLimits
from serve_app.api.open_inference import inference_pb2 as pb
from wire.asking import GrpcAsk

_ROWS: Final = [np.arange(16, dtype="<i4").reshape(1, 16) * (at + 1) for at in range(2)]
_HEALTH: Final[Any] = health_pb2
"""Has messages that its type stubs do not know."""


def infer(model: str = "sum_diff", change: Callable[[pb.ModelInferRequest], object] | None = None) -> bytes:
    """A request to add and subtract one row, changed."""
    request = pb.ModelInferRequest(model_name=model, id="seven")
    for at, array in enumerate(_ROWS):
        request.inputs.add(name=f"INPUT{at}", datatype="INT32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    if change is not None:
        change(request)
    return request.SerializeToString()


def _typed(model: str = "sum_diff", values: int = 16) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    for at in range(2):
        request.inputs.add(name=f"INPUT{at}", datatype="INT32", shape=[1, 16]).contents.int_contents.extend(
            range(values)
        )
    return request.SerializeToString()


def _named(kind: Any) -> Callable[..., Message]:
    """Requests for a model and its version."""

    def make(name: str = "sum_diff", version: str = "") -> Message:
        made: Message = kind(name=name, version=version)
        return made

    return make


_MODELS: Final[Mapping[str, Callable[..., Message]]] = {
    "ModelReady": _named(pb.ModelReadyRequest),
    "ModelMetadata": _named(pb.ModelMetadataRequest),
    "ModelConfig": _named(pb.ModelConfigRequest),
    "ModelStatistics": _named(pb.ModelStatisticsRequest),
}
"""Calls that ask about a model."""

_GOOD: Final[Mapping[str, bytes]] = {
    "ModelInfer": infer(),
    "ModelStreamInfer": infer(),
    **{name: make().SerializeToString() for name, make in _MODELS.items()},
    "ServerReflectionInfo": reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString(),
}
"""What calls are asked with success, where that is more than an empty message."""

_HUGE: Final = bytes(GrpcLimits().max_message + 1)
_BROKEN: Final = b"\xff\xff\xff"


def everything() -> Iterator[tuple[str, GrpcAsk]]:
    """All calls in their order, each with its family."""
    for rpc in RPCS:
        most = 1 if rpc.name == "Watch" else None  # it goes on for ever
        good = (_GOOD.get(rpc.name, b""),)

        def call(name: str, *messages: bytes, rpc: str = rpc.name, most: int | None = most, **more: Any) -> GrpcAsk:
            return GrpcAsk(rpc, name, messages, most=most, **more)

        yield "grpc", call("good", *good)
        yield "grpc", call("good, with an id", *good, metadata=(("x-request-id", "given-1"),))
        yield "grpc", call("no message of its kind", _BROKEN)
        if rpc.name not in {"ModelInfer", "ModelStreamInfer"}:
            yield "grpc", call("message too large for a question", bytes(CONTROL_MESSAGE_BYTES + 1))
        yield "grpc_keys", call("no key", *good, server="guarded")
        yield "grpc_keys", call("wrong key", *good, server="guarded", metadata=(("authorization", "Bearer sa_wrong"),))
        yield "grpc_keys", call("key of another model", *good, server="guarded", key="strings")
        yield "grpc_keys", call("key without administration", *good, server="guarded", key="all")
        yield "grpc_keys", call("key of an administrator", *good, server="guarded", key="admin")
    for name, make in _MODELS.items():
        yield "grpc", GrpcAsk(name, "with its version", (make(version="1").SerializeToString(),))
        yield "grpc", GrpcAsk(name, "unknown model", (make("nobody").SerializeToString(),))
        yield "grpc", GrpcAsk(name, "unknown version", (make(version="7").SerializeToString(),))
        yield "grpc", GrpcAsk(name, "model of pictures", (make("digits").SerializeToString(),))
        yield "grpc", GrpcAsk(name, "no name", (make("").SerializeToString(),))
    yield from (("grpc", each) for each in _infer())
    yield from (("grpc", each) for each in _stream())
    yield from (("grpc", each) for each in _settings())
    yield from (("grpc", each) for each in _health())
    yield from (("grpc", each) for each in _others())
    for name in ("first time", "too often"):
        yield "grpc_keys", GrpcAsk("ModelInfer", f"key used: {name}", (infer(),), (), "guarded", "rare-grpc")
    # Requests of a stream are let in one by one.
    yield (
        "grpc_keys",
        GrpcAsk("ModelStreamInfer", "key used too often", (infer(), infer()), (), "guarded", "rare-stream"),
    )
    for key in ("normal", "lowered"):
        for rpc_name in ("ModelInfer", "ModelStreamInfer"):
            high = (("x-priority", "high"),)
            yield "grpc_keys", GrpcAsk(rpc_name, f"class above that of the key {key}", (infer(),), high, "guarded", key)


def _infer() -> Iterator[GrpcAsk]:
    def sent(name: str, body: bytes, *metadata: tuple[str, str]) -> GrpcAsk:
        return GrpcAsk("ModelInfer", name, (body,), metadata)

    def changed(name: str, change: Callable[[pb.ModelInferRequest], object], model: str = "sum_diff") -> GrpcAsk:
        return sent(name, infer(model, change))

    def parameter(name: str, parameter: str, **value: Any) -> GrpcAsk:
        return changed(name, lambda request: request.parameters[parameter].MergeFrom(pb.InferParameter(**value)))

    def field(name: str, value: Any) -> Callable[[pb.ModelInferRequest], object]:
        return lambda request: setattr(request.inputs[0], name, value)

    def shape(*sizes: int) -> Callable[[pb.ModelInferRequest], object]:
        def change(request: pb.ModelInferRequest) -> None:
            del request.inputs[0].shape[:]
            request.inputs[0].shape.extend(sizes)

        return change

    yield sent("message too large", _HUGE)
    yield sent("message of too many parts", b"\x2a\0" * 2**16)
    yield sent("typed", _typed())
    yield sent("typed, too few", _typed(values=3))
    yield changed("one output", lambda request: request.outputs.add(name="OUTPUT1"))
    yield changed("unknown output", lambda request: request.outputs.add(name="none"))
    yield changed("unknown model", lambda request: None, "nobody")
    yield changed("unknown version", lambda request: setattr(request, "model_version", "7"))
    yield changed("one of several versions", lambda request: None, "versions")
    yield changed("alias", lambda request: setattr(request, "model_version", "candidate"), "versions")
    yield changed("unknown alias", lambda request: setattr(request, "model_version", "none"), "versions")
    yield sent("version in the metadata", infer("versions"), ("x-model-version", "2"))
    yield changed("no model", lambda request: None, "")
    yield changed("unknown input", field("name", "none"))
    yield changed("other datatype", field("datatype", "FP32"))
    yield changed("unknown datatype", field("datatype", "INT33"))
    yield changed("wrong shape", shape(1, 15))
    yield changed("negative shape", shape(-1, 16))
    yield changed("too many rows", shape(5000, 16))
    yield changed("input missing", lambda request: (request.inputs.pop(), request.raw_input_contents.pop()))
    yield changed("raw content missing", lambda request: request.raw_input_contents.pop())
    yield changed("raw content too short", lambda request: request.raw_input_contents.__setitem__(0, b"odd"))
    yield changed("raw and typed", lambda request: request.inputs[0].contents.int_contents.append(1))
    yield changed(
        "classification",
        lambda request: (
            request.outputs.add(name="OUTPUT0").parameters["classification"].MergeFrom(pb.InferParameter(int64_param=2))
        ),
    )
    yield parameter("priority", "priority", uint64_param=1)
    yield parameter("priority of the wrong type", "priority", string_param="high")
    yield parameter("negative priority", "priority", int64_param=-1)
    yield parameter("negative deadline", "timeout", int64_param=-1)
    yield parameter("timings", "timings", bool_param=True)
    yield parameter("unknown variant", "variant", string_param="none")
    yield parameter("sequence", "sequence_id", uint64_param=1)
    yield parameter("unknown parameter", "colour", string_param="red")
    yield sent("deadline that has passed", infer(), ("x-timeout-ms", "0.000001"))
    yield sent("deadline of zero", infer(), ("x-timeout-ms", "0"))
    yield sent("deadline that is no number", infer(), ("x-timeout-ms", "soon"))
    yield sent("unknown priority", infer(), ("x-priority", "urgent"))
    yield sent("priority by name", infer(), ("x-priority", "low"))
    yield sent("unknown variant in metadata", infer(), ("x-variant", "none"))
    yield sent("unknown fallback", infer(), ("x-fallback", "perhaps"))
    yield sent("cached, once more", infer("cached"))
    yield sent("cached, asked again", infer("cached"), ("cache-control", "no-cache"))
    for name, value in (("run that fails", -1.0), ("run that does not fail", 0.1)):
        request = pb.ModelInferRequest(model_name="failing")
        request.inputs.add(name="x", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(value)
        yield sent(name, request.SerializeToString())
    texts = pb.ModelInferRequest(model_name="strings")
    texts.inputs.add(name="INPUT0", datatype="BYTES", shape=[1, 2]).contents.bytes_contents.extend([b"a", b"bc"])
    yield sent("texts", texts.SerializeToString())


def _stream() -> Iterator[GrpcAsk]:
    """A request that fails does not end the stream."""
    requests = (infer(), infer("nobody"), _BROKEN, _typed(values=3), infer("cached"))
    yield GrpcAsk("ModelStreamInfer", "good and bad", requests)
    yield GrpcAsk("ModelStreamInfer", "message too large", (_HUGE,))
    yield GrpcAsk("ModelStreamInfer", "nothing", ())
    yield GrpcAsk("ModelStreamInfer", "deadline that has passed", (infer(),), (("x-timeout-ms", "0.000001"),))
    yield GrpcAsk("ModelStreamInfer", "unknown priority", (infer(),), (("x-priority", "urgent"),))


def _settings() -> Iterator[GrpcAsk]:
    def log(name: str, setting: str, **more: Any) -> GrpcAsk:
        request = pb.LogSettingsRequest()
        request.settings[setting].MergeFrom(pb.LogSettingsRequest.SettingValue(**more))
        return GrpcAsk("LogSettings", name, (request.SerializeToString(),), (), "guarded", "admin")

    def trace(name: str, setting: str, *values: str, model: str = "") -> GrpcAsk:
        request = pb.TraceSettingRequest(model_name=model)
        request.settings[setting].value.extend(values)
        return GrpcAsk("TraceSetting", name, (request.SerializeToString(),), (), "guarded", "admin")

    yield log("infos", "log_info", bool_param=True)
    yield log("no infos", "log_info", bool_param=False)
    yield log("wrong type", "log_info", string_param="yes")
    yield log("unknown setting", "log_colour", bool_param=True)
    yield log("file for the log", "log_file", string_param="/tmp/log")
    yield trace("off", "trace_level", "OFF")
    yield trace("level", "trace_level", "TIMESTAMPS")
    yield trace("unknown setting", "colour", "red")
    yield trace("unknown model", "trace_level", "OFF", model="nobody")
    change = pb.LogSettingsRequest()
    change.settings["log_info"].bool_param = True
    yield GrpcAsk("LogSettings", "change by anybody", (change.SerializeToString(),))
    yield GrpcAsk("LogSettings", "change without administration", (change.SerializeToString(),), (), "guarded", "all")
    tracing = pb.TraceSettingRequest()
    tracing.settings["trace_rate"].value.append("1")
    yield GrpcAsk("TraceSetting", "change by anybody", (tracing.SerializeToString(),))
    for kind, made in (
        ("System", pb.SystemSharedMemoryUnregisterRequest(name="mine")),
        ("Cuda", pb.CudaSharedMemoryUnregisterRequest(name="mine")),
    ):
        yield GrpcAsk(f"{kind}SharedMemoryUnregister", "one region", (made.SerializeToString(),))
    yield GrpcAsk("RepositoryIndex", "ready ones", (pb.RepositoryIndexRequest(ready=True).SerializeToString(),))


def _health() -> Iterator[GrpcAsk]:
    for service in ("inference.GRPCInferenceService", "sum_diff", "nobody"):
        body = _HEALTH.HealthCheckRequest(service=service).SerializeToString()
        yield GrpcAsk("Check", f"service {service}", (body,))
        yield GrpcAsk("Watch", f"service {service}", (body,), most=1)


def _others() -> Iterator[GrpcAsk]:
    reflected = reflection_pb2.ServerReflectionRequest
    yield GrpcAsk(
        "ServerReflectionInfo",
        "several questions",
        (
            reflected(file_containing_symbol="inference.GRPCInferenceService").SerializeToString(),
            reflected(file_containing_symbol="none").SerializeToString(),
            reflected(file_by_filename="inference.proto").SerializeToString(),
            reflected(file_by_filename="none.proto").SerializeToString(),
        ),
    )
    yield GrpcAsk("/inference.GRPCInferenceService/Nothing", "unknown call")
    yield GrpcAsk("/nothing.Service/Nothing", "unknown service")
    yield GrpcAsk("/nothing.Service/Nothing", "unknown service, with keys", server="guarded")
