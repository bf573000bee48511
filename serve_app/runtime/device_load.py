"""How busy and how full the device of a replica is, for the routers' overload ladders.

On a GPU, NVML tells, where its Python bindings (``nvidia-ml-py``) are installed; they are no dependency. On a CPU: the
processor time of this process as a part of what its threads could use, and the memory of its container, or of the
machine where that has no limit. Somebody reads at most once per second, in a thread, and a router is told of every
reading once, with an answer.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from serve_app.scheduling.relief import DeviceLoad

logger = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_CGROUP: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = "max"


class DeviceGauge(Protocol):
    """Reads one device. Called from any thread, one call at a time."""

    def read(self) -> DeviceLoad:
        """How busy it was since the last call, and how full it is now."""


class CpuGauge:
    """The processors of this process.

    Args:
        threads: Threads that the model may use.
        cgroup: Where the container's files are.
    """

    def __init__(self, threads: int, cgroup: Path = _CGROUP) -> None:
        self._threads = max(1, threads)
        self._cgroup = cgroup
        self._process = psutil.Process()
        self._used_s, self._read_at = self._cpu_s(), time.monotonic()

    def read(self) -> DeviceLoad:
        """See `DeviceGauge.read`."""
        used_s, now = self._cpu_s(), time.monotonic()
        elapsed = now - self._read_at
        busy = (used_s - self._used_s) / (elapsed * self._threads) if elapsed > 0.0 else 0.0
        self._used_s, self._read_at = used_s, now
        return DeviceLoad(min(1.0, busy), self._memory())

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _memory(self) -> float:
        """Of the container, without what the kernel would give back; of the machine where that has no limit."""
        try:
            limit = (self._cgroup / "memory.max").read_text().strip()
            if limit != _UNLIMITED:
                used = int((self._cgroup / "memory.current").read_text())
                return max(0.0, min(1.0, (used - self._reclaimable()) / int(limit)))
        except (OSError, ValueError):  # no cgroup of version 2, or no right to look
            pass
        return float(psutil.virtual_memory().percent) / 100.0

    def _reclaimable(self) -> int:
        for line in (self._cgroup / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file":
                return int(value)
        return 0


class NvmlGauge:
    """A GPU as its driver sees it, with all processes on it.

    Args:
        nvml: The module ``pynvml``.
        device: Its index, or its UUID as ``CUDA_VISIBLE_DEVICES`` may name it.
    """

    def __init__(self, nvml: Any, device: str) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._handle = (
            nvml.nvmlDeviceGetHandleByIndex(int(device))
            if device.isdigit()
            else nvml.nvmlDeviceGetHandleByUUID(device.encode())
        )

    def read(self) -> DeviceLoad:
        """See `DeviceGauge.read`."""
        busy = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100.0
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return DeviceLoad(busy, memory.used / memory.total)


def find_gauge(device: str, threads: int) -> DeviceGauge | None:
    """What can read the device of this process; ``None`` for a GPU that nothing here can read.

    Args:
        device: ``cpu``, or anything else for a GPU.
        threads: Threads that the model may use on a CPU.
    """
    if device == "cpu":
        return CpuGauge(threads)
    try:
        nvml = importlib.import_module("pynvml")
        return NvmlGauge(nvml, os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
    except Exception as error:  # no bindings, no driver, no such device: the server runs without
        logger.info("The GPU's load cannot be read, so overload is told by latencies only: %s", error)
        return None


class DeviceWatch:
    """Reads a gauge once per second at most, and tells each router of every reading once.

    Args:
        gauge: What to read; ``None``: there is never anything to tell.
        submit: Runs a function in another thread.
    """

    def __init__(self, gauge: DeviceGauge | None, submit: Callable[[Callable[[], None]], object]) -> None:
        self._gauge = gauge
        self._submit = submit
        self._due = 0.0
        self._latest: DeviceLoad | None = None
        self._told: dict[str, DeviceLoad] = {}

    def news(self, router: str, now: float) -> DeviceLoad | None:
        """What this router was not told yet, or ``None``. Has the gauge read anew when it is time.

        Args:
            router: Names it.
            now: Seconds, monotonic.
        """
        if self._gauge is None:
            return None
        if now >= self._due:
            self._due = now + _EVERY_S
            self._submit(self._read)
        latest = self._latest
        if latest is None or self._told.get(router) is latest:
            return None
        self._told[router] = latest
        return latest

    def _read(self) -> None:
        assert self._gauge is not None
        try:
            latest = self._gauge.read()
        except Exception:  # a driver that goes away must not end with the answers of a model that works
            logger.exception("The load of the device cannot be read any more")
            self._gauge = None
            return
        # Routers come and go with deployments: those of the reading before last are forgotten.
        self._told = {router: told for router, told in self._told.items() if told is self._latest}
        self._latest = latest
