"""The other calls: health, metadata, statistics, what is refused, reflection; and the port."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc.aio
import httpx
import pytest
from google.protobuf import json_format
from grpc_health.v1 import health_pb2 as typed_health_pb2
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from api.protocol_service import EVERY_DATATYPE, MODELS, NumpyService, both
from api.rpc.conftest import INFERENCE, Client, failure, request_of
from serve_app.api.grpc.health import Health
from serve_app.api.grpc_app import SERVICES, GrpcApp
from serve_app.api.grpc_listener import GrpcLimits, GrpcListener
from serve_app.api.http_app import create_app
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.http.body import BodyReader

health_pb2: Any = typed_health_pb2  # the stubs do not know all of it
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


async def test_health(client: Client, service: NumpyService) -> None:
    """Live, ready, and each model; a model that is not here is not ready, for clients poll until it is."""
    for ready in (True, False):
        service.is_ready = ready
        assert (await client.call("ServerLive", pb.ServerLiveRequest())).live is ready
        assert (await client.call("ServerReady", pb.ServerReadyRequest())).ready is ready
        assert (await client.call("ModelReady", pb.ModelReadyRequest(name="double"))).ready is ready
    service.is_ready = True
    assert (await client.call("ModelReady", pb.ModelReadyRequest(name="double", version="1"))).ready
    assert not (await client.call("ModelReady", pb.ModelReadyRequest(name="double", version="2"))).ready
    assert not (await client.call("ModelReady", pb.ModelReadyRequest(name="nothing"))).ready


@pytest.mark.parametrize(
    ("path", "name", "request_", "inside"),
    [
        ("/v2", "ServerMetadata", pb.ServerMetadataRequest(), ""),
        ("/v2/models/mirror", "ModelMetadata", pb.ModelMetadataRequest(name="mirror"), ""),
        ("/v2/models/mirror/versions/1/config", "ModelConfig", pb.ModelConfigRequest(name="mirror"), "config"),
        ("/v2/models/double/stats", "ModelStatistics", pb.ModelStatisticsRequest(name="double"), ""),
        ("/v2/models/stats", "ModelStatistics", pb.ModelStatisticsRequest(), ""),
    ],
)  # fmt: skip
async def test_both_protocols_tell_the_same(
    client: Client, service: NumpyService, path: str, name: str, request_: Any, inside: str
) -> None:
    """Every key of the JSON has a field in the message, with the same value; a model's metadata have no parameters."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(*both(service))), base_url="http://server"
    ) as http:
        expected = (await http.get(path)).json()
    if name == "ModelMetadata":
        expected.pop("parameters")
    answer = await client.call(name, request_)
    message = getattr(answer, inside) if inside else answer
    assert json_format.ParseDict(expected, type(message)()) == message


async def test_every_datatype_has_a_type_in_the_configuration(client: Client) -> None:
    """None becomes TYPE_INVALID."""
    config = (await client.call("ModelConfig", pb.ModelConfigRequest(name="mirror"))).config
    assert 0 not in {tensor.data_type for tensor in (*config.input, *config.output)}
    assert len(config.input) == len(EVERY_DATATYPE)


async def test_index(client: Client, service: NumpyService) -> None:
    """All models with their state, or only those that are ready."""
    index = await client.call("RepositoryIndex", pb.RepositoryIndexRequest())
    assert [(each.name, each.version, each.state) for each in index.models] == [(name, "1", "READY") for name in MODELS]
    service.is_ready = False
    index = await client.call("RepositoryIndex", pb.RepositoryIndexRequest())
    assert {(each.state, each.reason) for each in index.models} == {("UNAVAILABLE", "no replica can take work")}
    assert not (await client.call("RepositoryIndex", pb.RepositoryIndexRequest(ready=True))).models


@pytest.mark.parametrize("name", ["ModelMetadata", "ModelConfig", "ModelStatistics"])
async def test_unknown_models(client: Client, name: str) -> None:
    """NOT_FOUND. Such questions are not counted as refused work."""
    kind = getattr(pb, f"{name}Request")
    for request in (kind(name="nothing"), kind(name="double", version="7")):
        code, _, _ = await failure(client.call(name, request))
        assert code == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("name", "request_", "message"),
    [
        (
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(
                model_name="double", parameters={"config": pb.ModelRepositoryParameter(string_param="{}")}
            ),
            "configuration",
        ),
        ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="r"), "shared memory"),
        ("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(name="r"), "shared memory"),
        (
            "TraceSetting",
            pb.TraceSettingRequest(settings={"trace_level": pb.TraceSettingRequest.SettingValue(value=["TIMESTAMPS"])}),
            "not traced",
        ),
        (
            "LogSettings",
            pb.LogSettingsRequest(settings={"log_file": pb.LogSettingsRequest.SettingValue(string_param="a")}),
            "log_file cannot be changed",
        ),
    ],
)  # fmt: skip
async def test_what_is_not_served_is_refused_with_a_reason(
    client: Client, name: str, request_: Any, message: str
) -> None:
    """UNIMPLEMENTED, not silence."""
    code, details, metadata = await failure(client.call(name, request_))
    assert (code, metadata["code"]) == (UNIMPLEMENTED, "unsupported")
    assert message in details


@pytest.mark.parametrize("kind", ["System", "Cuda"])
async def test_questions_about_shared_memory_are_answered(client: Client, kind: str) -> None:
    """There are no regions: clients that clean up first can go on."""
    status = await client.call(f"{kind}SharedMemoryStatus", getattr(pb, f"{kind}SharedMemoryStatusRequest")())
    assert not status.regions
    unregister = getattr(pb, f"{kind}SharedMemoryUnregisterRequest")
    await client.call(f"{kind}SharedMemoryUnregister", unregister())
    code, _, _ = await failure(client.call(f"{kind}SharedMemoryUnregister", unregister(name="r")))
    assert code == grpc.StatusCode.INVALID_ARGUMENT


async def test_settings_that_are_only_asked_for(client: Client) -> None:
    """They are those of HTTP: nothing is traced, and errors are logged."""
    traced = (await client.call("TraceSetting", pb.TraceSettingRequest(model_name="double"))).settings
    assert traced["trace_level"].value == ["OFF"]
    assert (await client.call("LogSettings", pb.LogSettingsRequest())).settings["log_error"].bool_param


async def test_how_much_is_logged_can_be_changed(client: Client) -> None:
    """And what it is then is the answer."""
    before = (await client.call("LogSettings", pb.LogSettingsRequest())).settings["log_info"].bool_param
    for wanted in (not before, before):
        change = {"log_info": pb.LogSettingsRequest.SettingValue(bool_param=wanted)}
        changed = await client.call("LogSettings", pb.LogSettingsRequest(settings=change))
        assert changed.settings["log_info"].bool_param is wanted


async def test_calls_that_nobody_knows(client: Client) -> None:
    """UNIMPLEMENTED, by gRPC itself."""
    code, _, _ = await failure(client.raw("ModelDream", b""))
    assert code == UNIMPLEMENTED


@pytest.mark.parametrize("name", sorted(method.name for method in INFERENCE.methods if not method.client_streaming))
async def test_bytes_that_are_no_message_are_the_clients_fault(client: Client, name: str) -> None:
    """Whatever the call: its status says whose fault it is."""
    code, _, _ = await failure(client.raw(name, b"\xff\xff\xff\xff"))
    assert code in {grpc.StatusCode.INVALID_ARGUMENT, UNIMPLEMENTED}


@pytest.mark.parametrize("name", ["ServerLive", "ModelReady", "LogSettings"])
async def test_questions_are_short(client: Client, name: str) -> None:
    """What takes no tensors has no use for more bytes than a few names have."""
    code, details, metadata = await failure(client.raw(name, bytes(16 * 1024 + 1)))
    assert (code, metadata["code"]) == (grpc.StatusCode.INVALID_ARGUMENT, "payload_too_large")
    assert "16385 bytes" in details


async def test_nobody_watches_a_name_without_end(client: Client) -> None:
    """It would be kept for as long as the call lasts."""
    request = health_pb2.HealthCheckRequest(service="x" * 20_000).SerializeToString()
    watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")(request, timeout=20)
    assert (await failure(watch.read()))[0] == grpc.StatusCode.INVALID_ARGUMENT


async def test_the_standard_health_service(client: Client, service: NumpyService) -> None:
    """The server, its service and its models; what is unknown is NOT_FOUND."""
    stub: Any = health_pb2_grpc.HealthStub(client.channel)
    for ready, expected in (
        (True, health_pb2.HealthCheckResponse.SERVING),
        (False, health_pb2.HealthCheckResponse.NOT_SERVING),
    ):
        service.is_ready = ready
        for name in ("", "inference.GRPCInferenceService", "double"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == expected
    listed = await stub.List(health_pb2.HealthListRequest())
    assert set(listed.statuses) == {"", "inference.GRPCInferenceService", *MODELS}
    code, _, _ = await failure(stub.Check(health_pb2.HealthCheckRequest(service="nothing")))
    assert code == grpc.StatusCode.NOT_FOUND


async def test_watching_health(service: NumpyService) -> None:
    """A watcher hears every change, is told of unknown names, and is sent away at the end."""
    health = Health(*both(service), ())
    watch = health.watch(health_pb2.HealthCheckRequest(service="double").SerializeToString(), None)  # type: ignore[arg-type]

    async def said() -> str:
        status = health_pb2.HealthCheckResponse.FromString(await anext(watch)).status
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))

    assert await said() == "SERVING"
    waiting = asyncio.create_task(said())
    await asyncio.sleep(0)
    service.is_ready = False
    health.changed()
    assert await waiting == "NOT_SERVING"
    waiting = asyncio.create_task(said())
    service.is_ready = True  # and nobody says so
    assert await waiting == "SERVING"
    waiting = asyncio.create_task(said())
    await asyncio.sleep(0)
    health.close()
    assert await waiting == "NOT_SERVING"
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_watching_over_a_connection(client: Client) -> None:
    """Unknown names stay watched: they may come to be served."""
    stub: Any = health_pb2_grpc.HealthStub(client.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="nothing"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


async def test_reflection_describes_everything(client: Client) -> None:
    """Every service is listed, and every one can be looked up with the files that it needs."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(reflection_pb2.ServerReflectionRequest(file_containing_symbol=each.full_name) for each in SERVICES),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.Nothing"),
    ]
    answers = [answer async for answer in stub.ServerReflectionInfo(iter(requests))]
    assert {each.name for each in answers[0].list_services_response.service} == {each.full_name for each in SERVICES}
    assert all(answer.file_descriptor_response.file_descriptor_proto for answer in answers[1:-1])
    assert answers[-1].error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_calls_in_work_are_answered_before_the_server_closes(
    client: Client, service: NumpyService, listener: GrpcListener
) -> None:
    """And nobody gets in any more."""
    service.gate.clear()
    call = asyncio.ensure_future(client.infer(request_of(id="last")))
    await service.waiting.wait()
    closing = asyncio.create_task(listener.close(20.0))
    await asyncio.sleep(0)
    service.gate.set()
    assert (await call).id == "last"
    await closing
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", listener.port)) != 0


async def test_the_port_is_kept_but_not_open_before_the_start(service: NumpyService, bodies: BodyReader) -> None:
    """Routers share the port, and one that is not ready must not be given connections."""
    app = GrpcApp(*both(service), bodies)
    first = GrpcListener(app, "127.0.0.1", 0)
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", first.port)) != 0
    second = GrpcListener(app, "127.0.0.1", first.port)
    await first.start()
    await second.start()
    with socket.create_connection(("127.0.0.1", first.port)):
        pass
    await asyncio.gather(first.close(0.0), second.close(0.0))
    await first.start()  # does nothing any more
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", first.port)) != 0


async def test_a_port_that_somebody_has_alone(service: NumpyService, bodies: BodyReader) -> None:
    """It is said at once, and not when the models are ready."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        GrpcListener(GrpcApp(*both(service), bodies), "127.0.0.1", taken.getsockname()[1])


async def test_calls_beyond_the_limit_are_refused(service: NumpyService, bodies: BodyReader) -> None:
    """RESOURCE_EXHAUSTED, by gRPC itself."""
    listener = GrpcListener(GrpcApp(*both(service), bodies), "127.0.0.1", 0, GrpcLimits(calls=1))
    await listener.start()
    client = Client(listener.port)
    service.gate.clear()
    first = asyncio.ensure_future(client.infer(request_of()))
    await service.waiting.wait()
    code, _, _ = await failure(client.infer(request_of()))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    service.gate.set()
    await first
    await client.channel.close()
    await listener.close(0.0)
