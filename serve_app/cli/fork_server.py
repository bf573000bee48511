"""Starts worker processes by forking one that has imported everything.

A worker of Ray imports Ray twice, then Ray Serve, then this package: seconds of CPU time in every worker, and a hundred
megabytes that could be shared. This process imports all that once. The raylet starts workers by `start_worker`, which
sends a worker's command line, environment and standard streams here; this process forks, and the child continues as the
worker.

That is safe because this process has one thread, no connection and no session, and two children draw different random
numbers. It checks these conditions, and otherwise refuses. (ONNX Runtime starts a thread for telemetry when imported,
unless ORT_DISABLE_TELEMETRY is 1.) Workers with another import environment, or a command other than Ray's for Python,
are left to Ray.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve_app.cli.start_worker import FORKED, rays_own

IMPORTS = (
    "ray._private.workers.default_worker",
    "ray.serve._private.replica",
    "ray.serve._private.controller",
    "uvloop",
    "serve_app.app",
)
"""What workers need."""

# None of them is read while something is imported.
_MAY_DIFFER = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "OMP_NUM_THREADS", "PYTHONBREAKPOINT"})
_TITLE_ROOM = 512
_WAITING = 256
_END_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Order:
    """A worker to start.

    Attributes:
        arguments: Its command line after the interpreter.
        streams: Standard input, output and error.
    """

    arguments: Sequence[str]
    environ: Mapping[str, str]
    folder: str
    streams: Sequence[int]


@contextmanager
def fork_server(path: str, environ: Mapping[str, str]) -> Iterator[None]:
    """Run a fork server during the block.

    Args:
        path: Its socket. Access to its folder allows starting processes.
        environ: Its environment, which its workers share.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(_WAITING)  # who asks before it has imported everything waits
        process = subprocess.Popen(  # noqa: S603 - this module
            # A worker shows its name in the room of the command line, and must not need that of the environment.
            [sys.executable, "-m", "serve_app.cli.fork_server", str(listener.fileno()), " " * _TITLE_ROOM],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env={"OMP_NUM_THREADS": "1", **environ},  # no threads of OpenBLAS
            start_new_session=True,  # Ctrl-C is not meant for it
        )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve(listener: socket.socket, imports: Sequence[str] = IMPORTS) -> Order | None:
    """Import everything, then fork on request, until standard input ends.

    Returns:
        In a child, its order; ``None`` at the end.
    """
    server, before = os.getpid(), dict(os.environ)
    _import(imports)
    usable = _numbers_differ()
    if not usable:
        print("workers are not forked: they would draw the same random numbers", file=sys.stderr, flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no wait for children: the raylet watches them
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        connection, _ = listener.accept()
        with connection, suppress(OSError, ValueError, LookupError, TypeError):  # whose launcher leaves it to Ray
            streams: list[int] = []
            try:
                order = _read(connection, before, streams)
                if order is None or not usable:
                    continue
                if os.fork() == 0:
                    return order
                connection.sendall(FORKED)
            finally:
                if os.getpid() == server:
                    for stream in streams:
                        os.close(stream)


def carry_out(order: Order) -> None:
    """Become the worker. Returns at its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgrp()  # the raylet ends a worker's group together with it
    for number, stream in enumerate(order.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environ)
    numpy: Any = importlib.import_module("numpy")
    numpy.random.seed()  # Python's own generator does so by itself
    sys.argv = list(order.arguments)
    sys.path[0] = str(Path(order.arguments[0]).parent)
    runpy.run_path(order.arguments[0], run_name="__main__")


class _ClassIds:
    """Replaces `ray.actor.ActorClassID`: draws from the operating system, not from Ray's generator."""

    @staticmethod
    def from_random() -> Any:
        """A random id for a class of actors."""
        from ray._raylet import ActorClassID  # noqa: PLC0415 - this module is imported without Ray

        return ActorClassID(os.urandom(ActorClassID.size()))


def _import(names: Sequence[str]) -> None:
    # Ray's generator of random numbers gets its seed when it is first used, and is used for every class of actors. All
    # children would draw the same numbers for their tasks.
    actors: Any = importlib.import_module("ray.actor")
    original, actors.ActorClassID = actors.ActorClassID, _ClassIds
    for name in names:
        importlib.import_module(name)
    actors.ActorClassID = original
    gc.collect()
    gc.freeze()  # a collection would write to every object, and so copy every page


def _numbers_differ() -> bool:
    """Whether two children draw different numbers from Ray's generator."""
    ids: Any = importlib.import_module("ray._raylet")
    drawn = set()
    for _ in range(2):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, ids.PlacementGroupID.of(ids.JobID.from_int(1)).binary())
            os._exit(0)
        os.waitpid(child, 0)
        drawn.add(os.read(reading, 64))
        os.close(reading)
        os.close(writing)
    return len(drawn) == 2


def _read(connection: socket.socket, before: Mapping[str, str], streams: list[int]) -> Order | None:
    """Read an order, with its received streams; ``None`` if it cannot be served here."""
    head, received, _, _ = socket.recv_fds(connection, 8, 3)
    streams += received
    with connection.makefile("rb") as file:
        given: dict[str, Any] = json.loads(file.read(int.from_bytes(head, "big")))
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False, allow_abbrev=False)
    parser.add_argument("--serialized-runtime-env-context", default="")
    parser.add_argument("--language")
    known, arguments = parser.parse_known_args(given["arguments"])
    context: dict[str, Any] = json.loads(known.serialized_runtime_env_context or "{}")
    environ = {**given["environ"], **context.pop("env_vars", {})}
    if context.get("py_executable") == sys.executable:
        del context["py_executable"]
    differing = {name for name in {*environ, *before} if environ.get(name) != before.get(name)} - _MAY_DIFFER
    ours = (
        known.language == "PYTHON"
        and not any(context.values())
        and Path(arguments[0]) == rays_own("default_worker.py")
        and not differing
        and len(list(Path("/proc/self/task").iterdir())) == 1
        and len(streams) == 3
    )
    if not ours:
        print(f"a worker is not forked: {sorted(differing)} {context}", file=sys.stderr, flush=True)
    return Order(arguments, environ, given["folder"], streams) if ours else None


def main() -> None:
    """Serve; in each child, become the worker."""
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        order = serve(listener)
    if order is not None:
        carry_out(order)


if __name__ == "__main__":
    main()
