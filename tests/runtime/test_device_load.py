"""How busy and how full a replica's device is, and how routers learn of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from serve_app.runtime.device_load import CpuGauge, DeviceWatch, find_gauge
from serve_app.scheduling.relief import DeviceLoad


def _container(folder: Path, limit: str) -> Path:
    for name, text in (
        ("memory.max", f"{limit}\n"),
        ("memory.current", "950\n"),
        ("memory.stat", "anon 700\ninactive_file 150\nactive_file 100\n"),
    ):
        (folder / name).write_text(text)
    return folder


def test_a_container_counts_what_the_kernel_would_not_give_back(tmp_path: Path) -> None:
    """Cached files that nobody uses are no memory pressure."""
    assert CpuGauge(1, _container(tmp_path, "1000")).read().memory == pytest.approx(0.8)


@pytest.mark.parametrize("limit", ["max", "nonsense"])
def test_without_a_limit_the_machine_counts(tmp_path: Path, limit: str) -> None:
    """A container without a limit, or files that cannot be read, leave the machine's own memory."""
    memory = CpuGauge(1, _container(tmp_path, limit)).read().memory
    assert memory is not None
    assert 0.0 < memory < 1.0


def test_a_cpu_is_busy_with_what_this_process_uses() -> None:
    """A part of what the model's threads could use."""
    gauge = find_gauge("cpu", threads=1)
    assert gauge is not None
    sum(number * number for number in range(3_000_000))  # many of the ticks in which the kernel counts
    busy = gauge.read().busy
    assert busy is not None
    assert 0.0 < busy <= 1.0


@pytest.mark.gpu
def test_a_gpu_tells_by_its_driver() -> None:
    """With NVML's bindings, a GPU has some memory taken and is between idle and busy."""
    pytest.importorskip("pynvml")
    gauge = find_gauge("cuda", threads=1)
    assert gauge is not None
    load = gauge.read()
    assert load.busy is not None
    assert load.memory is not None
    assert 0.0 <= load.busy <= 1.0
    assert 0.0 < load.memory <= 1.0


class _Scripted:
    """A gauge of which the readings are known."""

    def __init__(self, *readings: DeviceLoad) -> None:
        self._readings = list(readings)

    def read(self) -> DeviceLoad:
        if not self._readings:
            raise OSError("the driver has gone")
        return self._readings.pop(0)


def _at_once(work: Callable[[], None]) -> None:
    work()


def test_every_router_is_told_of_a_reading_once() -> None:
    """One reading per second, and each router hears of each once."""
    first, second = DeviceLoad(0.5, 0.1), DeviceLoad(0.6, 0.2)
    watch = DeviceWatch(_Scripted(first, second), _at_once)
    assert [watch.news(router, 10.0) for router in ("a", "a", "b")] == [first, None, first]
    assert watch.news("a", 10.9) is None
    assert [watch.news(router, 11.0) for router in ("a", "b", "b")] == [second, second, None]


def test_a_gauge_that_fails_is_not_asked_again() -> None:
    """A driver that goes away costs the answers nothing."""
    watch = DeviceWatch(_Scripted(), _at_once)
    assert [watch.news("a", now) for now in (1.0, 5.0)] == [None, None]


def test_without_a_gauge_there_is_never_news() -> None:
    """A GPU that nothing can read."""
    assert DeviceWatch(None, _at_once).news("a", 1.0) is None
