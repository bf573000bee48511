"""The agenda: which devices are looked at, and when."""

from __future__ import annotations

from math import inf

from serve_app.domain.priority import Priority
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.placement.agenda import Agenda
from serve_app.scheduling.placement.devices import DedicatedDevice, Device
from serve_app.scheduling.queueing.tenant_queue import Totals
from serve_app.scheduling.settings import ModelScheduling


def _model(name: str = "m") -> ModelState:
    return ModelState(ModelScheduling(name, 4, 0.1), {priority: Totals() for priority in Priority}, 0.002)


def test_a_touched_device_is_looked_at_once() -> None:
    """With the member that something happened to, and not again unless something more happens."""
    agenda = Agenda()
    model = _model()
    shared = Device("g", ("m", "n"))
    agenda.touch(shared, model)
    agenda.touch(shared, model)

    assert list(agenda.take(0.0)) == [shared]
    assert list(shared.active) == [model]
    assert list(agenda.take(9.0)) == []


def test_a_device_is_looked_at_when_its_time_has_come() -> None:
    """Only the time that it named last counts."""
    agenda = Agenda()
    first, second, third = (DedicatedDevice(_model(name)) for name in "mno")
    agenda.note(first, 1.0)
    agenda.note(second, 2.0)
    agenda.note(third, 3.0)
    agenda.note(first, 4.0)
    agenda.forget(second)

    assert agenda.next_at() == 3.0
    assert list(agenda.take(2.5)) == []
    assert list(agenda.take(5.0)) == [third, first]
    assert agenda.next_at() == inf


def test_an_earlier_time_counts_as_well_as_a_later_one() -> None:
    """Also one that was named before."""
    agenda = Agenda()
    device = DedicatedDevice(_model())
    for at in (5.0, 6.0, 5.0):
        agenda.note(device, at)

    assert agenda.next_at() == 5.0
    assert list(agenda.take(5.0)) == [device]
    assert agenda.next_at() == inf


def test_the_heap_stays_in_proportion() -> None:
    """However often a device names another time."""
    agenda = Agenda()
    devices = [DedicatedDevice(_model(str(at))) for at in range(3)]
    for at in range(5000):
        for device in devices:
            agenda.note(device, 1e6 + at % 7)
        assert agenda.heap_size <= 2 * len(devices) + 64
    assert agenda.next_at() == 1e6 + 4999 % 7
    for device in devices:
        agenda.forget(device)
    assert agenda.next_at() == inf
    assert agenda.heap_size == 0
