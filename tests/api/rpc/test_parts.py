"""Answers in parts over `ModelStreamInfer`, as Triton's decoupled models give them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

import grpc.aio
import numpy as np
import pytest

from api.protocol_service import DOUBLE, MODELS, WIDE, NumpyService, both
from api.rpc.conftest import Client, Nobody, failure, next_of, parameter, request_of
from serve_app.api.grpc_app import GrpcApp
from serve_app.api.grpc_listener import GrpcLimits, GrpcListener
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.errors import InferenceFailed, QueueFull
from serve_app.http.body import BodyReader

FINAL = "triton_final_response"
WANTED = {"triton_enable_empty_final_response": parameter(True, "bool")}


@pytest.fixture(autouse=True)
def _a_model_that_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "talker", DOUBLE._replace(name="talker", streams=True, stream_timeout_s=60.0))
    monkeypatch.setitem(MODELS, "chorus", WIDE._replace(name="chorus", streams=True, stream_timeout_s=60.0))


def ask(
    model: str = "talker", number: int = 1, parameters: Mapping[str, pb.InferParameter] = MappingProxyType({})
) -> bytes:
    """A request, serialized."""
    return request_of(model, id=str(number), parameters=parameters).SerializeToString()


async def all_of(stream: Any) -> list[pb.ModelStreamInferResponse]:
    """Every answer that is left."""
    return [pb.ModelStreamInferResponse.FromString(each) async for each in stream]


def told(answer: pb.ModelStreamInferResponse) -> tuple[str, int, bool]:
    """The id, the number of outputs, and whether it is the last to its request."""
    response = answer.infer_response
    return response.id, len(response.outputs), response.parameters[FINAL].bool_param


@pytest.mark.parametrize("parts", [0, 1, 3])
async def test_every_part_is_a_response(client: Client, service: NumpyService, parts: int) -> None:
    """With the request's id; none is the last one, as far as one can tell."""
    service.parts = parts
    stream = client.stream()
    await stream.write(ask())
    await stream.done_writing()
    answers = await all_of(stream)
    assert [told(answer) for answer in answers] == parts * [("1", 1, False)]
    assert all(FINAL in answer.infer_response.parameters for answer in answers)
    assert await stream.code() == grpc.StatusCode.OK


@pytest.mark.parametrize("parts", [0, 3])
async def test_an_empty_response_ends_a_request_that_asks_for_it(
    client: Client, service: NumpyService, parts: int
) -> None:
    """That is how its client knows that there is no more."""
    service.parts = parts
    stream = client.stream()
    await stream.write(ask(parameters=WANTED))
    await stream.done_writing()
    answers = await all_of(stream)
    assert [told(answer) for answer in answers] == [*parts * [("1", 1, False)], ("1", 0, True)]
    last = answers[-1].infer_response
    assert (last.model_name, last.model_version, answers[-1].error_message) == ("talker", "1", "")


async def test_a_model_that_does_not_stream_is_as_it_was(client: Client) -> None:
    """Its one response is the last one, and no empty one follows."""
    stream = client.stream()
    await stream.write(ask("double", parameters=WANTED))
    await stream.done_writing()
    assert [told(answer) for answer in await all_of(stream)] == [("1", 1, True)]


async def test_a_long_answer_keeps_no_other_waiting(client: Client, service: NumpyService) -> None:
    """Neither one that was asked for before, nor one after."""
    service.parts = 2
    service.step.clear()
    stream = client.stream()
    await stream.write(ask(number=1, parameters=WANTED))
    assert told(await next_of(stream)) == ("1", 1, False)
    service.gate.clear()
    service.waiting.clear()
    await stream.write(ask("double", number=2))
    await service.waiting.wait()  # it is in work, and will be for a while
    service.step.set()
    assert [told(await next_of(stream)) for _ in range(2)] == [("1", 1, False), ("1", 0, True)]
    service.parts = 1
    service.gate.set()
    assert told(await next_of(stream)) == ("2", 1, True)
    stream.cancel()


async def test_an_error_after_some_parts_ends_its_request_alone(client: Client, service: NumpyService) -> None:
    """It comes behind them, and says that it is the last."""
    service.parts, service.fail, service.fail_after = 3, InferenceFailed("it broke"), 2
    stream = client.stream()
    await stream.write(ask(parameters=WANTED))
    await stream.done_writing()
    *parts, last = await all_of(stream)
    assert [told(part) for part in parts] == 2 * [("1", 1, False)]
    assert (last.error_message, told(last)) == ("it broke", ("1", 0, True))
    assert last.infer_response.parameters["code"].string_param == "inference_failed"


async def test_a_refusal_is_one_response(client: Client, service: NumpyService) -> None:
    """As of any request."""
    service.refuse = QueueFull("no room", 1.0)
    stream = client.stream()
    await stream.write(ask(parameters=WANTED))
    await stream.done_writing()
    (answer,) = await all_of(stream)
    assert (answer.error_message, told(answer)) == ("no room", ("1", 0, True))


@pytest.mark.parametrize("parts", [0, 1, 2])
async def test_a_single_call_takes_one_part(client: Client, service: NumpyService, parts: int) -> None:
    """Any other number is for a stream."""
    service.parts = parts
    request = request_of("talker")
    if parts == 1:
        assert len((await client.infer(request)).outputs) == 1
        return
    status, details, _ = await failure(client.infer(request))
    assert (status, "stream" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


async def test_a_client_that_leaves_ends_all_of_its_answers(client: Client, service: NumpyService) -> None:
    """Whatever they wait for."""
    service.parts = 2
    service.step.clear()
    stream = client.stream()
    await stream.write(ask())
    await next_of(stream)
    stream.cancel()
    await service.cancelled.wait()


async def test_times(client: Client, service: NumpyService) -> None:
    """For the first part and for the whole, as parameters or metadata."""
    stream = client.stream(metadata=(("x-stream-timeout-ms", "3000"),))
    await stream.write(
        ask(parameters={"timeout": parameter(1_000_000, "int64"), "stream_timeout": parameter(2_000_000, "uint64")})
    )
    await stream.write(ask(parameters={"stream_timeout": parameter(-1, "int64")}))
    assert not (await next_of(stream)).error_message
    assert "parameters.stream_timeout: expected microseconds" in (await next_of(stream)).error_message
    ((_, _, options),) = service.calls
    assert options.timeout_s is not None
    assert options.stream_timeout_s is not None
    assert 0 < options.timeout_s <= 1.0 < options.stream_timeout_s <= 2.0
    stream.cancel()
    stream = client.stream(metadata=(("x-stream-timeout-ms", "soon"),))
    await stream.write(ask())
    assert "X-Stream-Timeout-Ms" in (await next_of(stream)).error_message
    stream.cancel()


async def test_wrong_types_of_parameters(client: Client) -> None:
    """Are refused by name."""
    stream = client.stream()
    for name in ("stream_timeout", "triton_enable_empty_final_response"):
        await stream.write(ask(parameters={name: parameter("yes", "string")}))
        assert f"parameters.{name}: expected" in (await next_of(stream)).error_message
    stream.cancel()


async def test_no_parts_are_made_for_a_client_that_does_not_read(service: NumpyService, bodies: BodyReader) -> None:
    """Each answer is at most two parts ahead; what was not read is not lost."""
    service.parts = 100

    async def requests() -> AsyncIterator[bytes]:
        for number in range(3):
            yield ask(number=number)

    answers = GrpcApp(*both(service), bodies).stream("ModelStreamInfer", requests(), Nobody())
    await anext(answers)
    for _ in range(1000):  # turns of the event loop: all of this is done in it
        await asyncio.sleep(0)
    assert service.taken <= 3 * 3
    assert len([answer async for answer in answers]) == 299


async def test_a_client_that_never_reads_is_cut(service: NumpyService, bodies: BodyReader) -> None:
    """And its work ends."""
    service.parts = 10_000
    listener = GrpcListener(GrpcApp(*both(service), bodies), "127.0.0.1", 0, GrpcLimits(stall_s=0.1))
    await listener.start()
    client = Client(listener.port)
    stream = client.stream()
    large = request_of("chorus", [("x", "FP32", np.zeros((1, 24_000), np.float32))])
    await stream.write(large.SerializeToString())
    async with asyncio.timeout(15):  # less than the stream's own deadline
        await service.cancelled.wait()
    stream.cancel()
    await client.channel.close()
    await listener.close(0.0)


async def test_the_configuration_tells_that_a_model_is_decoupled(client: Client) -> None:
    """Triton's clients ask for it."""
    configs = [await client.call("ModelConfig", pb.ModelConfigRequest(name=name)) for name in ("talker", "double")]
    assert [config.config.model_transaction_policy.decoupled for config in configs] == [True, False]
