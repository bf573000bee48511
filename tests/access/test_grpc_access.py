"""What keys may do over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from api.protocol_service import NumpyService, both
from api.rpc.conftest import INFERENCE, Client, failure, parameter, request_of
from grpc_health.v1 import health_pb2

from access.conftest import KEYS, Revoking
from serve_app.access.guard import Guard
from serve_app.api.grpc.call import address_of
from serve_app.api.grpc_app import ANONYMOUS_STREAMS, GrpcApp
from serve_app.api.grpc_listener import GrpcListener
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.http.body import BodyReader
from serve_app.payloads import RequestAttributes

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
OPEN = {"ServerLive", "ServerReady"}
WATCH = "/grpc.health.v1.Health/Watch"


def bearer(name: str) -> list[tuple[str, str]]:
    """The metadata for a key."""
    return [("authorization", f"Bearer sa_{name}")]


@pytest.mark.parametrize("name", sorted(method.name for method in INFERENCE.methods if not method.client_streaming))
async def test_every_call_but_the_open_ones_asks_for_a_key(rpc: Client, name: str) -> None:
    """Whatever the message is."""
    if name in OPEN:
        await rpc.raw(name, b"")
        return
    code, _, metadata = await failure(rpc.raw(name, b"\xff\xff"))
    assert (code, metadata["code"]) == (UNAUTHENTICATED, "unauthenticated")


async def test_keys_in_either_place(rpc: Client, service: NumpyService) -> None:
    """As bearer token and by its own name."""
    for metadata in (bearer("all"), [("x-api-key", "sa_all")]):
        answer = await rpc.infer(request_of(), *metadata)
        assert answer.model_name == "double"
        assert service.calls[-1][2].key == "all"


async def test_models_and_classes(rpc: Client) -> None:
    """As over HTTP."""
    code, details, _ = await failure(rpc.infer(request_of("wide"), *bearer("some")))
    assert code == grpc.StatusCode.NOT_FOUND
    assert "mirror" not in details
    index = await rpc.call("RepositoryIndex", pb.RepositoryIndexRequest(), bearer("some"))
    assert [model.name for model in index.models] == ["double", "sentences"]
    high = request_of(parameters={"priority": parameter(1, "int64")})
    code, _, metadata = await failure(rpc.infer(high, *bearer("modest")))
    assert (code, metadata["code"]) == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
    code, _, _ = await failure(rpc.infer(request_of(), *bearer("modest"), ("x-priority", "high")))
    assert code == grpc.StatusCode.PERMISSION_DENIED


async def test_health_is_open_and_names_no_models(rpc: Client) -> None:
    """The server as a whole for everybody, a model for those who may use it."""
    check = rpc.channel.unary_unary("/grpc.health.v1.Health/Check")
    whole = health_pb2.HealthCheckResponse.FromString(await check(b""))
    assert whole.status == health_pb2.HealthCheckResponse.SERVING
    listed = await rpc.channel.unary_unary("/grpc.health.v1.Health/List")(b"")
    assert b"double" not in listed
    double = health_pb2.HealthCheckRequest(service="double").SerializeToString()
    code, _, _ = await failure(check(double))
    assert code == grpc.StatusCode.NOT_FOUND
    assert health_pb2.HealthCheckResponse.FromString(await check(double, metadata=bearer("some"))).status


async def test_administration(rpc: Client) -> None:
    """Reading settings takes a key, changing them one that may."""
    change = {"log_info": pb.LogSettingsRequest.SettingValue(bool_param=True)}
    trace = {"trace_level": pb.TraceSettingRequest.SettingValue(value=["OFF"])}
    for name, request in [
        ("LogSettings", pb.LogSettingsRequest(settings=change)),
        ("TraceSetting", pb.TraceSettingRequest(settings=trace)),
    ]:
        code, _, _ = await failure(rpc.call(name, request, bearer("all")))
        assert code == grpc.StatusCode.PERMISSION_DENIED
        await rpc.call(name, request, bearer("admin"))
        await rpc.call(name, type(request)(), bearer("all"))


async def _answers(rpc: Client, metadata: list[tuple[str, str]], requests: AsyncIterator[bytes]) -> list[Any]:
    call = rpc.stream(metadata=metadata)

    async def write() -> None:
        async for request in requests:
            await call.write(request)
        await call.done_writing()

    await write()
    return [pb.ModelStreamInferResponse.FromString(answer) async for answer in call]


async def test_streams_without_a_key(rpc: Client) -> None:
    """End before their first answer."""
    call = rpc.stream()
    await call.done_writing()
    code, _, _ = await failure(call.read())
    assert code == UNAUTHENTICATED


async def test_every_request_of_a_stream_is_let_in_by_itself(rpc: Client) -> None:
    """Each counts against the rate."""

    async def requests() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield request_of().SerializeToString()

    answers = await _answers(rpc, bearer("rare"), requests())
    codes = [answer.infer_response.parameters["code"].string_param for answer in answers if answer.error_message]
    assert codes == ["rate_limited"]
    assert len(answers) == 3


async def test_refusals_are_logged_with_the_name_of_the_key(rpc: Client, lines: list[dict[str, Any]]) -> None:
    """In calls and in streams, as over HTTP."""

    async def requests() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield request_of().SerializeToString()

    await _answers(rpc, bearer("rare"), requests())
    await failure(rpc.infer(request_of(), *bearer("rare")))
    await failure(rpc.infer(request_of()))
    await failure(rpc.infer(request_of(), *bearer("modest"), ("x-priority", "high")))
    await failure(rpc.infer(request_of("unheard-of"), *bearer("all")))

    assert [(line["outcome"], line["status"], line["key"]) for line in lines] == [
        ("rate_limited", "RESOURCE_EXHAUSTED", "rare"),
        ("rate_limited", "RESOURCE_EXHAUSTED", "rare"),
        ("unauthenticated", "UNAUTHENTICATED", ""),
        ("permission_denied", "PERMISSION_DENIED", "modest"),
        ("model_not_found", "NOT_FOUND", "all"),
    ]


async def test_a_key_that_is_removed_ends_in_open_streams_too(rpc: Client, guard: Guard) -> None:
    """The request before is answered, the next one refused."""
    call = rpc.stream(metadata=bearer("all"))
    await call.write(request_of().SerializeToString())
    assert not pb.ModelStreamInferResponse.FromString(await call.read()).error_message
    guard.replace([each for each in KEYS if each.name != "all"])
    await call.write(request_of().SerializeToString())
    refused = pb.ModelStreamInferResponse.FromString(await call.read())
    assert refused.infer_response.parameters["code"].string_param == "unauthenticated"
    await call.done_writing()


@contextlib.asynccontextmanager
async def serving(service: NumpyService, guard: Guard, **options: Any) -> AsyncIterator[tuple[GrpcApp, Client]]:
    """An application behind a port, and its client."""
    bodies = BodyReader(max_body=100_000, max_held_bytes=150_000, offload_above=10_000, decode_threads=2)
    app = GrpcApp(*both(service), bodies, guard, **options)
    listener = GrpcListener(app, "127.0.0.1", 0)
    await listener.start()
    client = Client(listener.port)
    try:
        yield app, client
    finally:
        await client.channel.close()
        await listener.close(0.0)


async def test_streams_of_strangers_take_no_place_of_others(service: NumpyService, guard: Guard) -> None:
    """However many they open; and where there is no place, who has no key is told of that first."""
    async with serving(service, guard, streams=1) as (_, client):
        watch = client.channel.unary_stream(WATCH)
        watching = [watch(b"", timeout=20) for _ in range(ANONYMOUS_STREAMS["Watch"])]
        for each in watching:
            await each.read()
        code, _, metadata = await failure(watch(b"", timeout=20).read())
        assert (code, metadata["code"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue_full")
        stream = client.stream(metadata=bearer("all"))
        await stream.write(request_of().SerializeToString())
        assert not pb.ModelStreamInferResponse.FromString(await stream.read()).error_message
        assert (await failure(client.stream().read()))[0] == UNAUTHENTICATED
        assert (await failure(client.stream(metadata=bearer("all")).read()))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        stream.cancel()


async def test_strangers_do_not_watch_for_ever(service: NumpyService, guard: Guard) -> None:
    """They may ask again. Who has a key may go on."""
    async with serving(service, guard, stranger_watch_s=0.0) as (app, client):
        watch = client.channel.unary_stream(WATCH)
        stranger, known = watch(b"", timeout=20), watch(b"", timeout=20, metadata=bearer("all"))
        state = await known.read()
        assert await stranger.read() == state
        assert await stranger.read() is grpc.aio.EOF
        assert await stranger.code() is grpc.StatusCode.OK
        service.is_ready = False
        app.changed()
        assert await known.read() != state
        known.cancel()


class TestRevokedInWork:
    """A key that is removed while its request is worked on."""

    @pytest.fixture
    def service(self, guard: Guard) -> NumpyService:
        """Has it removed."""
        service = Revoking()
        service.guard = guard
        return service

    async def test_a_call(self, rpc: Client, lines: list[dict[str, Any]]) -> None:
        """Is refused, and has a line."""
        code, _, metadata = await failure(rpc.infer(request_of(), *bearer("all")))
        assert (code, metadata["code"]) == (UNAUTHENTICATED, "unauthenticated")
        assert [(line["model"], line["outcome"]) for line in lines] == [("double", "unauthenticated")]

    async def test_a_request_of_a_stream(self, rpc: Client, lines: list[dict[str, Any]]) -> None:
        """Is refused, and the stream goes on."""

        async def requests() -> AsyncIterator[bytes]:
            for _ in range(2):
                yield request_of().SerializeToString()

        answers = await _answers(rpc, bearer("all"), requests())
        codes = [answer.infer_response.parameters["code"].string_param for answer in answers]
        assert codes == ["unauthenticated", "unauthenticated"]
        told = [(line["model"], line["outcome"], line["key"]) for line in lines]
        assert told == [("double", "unauthenticated", "all"), ("", "unauthenticated", "")]


async def test_a_service_that_nobody_entered_does_nothing(service: NumpyService, guard: Guard) -> None:
    """A way in that forgot to ask for a key is closed, not open."""
    from serve_app.access.guarded import GuardedAdministration, GuardedInference
    from serve_app.domain.service import RequestOptions
    from serve_app.errors import Unauthenticated

    guarded = GuardedInference(service, guard)
    administration = GuardedAdministration(service, guarded, guard)

    async def ask() -> None:
        with pytest.raises(Unauthenticated):
            guarded.find("double")
        with pytest.raises(Unauthenticated):
            _ = guarded.models
        with pytest.raises(Unauthenticated):
            guarded.precheck("double", None, 1)
        with pytest.raises(Unauthenticated):
            await guarded.submit("double", {}, RequestOptions())
        with pytest.raises(Unauthenticated):
            administration.status()
        assert administration.live()

    # A new context: in that of the tests others have entered.
    await asyncio.create_task(ask(), context=contextvars.Context())


async def test_the_key_is_the_tenant(rpc: Client, service: NumpyService) -> None:
    """With its weight."""
    await rpc.infer(request_of(), *bearer("heavy"))
    assert service.tenants == [("heavy", 3.0)]
    assert [options.attributes for _, _, options in service.calls] == [RequestAttributes("heavy", 3.0)]


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.1.2.3:4711", "10.1.2.3"),
        ("ipv6:[::1]:4711", "::1"),
        ("ipv6:%5B2001:db8::7%5D:4711", "2001:db8::7"),
        ("unix:/tmp/socket", ""),
        ("", ""),
    ],
)
def test_addresses_as_grpc_names_them(peer: str, address: str) -> None:
    """Without the port, which is another one at every connection."""
    assert address_of(peer) == address
