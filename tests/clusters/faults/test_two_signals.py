"""A second signal ends a server that is stopping. This test is the last of the folder."""

from __future__ import annotations

import signal

import pytest
from serve_process import ServeProcess

from clusters.asking import wait_until

pytestmark = pytest.mark.cluster


def test_a_second_signal_ends_at_once_and_leaves_nothing_behind(server: ServeProcess) -> None:
    """Whatever is still in work; the exit code tells."""
    server.send(signal.SIGTERM)
    wait_until(lambda: "stopping:" in server.log(), "the beginning of the end")
    survivors = server.stop(signal.SIGTERM)
    assert [process.pid for process in survivors] == []
    assert server.exit_code == 1
    assert "ending at once" in server.log()
