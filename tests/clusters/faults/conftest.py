"""One server whose processes are killed, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pool_models import pool_args, write_member
from reload.test_replaced_router import moods, write_moods
from serve_process import ServeProcess
from streaming_models import OWN_PROCESS, write

MEMBERS = 12
STREAMS = ("inside", "apart")


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models lie, and note what happens to them."""
    folder = tmp_path_factory.mktemp("faults")
    for name in ("moods", "feelings"):
        write_moods(folder / name, 4)
    write_member(folder / "plain" / "model.onnx", 3.0)
    return folder


@pytest.fixture(scope="package")
def server(folder: Path) -> Iterator[ServeProcess]:
    """A pool of twelve members with memory for a few, another of two, a classifier of texts, and answers in parts.

    The models that answer in parts run inside a replica's process and in one of their own. The last test stops it.
    """
    args = pool_args(folder / "members", MEMBERS, cpus=0.1)
    args["pools"].append({"name": "mixed", "memory": "7MiB", "cpus": 0.1})
    args["models"] += [
        moods(folder / "moods", resources={"cpus": 0.1}),
        moods(folder / "feelings", pool="mixed") | {"name": "feelings"},
        {"name": "plain", "path": str(folder / "plain"), "pool": "mixed"},
    ]
    for name, options in zip(STREAMS, ({}, OWN_PROCESS), strict=True):
        model = write(folder, name, options, pause_s=0.005)
        args["models"].append(
            model | {"resources": {"cpus": 0.1}, "autoscaling": {"min_replicas": 1, "max_replicas": 1}}
        )
    args["router"] = {"cpus": 0.1, "access": {"open_administration": True}}
    args["classes"] = {"normal": {"timeout_ms": 60_000}}
    env = {"SERVE_APP_CACHE": str(folder / "cache")}
    with ServeProcess(args, folder / "server", env=env, graceful=True) as running:
        yield running
