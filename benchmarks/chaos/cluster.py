"""A Ray cluster of two nodes on one machine, whose state is in Redis: nodes and Ray's own store (GCS) that die."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from benchmarks.chaos.kills import require_right
from benchmarks.chaos.records import CLASSES
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.server import GCS, RAYLET, FaultyServer, Setup
from benchmarks.chaos.setups import demo
from benchmarks.chaos.stage import Stage
from benchmarks.failure import BenchmarkError
from benchmarks.niceness import as_usual
from benchmarks.ports import free_ports
from benchmarks.process import OUT
from benchmarks.redis_server import RedisServer
from serve_app.cli.processes import Process

_VICTIM = "digits"
_BEFORE_S, _AFTER_S = 4.0, 10.0

_SECOND_CPUS = 1
ON_THE_FIRST = {"cpus": _SECOND_CPUS + 0.5}
"""What keeps a router on the first of two nodes."""


class TwoNodes(FaultyServer):
    """A server on two nodes of this machine: the router on the first, replicas on both unless they ask for a GPU.

    Only the first has a proxy: two would want the same ports.

    Only the second says that it has a GPU, so that a model can ask to be there. It computes on the CPU where there is
    none.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._redis = RedisServer(OUT)
        self._folder = Path()

    @override
    def _prepare(self) -> tuple[Sequence[str], Mapping[str, str]]:
        command, environment = super()._prepare()
        self._redis.start()
        (head,) = free_ports(1)
        # Its path must be short: Ray's sockets are below. In Ray's usual folder `ray start` would leave the address of
        # this cluster behind, to which a later `serve run` would try to connect for ever.
        self._folder = Path(tempfile.mkdtemp(prefix="sa-ray-"))
        bin_folder = Path(sys.executable).parent
        ray, serve = shlex.quote(str(bin_folder / "ray")), shlex.quote(str(bin_folder / "serve"))
        here = "--node-ip-address 127.0.0.1"
        store = f"RAY_REDIS_ADDRESS=127.0.0.1:{self._redis.port}"
        lines = (
            f"{store} {ray} start --head --port {head} --num-cpus 3 --num-gpus 0 {here} --include-dashboard false",
            f"{ray} start --address 127.0.0.1:{head} --num-cpus {_SECOND_CPUS} --num-gpus 1 {here}",
            f"exec {serve} run --address 127.0.0.1:{head} {shlex.quote(command[-1])}",
        )
        variables = {"RAY_worker_niceness": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
        return ["bash", "-ec", "\n".join(lines)], {**environment, **variables, "RAY_TMPDIR": str(self._folder)}

    @override
    def _clean_up(self) -> None:
        super()._clean_up()
        self._redis.kill()
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = Path()


async def _gcs(stage: Stage) -> None:
    async with stage.load():
        await stage.hold(_BEFORE_S)
        victim = await stage.one_of(GCS)
        command, environment = _command_of(victim)
        mark = await stage.hit(victim, signal.SIGKILL, "Ray's own store (GCS)")
        await stage.hold(5.0)
        with _started(command, environment):
            stage.mended(mark)
            await stage.hold(2 * _AFTER_S)
            replica = await stage.one_of(_VICTIM)
            mark = await stage.hit(replica, signal.SIGKILL, f"a replica of {_VICTIM} under the new GCS")
            await stage.replaced(_VICTIM, replica, 2, mark, within_s=120.0)
            await stage.hold(_BEFORE_S)
    require_right(stage)
    stage.require_none("nothing fails while Ray's store is away", [each for each in stage.records if each.failed])


async def _node(stage: Stage) -> None:
    raylets = await stage.find(RAYLET)
    if len(raylets) != 2:
        raise BenchmarkError(f"two nodes were to run, and there are {len(raylets)}")
    async with stage.load():
        await stage.hold(_BEFORE_S)
        before = await _replicas(stage)
        mark = await stage.hit(raylets[-1], signal.SIGKILL, "a node (its raylet)")
        await stage.hold(2.0)
        gone = before - await _replicas(stage)
        await stage.until(lambda: _whole(stage), "two replicas of every model", 120.0)
        stage.mended(mark)
        settled = stage.now()
        await stage.hold(_AFTER_S)
    require_right(stage)
    stage.require("replicas were on that node", gone > 0, f"{gone} of {before}")
    after = [each for each in stage.records if each.sent_s > settled]
    stage.require_none("with all replicas again nothing fails", [each for each in after if each.failed])
    answered = {each.priority for each in after if each.in_time}
    stage.require("every class is answered again", answered == set(CLASSES), ", ".join(sorted(answered)))


async def _replicas(stage: Stage) -> int:
    """How many processes all models have together."""
    return sum([len(await stage.find(model)) for model in stage.bank.models])


def _whole(stage: Stage) -> bool:
    """Whether every model has two processes, and the router reaches them and nothing else."""
    reached = stage.server.status()
    return all(
        len(stage.server.find(model)) == len(reached.get(model, {}).get("replicas", ())) == 2
        for model in stage.bank.models
    )


def _command_of(process: Process) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that a process was started with."""
    folder = Path(f"/proc/{process.pid}")
    command = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    pairs = (each.partition(b"=") for each in (folder / "environ").read_bytes().split(b"\0") if each)
    return [os.fsdecode(each) for each in command], {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


@contextlib.contextmanager
def _started(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """A process as an operator or a supervisor would start it again. The server's end is its end, too."""
    with (OUT / "chaos-gcs.log").open("wb") as log, as_usual():
        process = subprocess.Popen(
            command, env=dict(environment), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.poll() is not None:
        raise BenchmarkError("the GCS that was started again has ended; see benchmarks/out/chaos-gcs.log")


_TWO_NODES = Setup("two nodes", demo(2), router=ON_THE_FIRST, settings={"proxy_location": "HeadOnly"}, server=TwoNodes)

SCENARIOS = (
    Scenario("gcs", "Ray's own store (GCS) is killed and started again, its state in Redis", _TWO_NODES, _gcs),
    Scenario("node", "the second of two nodes dies", _TWO_NODES, _node),
)
