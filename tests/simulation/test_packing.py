"""Placing replicas on GPUs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app_simulator.plan.packing import USABLE, Device, Item, Packing, pack

GIB = 1 << 30


def gpus(*memories: float) -> list[Device]:
    """Devices with these usable GiB."""
    return [Device(f"gpu{number}", int(memory * GIB)) for number, memory in enumerate(memories)]


def item(model: str, memory: float, compute: float) -> Item:
    """A replica that needs this many GiB."""
    return Item(model, int(memory * GIB), compute)


def lines(packing: Packing) -> list[str]:
    """A packing as a table: the replicas of each device, and those left out."""
    on = {name: [item.model for item, device in packing.placed if device.name == name] for name in packing.free}
    return [
        *(f"{name}: {', '.join(models)}" for name, models in on.items()),
        *(f"left out: {item.model}: {reason}" for item, reason in packing.left_out),
    ]


ITEMS = st.lists(
    st.builds(
        Item,
        st.sampled_from("abcdef"),
        st.integers(1, 20).map(lambda memory: memory * GIB),
        st.integers(0, 100).map(lambda percent: percent / 100),
    ),
    max_size=14,
)
DEVICES = st.lists(st.sampled_from((4, 8, 16, 24)), max_size=4).map(lambda memories: gpus(*memories))


def test_six_models_on_two_devices_of_24_gib() -> None:
    """The example of docs/planning.md: the largest model fits nowhere, and one replica of another has no time left."""
    sizes = [
        ("summary", 1, 20, 0.3),
        ("speech", 1, 9, 0.45),
        ("ocr", 2, 5, 0.2),
        ("resnet50", 2, 2.5, 0.4),
        ("minilm", 2, 1.8, 0.15),
        ("reranker", 1, 3.5, 0.25),
    ]
    replicas = [item(model, memory, time) for model, count, memory, time in sizes for _ in range(count)]
    assert lines(pack(replicas, gpus(24 * USABLE, 24 * USABLE))) == [
        "gpu0: minilm, ocr, reranker, resnet50",
        "gpu1: minilm, resnet50, speech",
        (
            "left out: ocr: a replica needs 5 GiB and 20% of the time, and gpu0, where the most is left, has 4 GiB and"
            " 0%: add a device, or plan fewer replicas"
        ),
        ("left out: summary: a replica needs 20 GiB, and no device has more than 16.8 usable: take larger devices"),
    ]


def test_replicas_of_a_model_are_spread_where_all_have_room() -> None:
    """The loss of a device leaves both models up."""
    packing = pack([item("a", 1, 0.1), item("b", 1, 0.1)] * 2, gpus(16, 16))
    assert lines(packing) == ["gpu0: a, b", "gpu1: a, b"]


def test_replicas_are_not_spread_where_one_would_be_left_out() -> None:
    """Both of `small` share a device, since the other one is needed whole."""
    packing = pack([item("small", 4, 0.3), item("small", 4, 0.3), item("large", 16, 0.9)], gpus(16, 16))
    assert not packing.left_out
    assert len({device for each, device in packing.placed if each.model == "small"}) == 1


def test_memory_and_time_complement_each_other() -> None:
    """A large model that computes little runs beside a small one that computes much."""
    packing = pack([item("large", 14, 0.1), item("busy", 2, 0.9)], gpus(16))
    assert not packing.left_out
    assert packing.free["gpu0"] == (0, 0.0)


def test_no_model_is_down_for_a_second_replica_of_another() -> None:
    """Each of the two devices has room for one replica."""
    packing = pack([item("a", 12, 0.5), item("a", 12, 0.5), item("b", 10, 0.5)], gpus(16, 16))
    assert {each.model for each, _ in packing.placed} == {"a", "b"}


@pytest.mark.parametrize(
    ("needed", "devices", "reason"),
    [
        (item("a", 1, 0.1), [], "there is no device: add one"),
        (item("a", 20, 0.1), gpus(16), "no device has more than 16 usable: take larger devices"),
        (item("a", 1, 1.5), gpus(16), "a replica needs 150% of a device's time: plan more replicas"),
    ],
)
def test_reasons(needed: Item, devices: list[Device], reason: str) -> None:
    """Each has the cause and the remedy."""
    ((left_out, found),) = pack([needed], devices).left_out
    assert left_out == needed
    assert reason in found


def test_names_of_devices_are_unique() -> None:
    """They are the keys of what is free."""
    with pytest.raises(ValueError, match="two devices have the same name: give each its own, such as node/index"):
        pack([], [Device("gpu0", GIB), Device("gpu0", GIB)])


@given(ITEMS, DEVICES)
def test_no_device_is_exceeded_and_no_replica_is_lost(items: list[Item], devices: list[Device]) -> None:
    """Each is placed, or left out with a reason although it fits on no device; what is free is the rest."""
    packing = pack(items, devices)
    assert sorted(items) == sorted([each for each, _ in packing.placed] + [each for each, _ in packing.left_out])
    for device in devices:
        here = [each for each, on in packing.placed if on == device]
        memory, compute = packing.free[device.name]
        assert memory == device.memory - sum(each.memory for each in here) >= 0
        assert compute == pytest.approx(1 - sum(each.compute for each in here), abs=1e-8)
    for each, reason in packing.left_out:
        assert ": " in reason
        assert not any(each.memory <= memory and each.compute <= compute for memory, compute in packing.free.values())


@given(ITEMS, DEVICES, st.randoms(use_true_random=False))
def test_the_order_of_the_input_changes_nothing(items: list[Item], devices: list[Device], rng: random.Random) -> None:
    """Neither that of the replicas nor that of the devices."""
    expected = pack(items, devices)
    assert expected == pack(rng.sample(items, len(items)), rng.sample(devices, len(devices)))


@given(ITEMS, DEVICES)
def test_all_are_placed_where_one_device_has_room_for_all(items: list[Item], devices: list[Device]) -> None:
    """Whatever the other devices are."""
    enough = Device("enough", sum(each.memory for each in items))
    scaled = [Item(each.model, each.memory, each.compute / max(1, len(items))) for each in items]
    assert pack(scaled, [*devices, enough]).left_out == ()
