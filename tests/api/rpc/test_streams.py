"""Infer requests in a stream."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc.aio
import numpy as np
import pytest

from api.protocol_service import NumpyService, both
from api.rpc.conftest import Client, Nobody, next_of, request_of
from serve_app.api.grpc_app import GrpcApp
from serve_app.api.grpc_listener import GrpcLimits, GrpcListener
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.api.open_inference.answer_line import UNREAD_BYTES
from serve_app.api.open_inference.rpc import AHEAD
from serve_app.domain.service import Answer, RequestOptions
from serve_app.errors import QueueFull
from serve_app.http.body import BodyReader
from serve_app.payloads import Payload


def numbered(number: int, model: str = "double") -> bytes:
    """A request that tells its number in its id and in its tensor."""
    return request_of(model, [("x", "FP32", np.full((1, 4), number, np.float32))], id=str(number)).SerializeToString()


async def test_answers_come_in_the_order_of_requests(client: Client) -> None:
    """More of them than may be in work at once, each answered once and for good."""
    stream = client.stream()
    for number in range(300):
        await stream.write(numbered(number))
    await stream.done_writing()
    answers = [pb.ModelStreamInferResponse.FromString(each) async for each in stream]
    assert [answer.infer_response.id for answer in answers] == [str(number) for number in range(300)]
    assert {answer.error_message for answer in answers} == {""}
    assert all(answer.infer_response.parameters["triton_final_response"].bool_param for answer in answers)
    values = [np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)[0] for answer in answers]
    assert values == [2.0 * number for number in range(300)]


async def test_several_are_in_work_at_once(client: Client, service: NumpyService) -> None:
    """The second request does not wait for the answer to the first."""
    service.gate.clear()
    stream = client.stream()
    for number in range(2):
        service.waiting.clear()
        await stream.write(numbered(number))
        await service.waiting.wait()
    assert len(service.calls) == 2
    service.gate.set()
    assert [(await next_of(stream)).infer_response.id for _ in range(2)] == ["0", "1"]
    stream.cancel()


async def test_a_request_that_fails_does_not_end_the_stream(client: Client, service: NumpyService) -> None:
    """Its answer has the message, the id and the code; the next request is served."""
    stream = client.stream()
    await stream.write(numbered(1, "nothing"))
    failed = await next_of(stream)
    assert "nothing" in failed.error_message
    assert (failed.infer_response.id, failed.infer_response.parameters["code"].string_param) == ("1", "model_not_found")
    await stream.write(b"\xff\xff")
    assert "not a valid message" in (await next_of(stream)).error_message
    service.refuse = QueueFull("no room", 1.0)
    await stream.write(numbered(2))
    assert (await next_of(stream)).error_message == "no room"
    service.refuse = None
    await stream.write(numbered(3))
    assert (await next_of(stream)).infer_response.id == "3"
    await stream.done_writing()
    assert await stream.code() == grpc.StatusCode.OK
    assert service.refusals == [("nothing", "model_not_found"), ("", "invalid_request")]


async def test_a_bug_in_a_stream_is_logged_and_not_shown(
    client: Client, service: NumpyService, caplog: pytest.LogCaptureFixture
) -> None:
    """As for a single call."""
    service.fail = RuntimeError("a secret")
    stream = client.stream(metadata=(("x-request-id", "mine"),))
    await stream.write(numbered(1))
    assert (await next_of(stream)).error_message == "internal error (request id mine)"
    assert "a secret" in caplog.text
    stream.cancel()


async def test_options_of_a_stream_are_those_of_each_request(client: Client, service: NumpyService) -> None:
    """Metadata of the stream count for all of its requests, parameters for one."""
    stream = client.stream(metadata=(("x-priority", "low"),))
    await stream.write(numbered(1))
    request = request_of()
    request.parameters["priority"].int64_param = 1
    await stream.write(request.SerializeToString())
    for _ in range(2):
        await next_of(stream)
    assert [options.priority and options.priority.label for _, _, options in service.calls] == ["low", "high"]
    stream.cancel()


async def test_a_client_that_leaves_cancels_all_of_its_work(client: Client, service: NumpyService) -> None:
    """Nothing is left running."""
    service.gate.clear()
    stream = client.stream()
    await stream.write(numbered(1))
    await service.waiting.wait()
    stream.cancel()
    await service.cancelled.wait()


async def test_what_was_read_is_answered_before_the_server_closes(
    client: Client, service: NumpyService, listener: GrpcListener
) -> None:
    """Then the stream ends, and its client knows that it may open another."""
    service.gate.clear()
    stream = client.stream()
    await stream.write(numbered(1))
    await service.waiting.wait()
    closing = asyncio.create_task(listener.close(20.0))
    await asyncio.sleep(0)
    service.gate.set()
    assert (await next_of(stream)).infer_response.id == "1"
    assert await stream.code() == grpc.StatusCode.UNAVAILABLE
    await closing


async def test_a_stream_whose_client_was_done_ends_well_when_the_server_closes(
    client: Client, service: NumpyService, listener: GrpcListener
) -> None:
    """Everything that it asked for has been answered: there is nothing to open another stream for."""
    service.gate.clear()
    stream = client.stream()
    await stream.write(numbered(1))
    await stream.done_writing()
    await service.waiting.wait()
    # The end of the client's side comes after its message: once the server's next call is answered, it is there too.
    await client.channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"")
    closing = asyncio.create_task(listener.close(20.0))
    await asyncio.sleep(0)
    service.gate.set()
    assert (await next_of(stream)).infer_response.id == "1"
    assert await stream.code() == grpc.StatusCode.OK
    await closing


class Halting(NumpyService):
    """Answers so many requests, and then none."""

    halt_after = 80

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """Compute, or wait."""
        if len(self.calls) == self.halt_after:
            self.gate.clear()
        return await super().submit(model, payload, options)


LARGE = request_of("wide", [("x", "FP32", np.zeros((1, 24_000), np.float32))]).SerializeToString()


async def test_a_client_that_never_reads_is_cut(bodies: BodyReader) -> None:
    """What it should read is not kept for ever, and what else it asked for is not run."""
    service = Halting()
    listener = GrpcListener(GrpcApp(*both(service), bodies), "127.0.0.1", 0, GrpcLimits(stall_s=0.1))
    await listener.start()
    client = Client(listener.port)
    stream = client.stream()
    for _ in range(service.halt_after + 1):
        await stream.write(LARGE)
    async with asyncio.timeout(15):  # less than the stream's own deadline
        await service.cancelled.wait()
    stream.cancel()
    await client.channel.close()
    await listener.close(0.0)


async def test_nothing_more_is_read_while_answers_are_not(service: NumpyService, bodies: BodyReader) -> None:
    """Where answers are large, it takes fewer of them than requests may be in work."""
    pulled = 0

    async def requests() -> AsyncIterator[bytes]:
        nonlocal pulled
        for _ in range(2 * AHEAD):
            await asyncio.sleep(0)  # as a connection, it lets what came before begin
            pulled += 1
            yield LARGE

    answers = GrpcApp(*both(service), bodies).stream("ModelStreamInfer", requests(), Nobody())
    await anext(answers)
    for _ in range(10 * AHEAD):  # turns of the event loop: all of this is done in it
        await asyncio.sleep(0)
    assert UNREAD_BYTES < pulled * len(LARGE) < 1.1 * UNREAD_BYTES
    assert len([answer async for answer in answers]) == 2 * AHEAD - 1


@pytest.mark.usefixtures("collect_never")
async def test_a_request_that_fails_is_not_kept(service: NumpyService, bodies: BodyReader) -> None:
    """Its message would else wait for the collector of cycles, which may be long in coming."""
    message = pb.ModelInferRequest(model_name="no such model", raw_input_contents=[bytes(1000)]).SerializeToString()
    held = sys.getrefcount(message)

    async def requests() -> AsyncIterator[bytes]:
        yield message

    (answer,) = [
        answer async for answer in GrpcApp(*both(service), bodies).stream("ModelStreamInfer", requests(), Nobody())
    ]
    assert pb.ModelStreamInferResponse.FromString(answer).error_message
    await asyncio.sleep(0)
    assert sys.getrefcount(message) == held


async def test_a_stream_that_breaks_is_not_kept(service: NumpyService, bodies: BodyReader) -> None:
    """Nor what it held; that it broke is told to whoever still listens."""

    async def requests() -> AsyncIterator[bytes]:
        yield b""
        raise ConnectionResetError("gone")

    nobody = Nobody()
    assert (
        len([each async for each in GrpcApp(*both(service), bodies).stream("ModelStreamInfer", requests(), nobody)])
        == 1
    )
