"""Two routers of a real server are one: to handles, in versions, metrics and statistics; and one of them is killed."""

from __future__ import annotations

import http.client
import ipaddress
import itertools
import json
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest
from serve_process import ServeProcess
from slow_models import COLUMNS

from clusters.asking import WAIT_S, endpoints, wait_until
from clusters.two_routers.conftest import SLOW_ROWS
from serve_app.config.names import deployment_name

pytestmark = pytest.mark.cluster

CERTIFICATES = ("CA_CERT", "SERVER_KEY", "SERVER_CERT")  # as gRPC takes them


def test_another_application_calls_the_router_by_its_handle(server: ServeProcess) -> None:
    """The same queue and promises as over HTTP; and two routers are one in metrics and statistics.

    All that goes between Serve's processes, with the certificates of `serve-app run`.
    """
    url = server.url
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


def test_all_routers_answer_by_the_version_that_is_set(server: ServeProcess) -> None:
    """From when the command has ended, on whichever connection; each version has replicas of its own."""
    ask = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0]}]}

    def versions() -> set[tuple[str, float]]:
        """The versions that answer, and their answers, on connections of their own."""
        replies = [httpx.post(f"{server.url}/v2/models/adds/infer", json=ask, timeout=30.0) for _ in range(8)]
        return {(reply.json()["model_version"], reply.json()["outputs"][0]["data"][0]) for reply in replies}

    def change(*arguments: str) -> None:
        command = [sys.executable, "-m", "serve_app.cli", "traffic", "adds", *arguments, "--url", server.url]
        subprocess.run(command, check=True, capture_output=True)

    assert versions() == {("4", 4.0)}
    change("promote", "--to", "5")
    assert versions() == {("5", 5.0)}
    change("rollback")
    assert versions() == {("4", 4.0)}
    change("promote", "--to", "5")
    assert traffic_revisions(server) == [3, 3]


def traffic_revisions(server: ServeProcess) -> list[int]:
    """How often the traffic of `adds` was changed, as each router has it."""
    page = httpx.get(f"{server.url}/metrics", timeout=30.0).text
    return [
        int(float(value)) for value in re.findall(r'serve_app_traffic_revision\{model="adds"[^}]*\} ([0-9.]+)', page)
    ]


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


def certificates(server: ServeProcess) -> list[bytes]:
    """Those that the processes of a run show each other: the authority, a key and a certificate."""
    for process in server.processes():
        environ = process.environ()
        if all(f"RAY_TLS_{name}" in environ for name in CERTIFICATES):
            return [Path(environ[f"RAY_TLS_{name}"]).read_bytes() for name in CERTIFICATES]
    raise AssertionError("no process of the run has certificates")


def test_no_port_is_open_to_the_network_but_those_that_have_to_be(server: ServeProcess) -> None:
    """Those that docs/security.md names; Serve's own, for its calls, let nobody in without a certificate of the run."""
    variables = server.config["controller_options"]["runtime_env"]["env_vars"]
    counters = sorted(int(variables[f"RAY_SERVE_HAPROXY_{name}_PORT"]) for name in ("STATS", "METRICS"))
    opened: dict[str, list[int]] = {}

    def settled() -> bool:
        opened.clear()
        opened.update(open_to_the_network(server))
        return "haproxy" in opened

    wait_until(settled, "HAProxy, which hands its sockets over when it learns of a router")
    assert sorted(set(opened.pop("haproxy"))) == counters
    named = {"serve-app:router": 2, "serve-app:tiny": 1, "serve-app:slow": 1, "caller:Caller": 1}
    named |= {"serve-app:constant": 2}
    versions = ("adds/4", "adds/5", "several/1", "several/2")
    named |= {f"serve-app:{deployment_name(version)}": 1 for version in versions}
    assert {name: len(ports) for name, ports in opened.items()} == {
        f"ray::ServeReplica:{name}": number for name, number in named.items()
    }
    authority, *own = certificates(server)
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


def test_what_a_killed_router_had_sent_is_not_run_for_nobody(server: ServeProcess) -> None:
    """Its own connections are cut and no others; what of it waits at the replica's gate leaves at once."""
    direct = endpoints(server)[0][-1]
    shape = [SLOW_ROWS, COLUMNS]
    batch = {"name": "x", "shape": shape, "datatype": "FP32", "data": np.ones(shape).tolist()}
    body = json.dumps({"inputs": [batch]})
    victim, survivor = server.replica_processes("router")
    before = connect_to(survivor, direct)
    send_slow(before, body, "normal", WAIT_S)
    assert status(before) == 200
    (statistics,) = httpx.get(f"{server.url}/v2/models/slow/stats", timeout=30.0).json()["model_stats"]
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
            len(server.replica_processes("router")) == 2
            and victim not in server.replica_processes("router")
            and server.application().get("status", "RUNNING") == "RUNNING"
        ),
        "another router",
    )
    wait_until(lambda: traffic_revisions(server) == [3, 3], "the traffic that was set, at the other router, too")
