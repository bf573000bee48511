"""Starting, scaling, losing replicas and redeploying a real server, by plain Ray Serve."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import numpy as np
import onnx_models
import pytest
import slow_models
import yaml
from serve_process import ServeProcess
from slow_models import COLUMNS
from steady_load import SteadyLoad

from benchmarks.ports import free_ports
from clusters.asking import ask, endpoints, wait_until
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.config.names import RUN_VARIABLE, deployment_name

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A server whose models scale: `steady` has two replicas, `sleeper` none at first, `slow` follows its queue.

    `patient` and `urgent` follow their demand, and there is room for three replicas of them.
    """
    folder = tmp_path_factory.mktemp("busy")
    scaling = {"upscale_delay_s": 0.0, "downscale_delay_s": 1.0, "downscale_to_zero_delay_s": 1.0}
    steady = {"name": "steady", "autoscaling": {"min_replicas": 2, "max_replicas": 2}}
    sleeper = {"name": "sleeper", "autoscaling": {"min_replicas": 0, "max_replicas": 1, **scaling}}
    for model in (steady, sleeper):
        path = folder / "models" / str(model["name"])
        onnx_models.make(path / "1" / "model.onnx", "add_one")
        model["path"] = str(path)
    slow = slow_models.write(folder / "models", "slow", seconds=0.05) | {
        "batching": {"max_rows": 1, "slo_ms": 1000},
        "autoscaling": {"min_replicas": 1, "max_replicas": 2, "target_queue": 4, **scaling},
    }
    models: list[dict[str, Any]] = [steady, sleeper, slow]
    for model in models:
        model |= {"resources": {"cpus": 0.1}}
    cpus = ((os.cpu_count() or 1) - 0.6) / 3.3  # others have 0.4 to 0.6
    models += [
        slow_models.write(folder / "models", name, seconds=0.2)
        | {
            "batching": {"max_rows": 1, "slo_ms": 1000},
            "autoscaling": {"min_replicas": 1, "max_replicas": 3},
            "resources": {"cpus": cpus},
        }
        for name in ("patient", "urgent")
    ]
    for model in models:
        model |= {"health": {"check_period_s": 1.0}}
    direct_port, direct_grpc_port = free_ports(2)
    router = {"cpus": 0.1, "http": {"port": direct_port}, "grpc": {"port": direct_grpc_port}}
    args = {
        "models": models,
        "classes": {"normal": {"timeout_ms": 60000}},
        "router": router,
    }
    with ServeProcess(args, folder, env={RUN_VARIABLE: "tests"}) as running:
        yield running


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
    body = {"inputs": [{"name": "x", "shape": [8, COLUMNS], "datatype": "FP32", "data": [1.0] * 8 * COLUMNS}]}
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


@contextlib.contextmanager
def asked(url: str, model: str, priority: str) -> Iterator[None]:
    """Ask for 0.2 s of work 15 times a second, whether there are answers or not."""
    done = threading.Event()
    headers = {"X-Priority": priority, "X-Timeout-Ms": "1000"}

    def keep_asking(pool: ThreadPoolExecutor) -> None:
        while not done.wait(1 / 15):
            pool.submit(ask, url, model, size=COLUMNS, headers=headers)

    with ThreadPoolExecutor(32) as pool:
        clock = pool.submit(keep_asking, pool)
        try:
            yield
        finally:
            done.set()
            clock.result()


def test_models_that_compete_for_room_get_replicas_by_what_these_save(busy: ServeProcess) -> None:
    """A model that asks for three gets the two that there is room for, and one goes to more urgent requests."""

    def lowered(model: str) -> bool:
        scaling = httpx.get(f"{busy.url}/status", timeout=30.0).json()["scaling"] or {}
        return bool(scaling.get(deployment_name(model), {}).get("because") == "room")

    with asked(busy.url, "patient", "low"):
        wait_until(lambda: replicas(busy.url, "patient") == 2, "a second replica of patient")
        wait_until(lambda: lowered("patient"), "the reason in the status")
        with asked(busy.url, "urgent", "high"):
            wait_until(
                lambda: (replicas(busy.url, "patient"), replicas(busy.url, "urgent")) == (1, 2),
                "a replica of patient that went to urgent",
            )
        wait_until(lambda: replicas(busy.url, "patient") == 2, "a second replica of patient again")
    wait_until(lambda: replicas(busy.url, "patient") == 1, "one replica of patient after the load")


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
    row = {"name": "x", "shape": [1, COLUMNS], "datatype": "FP32", "data": [0.5] * COLUMNS}
    body = json.dumps({"inputs": [row]}).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with contextlib.ExitStack() as connections:
        for _ in range(64):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(head + body)
        yield


@contextlib.contextmanager
def waiting_grpc(port: int) -> Iterator[None]:
    """The same with calls on one channel."""
    request = pb.ModelInferRequest(model_name="slow", raw_input_contents=[np.full(COLUMNS, 0.5, np.float32).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, COLUMNS])
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
    assert ask(busy.url, "slow", size=COLUMNS).status_code == 200


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


def test_a_wrong_configuration_fails_with_its_lines(busy: ServeProcess) -> None:
    """Under plain Ray Serve the application's error holds the same readable lines as `serve-app validate`."""
    wrong = yaml.safe_load(busy.config_file.read_text())
    wrong["applications"][0]["args"]["models"][0]["batching"] = {"max_row": 4}
    file = busy.config_file.with_name("wrong.yaml")
    file.write_text(yaml.safe_dump(wrong))
    busy.deploy(file)
    wait_until(lambda: busy.application().get("status") == "DEPLOY_FAILED", "a deployment that fails")
    assert "args.models[0].batching.max_row: unknown key; did you mean max_rows?" in busy.application()["message"]
