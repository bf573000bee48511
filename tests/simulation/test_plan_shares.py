"""Shares of a GPU with which Ray places replicas as planned."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.cli.gpus import gpu_memory_problems
from serve_app.config.args import parse_args
from serve_app_simulator.plan.packing import USABLE, Device, Item
from serve_app_simulator.plan.shares import CONTEXT_BYTES, RayPlan, Share, fraction, plan_for_ray

GIB = 1 << 30
MODELS = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 100)), max_size=6
).map(
    lambda models: [
        Item(name, memory * GIB, percent / 100)
        for name, (replicas, memory, percent) in models.items()
        for _ in range(replicas)
    ]
)
DEVICES = st.integers(1, 4).map(lambda count: [Device(f"gpu{number}", 16 * GIB) for number in range(count)])


def placed_by_ray(plan: RayPlan, order: list[str], devices: int) -> list[Counter[Item]]:
    """The replicas that Ray places on each device if they start in this order of models."""
    left, placed = [10_000] * devices, [Counter[Item]() for _ in range(devices)]
    replicas = {model: [each for each, _ in plan.packing.placed if each.model == model] for model in plan.shares}
    for model in order:
        need = round(10_000 * plan.shares[model].gpus)
        if fitting := [device for device in range(devices) if left[device] >= need]:
            best = min(fitting, key=lambda device: left[device])
            left[best] -= need
            placed[best][replicas[model].pop()] += 1
    return placed


def test_the_larger_of_memory_and_time_is_the_fraction() -> None:
    """Rounded up to a step of Ray's resources."""
    device = Device("gpu0", 16 * GIB)
    assert fraction(Item("a", 4 * GIB, 0.1), device) == 0.25
    assert fraction(Item("a", 4 * GIB, 0.4), device) == 0.4
    assert fraction(Item("a", 4 * GIB, 1 / 3), device) == 0.3334


def test_a_large_model_beside_a_busy_one() -> None:
    """The fractions add up to more than 1: smaller shares let both run, in the order of the configuration."""
    plan = plan_for_ray([Item("large", 14 * GIB, 0.1), Item("busy", 2 * GIB, 0.9)], [Device("gpu0", 16 * GIB)])
    assert not plan.packing.left_out
    assert sum(share.gpus for share in plan.shares.values()) <= 1
    assert not plan.any_order


def test_fractions_that_fit_hold_in_any_order() -> None:
    """The memory limit is what the context leaves."""
    plan = plan_for_ray([Item("a", 4 * GIB, 0.5)] * 2, [Device("gpu0", 16 * GIB)])
    assert plan.any_order
    assert plan.shares == {"a": Share(0.5, 4 * GIB - CONTEXT_BYTES)}


def test_devices_of_a_node_count_as_the_smallest() -> None:
    """Ray might place the replica on it."""
    plan = plan_for_ray([Item("a", 10 * GIB, 0.5)], [Device("gpu0", 8 * GIB), Device("gpu1", 16 * GIB)])
    assert [reason for _, reason in plan.packing.left_out] == [
        "a replica needs 10 GiB, and no device has more than 8 usable: take larger devices"
    ]


def test_memory_without_the_context_is_refused() -> None:
    """Nothing would be left for the weights."""
    with pytest.raises(ValueError, match="add CONTEXT_BYTES"):
        plan_for_ray([Item("a", CONTEXT_BYTES, 0.5)], [Device("gpu0", 16 * GIB)])


@given(MODELS, DEVICES)
def test_ray_places_replicas_as_planned(items: list[Item], devices: list[Device]) -> None:
    """In the order of the configuration: nothing waits, and the packing is Ray's."""
    plan = plan_for_ray(items, devices)
    counts = Counter(each.model for each, _ in plan.packing.placed)
    order = [model for model in plan.shares for _ in range(counts[model])]
    planned = [Counter(each for each, on in plan.packing.placed if on.name == device.name) for device in devices]
    assert planned == placed_by_ray(plan, order, len(devices))
    assert len(items) == len(plan.packing.placed) + len(plan.packing.left_out)
    assert all(memory >= 0 for memory, _ in plan.packing.free.values())
    for device in planned:
        assert sum(each.compute * count for each, count in device.items()) <= 1 + 1e-8


@given(MODELS, DEVICES, st.randoms(use_true_random=False))
def test_shares_for_any_order_exceed_no_device(items: list[Item], devices: list[Device], rng: random.Random) -> None:
    """In a random order of starts replicas may wait, but no device has too much."""
    plan = plan_for_ray(items, devices)
    order = [each.model for each, _ in plan.packing.placed]
    rng.shuffle(order)
    if plan.any_order:
        for device in placed_by_ray(plan, order, len(devices)):
            assert sum(each.memory * count for each, count in device.items()) <= 16 * GIB
            assert sum(each.compute * count for each, count in device.items()) <= 1 + 1e-8


@given(MODELS, DEVICES)
def test_validate_accepts_the_plan(items: list[Item], devices: list[Device]) -> None:
    """`serve-app validate` places replicas the same way, and adds up the limits of their memory."""
    plan = plan_for_ray(items, devices)
    counts = Counter(each.model for each, _ in plan.packing.placed)
    models = [
        {
            "name": model,
            "path": "m",
            "resources": {"gpus": share.gpus, "gpu_memory": share.gpu_memory},
            "autoscaling": {"min_replicas": counts[model], "max_replicas": counts[model]},
        }
        for model, share in plan.shares.items()
    ]
    if models:
        memories = [int(device.memory / USABLE) for device in devices]
        assert gpu_memory_problems(parse_args({"models": models}), memories) == ()
