"""Which devices to look at now, and when to look at the next, so that idle models cost nothing.

A device is looked at after an event of one of its models, and at the time that it has named. Nothing else can change
its decision. Times are a heap; a replaced time stays in it until its turn comes, or until more than half of the heap is
stale.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.placement.devices import Device

_STALE_ALLOWED = 64


class Agenda:
    """Devices to look at, and when.

    Attributes:
        touched: Devices with events since `take`.
        due: The time that each device named last, seconds; only those that named any.
    """

    __slots__ = ("_heap", "_pushed", "due", "touched")

    def __init__(self) -> None:
        self.touched: dict[Device, None] = {}
        self.due: dict[Device, float] = {}
        self._heap: list[tuple[float, int, Device]] = []
        self._pushed = 0

    @property
    def heap_size(self) -> int:
        """Times held, stale ones included: at most twice the devices that named one, plus 64."""
        return len(self._heap)

    def touch(self, device: Device, model: ModelState) -> None:
        """Record an event of a device's model."""
        device.active[model] = None
        self.touched[device] = None

    def note(self, device: Device, at: float) -> None:
        """Look at a device at this time, seconds, instead of the time before; ``inf``: never."""
        due = self.due
        if at == inf:
            due.pop(device, None)
        elif due.get(device) != at:
            due[device] = at
            self._pushed += 1
            heappush(self._heap, (at, self._pushed, device))
        if len(self._heap) > 2 * len(due) + _STALE_ALLOWED:
            self._heap = [(at, number, device) for number, (device, at) in enumerate(due.items())]
            heapify(self._heap)
            self._pushed = len(due)

    def forget(self, device: Device) -> None:
        """Remove a device."""
        self.touched.pop(device, None)
        self.note(device, inf)

    def take(self, now: float) -> dict[Device, None]:
        """Take all devices to look at now, once each; the caller notes their next times."""
        taken, heap = self.touched, self._heap
        self.touched = {}
        while heap and heap[0][0] <= now:
            at, _, device = heappop(heap)
            if self.due.get(device) == at:
                del self.due[device]
                taken[device] = None
                device.wake(now)
        return taken

    def next_at(self) -> float:
        """When to look at the next device if none is touched, seconds; ``inf``: never."""
        heap = self._heap
        while heap:
            at, _, device = heap[0]
            if self.due.get(device) == at:
                return at
            heappop(heap)
        return inf
