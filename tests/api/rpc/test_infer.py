"""Infer requests over gRPC: tensors both ways, options, and everything that can be wrong with a request."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from msgspec.structs import replace

from api.protocol_service import EVERY_DATATYPE, MIRROR, MODELS, NumpyService
from api.rpc.conftest import FOUR, Client, failure, parameter, request_of
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.domain.priority import Priority
from serve_app.errors import DeadlineExceeded, InferenceFailed, ModelUnavailable, QueueFull
from serve_app.http.body import BodyReader
from serve_app.payloads import DTYPES

INVALID = grpc.StatusCode.INVALID_ARGUMENT
SHAPE = (2, 1, 2)
VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True, True],
    "BYTES": [b"a", b"", b"\xff\x00", "ü".encode()],
    "FP16": [0.5, -2.0, 65504.0, float("inf")],
    "FP32": [0.5, -2.0, 2.0**100, float("-inf")],
    "FP64": [0.5, -2.0, 1e300, 5e-324],
    **{kind: [0, 1, -1, np.iinfo(DTYPES[kind]).min] for kind in ("INT8", "INT16", "INT32", "INT64")},
    **{kind: [0, 1, 2, np.iinfo(DTYPES[kind]).max] for kind in ("UINT8", "UINT16", "UINT32", "UINT64")},
}
FIELDS = {
    "BOOL": "bool",
    "BYTES": "bytes",
    "FP32": "fp32",
    "FP64": "fp64",
    "INT64": "int64",
    "UINT64": "uint64",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint"),
}


def raw_of(datatype: str) -> bytes:
    """The test values of a datatype, as they travel."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(item)) + item for item in VALUES["BYTES"])
    return np.array(VALUES[datatype], DTYPES[datatype]).tobytes()


def mirror(*, raw: bool, without: tuple[str, ...] = ()) -> pb.ModelInferRequest:
    """A request with a tensor of every datatype, asking for those back."""
    request = pb.ModelInferRequest(model_name="mirror")
    for datatype in EVERY_DATATYPE:
        tensor = request.inputs.add(name=f"in_{datatype}", datatype=datatype, shape=SHAPE)
        if raw:
            request.raw_input_contents.append(raw_of(datatype))
        elif datatype in FIELDS:
            getattr(tensor.contents, f"{FIELDS[datatype]}_contents").extend(VALUES[datatype])
        if datatype not in without:
            request.outputs.add(name=f"out_{datatype}")
    return request


async def test_raw_tensors_of_every_datatype_come_back(client: Client) -> None:
    """Bit for bit, in the order asked for."""
    answer = await client.infer(mirror(raw=True))
    assert [output.name for output in answer.outputs] == [f"out_{datatype}" for datatype in EVERY_DATATYPE]
    assert [output.datatype for output in answer.outputs] == list(EVERY_DATATYPE)
    assert {tuple(output.shape) for output in answer.outputs} == {SHAPE}
    assert list(answer.raw_output_contents) == [raw_of(datatype) for datatype in EVERY_DATATYPE]
    assert (answer.model_name, answer.model_version, answer.id) == ("mirror", "1", "")


async def test_numbers_in_raw_inputs_are_views(client: Client, service: NumpyService) -> None:
    """The model reads them where they arrived."""
    await client.infer(request_of())
    (_, payload, _) = service.calls[0]
    assert isinstance(payload, dict)
    assert not payload["x"].flags.owndata
    assert not payload["x"].flags.writeable


@pytest.mark.parametrize("datatype", sorted(FIELDS))
async def test_typed_tensors_come_back_typed_where_that_is_configured(
    typed_client: Client, client: Client, datatype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer has the form of its request, with the value in the field of its datatype; else it is raw."""
    only = MIRROR._replace(
        signature=MIRROR.signature._replace(
            inputs=tuple(spec for spec in MIRROR.signature.inputs if spec.datatype == datatype),
            outputs=tuple(spec for spec in MIRROR.signature.outputs if spec.datatype == datatype),
        )
    )
    monkeypatch.setitem(MODELS, "mirror", only)
    request = pb.ModelInferRequest(model_name="mirror")
    tensor = request.inputs.add(name=f"in_{datatype}", datatype=datatype, shape=SHAPE)
    getattr(tensor.contents, f"{FIELDS[datatype]}_contents").extend(VALUES[datatype])
    answer = await typed_client.infer(request)
    assert not answer.raw_output_contents
    assert list(getattr(answer.outputs[0].contents, f"{FIELDS[datatype]}_contents")) == VALUES[datatype]
    raw = await client.infer(request)
    assert (list(raw.raw_output_contents), raw.outputs[0].HasField("contents")) == ([raw_of(datatype)], False)


async def test_raw_tensors_come_back_raw_whatever_is_configured(typed_client: Client) -> None:
    """Answers follow their requests."""
    assert list((await typed_client.infer(request_of())).raw_output_contents) == [(FOUR * 2).tobytes()]


async def test_a_request_can_choose_the_form_of_its_answer(client: Client) -> None:
    """By the parameter that the protocol has for that in JSON."""
    typed = await client.infer(request_of(parameters={"binary_data_output": parameter(value=False, kind="bool")}))
    assert list(typed.outputs[0].contents.fp32_contents) == [2, 4, 6, 8]
    request = pb.ModelInferRequest(model_name="double")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend([1, 2, 3, 4])
    request.parameters["binary_data_output"].bool_param = True
    assert list((await client.infer(request)).raw_output_contents) == [(FOUR * 2).tobytes()]


async def test_what_has_no_typed_form_makes_all_outputs_raw(client: Client) -> None:
    """FP16 has no field: a mixture is not allowed, and the request is answered all the same."""
    request = mirror(raw=True)
    request.parameters["binary_data_output"].bool_param = False
    answer = await client.infer(request)
    assert len(answer.raw_output_contents) == len(EVERY_DATATYPE)


@pytest.mark.parametrize("raw", [True, False])
async def test_timings_come_where_they_are_asked_for(client: Client, service: NumpyService, raw: bool) -> None:
    """Among the parameters of the answer, which is otherwise the same."""
    service.took = replace(service.took, queue_s=0.25, infer_s=0.5, timeout_s=2.0)
    request = request_of(parameters={"binary_data_output": parameter(value=raw, kind="bool")})
    plain = await client.infer(request)
    request.parameters["timings"].bool_param = True
    request.parameters["priority"].int64_param = 1
    answer = await client.infer(request)
    told = {name: value.int64_param for name, value in answer.parameters.items()}
    assert told == {
        "priority": 1,
        "timeout": 2_000_000,
        "queue_us": 250_000,
        "preprocess_us": 0,
        "infer_us": 500_000,
        "postprocess_us": 0,
    }
    assert (answer.outputs, answer.raw_output_contents) == (plain.outputs, plain.raw_output_contents)


async def test_id_and_variant_come_back(client: Client, service: NumpyService) -> None:
    """The id as it was sent, the variant where it is not the exact model."""
    answer = await client.infer(request_of(id="nr. 5 ü"))
    assert (answer.id, dict(answer.parameters)) == ("nr. 5 ü", {})
    service.fallback = "int8"
    call = client.raw("ModelInfer", request_of(id="6").SerializeToString())
    answer = pb.ModelInferResponse.FromString(await call)
    assert (answer.id, answer.parameters["variant"].string_param) == ("6", "int8")
    told = dict(await call.trailing_metadata())
    assert (told["x-priority"], told["x-variant"]) == ("normal", "int8")
    assert told["server-timing"].startswith("queue;dur=")


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 20_000])
async def test_answers_of_every_length(client: Client, size: int) -> None:
    """Lengths take one byte more at every power of 128."""
    array = np.arange(size, dtype=np.float32).reshape(1, size)
    answer = await client.infer(request_of("wide", [("x", "FP32", array)], id="i" * min(size, 300)))
    assert answer.raw_output_contents[0] == (array * 2).tobytes()
    assert answer.id == "i" * min(size, 300)


@pytest.mark.parametrize(
    ("parameters", "metadata", "expected"),
    [
        ({}, {}, (None, None, "", True)),
        ({"priority": (1, "int64")}, {"x-priority": "low"}, (Priority.HIGH, None, "", True)),
        ({"priority": (3, "uint64")}, {}, (Priority.LOW, None, "", True)),
        ({"priority": (2**64 - 1, "uint64")}, {}, (Priority.LOW, None, "", True)),
        ({"priority": (0, "uint64")}, {"x-priority": "9"}, (Priority.LOW, None, "", True)),
        ({}, {"x-priority": "low", "x-timeout-ms": "1500"}, (Priority.LOW, 1.5, "", True)),
        ({"timeout": (2_000_000, "int64")}, {"x-timeout-ms": "9000"}, (None, 2.0, "", True)),
        ({"timeout": (2_000_000, "uint64")}, {"x-timeout-ms": "1000"}, (None, 1.0, "", True)),
        ({"variant": ("int8", "string"), "fallback": (False, "bool")}, {}, (None, None, "int8", False)),
        ({"unheard_of": (1.5, "double")}, {"x-variant": "int8", "x-fallback": "never"}, (None, None, "int8", False)),
    ],
)  # fmt: skip
async def test_options(
    client: Client,
    service: NumpyService,
    parameters: dict[str, tuple[Any, str]],
    metadata: dict[str, str],
    expected: tuple[Any, ...],
) -> None:
    """From parameters of both integer kinds and from metadata, with the same rules as over HTTP."""
    given = {name: parameter(value, kind) for name, (value, kind) in parameters.items()}
    body = request_of(parameters=given).SerializeToString()
    await client.raw("ModelInfer", body, tuple(metadata.items()), timeout=None)
    options = service.calls[0][2]
    priority, timeout_s, variant, fallback = expected
    assert (options.priority, options.variant, options.fallback) == (priority, variant, fallback)
    assert (options.timeout_s is None) == (timeout_s is None)
    assert 0 < (options.timeout_s or 5.0) <= (timeout_s or 5.0)
    assert options.spent_s > 0.0


async def test_the_clients_own_deadline_counts(client: Client, service: NumpyService) -> None:
    """The tightest of all deadlines is the one that the request gets."""
    body = request_of().SerializeToString()
    await client.raw("ModelInfer", body, timeout=3.0)
    await client.raw("ModelInfer", body, (("x-timeout-ms", "1000"),), timeout=3.0)
    first, second = (options.timeout_s for _, _, options in service.calls)
    assert first is not None
    assert second is not None
    assert second <= 1.0 < first < 4.0  # the client rounds its own up before it tells it


async def test_a_client_that_leaves_cancels_its_work(client: Client, service: NumpyService) -> None:
    """Work that nobody waits for is not done."""
    service.gate.clear()
    call = client.raw("ModelInfer", request_of().SerializeToString())
    await service.waiting.wait()
    call.cancel()
    await service.cancelled.wait()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.inputs.pop(), "raw_input_contents: 1 of them, but 0 inputs"),
        (lambda r: r.raw_input_contents.append(b""), "raw_input_contents: 2 of them, but 1 inputs"),
        (lambda r: r.ClearField("raw_input_contents"), r"inputs[0].contents.fp32_contents: 0 values, but shape [1, 4]"),
        (lambda r: r.inputs[0].contents.fp32_contents.append(1), "inputs[0].contents: there are raw_input_contents"),
        (lambda r: r.inputs[0].shape.append(1), "inputs[0].shape: input 'x' has the shape [rows, 4], got [1, 4, 1]"),
        (lambda r: r.inputs[0].shape.__setitem__(0, -1), "expected 0 to 16 rows in dimension 0, got -1"),
        (lambda r: r.inputs[0].shape.__setitem__(0, 2), "[0]: 16 bytes, but FP32 of shape [2, 4] needs 32"),
        (lambda r: setattr(r.inputs[0], "name", "z"), "inputs[0].name: model 'double' has no input 'z'"),
        (lambda r: setattr(r.inputs[0], "datatype", "FP64"), "inputs[0].datatype: input 'x' takes FP32; got 'FP64'"),
        (lambda r: r.outputs.add(name="z"), "outputs[0].name: model 'double' has no output 'z'"),
        (lambda r: [r.outputs.add(name="y") for _ in range(2)], "outputs[1].name: output 'y' is asked for twice"),
        (lambda r: r.parameters["priority"].__setattr__("string_param", "high"), "priority: expected int64_param"),
        (lambda r: r.parameters["priority"].__setattr__("bool_param", True), "priority: expected int64_param"),
        (lambda r: r.parameters["priority"].__setattr__("int64_param", -1), "parameters.priority: expected 0 (the"),
        (lambda r: r.parameters["timeout"].__setattr__("int64_param", -1), "parameters.timeout: expected microseconds"),
        (lambda r: r.parameters["variant"].__setattr__("string_param", "big"), "has no variant 'big'"),
        (lambda r: r.parameters["fallback"].__setattr__("int64_param", 1), "parameters.fallback: expected bool_param"),
    ],
)  # fmt: skip
async def test_faults_are_named(client: Client, service: NumpyService, change: Any, message: str) -> None:
    """INVALID_ARGUMENT with the field and what was expected, and nothing is run."""
    request = request_of()
    change(request)
    code, details, metadata = await failure(client.infer(request))
    assert (code, metadata["code"]) == (INVALID, "invalid_request")
    assert message in details
    assert service.calls == []
    assert service.refusals == [("double", "invalid_request")]


@pytest.mark.parametrize(
    ("datatype", "field", "message"),
    [
        ("FP16", "fp32", "FP16 has no field there; send it in raw_input_contents"),
        ("INT8", "int64", "INT8 belongs in int_contents, not in int64_contents"),
        ("INT8", "int", "inputs[0].contents.int_contents: a number does not fit INT8"),
        ("UINT8", "uint", "inputs[0].contents.uint_contents: a number does not fit UINT8"),
        ("BYTES", "bytes", "inputs[0].contents.bytes_contents: 1 values, but shape [2, 1, 2] needs 4"),
    ],
)  # fmt: skip
async def test_typed_contents_must_fit_their_datatype(client: Client, datatype: str, field: str, message: str) -> None:
    """What another field holds, does not fit the datatype or is too little is refused."""
    request = pb.ModelInferRequest(model_name="mirror")
    tensor = request.inputs.add(name=f"in_{datatype}", datatype=datatype, shape=SHAPE)
    values = [b"a"] if datatype == "BYTES" else [300] * 4
    getattr(tensor.contents, f"{field}_contents").extend(values)
    code, details, _ = await failure(client.infer(request))
    assert code == INVALID
    assert message in details


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.inputs[0].parameters["shared_memory_region"].__setattr__("string_param", "r"), "shared memory"),
        (lambda r: r.outputs.add(name="y").parameters["shared_memory_region"].SetInParent(), "shared memory"),
        (lambda r: r.parameters["sequence_id"].__setattr__("uint64_param", 7), "sequences are not supported"),
    ],
)  # fmt: skip
async def test_extensions_that_are_not_served(client: Client, change: Any, message: str) -> None:
    """UNIMPLEMENTED, saying what."""
    request = request_of()
    change(request)
    code, details, metadata = await failure(client.infer(request))
    assert (code, metadata["code"]) == (grpc.StatusCode.UNIMPLEMENTED, "unsupported")
    assert message in details


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
@pytest.mark.parametrize("raw", [True, False])
async def test_dimensions_that_may_vary_are_not_negative(client: Client, datatype: str, raw: bool) -> None:
    """The size that stands for any in a model's metadata is none that a tensor can have."""
    request = pb.ModelInferRequest(model_name="mirror")
    request.inputs.add(name=f"in_{datatype}", datatype=datatype, shape=(1, -1, 2))
    if raw:
        request.raw_input_contents.append(b"")
    code, details, _ = await failure(client.infer(request))
    assert code == INVALID
    assert "has the shape [rows, any, 2], got [1, -1, 2]" in details


async def test_bytes_that_are_no_message(client: Client, service: NumpyService) -> None:
    """A client's fault, which is counted for no model."""
    code, details, _ = await failure(client.raw("ModelInfer", b"\xff\xff\xff"))
    assert (code, details) == (INVALID, "this is not a valid message inference.ModelInferRequest")
    assert service.refusals == [("", "invalid_request")]


@pytest.mark.parametrize(
    "part",
    [
        b"\x2a\0",  # an input
        b"\x32\0",  # an output
        b"\x22\0",  # a parameter
        b"\x3a\0",  # a raw input
        b"\x78\1",  # a field that nobody knows
        b"\x2a\x04\x1a\x02\1\1",  # an input of two dimensions
    ],
)
async def test_messages_of_very_many_parts(client: Client, service: NumpyService, part: bytes) -> None:
    """Parsed they would take many times the memory, and the time of all requests."""
    many = part * 8193
    for body in (many, pb.ModelInferRequest(id="x").SerializeToString() + many):
        code, details, _ = await failure(client.raw("ModelInfer", body))
        assert code == INVALID
        assert "more than 4096 parts" in details
    assert service.refusals == [("", "invalid_request")] * 2


async def test_shapes_of_very_many_dimensions(client: Client) -> None:
    """As parts: packed, a dimension takes one byte."""
    request = request_of("wide")
    request.inputs[0].shape.extend([1] * 20_000)
    _, details, _ = await failure(client.infer(request))
    assert "more than 4096 parts" in details


@pytest.mark.parametrize("cut", [1, 2, 90_000])
async def test_messages_that_are_cut_off(client: Client, cut: int) -> None:
    """A client's fault, wherever they end."""
    body = request_of("wide", [("x", "FP32", np.zeros((1, 24_000), np.float32))]).SerializeToString()
    code, details, _ = await failure(client.raw("ModelInfer", body[:-cut]))
    assert code == INVALID
    assert "not a valid message" in details


async def test_unknown_models_and_versions(client: Client) -> None:
    """NOT_FOUND, whatever else is wrong."""
    for request in (request_of("nothing"), request_of(model_version="2")):
        code, _, metadata = await failure(client.infer(request))
        assert (code, metadata["code"]) == (grpc.StatusCode.NOT_FOUND, "model_not_found")


async def test_a_client_is_told_when_to_come_back(client: Client, service: NumpyService) -> None:
    """Refused before anything is decoded, with the status, the code and the seconds."""
    service.refuse = QueueFull("no room", 2.5)
    code, details, metadata = await failure(client.infer(request_of()))
    assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")
    assert (metadata["code"], metadata["retry-after"]) == ("queue_full", "3")
    assert service.calls == []
    assert service.refusals == []  # whoever refused it has counted it


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DeadlineExceeded("late"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (ModelUnavailable("gone"), grpc.StatusCode.UNAVAILABLE),
        (InferenceFailed("broken"), grpc.StatusCode.INTERNAL),
    ],
)  # fmt: skip
async def test_errors_have_their_status(
    client: Client, service: NumpyService, error: Exception, status: grpc.StatusCode
) -> None:
    """The one table of codes decides."""
    service.fail = error
    code, details, _ = await failure(client.infer(request_of()))
    assert (code, details) == (status, str(error))


async def test_a_bug_is_logged_and_not_shown(
    client: Client, service: NumpyService, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets an id to quote; the log has the traceback under that id."""
    service.fail = RuntimeError("a secret")
    code, details, metadata = await failure(client.infer(request_of(), ("x-request-id", "mine-1")))
    assert (code, details) == (grpc.StatusCode.INTERNAL, "internal error (request id mine-1)")
    assert (metadata["code"], metadata["x-request-id"]) == ("internal", "mine-1")
    assert "request mine-1: 'ModelInfer' failed" in caplog.text
    assert "a secret" in caplog.text


async def test_messages_over_the_limit(client: Client) -> None:
    """Over the application's limit it says so; over the transport's, gRPC does."""

    def wide(size: int) -> bytes:
        return request_of("wide", [("x", "FP32", np.zeros((1, size), np.float32))]).SerializeToString()

    code, details, metadata = await failure(client.raw("ModelInfer", wide(25_001)))
    assert (code, metadata["code"]) == (INVALID, "payload_too_large")
    assert "100000 bytes" in details
    code, _, _ = await failure(client.raw("ModelInfer", wide(250_001)))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_compressed_messages_are_limited_as_they_are_read(client: Client) -> None:
    """A small message cannot grow over the limit by its compression."""
    body = request_of("wide", [("x", "FP32", np.zeros((1, 1_000_000), np.float32))]).SerializeToString()
    call = client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    code, _, _ = await failure(call(body, compression=grpc.Compression.Gzip, timeout=20))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    small = request_of("wide", [("x", "FP32", np.zeros((1, 1000), np.float32))]).SerializeToString()
    assert await call(small, compression=grpc.Compression.Gzip, timeout=20)


async def test_large_messages_are_counted_while_they_are_decoded(client: Client, bodies: BodyReader) -> None:
    """There is room for so many bytes in all; what is refused, or was decoded, gives its room back."""
    body = request_of("wide", [("x", "FP32", np.zeros((1, 20_000), np.float32))]).SerializeToString()
    bodies.hold(90_000)
    code, _, metadata = await failure(client.raw("ModelInfer", body))
    assert (code, metadata["code"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue_full")
    bodies.release(90_000)
    await client.raw("ModelInfer", body)
    await failure(client.raw("ModelInfer", body[:-1]))
    assert bodies.held == 0


async def test_many_calls_at_once_get_their_own_answers(client: Client) -> None:
    """One connection, 100 calls."""
    arrays = [np.full((1, 4), number, np.float32) for number in range(100)]
    requests = (request_of("double", [("x", "FP32", array)], id=str(at)) for at, array in enumerate(arrays))
    answers = await asyncio.gather(*(client.infer(request) for request in requests))
    assert [answer.id for answer in answers] == [str(at) for at in range(100)]
    assert [answer.raw_output_contents[0] for answer in answers] == [(array * 2).tobytes() for array in arrays]


async def test_calls_carry_where_they_come_from(client: Client, service: NumpyService) -> None:
    """An answer tells the id of its request, whether the client gave one or not."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for metadata in ([("x-request-id", "r-1"), ("traceparent", trace)], []):
        call = client.raw("ModelInfer", request_of().SerializeToString(), metadata)
        await call
        told = dict(await call.trailing_metadata())["x-request-id"]
        _, _, options = service.calls[-1]
        assert (options.request_id, options.listener) == (told, "direct-grpc")
        assert (told == "r-1", options.trace_parent) == ((True, trace) if metadata else (False, ""))
