"""How far the packing of a plan is from the best one: ``python -m benchmarks.packing [INSTANCES]``.

Draws 4 to 12 models with 1 to 4 replicas and 2 to 8 devices, of whose time 60 to 110% is needed, and solves each with
HiGHS (``scipy.optimize.milp``): the fewest models without a replica, then the fewest replicas left out.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from serve_app_simulator.plan.packing import USABLE, Device, Item, Packing, pack
from serve_app_simulator.plan.shares import CONTEXT_BYTES, plan_for_ray

GIB = 1 << 30


def draw(rng: random.Random) -> tuple[list[Item], list[Device]]:
    """Replicas of models of 0.1 to 14 GiB, log-uniform, on devices of 16, 24, 48 or 80 GiB."""
    memory = int(rng.choice((16, 24, 48, 80)) * GIB * USABLE)
    devices = [Device(f"gpu{number}", memory) for number in range(rng.randint(2, 8))]
    models = [
        (rng.choice((1, 1, 2, 2, 3, 4)), int(GIB * 0.1 * 140 ** rng.random()), rng.uniform(0.05, 0.9))
        for _ in range(rng.randint(4, 12))
    ]
    scale = rng.uniform(0.6, 1.1) * len(devices) / sum(replicas * load for replicas, _, load in models)
    return [
        Item(f"m{number}", min(memory, CONTEXT_BYTES + size), round(min(1.0, load * scale), 3))
        for number, (replicas, size, load) in enumerate(models)
        for _ in range(replicas)
    ], devices


def best(items: Sequence[Item], devices: Sequence[Device]) -> tuple[int, int]:
    """Models without a replica and replicas left out of the best packing on equal devices.

    Columns are the replicas of each model on each device, then whether the model has one.
    """
    models = Counter(items)
    count, on = len(models), len(devices)
    replicas = np.array([*models.values()])
    totals = np.kron(np.eye(count), np.ones(on))
    needs = [[item.memory / devices[0].memory for item in models], [item.compute for item in models]]
    loads = np.vstack([np.kron(each, np.eye(on)) for each in np.array(needs)])
    found = milp(
        -np.concatenate([np.ones(count * on), np.full(count, len(items) + 1.0)]),
        constraints=[
            LinearConstraint(np.hstack([totals, -np.eye(count)]), 0, np.inf),
            LinearConstraint(np.hstack([totals, np.zeros((count, count))]), 0, replicas),
            LinearConstraint(np.hstack([loads, np.zeros((2 * on, count))]), -np.inf, 1 + 1e-9),
        ],
        bounds=Bounds(0, np.concatenate([np.repeat(replicas, on), np.ones(count)])),
        integrality=np.ones(count * on + count),
        options={"mip_rel_gap": 0},
    )
    placed = np.round(found.x)
    return count - int(placed[count * on :].sum()), len(items) - int(placed[: count * on].sum())


def figures(packing: Packing) -> tuple[int, int]:
    """The same of a packing."""
    running = {item.model for item, _ in packing.placed}
    return len({item.model for item, _ in packing.left_out} - running), len(packing.left_out)


def main(instances: int) -> None:
    """Print how often the exact solver is better, where all replicas have room and where not; and what Ray adds."""
    rng = random.Random(1)
    seen: dict[str, Counter[str]] = {"all have room": Counter(), "overloaded": Counter()}
    for _ in range(instances):
        items, devices = draw(rng)
        ideal, ours, plan = best(items, devices), figures(pack(items, devices)), plan_for_ray(items, devices)
        fewer = 0
        while ours == (0, 0) and best(items, devices[: -fewer - 1]) == (0, 0):
            fewer += 1
        more = fewer
        while more and figures(pack(items, devices[:-more])) != (0, 0):
            more -= 1
        counts = seen["all have room" if ideal == (0, 0) else "overloaded"]
        counts["instances"] += 1
        counts["instances where exact leaves out less"] += ideal < ours
        counts["instances where exact needs fewer devices"] += more < fewer
        counts["instances where Ray leaves out more"] += figures(plan.packing) > ours
        counts["instances whose shares hold in any order"] += plan.any_order
        counts["replicas"] += len(items)
        for name, (_, left_out) in (("exact", ideal), ("greedy", ours), ("Ray", figures(plan.packing))):
            counts[f"replicas left out by {name}"] += left_out
    for kind, counts in seen.items():
        print(f"{kind}: {dict(counts)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
