"""Starting, scaling, losing replicas, redeploying and stopping a real server."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import itertools
import json
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import onnx_models
import psutil
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper
from serve_process import ROOT, ServeProcess
from steady_load import SteadyLoad

from benchmarks.ports import free_ports
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.config.names import deployment_name

pytestmark = pytest.mark.cluster

WAIT_S = 240.0
SLOW_ROWS = 64
CERTIFICATES = ("CA_CERT", "SERVER_KEY", "SERVER_CERT")  # as gRPC takes them


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that another process does, or fail naming it."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s in vain: {what}"
        time.sleep(0.1)


def slow_model(path: Path, size: int = 2048, layers: int = 24, rounds: int = 1) -> None:
    """A model that keeps a core busy for tens of milliseconds per row and round and answers its input's mean."""
    rng = np.random.default_rng(7)
    nodes, weights, current = [], [], "x"
    for layer in range(layers):
        weight = rng.standard_normal((size, size)).astype(np.float32) / np.float32(np.sqrt(size))
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
    for step in range(rounds * layers):
        nodes.append(helper.make_node("MatMul", [current, f"w{step % layers}"], [f"h{step}"]))
        current = f"h{step}"
    nodes.append(helper.make_node("ReduceMean", [current], ["noise"], axes=[1], keepdims=1))
    nodes.append(helper.make_node("Mul", ["noise", "zero"], ["nothing"]))
    nodes.append(helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1))
    nodes.append(helper.make_node("Add", ["mean", "nothing"], ["y"]))
    weights.append(numpy_helper.from_array(np.zeros(1, np.float32), "zero"))
    graph = helper.make_graph(
        nodes,
        "slow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        weights,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    )


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A server whose models scale: `steady` has two replicas, `sleeper` none at first, `slow` follows its queue."""
    folder = tmp_path_factory.mktemp("busy")
    for name in ("steady", "sleeper"):
        onnx_models.make(folder / "models" / name / "1" / "model.onnx", "add_one")
    slow_model(folder / "models" / "slow" / "1" / "model.onnx")
    scaling = {"upscale_delay_s": 0.0, "downscale_delay_s": 1.0, "downscale_to_zero_delay_s": 1.0}
    models: list[dict[str, Any]] = [
        {"name": "steady", "autoscaling": {"min_replicas": 2, "max_replicas": 2}},
        {"name": "sleeper", "autoscaling": {"min_replicas": 0, "max_replicas": 1, **scaling}},
        {
            "name": "slow",
            "batching": {"max_rows": 1, "slo_ms": 1000},
            "autoscaling": {"min_replicas": 1, "max_replicas": 2, "target_queue": 4, **scaling},
        },
    ]
    for model in models:
        model["path"] = str(folder / "models" / str(model["name"]))
        model["resources"] = {"cpus": 0.1, "threads": 1, "instances": 1}  # so that `slow` stays slow on any machine
        model["health"] = {"check_period_s": 1.0}
    direct_port, direct_grpc_port = free_ports(2)
    router = {"cpus": 0.1, "http": {"port": direct_port}, "grpc": {"port": direct_grpc_port}}
    args = {
        "models": models,
        "classes": {"normal": {"timeout_ms": 60000}},
        "router": router,
    }
    with ServeProcess(args, folder) as running:
        yield running


def ask(url: str, model: str, value: float = 1.0, size: int = 1, **options: Any) -> httpx.Response:
    """Send one row of equal numbers."""
    body = {"inputs": [{"name": "x", "shape": [1, size], "datatype": "FP32", "data": [value] * size}]}
    return httpx.post(f"{url}/v2/models/{model}/infer", json=body, timeout=60.0, **options)


def endpoints(server: ServeProcess) -> tuple[list[int], list[int]]:
    """The ports for HTTP and those for gRPC: Serve's, where it has any, and the routers' own."""
    router = server.config["applications"][0]["args"]["router"]
    of_serve = [server.grpc_port] if "grpc_options" in server.config else []
    return [server.port, router["http"]["port"]], [*of_serve, router["grpc"]["port"]]


def replicas(url: str, model: str) -> int:
    """How many replicas the router can reach."""
    return len(httpx.get(f"{url}/status", timeout=30.0).json()["models"][model]["replicas"])


def test_a_model_without_replicas_wakes_up_for_its_first_request(busy: ServeProcess) -> None:
    """The request waits for the start and is answered; later the model goes back to sleep."""
    wait_until(lambda: replicas(busy.url, "sleeper") == 0, "no replica of sleeper at rest")
    answer = ask(busy.url, "sleeper", 4.0)
    assert (answer.status_code, answer.json()["outputs"][0]["data"]) == (200, [5.0])
    wait_until(lambda: replicas(busy.url, "sleeper") == 0, "sleeper asleep again")


def test_what_expires_while_a_model_wakes_up_is_never_executed(busy: ServeProcess) -> None:
    """The start that it asked for goes on, and serves the next request."""

    def executions() -> int:
        statistics = httpx.get(f"{busy.url}/v2/models/sleeper/stats", timeout=30.0).json()
        return int(statistics["model_stats"][0]["execution_count"])

    wait_until(lambda: replicas(busy.url, "sleeper") == 0, "no replica of sleeper at rest")
    before = executions()
    late = ask(busy.url, "sleeper", 4.0, headers={"X-Timeout-Ms": "300"})
    assert (late.status_code, late.json()["code"]) == (503, "model_unavailable")
    answer = ask(busy.url, "sleeper", 6.0)
    assert (answer.status_code, answer.json()["outputs"][0]["data"]) == (200, [7.0])
    assert executions() == before + 1


def test_replicas_follow_the_queue(busy: ServeProcess) -> None:
    """Rows waiting in the router bring a second replica, and idleness takes it away again."""
    assert replicas(busy.url, "slow") == 1
    done = threading.Event()
    rows, size = 8, 2048  # a request costs the server far more than its client: the queue is long all the time
    body = {"inputs": [{"name": "x", "shape": [rows, size], "datatype": "FP32", "data": [1.0] * rows * size}]}
    content = json.dumps(body).encode()

    def keep_asking() -> set[int]:
        statuses = set()
        with httpx.Client(timeout=120.0) as client:
            while not done.is_set():
                headers = {"Content-Type": "application/json"}
                answer = client.post(f"{busy.url}/v2/models/slow/infer", content=content, headers=headers)
                statuses.add(answer.status_code)
        return statuses

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(keep_asking) for _ in range(8)]
        try:
            wait_until(lambda: replicas(busy.url, "slow") == 2, "a second replica of slow")
        finally:
            done.set()
        assert set().union(*(client.result() for client in clients)) == {200}
    wait_until(lambda: replicas(busy.url, "slow") == 1, "one replica of slow after the load")


def test_killing_a_replica_loses_no_request(busy: ServeProcess) -> None:
    """What it had in hand is answered by the other one."""
    done = threading.Event()

    def keep_asking(number: int) -> list[tuple[int, list[float]]]:
        answers = []
        while not done.is_set():
            answer = ask(busy.url, "steady", float(number))
            answers.append((answer.status_code, answer.json().get("outputs", [{}])[0].get("data")))
        return answers

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(keep_asking, number) for number in range(8)]
        try:
            first = busy.replica_processes("steady")
            assert len(first) == 2
            first[0].kill()
            wait_until(
                lambda: (
                    first[0] not in busy.replica_processes("steady")
                    and len(busy.replica_processes("steady")) == 2
                    and replicas(busy.url, "steady") == 2
                ),
                "a replacement of the killed replica",
            )
        finally:
            done.set()
        for number, client in enumerate(clients):
            answers = client.result()
            assert answers
            assert set(map(repr, answers)) == {repr((200, [number + 1.0]))}


@contextlib.contextmanager
def waiting_http(port: int) -> Iterator[None]:
    """64 connections, each with a request for `slow` that nobody waits for any more when this ends."""
    body = json.dumps(
        {"inputs": [{"name": "x", "shape": [1, 2048], "datatype": "FP32", "data": [0.5] * 2048}]}
    ).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with contextlib.ExitStack() as connections:
        for _ in range(64):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(head + body)
        yield


@contextlib.contextmanager
def waiting_grpc(port: int) -> Iterator[None]:
    """The same with calls on one channel."""
    request = pb.ModelInferRequest(model_name="slow", raw_input_contents=[np.full(2048, 0.5, np.float32).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2048])
    body = request.SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        waiting = [call.future(body, timeout=60.0) for _ in range(64)]
        yield
        for each in waiting:
            each.cancel()


@pytest.mark.parametrize("way", ["HTTP by Serve's port", "HTTP", "gRPC by Serve's port", "gRPC"])
def test_clients_that_disconnect_leave_nothing_behind(busy: ServeProcess, way: str) -> None:
    """What they had queued is not executed, and every counter returns to zero."""
    ports, grpc_ports = endpoints(busy)
    of_serve = "Serve" in way
    waiting = waiting_grpc(grpc_ports[not of_serve]) if "gRPC" in way else waiting_http(ports[not of_serve])

    def state() -> dict[str, Any]:
        model: dict[str, Any] = httpx.get(f"{busy.url}/status", timeout=30.0).json()["models"]["slow"]
        return model

    def cancelled() -> float:
        page = httpx.get(f"{busy.url}/metrics", timeout=30.0).text
        counts = re.findall(
            r'serve_app_requests_total\{model="slow",outcome="cancelled",priority="normal"\} ([\d.]+)', page
        )
        return sum(map(float, counts))

    before = cancelled()
    with waiting:
        wait_until(lambda: state()["queues"]["normal"]["entries"] > 0, "a queue at slow")
    wait_until(lambda: cancelled() > before, "requests counted as cancelled")
    wait_until(
        lambda: (state()["queues"]["normal"]["entries"], state()["running_rows"], state()["slots_in_use"]) == (0, 0, 0),
        "an empty queue and free slots",
    )
    assert ask(busy.url, "slow", size=2048).status_code == 200


def test_a_redeploy_loses_no_request(busy: ServeProcess) -> None:
    """A new version of the model and new settings roll through while clients keep asking, on every way in."""
    onnx_models.make(busy.config_file.parent / "models" / "steady" / "2" / "model.onnx", "add_one")
    changed = yaml.safe_load(busy.config_file.read_text())
    changed["applications"][0]["args"]["models"][0]["batching"] = {"max_rows": 16}
    file = busy.config_file.with_name("changed.yaml")
    file.write_text(yaml.safe_dump(changed))

    def deployed() -> tuple[list[str], int]:
        model = httpx.get(f"{busy.url}/v2/models/steady", timeout=30.0)
        config = httpx.get(f"{busy.url}/v2/models/steady/config", timeout=30.0)
        if (model.status_code, config.status_code) != (200, 200):
            return [], 0
        return model.json()["versions"], config.json()["max_batch_size"]

    http, grpc_ = endpoints(busy)
    with SteadyLoad("steady", http_ports=http, grpc_ports=grpc_, clients=1) as load:
        busy.deploy(file)
        wait_until(lambda: deployed() == (["2"], 16), "the new version and the new setting")
        wait_until(lambda: busy.application().get("status") == "RUNNING", "a settled application")
        load.wait_for_answers()
    assert not load.losses(), load.details
    assert load.outcomes().keys() >= {"200", "OK"}


def open_to_the_network(server: ServeProcess) -> dict[str, list[int]]:
    """The ports that the processes of a server listen at beyond the loopback interface, by process."""
    found: dict[str, list[int]] = {}
    for process in server.processes():
        try:
            sockets = process.net_connections("tcp")
            title = process.cmdline()[0]
        except (psutil.Error, IndexError):
            continue
        ports = [
            socket.laddr.port
            for socket in sockets
            if socket.status == psutil.CONN_LISTEN
            and not ipaddress.ip_address(socket.laddr.ip.removeprefix("::ffff:")).is_loopback
        ]
        if ports:
            found.setdefault(Path(title).name.split(".")[0], []).extend(ports)
    return found


def answer_of(port: int, credentials: grpc.ChannelCredentials | None) -> grpc.StatusCode:
    """What a port says to a call of a method that nobody has. Who is not let in finds it unavailable."""
    address = f"127.0.0.1:{port}"
    channel: Any = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
    with channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/nobody/Has")(b"", timeout=WAIT_S)
    error: Any = caught.value
    code: grpc.StatusCode = error.code()
    return code


def test_a_wrong_configuration_fails_with_its_lines(busy: ServeProcess) -> None:
    """Under plain Ray Serve the application's error holds the same readable lines as `serve-app validate`."""
    wrong = yaml.safe_load(busy.config_file.read_text())
    wrong["applications"][0]["args"]["models"][0]["batching"] = {"max_row": 4}
    file = busy.config_file.with_name("wrong.yaml")
    file.write_text(yaml.safe_dump(wrong))
    busy.deploy(file)
    wait_until(lambda: busy.application().get("status") == "DEPLOY_FAILED", "a deployment that fails")
    assert "args.models[0].batching.max_row: unknown key; did you mean max_rows?" in busy.application()["message"]


CALLER = """
from ray import serve
from serve_app.payloads import Texts
import numpy as np


@serve.deployment
class Caller:
    async def __call__(self, request):
        handle = serve.get_app_handle("serve-app")
        answer = await handle.infer.remote("tiny", {"x": np.ones((1, 2), np.float32)}, priority="high")
        return {"y": answer.value["y"].tolist(), "priority": answer.priority.label}


app = Caller.bind()
"""


@pytest.fixture(scope="module")
def two_routers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """`serve-app run` of two routers, beside another application. The last test stops it."""
    folder = tmp_path_factory.mktemp("two_routers")
    onnx_models.make(folder / "models" / "tiny" / "1" / "model.onnx", "add_one")
    slow_model(folder / "models" / "slow" / "1" / "model.onnx", rounds=4)
    for version in (3, 4, 5):
        onnx_models.adder(folder / "models" / "adds" / str(version) / "model.onnx", version)
    (folder / "caller_app.py").write_text(CALLER)
    direct_port, direct_grpc_port = free_ports(2)
    models: list[dict[str, Any]] = [
        {"name": "tiny"},
        {"name": "slow", "batching": {"max_rows": SLOW_ROWS, "slo_ms": 1000, "window": 16}},
        {"name": "adds", "batching": {"max_rows": 1}, "versions": {"latest": 2}, "aliases": {"stable": 4}},
    ]
    for model in models:
        model["path"] = str(folder / "models" / str(model["name"]))
        model["resources"] = {"cpus": 0.1, "threads": 1, "instances": 1}  # so that `slow` stays slow on any machine
    args = {
        "models": models,
        "classes": {"low": {"queue": 512}},
        "router": {
            "replicas": 2,
            "cpus": 0.1,
            "http": {"port": direct_port},
            "grpc": {"port": direct_grpc_port},
            "access": {"open_administration": True},
        },
    }
    server = ServeProcess(args, folder, env={"PYTHONPATH": f"{ROOT}:{folder}"}, graceful=True)
    del server.config["grpc_options"]  # as in configs/demo.yaml
    del server.config["http_options"]["host"]  # `serve-app run` listens on the loopback interface then
    variables = server.config["controller_options"]["runtime_env"]["env_vars"]
    # For the queues of two routers; HAProxy opens two and a half times as many files
    variables["RAY_SERVE_HAPROXY_MAXCONN"] = "6416"
    server.config["applications"].append({"name": "caller", "route_prefix": "/caller", "import_path": "caller_app:app"})
    with server as running:
        yield running


def test_another_application_calls_the_router_by_its_handle(two_routers: ServeProcess) -> None:
    """The same queue and promises as over HTTP; and two routers are one in metrics and statistics.

    All that goes between Serve's processes, with the certificates of `serve-app run`.
    """
    url = two_routers.url
    wait_until(lambda: httpx.get(f"{url}/caller", timeout=30.0).status_code == 200, "the other application")
    assert httpx.get(f"{url}/caller", timeout=30.0).json() == {"y": [[2.0, 2.0]], "priority": "high"}

    def routers() -> int:
        page = httpx.get(f"{url}/metrics", timeout=30.0).text
        return len(set(re.findall(r'serve_app_replicas\{model="tiny",router="(\w+)"\}', page)))

    wait_until(lambda: routers() == 2, "both routers in the metrics")

    def inferences() -> int:
        (statistics,) = httpx.get(f"{url}/v2/models/tiny/stats", timeout=30.0).json()["model_stats"]
        return int(statistics["inference_count"])

    before = inferences()
    request = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
    for _ in range(8):  # each by a connection of its own, to whichever router
        assert httpx.post(f"{url}/v2/models/tiny/infer", json=request, timeout=30).status_code == 200
    assert [inferences() - before for _ in range(4)] == [8] * 4


def test_all_routers_answer_by_the_version_that_is_set(two_routers: ServeProcess) -> None:
    """From when the command has ended, on whichever connection; each version has replicas of its own."""
    ask = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0]}]}

    def versions() -> set[tuple[str, float]]:
        """The versions that answer, and what they answer, on connections of their own."""
        replies = [httpx.post(f"{two_routers.url}/v2/models/adds/infer", json=ask, timeout=30.0) for _ in range(8)]
        return {(reply.json()["model_version"], reply.json()["outputs"][0]["data"][0]) for reply in replies}

    def change(*arguments: str) -> None:
        command = [sys.executable, "-m", "serve_app.cli", "traffic", "adds", *arguments, "--url", two_routers.url]
        subprocess.run(command, check=True, capture_output=True)

    assert versions() == {("4", 4.0)}
    change("promote", "--to", "5")
    assert versions() == {("5", 5.0)}
    change("rollback")
    assert versions() == {("4", 4.0)}
    change("promote", "--to", "5")
    assert traffic_revisions(two_routers) == [3, 3]


def traffic_revisions(server: ServeProcess) -> list[int]:
    """How often the traffic of `adds` was changed, as each router has it."""
    page = httpx.get(f"{server.url}/metrics", timeout=30.0).text
    return [int(float(value)) for value in re.findall(r"serve_app_traffic_revision\{[^}]*\} ([0-9.]+)", page)]


def certificates(server: ServeProcess) -> list[bytes]:
    """Those that the processes of a run show each other: the authority, a key and a certificate."""
    for process in server.processes():
        environ = process.environ()
        if all(f"RAY_TLS_{name}" in environ for name in CERTIFICATES):
            return [Path(environ[f"RAY_TLS_{name}"]).read_bytes() for name in CERTIFICATES]
    raise AssertionError("no process of the run has certificates")


def test_no_port_is_open_to_the_network_but_those_that_have_to_be(two_routers: ServeProcess) -> None:
    """Those that docs/security.md names; Serve's own, for its calls, let nobody in without a certificate of the run."""
    variables = two_routers.config["controller_options"]["runtime_env"]["env_vars"]
    counters = sorted(int(variables[f"RAY_SERVE_HAPROXY_{name}_PORT"]) for name in ("STATS", "METRICS"))
    opened: dict[str, list[int]] = {}

    def settled() -> bool:
        opened.clear()
        opened.update(open_to_the_network(two_routers))
        return "haproxy" in opened

    wait_until(settled, "HAProxy, which hands its sockets over when it learns of a router")
    assert sorted(set(opened.pop("haproxy"))) == counters
    named = {"serve-app:router": 2, "serve-app:tiny": 1, "serve-app:slow": 1, "caller:Caller": 1}
    named |= {f"serve-app:{deployment_name(f'adds/{version}')}": 1 for version in (4, 5)}
    assert {name: len(ports) for name, ports in opened.items()} == {
        f"ray::ServeReplica:{name}": number for name, number in named.items()
    }
    authority, *own = certificates(two_routers)
    for port in itertools.chain.from_iterable(opened.values()):
        assert answer_of(port, None) is grpc.StatusCode.UNAVAILABLE
        assert answer_of(port, grpc.ssl_channel_credentials(authority)) is grpc.StatusCode.UNAVAILABLE
        assert answer_of(port, grpc.ssl_channel_credentials(authority, *own)) is grpc.StatusCode.UNIMPLEMENTED


def connect_to(router: psutil.Process, port: int) -> http.client.HTTPConnection:
    """A connection that the kernel gives to this one of the processes that listen at the port."""
    others = []
    try:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
            connection.request("GET", "/v2/health/live")  # whoever answers has it
            connection.getresponse().read()
            client = connection.sock.getsockname()[1]
            if any(getattr(each.raddr, "port", None) == client for each in router.net_connections("tcp")):
                return connection
            others.append(connection)  # still open, so that its port is not taken again
    finally:
        for connection in others:
            connection.close()


def send_slow(connection: http.client.HTTPConnection, body: str, priority: str, timeout_s: float) -> None:
    """Ask `slow`, and do not wait for the answer."""
    headers = {"X-Priority": priority, "X-Timeout-Ms": str(1000 * timeout_s), "Content-Type": "application/json"}
    connection.request("POST", "/v2/models/slow/infer", body, headers)


def is_cut(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has ended it without an answer."""
    try:
        connection.getresponse().read()
    except (http.client.RemoteDisconnected, ConnectionResetError):
        return True
    return False


def status(connection: http.client.HTTPConnection) -> int:
    """Of the answer to what was sent."""
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_what_a_killed_router_had_sent_is_not_run_for_nobody(two_routers: ServeProcess) -> None:
    """Its own connections are cut and no others; what of it waits at the replica's gate leaves at once."""
    direct = endpoints(two_routers)[0][-1]
    shape = [SLOW_ROWS, 2048]
    batch = {"name": "x", "shape": shape, "datatype": "FP32", "data": np.ones(shape).tolist()}
    body = json.dumps({"inputs": [batch]})
    victim, survivor = two_routers.replica_processes("router")
    before = connect_to(survivor, direct)
    send_slow(before, body, "normal", WAIT_S)
    assert status(before) == 200
    (statistics,) = httpx.get(f"{two_routers.url}/v2/models/slow/stats", timeout=30.0).json()["model_stats"]
    run_s = max(run["compute_infer"]["ns"] / run["compute_infer"]["count"] for run in statistics["batch_stats"]) / 1e9
    behind = connect_to(survivor, direct)
    ahead = [connect_to(victim, direct) for _ in range(16)]
    for connection in ahead:
        send_slow(connection, body, "high", WAIT_S)
    send_slow(before, body, "high", WAIT_S)
    answered, _, _ = select.select([connection.sock for connection in ahead], [], [], WAIT_S)
    assert answered
    victim.kill()  # at once, with the first answer: whichever it is, few of the others have run
    send_slow(behind, body, "low", 9 * run_s)  # one that runs, one of `high` and its own; the others would be 14 more
    assert [status(before), status(behind)] == [200, 200]
    assert sum(is_cut(connection) for connection in ahead) >= 12
    wait_until(
        lambda: (
            len(two_routers.replica_processes("router")) == 2
            and victim not in two_routers.replica_processes("router")
            and two_routers.application().get("status", "RUNNING") == "RUNNING"
        ),
        "another router",
    )
    wait_until(lambda: traffic_revisions(two_routers) == [3, 3], "the traffic that was set, at the other router, too")


def test_stopping_under_load_loses_nothing_and_leaves_nothing_behind(two_routers: ServeProcess) -> None:
    """After SIGTERM what was accepted is answered, then no process and no port of the server is left."""
    http, grpc_ = endpoints(two_routers)
    with SteadyLoad("tiny", http_ports=http, grpc_ports=grpc_, clients=2) as load:
        load.wait_for_answers()
        survivors = two_routers.stop(signal.SIGTERM)
    assert [process.pid for process in survivors] == []
    assert not load.losses(), load.details
    assert load.outcomes().keys() >= {"200", "OK"}
    for port in (*http, *grpc_):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_second_signal_ends_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Whatever is still in work; the exit code tells."""
    onnx_models.make(tmp_path / "models" / "tiny" / "1" / "model.onnx", "add_one")
    args = {"models": [{"name": "tiny", "path": str(tmp_path / "models" / "tiny")}], "router": {"cpus": 0.1}}
    with ServeProcess(args, tmp_path, graceful=True) as server:
        server.send(signal.SIGTERM)
        wait_until(lambda: "stopping:" in server.log(), "the beginning of the end")
        survivors = server.stop(signal.SIGTERM)
    assert [process.pid for process in survivors] == []
    assert server.exit_code == 1
    assert "ending at once" in server.log()
