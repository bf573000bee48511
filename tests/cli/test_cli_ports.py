"""Ports: taken or free, and by whom."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from serve_app.cli.ports import busy, holder
from serve_app.cli.run import busy_ports, unusable_folder
from serve_app.config.file import ServeFile, parse_document
from serve_app.http.listener import bind


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket of this process that listens on some port of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def port_of(server: socket.socket) -> int:
    """The port that a socket listens on."""
    return int(server.getsockname()[1])


def serve_file(http: int, direct: int | None = None, direct_grpc: int | None = None, /, **variables: str) -> ServeFile:
    """A Serve file that wants these ports."""
    router = {"http": {"port": direct}, "grpc": {"port": direct_grpc}}
    return parse_document(
        {
            "http_options": {"host": "127.0.0.1", "port": http},
            "controller_options": {"runtime_env": {"env_vars": variables}},
            "applications": [
                {
                    "import_path": "serve_app.app:build",
                    "args": {"models": [{"name": "a", "path": "a"}], "router": router},
                }
            ],
        }
    )


def test_a_listener_makes_a_port_busy_and_is_its_holder(listener: socket.socket) -> None:
    """Who listens is named with its number and command."""
    port = port_of(listener)
    assert busy("127.0.0.1", port)
    assert busy("0.0.0.0", port)
    name = holder(port)
    assert name is not None
    assert f"(pid {os.getpid()}: " in name


def test_a_closed_port_is_free(listener: socket.socket) -> None:
    """A port is free again, and without a holder, once its listener is closed."""
    port = port_of(listener)
    listener.close()
    assert (busy("127.0.0.1", port), holder(port)) == (False, None)


def test_a_taken_port_is_named_with_the_setting_and_the_holder(listener: socket.socket) -> None:
    """The line says which setting wants the port and who has it."""
    port = port_of(listener)
    assert busy_ports(serve_file(port)) == [
        f"port {port} (http_options.port) is in use by {holder(port)}; stop that process, or choose another port"
    ]


def test_the_ports_of_haproxy_count_when_it_is_used(listener: socket.socket) -> None:
    """HAProxy's own ports are looked at only where the file turns HAProxy on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        unused = port_of(free)
    port = port_of(listener)
    ports = {"RAY_SERVE_HAPROXY_STATS_PORT": str(port), "RAY_SERVE_HAPROXY_METRICS_PORT": str(unused)}
    assert busy_ports(serve_file(unused, **ports)) == []
    assert busy_ports(serve_file(unused, RAY_SERVE_ENABLE_HA_PROXY="1", **ports)) == [
        (
            f"port {port} (RAY_SERVE_HAPROXY_STATS_PORT) is in use by {holder(port)}; stop that process,"
            " or choose another port"
        )
    ]


def test_the_routers_own_port_is_refused_even_where_it_could_be_shared() -> None:
    """Routers of another server on this machine would answer these requests."""
    with bind("127.0.0.1", 0) as shared, socket.create_server(("127.0.0.1", 0)) as free:
        shared.listen()
        unused, port = port_of(free), port_of(shared)
        free.close()
        for ports, setting in (((port, None), "http.port"), ((None, port), "grpc.port")):
            assert busy_ports(serve_file(unused, *ports)) == [
                (
                    f"port {port} (args.router.{setting}) is in use by {holder(port)}; stop that process,"
                    " or choose another port"
                )
            ]


def test_a_folder_with_spaces_is_refused() -> None:
    """Ray starts its workers by a shell command that would break there."""
    assert unusable_folder("/srv/app/.venv") == []
    assert unusable_folder("/srv/my app/.venv") == [
        "Ray cannot run from a folder with spaces in its path, and this environment is in '/srv/my app/.venv'; move it"
    ]


def test_another_servers_routers_are_noticed(listener: socket.socket) -> None:
    """Serve would share their port, and the two servers would answer each other's requests."""
    taken, free = port_of(listener), 1
    variables = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(taken),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(free),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(free),
    }
    lines = [line for line in busy_ports(serve_file(0, **variables)) if "DIRECT_INGRESS" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"port {taken} (RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT) is in use by ")


def test_ports_for_grpc_count_where_serve_opens_them(listener: socket.socket) -> None:
    """Without `grpc_options` nobody listens there, and another server may."""
    taken = str(port_of(listener))
    names = ("RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT", "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT")
    file = serve_file(0, RAY_SERVE_ENABLE_HA_PROXY="1", **dict.fromkeys(names, taken))
    options = {"port": 0, "grpc_servicer_functions": ["a.b"]}
    with_grpc = replace(file, document={**file.document, "grpc_options": options})
    said = [sum(f"port {taken} " in line for line in busy_ports(each)) for each in (file, with_grpc)]
    assert said == [0, 2]
