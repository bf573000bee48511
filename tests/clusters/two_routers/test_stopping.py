"""The server stops while clients keep asking. This test is the last of the folder."""

from __future__ import annotations

import signal
import socket

import pytest
from serve_process import ServeProcess
from steady_load import SteadyLoad

from clusters.asking import endpoints

pytestmark = pytest.mark.cluster


def test_stopping_under_load_loses_nothing_and_leaves_nothing_behind(server: ServeProcess) -> None:
    """After SIGTERM what was accepted is answered, then no process and no port of the server is left."""
    http, grpc_ = endpoints(server)
    with SteadyLoad("tiny", http_ports=http, grpc_ports=grpc_, clients=2) as load:
        load.wait_for_answers()
        survivors = server.stop(signal.SIGTERM)
    assert [process.pid for process in survivors] == []
    assert not load.losses(), load.details
    assert load.outcomes().keys() >= {"200", "OK"}
    for port in (*http, *grpc_):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
