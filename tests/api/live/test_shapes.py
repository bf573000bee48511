"""Tensors of every shape through the whole server: over HTTP in JSON and in binary, and over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from conformance.asking import Ask, Reply, Way, ask_together
from local_server import LocalServer
from shapes_models import every_shape

from serve_app.api.open_inference import inference_pb2 as pb

CLIENT = httpx.Client(timeout=30.0)
WAYS: tuple[Way, ...] = ("json", "binary", "grpc")
REFUSED = (400, "INVALID_ARGUMENT")
TOLD = ["scalar", "nothing", "rows", "optional", "matrices", "time", "columns", "sums", "varying", "unproven"]
X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Serves a model of every shape."""
    with LocalServer(every_shape(tmp_path_factory.mktemp("shapes"))) as server:
        yield server


@pytest.fixture(params=WAYS)
def ask(request: pytest.FixtureRequest, shapes: LocalServer) -> Any:
    """Asks a model in one of the three ways."""

    def asked(model: str, **inputs: Any) -> Reply:
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        ((reply,),) = ask_together(shapes, [[Ask(model, arrays, request.param)]])
        return reply

    return asked


def y(reply: Reply) -> Any:
    """The output and its shape."""
    assert reply.outputs is not None, reply
    return reply.outputs["y"].shape, reply.outputs["y"].tolist()


def infer(server: LocalServer, model: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    """Ask in JSON of one's own."""
    return CLIENT.post(f"{server.url}/v2/models/{model}/infer", json=body, headers=headers)


def call(server: LocalServer, request: pb.ModelInferRequest) -> tuple[pb.ModelInferResponse, dict[str, str]]:
    """Ask over gRPC: the answer, and its trailing metadata."""
    with grpc.insecure_channel(server.grpc) as channel:
        method: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer, done = method.with_call(request.SerializeToString(), timeout=30)
    return pb.ModelInferResponse.FromString(answer), dict(done.trailing_metadata() or ())


def test_a_scalar_is_one_number_without_a_shape(ask: Any) -> None:
    """`[]` goes in and comes out; a row of it is another shape, and both are named."""
    assert ((), 3.0) == y(ask("scalar", x=np.float32(2)))
    refused = ask("scalar", x=np.ones(1, np.float32))
    assert (True, "inputs[0].shape: input 'x' has the shape [], got [1]") == (
        refused.status in REFUSED,
        refused.message,
    )


def test_a_model_without_inputs_answers(ask: Any) -> None:
    """Whoever asks for nothing gets what it always gives."""
    assert ((2, 3), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]) == y(ask("nothing"))
    refused = ask("nothing", x=np.float32(1))
    assert (True, True) == (refused.status in REFUSED, "has no input 'x'" in refused.message)


def test_an_empty_list_of_inputs_is_a_request(shapes: LocalServer) -> None:
    """As JSON writes it; of a model that takes inputs they are missing."""
    answer = infer(shapes, "nothing", {"inputs": []})
    assert (200, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == (answer.status_code, answer.json()["outputs"][0]["data"])
    refused = infer(shapes, "two", {"inputs": []})
    assert (400, "inputs: 'a', 'b' missing; model 'two' takes all of 'a', 'b'") == (
        refused.status_code,
        refused.json()["error"],
    )


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)], ids=str)
def test_an_empty_tensor_has_an_empty_answer(ask: Any, shape: tuple[int, int]) -> None:
    """No rows, or rows of no width."""
    assert (shape, np.zeros(shape).tolist()) == y(ask("rows", x=np.zeros(shape, np.float32)))


def test_an_empty_recording_is_one_too(ask: Any) -> None:
    """Of a model without rows."""
    assert ((0, 2), []) == y(ask("varying", x=np.zeros((0, 2), np.float32)))


def test_an_optional_input_may_be_left_out(ask: Any) -> None:
    """Then it has the value of the model's file."""
    assert ((3, 4), (X + 10).tolist()) == y(ask("optional", x=X))


def test_an_optional_input_may_be_given(ask: Any) -> None:
    """In the shape of the file, and for this request only."""
    bias = np.array([[1, 2, 3, 4]], np.float32)
    assert ((3, 4), (X + bias).tolist()) == y(ask("optional", x=X, bias=bias))
    assert ((3, 4), (X + 10).tolist()) == y(ask("optional", x=X))
    refused = ask("optional", x=X, bias=np.ones((3, 4), np.float32))
    assert (True, "inputs[1].shape: input 'bias' has the shape [1, 4], got [3, 4]") == (
        refused.status in REFUSED,
        refused.message,
    )
    refused = ask("optional", bias=bias)
    assert (True, "inputs: 'x' missing; model 'optional' takes all of 'x'") == (
        refused.status in REFUSED,
        refused.message,
    )


def test_one_row_counts_for_all_others(ask: Any) -> None:
    """As ONNX's operators take it; two and three rows are a mistake, which the model finds."""
    three, one = np.arange(6, dtype=np.float32).reshape(3, 2), np.full((1, 2), 5, np.float32)
    assert [((3, 2), (three + 5).tolist())] * 2 == [y(ask("two", a=three, b=one)), y(ask("two", a=one, b=three))]
    refused = ask("two", a=three, b=three[:2])
    told = "inputs have different numbers of rows ('a' 3, 'b' 2), which the model does not accept: "
    assert (True, True) == (refused.status in REFUSED, refused.message.startswith(told))


def test_first_dimensions_may_differ(ask: Any) -> None:
    """Each is exactly that of the file."""
    x, w = np.ones((4, 6), np.float32), np.ones((6, 2), np.float32)
    assert ((4, 2), np.full((4, 2), 6.0).tolist()) == y(ask("matrices", x=x, w=w))
    refused = ask("matrices", x=x[:3], w=w)
    assert (True, "inputs[0].shape: input 'x' has the shape [4, 6], got [3, 6]") == (
        refused.status in REFUSED,
        refused.message,
    )


def test_rows_may_be_on_axis_one(shapes: LocalServer) -> None:
    """Eight clients at once, each with as many recordings of two steps as it likes, and each gets its own sums."""
    sent = [np.random.default_rng(rows).normal(size=(2, rows, 4)).astype(np.float32) for rows in range(1, 9)]
    for way in WAYS:
        replies = ask_together(shapes, [[Ask("time", {"x": x}, way) for x in sent]])[0]
        assert [(x.shape, np.cumsum(x, axis=0).tolist()) for x in sent] == [y(reply) for reply in replies]


def test_one_tensor_may_have_its_rows_elsewhere(ask: Any) -> None:
    """The input's are its columns, and the output's are in front."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert ((3, 2), x.T.tolist()) == y(ask("columns", x=x))


def test_the_axis_of_the_rows_is_named_where_it_is_wrong(ask: Any) -> None:
    """Too few dimensions, or a wrong one beside them."""
    shape = "inputs[0].shape: input 'x' has the shape [any, rows, 4], got"
    replies = [ask("time", x=np.zeros(size, np.float32)) for size in ((4,), (2, 3, 5))]
    assert [f"{shape} [4]", f"{shape} [2, 3, 5]"] == [reply.message for reply in replies]


@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 3)], ids=str)
def test_what_has_no_declared_rank_takes_any(ask: Any, shape: tuple[int, ...]) -> None:
    """Up to eight dimensions."""
    assert (shape, np.full(shape, 3.0).tolist()) == y(ask("unranked", x=np.full(shape, 2, np.float32)))
    refused = ask("unranked", x=np.zeros((1,) * 9, np.float32))
    assert (True, True) == (refused.status in REFUSED, "at most 8 dimensions" in refused.message)


def test_bytes_that_are_not_utf_8_reach_the_model(shapes: LocalServer) -> None:
    """In binary and over gRPC: JSON has no form for them."""
    raw = b"".join(len(item).to_bytes(4, "little") + item for item in (b"\xff\xfe", b"", b"a"))
    request = pb.ModelInferRequest(model_name="text", raw_input_contents=[raw])
    request.inputs.add(name="x", datatype="BYTES", shape=[3])
    assert [3] == np.frombuffer(call(shapes, request)[0].raw_output_contents[0], np.int64).tolist()
    head = b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[3],"parameters":{"binary_data_size":%d}}]}' % len(raw)
    answer = CLIENT.post(
        f"{shapes.url}/v2/models/text/infer",
        content=head + raw,
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    assert (200, [3]) == (answer.status_code, answer.json()["outputs"][0]["data"])


def test_classes_of_a_model_without_rows(shapes: LocalServer) -> None:
    """An output is one row as a whole, and its classes have no rows either."""
    x = {"name": "x", "datatype": "FP32", "shape": [4], "data": [1, 1, -5, 2]}
    asked = {"name": "y", "parameters": {"classification": 2}}
    output = infer(shapes, "sums", {"inputs": [x], "outputs": [asked]}).json()["outputs"][0]
    assert (["2.000000:1", "1.000000:0"], [2], "BYTES") == (output["data"], output["shape"], output["datatype"])


@pytest.mark.parametrize(
    ("model", "sent", "given"),
    [
        ("scalar", [2], [3]),
        ("sums", [1, 1, 1, 1], [1, 2, 3, 4]),
        ("varying", [1, 2, 3, 4], [1, 2, 4, 6]),
        ("rows", [1, 2], [2, 3]),
        ("time", [1] * 8, [1] * 4 + [2] * 4),
    ],
)
def test_a_raw_request_is_the_only_input(shapes: LocalServer, model: str, sent: Any, given: Any) -> None:
    """Its size tells the shape: of a model without rows that of the file, else of one row."""
    answer = _raw(shapes, model, sent)
    length = int(answer.headers["inference-header-content-length"])
    assert (200, given) == (answer.status_code, np.frombuffer(answer.content[length:], np.float32).tolist())


@pytest.mark.parametrize(
    ("model", "sent", "told"),
    [
        ("sums", [1, 2], "the body has 8 bytes, but input 'x' (FP32, [4]) has 16"),
        ("varying", [1, 2, 3], "input 'x' (FP32, [-1, 2]) has 8 or a multiple of it"),
        ("unranked", [1], "the model does not declare the rank of input 'x'"),
        ("nothing", [], "sends the only input of a model, but 'nothing' takes none"),
        ("matrices", [1], "sends the only input of a model, but 'matrices' takes 'x', 'w'"),
    ],
)
def test_a_raw_request_that_says_too_little_is_refused(shapes: LocalServer, model: str, sent: Any, told: str) -> None:
    """With what is missing."""
    answer = _raw(shapes, model, sent)
    assert (400, True) == (answer.status_code, told in answer.json()["error"]), answer.text


def _raw(server: LocalServer, model: str, sent: Any) -> httpx.Response:
    return CLIENT.post(
        f"{server.url}/v2/models/{model}/infer",
        content=np.array(sent, np.float32).tobytes(),
        headers={"Inference-Header-Content-Length": "0"},
    )


def test_metadata_and_configuration_say_what_may_be_sent(shapes: LocalServer) -> None:
    """The shapes of the file, `max_batch_size` 0 where rows are not in front, and whether requests share runs."""

    def told(model: str) -> Any:
        metadata = CLIENT.get(f"{shapes.url}/v2/models/{model}").json()
        config = CLIENT.get(f"{shapes.url}/v2/models/{model}/config").json()
        parameters = metadata["parameters"]
        assert parameters["joinable"] == config["parameters"]["joinable"]["string_value"]
        assert parameters["joinable_reason"] == config["parameters"]["joinable_reason"]["string_value"] != ""
        assert str(parameters["joinable_deviation"]) == config["parameters"]["joinable_deviation"]["string_value"]
        assert parameters["joinable_padding"] == config["parameters"]["joinable_padding"]["string_value"]
        inputs = [each["shape"] for each in metadata["inputs"]]
        return parameters["joinable"], inputs, config["max_batch_size"] > 0, [each["dims"] for each in config["input"]]

    assert {
        "scalar": ("whole", [[]], False, [[]]),
        "nothing": ("whole", [], False, []),
        "rows": ("exact", [[-1, -1]], True, [[-1]]),
        "optional": ("exact", [[-1, 4]], True, [[4], [1, 4]]),
        "matrices": ("whole", [[4, 6], [6, 2]], False, [[4, 6], [6, 2]]),
        "time": ("exact", [[-1, -1, 4]], False, [[-1, -1, 4]]),
        "columns": ("exact", [[2, -1]], False, [[2, -1]]),
        "sums": ("whole", [[4]], False, [[4]]),
        "varying": ("dependent", [[-1, 2]], False, [[-1, 2]]),
        "unproven": ("unverified", [[-1, 2]], True, [[2]]),
    } == {name: told(name) for name in TOLD}


def test_what_is_shared_without_proof_is_said_with_every_answer(shapes: LocalServer) -> None:
    """In a header and in V2's parameters; beside the timings, where they are asked for; and not elsewhere."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]
    plain = infer(shapes, "unproven", {"inputs": inputs})
    timed = infer(shapes, "unproven", {"inputs": inputs, "parameters": {"timings": True}})
    proven = infer(shapes, "varying", {"inputs": inputs})
    assert ["batch", "batch", None] == [answer.headers.get("x-unverified") for answer in (plain, timed, proven)]
    assert ({"unverified": "batch"}, None) == (plain.json()["parameters"], proven.json().get("parameters"))
    assert ("batch", True) == (timed.json()["parameters"]["unverified"], "queue_us" in timed.json()["parameters"])


def test_kept_answers_say_it_too(shapes: LocalServer) -> None:
    """They were made in a run that may have been shared."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]
    answers = [infer(shapes, "kept", {"inputs": inputs}) for _ in range(2)]
    assert [("miss", "batch", {"unverified": "batch"}), ("hit", "batch", {"unverified": "batch"})] == [
        (answer.headers["x-cache"], answer.headers.get("x-unverified"), answer.json().get("parameters"))
        for answer in answers
    ]


@pytest.mark.parametrize("raw", [True, False])
def test_grpc_says_it_in_metadata_and_parameters(shapes: LocalServer, raw: bool) -> None:
    """Raw or typed."""

    def asked(model: str) -> pb.ModelInferRequest:
        request = pb.ModelInferRequest(model_name=model)
        request.parameters["binary_data_output"].bool_param = raw
        request.inputs.add(name="x", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([1, 2])
        return request

    answer, metadata = call(shapes, asked("unproven"))
    assert ("batch", "batch") == (answer.parameters["unverified"].string_param, metadata["x-unverified"])
    answer, metadata = call(shapes, asked("varying"))
    assert (False, None) == ("unverified" in answer.parameters, metadata.get("x-unverified"))
