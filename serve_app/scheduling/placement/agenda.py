"""Which devices are to be looked at now, and when the next one is: so that idle models cost nothing.

A device is looked at after something happened to one of its models, and when the time that it has named has come.
Nothing else can change what it would do. Times are a heap; one that a device has replaced by another stays in it until
its turn comes, or until more than half of the heap is such.
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
        touched: Devices to which something has happened since `take`.
        due: What each device named last, seconds; only those that named any.
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
        """Something has happened to a model of a device."""
        device.active[model] = None
        self.touched[device] = None

    def note(self, device: Device, at: float) -> None:
        """Look at a device at this time, in seconds, instead of when it said before; ``inf``: never."""
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
        """A device is no more."""
        self.touched.pop(device, None)
        self.note(device, inf)

    def take(self, now: float) -> dict[Device, None]:
        """Whatever is to be looked at now, once each; the caller notes when each of them is to be looked at again."""
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
        """When the next device is to be looked at if none is touched, seconds; ``inf``: never."""
        heap = self._heap
        while heap:
            at, _, device = heap[0]
            if self.due.get(device) == at:
                return at
            heappop(heap)
        return inf
