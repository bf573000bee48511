"""Autoscaling: the demand of models, and how busy processes are.

Serve counts calls to a deployment, and here one call is a bundle of many requests, and a request that is refused is
none: its own numbers say little. The routers report what is asked of each model, each replica how busy its process is
(`record_autoscaling_stats`), and the application-level policy below turns them into replicas, which Serve bounds by
each deployment's limits.

The configuration names it: ``autoscaling_policy.policy_function: serve_app.deployments.autoscaling:ScaleByDemand``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import ray

from serve_app.config.names import ROUTER, RUN_VARIABLE
from serve_app.deployments.register import write_sizings
from serve_app.domain.priority import Priority
from serve_app.scheduling.demand import Demand, ModelDemand
from serve_app.scheduling.room import WEIGHTS, Claim, SharedRoom
from serve_app.scheduling.scaling import ReplicaPolicy, Sizing, busy_replicas, desired_replicas, routers_on

if TYPE_CHECKING:
    from ray.serve._private.common import DeploymentID, ReplicaID
    from ray.serve.config import AutoscalingContext

logger = logging.getLogger("ray.serve")

BUSY, IDLE_CORES, CORES = "busy", "idle_cores", "cores"
"""What a replica or a router reports: the part of the time for which it computes, the cores of its node that nobody
uses, and how many cores it may use in all."""

_LOAD, _BACKLOG, _DEMAND = "load_", "backlog_", "demand_{}_{}_"
_LIVE, _BACKGROUND = "live_", "background_"
_CPU, _GPU = "CPU", "GPU"
_NEEDS = "need_"
_NEED = _NEEDS + "{}_"
_INTERVAL_S = 1.0


def cluster_room() -> dict[str, float]:
    """Processors and GPUs of the cluster; none has no limit, as on a cluster that may grow."""
    # Ray does not say whether there is an autoscaler, which adds nodes only for replicas that wait for them.
    if RUN_VARIABLE not in os.environ:
        return {}
    resources = ray.cluster_resources()
    return {name: amount for name in (_CPU, _GPU) if (amount := resources.get(name, 0.0)) > 0.0}


def need_metrics(deployment: str, cpus: float, gpus: float = 0.0) -> dict[str, float]:
    """What a router reports of the resources of a deployment's replicas."""
    return {_NEED.format(name) + deployment: amount for name, amount in ((_CPU, cpus), (_GPU, gpus)) if amount}


def load_metrics(deployment: str, rows: int, demand: ModelDemand) -> dict[str, float]:
    """What a router reports of a model with a target for its queue, those turned away included."""
    return {_LOAD + deployment: float(rows + demand.turned_away_rows), **_parts(deployment, demand)}


def demand_metrics(deployment: str, demand: ModelDemand) -> dict[str, float]:
    """What a router reports of a model whose replicas follow the demand."""
    found = {_BACKLOG + deployment: demand.backlog_s, **_parts(deployment, demand)}
    for priority, of_class in demand.of_class.items():
        for field, value in of_class._asdict().items():
            found[_DEMAND.format(priority.label, field) + deployment] = value
    return found


def _parts(deployment: str, demand: ModelDemand) -> dict[str, float]:
    """The work that asks for replicas and the work that does not, while there is some of the latter."""
    if not demand.background:
        return {}
    live = sum([of_class.work for of_class in demand.of_class.values()])
    return {_LIVE + deployment: live, _BACKGROUND + deployment: demand.background}


class ScaleByDemand:
    """Decides how many replicas each deployment of an application should have. Serve makes one for the application.

    A model whose `max_replicas` is a number follows its demand (`ReplicaPolicy`), or with a `target_queue` its rows:
    each replica is meant to hold so many, queued, running and just turned away. In addition a replica on the CPU that
    is busy most of the time gets another one while cores are idle, since decoding and light models keep one core of one
    process busy. Routers follow how busy they are alone, and leave half of a node's cores to replicas. Deployments that
    are left out keep the number they have. Where models ask for more than the cluster's room, replicas go where they
    save most (`serve_app.scheduling.room`).

    Args:
        room: Gives the cluster's resources.
        publish: Gets the application's name, and as JSON why its models have as many replicas as they have.
    """

    def __init__(
        self,
        publish: Callable[[str, str], None] = write_sizings,
        room: Callable[[], Mapping[str, float]] = cluster_room,
    ) -> None:
        self._publish = publish
        self._read_room = room
        self._shared = SharedRoom()
        self._room: Mapping[str, float] = {}
        self._shown: dict[str, tuple[int, str]] = {}
        self._policies: dict[str, ReplicaPolicy] = {}
        self._sizings: dict[str, Sizing] = {}  # by the demand alone
        self._lowered: dict[str, Sizing] = {}  # for want of room
        self._given: Mapping[str, int] = {}
        self._reported: dict[str, float] = {}
        self._decided_at = 0.0

    def __call__(
        self, contexts: Mapping[DeploymentID, AutoscalingContext]
    ) -> tuple[dict[DeploymentID, int], dict[DeploymentID, dict[str, Any]]]:
        """Decide. Called by Serve's controller about ten times a second."""
        decisions: dict[DeploymentID, int] = {}
        routers = next((each for each in contexts.values() if each.deployment_name == ROUTER), None)
        if routers is None:
            return {}, {}
        if (wanted := _routers(routers)) is not None:
            decisions[routers.deployment_id] = wanted
        now = routers.current_time or 0.0
        due = not 0.0 <= now - self._decided_at < _INTERVAL_S
        if due:
            # Reports come as often. Adding them up is the controller's work, for all metrics of all routers.
            self._decided_at, self._reported, self._room = now, _latest(routers), self._read_room()
        reported = self._reported
        for deployment, context in contexts.items():
            name = deployment.name
            if name == ROUTER:
                continue
            if _BACKLOG + name in reported:
                if due:
                    self._decide(context, reported, now)
                if name not in self._sizings:
                    continue
                wanted = self._sizings[name].replicas
            elif _LOAD + name in reported:
                wanted = desired_replicas(
                    load_rows=ceil(reported[_LOAD + name]),
                    target_rows=context.config.get_target_ongoing_requests(),
                    current=context.target_num_replicas,
                    minimum=context.capacity_adjusted_min_replicas,
                    maximum=context.capacity_adjusted_max_replicas,
                )
            else:
                continue
            own = context.aggregated_metrics or {}
            if wanted and own.get(BUSY):
                live, background = reported.get(_LIVE + name, 0.0), reported.get(_BACKGROUND + name, 0.0)
                part = live / (live + background) if background else 1.0
                busier = _busier(own, context.target_num_replicas, part)
                wanted = max(wanted, min(busier, context.capacity_adjusted_max_replicas))
            decisions[deployment] = wanted
        if due:
            self._fit(contexts, decisions, now)
        for deployment, wanted in decisions.items():
            decisions[deployment] = min(wanted, self._given.get(deployment.name, wanted))
        for deployment, wanted in decisions.items():
            context = contexts[deployment]
            if not context.current_num_replicas and wanted > context.target_num_replicas:
                # For a deployment without replicas Serve takes the target, and one where there is none, whatever the
                # policy says: so several are started at once only if the target is there already.
                context.target_num_replicas = wanted
        if due:
            self._show(routers.app_name or "", [deployment.name for deployment in contexts])
        return decisions, {}

    def _fit(
        self, contexts: Mapping[DeploymentID, AutoscalingContext], decisions: dict[DeploymentID, int], now: float
    ) -> None:
        """Share the room among models that follow the demand."""
        reported, others = self._reported, []
        claims: dict[str, Claim] = {}
        for deployment, context in contexts.items():
            needs = {name: need for name in self._room if (need := reported.get(_NEED.format(name) + deployment.name))}
            if deployment not in decisions or deployment.name not in self._sizings:
                others.append((decisions.get(deployment, context.target_num_replicas), needs))
                continue
            demands = _demands(deployment.name, reported)
            claims[deployment.name] = Claim(
                decisions[deployment],
                context.capacity_adjusted_min_replicas,
                context.target_num_replicas,
                self._sizings[deployment.name].needed,
                sum([WEIGHTS[priority] * demand.requests for priority, demand in demands.items()]),
                needs,
                self._sizings[deployment.name].start_s,
            )
        self._given = self._shared.decide(claims, self._room, now, others)
        self._lowered = {
            name: self._sizings[name]._replace(replicas=number, because="room")
            for name, number in self._given.items()
            if number < claims[name].replicas
        }

    def _show(self, application: str, names: Iterable[str]) -> None:
        """Log numbers that have changed, and publish them and their reasons."""
        sizings = {name: self._lowered.get(name, self._sizings[name]) for name in names if name in self._sizings}
        shown = {name: (sizing.replicas, sizing.because) for name, sizing in sizings.items()}
        if shown == self._shown:
            return
        for name, sizing in sizings.items():
            if self._shown.get(name, (None, ""))[0] != sizing.replicas:
                logger.info("serve_app: replicas of %s: %s", name, sizing)
        self._shown = shown
        self._publish(application, json.dumps({name: sizing._asdict() for name, sizing in sizings.items()}))

    def _decide(self, context: AutoscalingContext, reported: Mapping[str, float], now: float) -> None:
        """Size a model's deployment by its demand."""
        name = context.deployment_name
        if (policy := self._policies.get(name)) is None:
            # With a delay of its own Serve holds the number.
            policy = self._policies[name] = ReplicaPolicy(0.0 if context.config.downscale_delay_s else None)
        self._sizings[name] = policy.decide(
            _demands(name, reported),
            now,
            listed=context.current_num_replicas,
            target=context.target_num_replicas,
            minimum=context.capacity_adjusted_min_replicas,
            maximum=context.capacity_adjusted_max_replicas,
            backlog_s=reported[_BACKLOG + name],
        )


def _demands(name: str, reported: Mapping[str, float]) -> dict[Priority, Demand]:
    """The demand for a deployment, by class."""
    found = {
        priority: Demand(*(reported.get(_DEMAND.format(priority.label, field) + name, 0.0) for field in Demand._fields))
        for priority in Priority
    }
    return {priority: demand for priority, demand in found.items() if demand.work > 0.0 and isfinite(sum(demand))}


def _routers(context: AutoscalingContext) -> int | None:
    """How many routers there should be; ``None``: as many as there are."""
    reported = context.aggregated_metrics or {}
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    if least >= most or not reported.get(BUSY):
        return None
    most = max(least, routers_on(int(max(reported.get(CORES, {}).values(), default=1)), most))
    wanted: int = max(least, min(_busier(reported, context.target_num_replicas), most))
    return wanted


def _latest(context: AutoscalingContext) -> dict[str, float]:
    """The sum over living routers of what each has reported last, by metric.

    A value older than its router's last report is left out: zeros are not reported.
    """
    raw: Mapping[str, Mapping[ReplicaID, Any]] = context.raw_metrics or {}
    reports = {router: series[-1].timestamp for router, series in raw.get(BUSY, {}).items() if series}
    total: dict[str, float] = {}
    for metric, of_routers in raw.items():
        for router, series in of_routers.items():
            if series and series[-1].timestamp == reports.get(router):
                total[metric] = series[-1].value + (0.0 if metric.startswith(_NEEDS) else total.get(metric, 0.0))
    return total


def _busier(reported: Mapping[str, Mapping[Any, float]], current: int, part: float = 1.0) -> int:
    """Replicas for the part of their work that asks for some."""
    busy = [each * part for each in reported[BUSY].values()]
    return busy_replicas(busy, max(reported.get(IDLE_CORES, {}).values(), default=0.0), current)
