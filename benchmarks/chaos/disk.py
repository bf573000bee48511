"""A disk that is full: everything that Ray writes, logs, sockets and spilled objects, is on a small one of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from benchmarks.chaos.kills import lost, require_right
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.server import FaultyServer, Setup
from benchmarks.chaos.setups import PAIRS
from benchmarks.chaos.stage import Stage
from benchmarks.failure import BenchmarkError

_SIZE = "512m"
_VICTIM = "digits"


class OnSmallDisk(FaultyServer):
    """A server whose Ray writes to a file system in memory of fixed size. Mounting one takes root.

    Attributes:
        disk: Where it is mounted.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.disk = Path()

    @override
    def _prepare(self) -> tuple[Sequence[str], Mapping[str, str]]:
        if os.geteuid() != 0:
            raise BenchmarkError("a small disk has to be mounted, and only root may do that")
        # Its path must be short: Ray's sockets are below.
        self.disk = Path(tempfile.mkdtemp(prefix="sa-disk-"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(self.disk)], check=True)
        command, environment = super()._prepare()
        return command, {**environment, "RAY_TMPDIR": str(self.disk)}

    @override
    def _clean_up(self) -> None:
        super()._clean_up()
        if self.disk != Path():
            subprocess.run(["umount", "--lazy", str(self.disk)], check=True)
            self.disk.rmdir()
            self.disk = Path()

    def fill(self) -> int:
        """Leave no byte free. Returns how many were."""
        free = shutil.disk_usage(self.disk).free
        block = bytes(1 << 20)
        with (self.disk / "full").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(block)
            except OSError:
                return free

    def empty(self) -> None:
        """Give the room back."""
        (self.disk / "full").unlink()


async def _full(stage: Stage) -> None:
    server = stage.server
    assert isinstance(server, OnSmallDisk)
    async with stage.load():
        await stage.hold(4.0)
        free = await asyncio.to_thread(server.fill)
        stage.mark("Ray's disk is full")
        left = shutil.disk_usage(server.disk).free
        stage.require("the disk is full", left == 0, f"{left} bytes free, {free / 1024**2:.0f} MiB before")
        await stage.hold(15.0)
        kept = stage.now()
        replica = await stage.one_of(_VICTIM)
        await stage.hit(replica, signal.SIGKILL, f"a replica of {_VICTIM} while the disk is full")
        await stage.hold(10.0)
        server.empty()
        mark = stage.mark("there is room again")
        await stage.replaced(_VICTIM, replica, 2, mark, 120.0)
        await stage.hold(4.0)
    require_right(stage)
    before = [each for each in stage.records if each.sent_s < kept]
    stage.require_none("requests keep being answered while the disk is full", lost(before))
    stage.require_none("no accepted request is lost", lost(stage.records))


_SMALL_DISK = Setup("small disk", PAIRS.models, router=PAIRS.router, classes=PAIRS.classes, server=OnSmallDisk)

SCENARIOS = (Scenario("disk", "the disk for logs, temporary files and spilled objects is full", _SMALL_DISK, _full),)
