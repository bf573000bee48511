"""The policy by which Serve scales, on contexts of Serve's own class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf, nan

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from serve_app.config.names import ROUTER
from serve_app.deployments.autoscaling import (
    BUSY,
    CORES,
    IDLE_CORES,
    ScaleByDemand,
    demand_metrics,
    load_metrics,
    need_metrics,
)
from serve_app.domain.priority import Priority
from serve_app.scheduling.demand import Demand, ModelDemand

MODEL = "m_digits"


IDLE = ModelDemand()


def context(
    name: str,
    metrics: Mapping[str, list[float]],
    target: int = 1,
    minimum: int = 1,
    maximum: int = 2,
    now: float = 1.0,
    current: int | None = None,
) -> AutoscalingContext:
    """What Serve tells of a deployment whose replicas have reported these numbers."""
    deployment = DeploymentID(name, "app")
    replicas = [ReplicaID(f"r{number}", deployment) for number in range(max(map(len, metrics.values()), default=0))]
    by_replica = {key: dict(zip(replicas, values, strict=False)) for key, values in metrics.items()}
    return AutoscalingContext(
        deployment_id=deployment,
        deployment_name=name,
        app_name="app",
        current_num_replicas=target if current is None else current,
        target_num_replicas=target,
        running_replicas=replicas,
        total_num_requests=0.0,
        total_queued_requests=0.0,
        aggregated_metrics=by_replica,
        raw_metrics={
            key: {replica: [TimeStampedValue(now, value)] for replica, value in values.items()}
            for key, values in by_replica.items()
        },
        capacity_adjusted_min_replicas=minimum,
        capacity_adjusted_max_replicas=maximum,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=now,
        config=AutoscalingConfig(
            min_replicas=minimum, max_replicas=maximum, target_ongoing_requests=64, downscale_delay_s=0.0
        ),
    )


def make_policy(published: list[str] | None = None, room: Mapping[str, float] | None = None) -> ScaleByDemand:
    """The policy, without a cluster to publish to, and with so much room."""
    texts = [] if published is None else published
    return ScaleByDemand(publish=lambda _, text: texts.append(text), room=dict if room is None else lambda: room)


def decide(policy: ScaleByDemand, *contexts: AutoscalingContext) -> dict[DeploymentID, int]:
    """What the policy decides for these deployments."""
    return policy({each.deployment_id: each for each in contexts})[0]


@pytest.mark.parametrize(
    ("rows", "target", "minimum", "replica", "expected"),
    [
        ([16.0], 1, 1, {}, 1),
        ([40.0, 60.0], 1, 1, {}, 2),
        ([16.0], 1, 1, {BUSY: [0.95], IDLE_CORES: [0.5]}, 2),
        ([16.0], 1, 1, {BUSY: [0.95], IDLE_CORES: [0.0]}, 1),
        ([16.0], 1, 1, {BUSY: [0.5], IDLE_CORES: [1.0]}, 1),
        ([16.0], 2, 1, {BUSY: [0.7, 0.6], IDLE_CORES: [0.0, 0.1]}, 2),
        ([16.0], 2, 1, {BUSY: [1.0, 1.0], IDLE_CORES: [4.0, 4.0]}, 2),
        ([1.0], 2, 1, {BUSY: [0.1, 0.1], IDLE_CORES: [2.0, 2.0]}, 1),
        ([0.0], 1, 0, {BUSY: [0.01], IDLE_CORES: [2.0]}, 0),
    ],
)
def test_replicas_follow_the_queue_and_their_processes(
    rows: list[float], target: int, minimum: int, replica: dict[str, list[float]], expected: int
) -> None:
    """Whichever asks for more, within the bounds; a model that may sleep is not kept awake by its idle process."""
    reported = dict.fromkeys(load_metrics(MODEL, 0, IDLE), rows) | {BUSY: [0.1] * len(rows)}

    decisions = decide(make_policy(), context(ROUTER, reported, 1, 1, 1), context(MODEL, replica, target, minimum))

    assert decisions == {DeploymentID(MODEL, "app"): expected}


def test_rows_turned_away_count() -> None:
    """A queue that is kept short by refusals is no reason to stay small."""
    assert load_metrics(MODEL, 10, ModelDemand(turned_away_rows=90)) == load_metrics(MODEL, 100, IDLE)


def test_replicas_follow_the_demand_of_all_routers() -> None:
    """Two routers with 1.6 busy replicas each need four; a value that a router has reported before counts no more."""
    busy = demand_metrics(MODEL, ModelDemand({Priority.HIGH: Demand(1.6, 0.01, 1.6)}))
    policy = make_policy()
    for now in (1.0, 2.0, 3.0):
        reported = {key: [value, value] for key, value in busy.items()} | {BUSY: [0.5, 0.5]}
        router = context(ROUTER, reported, 2, 2, 2, now=now)
        decisions = decide(policy, router, context(MODEL, {}, 1, 1, 8, now=now))
    assert decisions == {DeploymentID(MODEL, "app"): 4}

    idle = {key: [0.0, 0.0] for key in demand_metrics(MODEL, IDLE)}
    stale = context(ROUTER, {BUSY: [0.5, 0.5], **idle}, 2, 2, 2, now=60.0)
    assert stale.raw_metrics is not None
    stale.raw_metrics.update(context(ROUTER, {key: [value] for key, value in busy.items()}, now=3.0).raw_metrics or {})
    assert stale.raw_metrics.keys() >= busy.keys()
    for key in demand_metrics(MODEL, IDLE):
        stale.raw_metrics[key] = {replica: [TimeStampedValue(60.0, 0.0)] for replica in stale.running_replicas}
    for step in range(70):
        stale.current_time = 61.0 + step
        decisions = decide(policy, stale, context(MODEL, {}, 4, 1, 8))
    assert decisions == {DeploymentID(MODEL, "app"): 1}


@pytest.mark.parametrize("by_demand", [True, False])
@pytest.mark.parametrize(("background", "expected"), [(0.0, 2), (0.9, 1)])
def test_a_replica_that_is_busy_in_the_background_is_enough(background: float, expected: int, by_demand: bool) -> None:
    """Jobs run on the replicas that there are."""
    demand = ModelDemand({Priority.NORMAL: Demand(0.1, 0.001, 10.0)}, background=background)
    asked = demand_metrics(MODEL, demand) if by_demand else load_metrics(MODEL, 32, demand)
    router = context(ROUTER, {key: [value] for key, value in asked.items()} | {BUSY: [0.1]}, 1, 1, 1)
    decisions = decide(make_policy(), router, context(MODEL, {BUSY: [1.0], IDLE_CORES: [2.0]}, 1, 1, 8))
    assert decisions == {DeploymentID(MODEL, "app"): expected}


def test_models_that_compete_get_what_there_is_room_for() -> None:
    """Beside the router and models of a fixed number; replicas go where they save most, and the reason says so."""
    other = "m_moods"
    requests = {MODEL: 100.0, other: 10.0}
    reported = need_metrics(ROUTER, 1.0) | need_metrics("fixed", 2.0)
    for name, per_s in requests.items():
        demand = ModelDemand({Priority.NORMAL: Demand(2.8, 0.01, 2.8, per_s)})
        reported |= demand_metrics(name, demand) | need_metrics(name, 1.0)
    published: list[str] = []
    policy = make_policy(published, room={"CPU": 7.0})
    for now in (1.0, 2.0):
        both = {key: [value] * 2 if key.startswith("need") else [value / 2] * 2 for key, value in reported.items()}
        router = context(ROUTER, both | {BUSY: [0.5, 0.5]}, 2, 2, 2, now=now)
        models = [context(name, {}, 1, 1, 8, now=now) for name in requests]
        decisions = decide(policy, router, *models, context("fixed", {}, 1, 1, 1, now=now))
    assert decisions == {DeploymentID(MODEL, "app"): 2, DeploymentID(other, "app"): 1}
    reasons = json.loads(published[-1])
    assert {name: reasons[name]["because"] for name in requests} == dict.fromkeys(requests, "room")
    router = context(ROUTER, both | {BUSY: [0.5, 0.5]}, 2, 2, 2, now=3.0)
    decide(policy, router, context(MODEL, {}, 2, 1, 8, now=3.0))
    reasons = json.loads(published[-1])
    assert {name: reason["because"] for name, reason in reasons.items()} == {MODEL: "demand"}  # the other is gone


def test_a_replica_moves_to_another_model_only_after_a_while() -> None:
    """Decisions between reports, ten a second, neither hasten it nor forget what was missed."""
    names = (MODEL, "m_moods")
    policy, room = make_policy(room={"CPU": 3.0}), need_metrics(names[0], 1.0) | need_metrics(names[1], 1.0)
    targets, moved_at = {names[0]: 2, names[1]: 1}, 0.0
    for tick in range(1000):
        now = 1.0 + tick / 10.0
        # The first replica of `moods` beyond one saves 80 of the 180 requests, the second of the other 50 of 150.
        works = {names[0]: (1.5, 75.0), names[1]: (1.8, 90.0) if now > 20.0 else (0.5, 25.0)}
        reported = dict(room)
        for name, (work, per_s) in works.items():
            demand = ModelDemand({Priority.NORMAL: Demand(work, 1e-6, 100 * work, per_s)})
            reported |= demand_metrics(name, demand)
        router = context(ROUTER, {key: [value] for key, value in reported.items()} | {BUSY: [0.5]}, 1, 1, 1, now=now)
        models = [context(name, {}, target, 1, 8, now=now) for name, target in targets.items()]
        decisions = decide(policy, router, *models)
        targets = {name: decisions[DeploymentID(name, "app")] for name in names}
        assert sum(targets.values()) <= 3
        if targets[names[1]] == 2:
            moved_at = now
            break
    start_s, missed_per_s = 10.0, 80.0 - 50.0
    assert moved_at == pytest.approx(21.0 + 2.0 * start_s * 50.0 / missed_per_s, abs=4.0)


def test_numbers_that_are_none_are_no_demand() -> None:
    """A router that reports them does not stop the others' models."""
    policy = make_policy()
    for now in (1.0, 2.0):
        broken = demand_metrics(MODEL, ModelDemand({Priority.NORMAL: Demand(inf, nan, 1.0, 1.0)}))
        router = context(ROUTER, {key: [value] for key, value in broken.items()} | {BUSY: [0.5]}, 1, 1, 1, now=now)
        assert decide(policy, router, context(MODEL, {}, 1, 1, 8, now=now)) == {DeploymentID(MODEL, "app"): 1}


def test_what_waits_in_the_background_starts_one() -> None:
    """Though it is no demand."""
    router = context(ROUTER, {key: [1.0] for key in demand_metrics(MODEL, IDLE)} | {BUSY: [0.1]}, 1, 1, 1)
    assert decide(make_policy(), router, context(MODEL, {}, 0, 0, 8)) == {DeploymentID(MODEL, "app"): 1}


def test_from_zero_as_many_start_as_are_needed() -> None:
    """Serve takes the target of a deployment without replicas, whatever a policy says."""
    busy = demand_metrics(MODEL, ModelDemand({Priority.NORMAL: Demand(2.5, 0.01, 2.5)}))
    router = context(ROUTER, {key: [value] for key, value in busy.items()} | {BUSY: [0.5]}, 1, 1, 1)
    published: list[str] = []
    model = context(MODEL, {}, 1, 0, 8, current=0)

    decide(make_policy(published), router, model)

    assert model.target_num_replicas == 3
    assert json.loads(published[-1])[MODEL]["because"] == "demand"


def test_a_model_of_which_no_router_has_reported_stays_as_it_is() -> None:
    """A router that starts, or has died, is no reason to end replicas."""
    contexts = [context(ROUTER, {}), context(MODEL, {BUSY: [1.0], IDLE_CORES: [1.0]})]

    assert decide(make_policy(), *contexts) == {}


@pytest.mark.parametrize(
    ("busy", "idle", "cores", "expected"),
    [
        ([0.5], 15.0, 16, 1),
        ([0.95], 12.0, 16, 2),
        ([0.95, 0.9], 8.0, 16, 3),
        ([0.95], 0.1, 16, 1),
        ([0.95], 1.0, 2, 1),
        ([0.9, 0.9, 0.9, 0.9], 1.0, 8, 4),
        ([0.2, 0.2, 0.1], 12.0, 16, 1),
        ([0.95], 12.0, None, 1),
    ],
)
def test_routers_follow_how_busy_they_are(busy: list[float], idle: float, cores: int | None, expected: int) -> None:
    """One more while cores are idle, and half of a node's cores at most."""
    told = {BUSY: busy, IDLE_CORES: [idle] * len(busy)} | ({} if cores is None else {CORES: [cores] * len(busy)})
    router = context(ROUTER, told, len(busy), maximum=8)

    assert decide(make_policy(), router) == {router.deployment_id: expected}


def test_a_number_of_routers_that_is_given_stays() -> None:
    """However busy they are."""
    router = context(ROUTER, {BUSY: [1.0, 1.0], IDLE_CORES: [9.0, 9.0], CORES: [16.0, 16.0]}, 2, 2, 2)

    assert decide(make_policy(), router) == {}
