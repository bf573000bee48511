"""What a number of replicas does with a demand: simulated with the scheduler that serves, many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from serve_app.domain.priority import Priority
from serve_app.scheduling.settings import ClassSettings
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.plan import uncertainty
from serve_app_simulator.plan.costs import CUDA, Costed, Slowed
from serve_app_simulator.plan.devices import Devices
from serve_app_simulator.plan.uncertainty import STALLS, Interval
from serve_app_simulator.results import Result, Tally
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Device, Scenario, SimulatedModel, Stream
from serve_app_simulator.workloads import Arrivals, generate


@dataclass(frozen=True, slots=True)
class ClassExpectation:
    """What to expect of one class of a model.

    Attributes:
        model: Name.
        label: The class's.
        rate: Requests per second.
        in_time: Part of the requests, 0 to 1.
        p50_s: Median latency of the answers; ``None`` without any. ``p99_s`` likewise.
    """

    model: str
    label: str
    rate: float
    in_time: Interval
    p50_s: Interval | None
    p99_s: Interval | None


@dataclass(frozen=True, slots=True)
class Expectation:
    """What to expect.

    Attributes:
        classes: Per model and class that is asked.
        utilisation: By model, part of the replicas' time in executions.
    """

    classes: tuple[ClassExpectation, ...]
    utilisation: Mapping[str, Interval]

    def least(self, model: str) -> float:
        """The smallest part in time over the model's classes; 1 without requests."""
        return min([each.in_time.value for each in self.classes if each.model == model], default=1.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated, but for arrivals and numbers of replicas.

    Attributes:
        models: Those that are asked.
        classes: The server's.
        duration_s: How long requests arrive.
        network_s: The server's allowance for everything around an execution.
        routers: Router processes.
        begin_s: Where in traces the simulated time begins.
    """

    models: tuple[Costed, ...]
    classes: Mapping[Priority, ClassSettings]
    duration_s: float
    network_s: float
    routers: int = 1
    begin_s: float = 0.0

    def only(self, model: Costed) -> Setup:
        """The same for one model."""
        return replace(self, models=(model,))

    def scenario(self, replicas: Mapping[str, int], draw: int = 0, devices: Devices | None = None) -> Scenario:
        """The scenario of these replicas, without a workload.

        Args:
            replicas: By model.
            draw: Its slowdown and ways; see `serve_app_simulator.plan.uncertainty`.
            devices: What replicas share; ``None``: each has a device of its own. GPUs count as one device that runs as
                many batches at once as there are GPUs.
        """
        shared, slowdown = {} if devices is None else self._shared(devices), uncertainty.slowdown(draw)
        return Scenario(
            "plan",
            tuple(
                SimulatedModel(
                    model.scheduling,
                    Slowed(model.curve, slowdown),
                    replicas[model.name],
                    {name: Slowed(curve, slowdown) for name, curve in model.variants.items()},
                    model.device if model.device in shared else None,
                )
                for model in self.models
            ),
            (),
            self.duration_s,
            self.classes,
            tuple(shared.values()),
            routers=self.routers,
            overheads=uncertainty.overheads(draw),
            noise=replace(STALLS, kind="lognormal", spread=max(model.spread for model in self.models)),
        )

    def arrivals(self, streams: Sequence[Stream], seed: int) -> Arrivals:
        """The requests of a seed. Each has its model and class as its tenant, by which results are summed up.

        One without a cost bucket has the largest of its model. Times count from the beginning of the simulated time.

        Raises:
            ConfigError: A trace cannot be read.
        """
        workload = [
            replace(each, start_s=each.start_s - self.begin_s) if each.kind == "trace" else each for each in streams
        ]
        scenario = replace(
            self.scenario(dict.fromkeys([model.name for model in self.models], 1)), workload=tuple(workload)
        )
        found = generate(scenario, seed)
        tenants = tuple(f"{model}/{priority.label}" for model in found.models for priority in Priority)
        largest = np.array([model.buckets[-1] for model in self.models])[found.model]
        return replace(
            found,
            bucket=np.where(found.bucket == 0, largest, found.bucket),
            tenants=tenants,
            tenant=found.model * len(Priority) + found.priority - min(Priority),
        )

    def _shared(self, devices: Devices) -> dict[str, Device]:
        threads = max([model.threads for model in self.models if model.device != CUDA], default=1)
        found = {"cpu": Device("cpu", max(1, devices.replica_cores // threads))}
        return found | ({CUDA: Device(CUDA, len(devices.gpus))} if devices.gpus else {})


def to_model(arrivals: Arrivals, model: str) -> Arrivals:
    """The requests to one model."""
    kept = arrivals.model == arrivals.models.index(model)
    columns = {each.name: getattr(arrivals, each.name) for each in fields(arrivals)}
    return Arrivals(**{name: each[kept] if isinstance(each, np.ndarray) else each for name, each in columns.items()})


def expect(
    setup: Setup,
    replicas: Mapping[str, int],
    arrivals: Sequence[Arrivals],
    devices: Devices | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Expectation:
    """Simulate each draw's arrivals at these replicas.

    Args:
        arrivals: From `Setup.arrivals`, by draw.
        devices: See `Setup.scenario`.
        advance: Called after each simulation.
    """
    results = []
    for draw, requests in enumerate(arrivals):
        scenario = setup.scenario(replicas, draw, devices)
        # The real router counts a deadline from when a request reaches it, a simulated one knows the client's.
        network_s = max(0.0, setup.network_s - scenario.overheads.request_s)
        system = partial(ServeApp, network_s=network_s, by_tenant=False)
        results.append(simulate(scenario, system, draw, arrivals=requests))
        advance()
    found = dict.fromkeys(name for result in results for name in result.tenants if result.tenants[name].offered)
    return Expectation(
        tuple(_of_class(name, [result.tenants[name] for result in results], setup.duration_s) for name in found),
        {
            model.name: uncertainty.utilisation(
                [_utilisation(result, model.name, setup.duration_s, replicas[model.name]) for result in results]
            )
            for model in setup.models
        },
    )


def _of_class(name: str, tallies: Sequence[Tally], duration_s: float) -> ClassExpectation:
    model, _, label = name.rpartition("/")
    return ClassExpectation(
        model,
        label,
        sum(tally.offered for tally in tallies) / len(tallies) / duration_s,
        uncertainty.attainment([tally.attainment for tally in tallies]),
        _latency([tally.p50_s for tally in tallies]),
        _latency([tally.p99_s for tally in tallies]),
    )


def _latency(draws: Sequence[float | None]) -> Interval | None:
    known = [seconds for seconds in draws if seconds is not None]
    return uncertainty.latency(known) if known else None


def _utilisation(result: Result, model: str, duration_s: float, replicas: int) -> float:
    return min(1.0, result.models[model].server_s / (duration_s * replicas))
