"""Makes a plan: replicas that hold the demand, where they run, and what to expect of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from statistics import mean, median

from serve_app_simulator.plan.costs import CUDA, Costed
from serve_app_simulator.plan.devices import Devices
from serve_app_simulator.plan.expectation import Expectation, Setup, expect, to_model
from serve_app_simulator.plan.placement import Placement, place
from serve_app_simulator.plan.search import MOST, heavy_traffic, least, too_short
from serve_app_simulator.plan.uncertainty import DRAWS, ROUTER_FULL, ROUTER_S, SLOWDOWNS
from serve_app_simulator.scenario import Stream
from serve_app_simulator.workloads import Arrivals

_SEARCH_DRAWS = 5
_ROUNDS = 4
"""Times that all models are simulated together at most, each with another replica where the target was missed."""
_FULL = 0.8
"""More replicas do not help where this part of the cores is busy."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting of the plan.

    Attributes:
        model: Name.
        key: Its place below the model, e.g. ``autoscaling.min_replicas``; without a value: for the reader only.
        because: What it is due to.
    """

    model: str
    key: str
    value: object
    because: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and what to expect.

    Attributes:
        replicas: By model.
        choices: All settings, by model.
        expectation: At these replicas.
        problems: Why the target is not held, one line each with the remedy; empty: it is.
        placed: Models on each device, one for every replica.
        duration_s: The time that the expectation is for.
        begin_s: Where in traces it begins.
    """

    replicas: Mapping[str, int]
    choices: tuple[Choice, ...]
    expectation: Expectation
    problems: tuple[str, ...]
    placed: Mapping[str, Sequence[str]]
    duration_s: float
    begin_s: float


@dataclass(slots=True)
class _Need:
    """What one model needs, alone.

    Attributes:
        replicas: Least number that holds; the one that was tried last if there is none.
        busy: Utilisation of each replica.
        because: Why this number.
        problem: Why there is none.
    """

    replicas: int
    busy: float
    because: str
    problem: str = ""

    def add(self, because: str) -> None:
        """Need another replica, which takes its part of the work."""
        self.busy *= self.replicas / (self.replicas + 1)
        self.replicas += 1
        self.because = because


def make_plan(
    setup: Setup, streams: Sequence[Stream], devices: Devices, target: float, tell: Tell = lambda _: None
) -> Plan:
    """Make a plan.

    Args:
        streams: The demand.
        target: Part of each class that is to be in time, 0 to 1; ``protect`` of class ``high`` counts instead.
        tell: Called with what is done next, and once per simulation with an empty text.

    Raises:
        ConfigError: A trace cannot be read.
    """
    arrivals = [setup.arrivals(streams, draw) for draw in range(DRAWS)]
    needs: dict[str, _Need] = {}
    for model in setup.models:
        tell(f"replicas of {model.name}")
        needs[model.name] = _need(setup.only(model), model, arrivals, target, tell)
    router = router_problem(setup, len(arrivals[0]) / setup.duration_s)
    for more in range(_ROUNDS):
        counts = {name: need.replicas for name, need in needs.items()}
        placement = place(setup.models, counts, {name: need.busy for name, need in needs.items()}, devices)
        replicas = {model.name: max(1, placement.count(model.name)) for model in setup.models}
        tell("what to expect")
        expectation = expect(setup, replicas, arrivals, devices, lambda: tell(""))
        explained = {name: need.problem for name, need in needs.items() if need.problem}
        unplaced = {name: problem for name, problem in placement.problems.items() if name not in explained}
        problems = [router] if router else [*explained.values(), *unplaced.values()]
        missed = _missed(setup, expectation, target)
        busy = _busy_cores(setup.models, needs)
        if problems or not missed or more == _ROUNDS - 1 or busy > _FULL * devices.replica_cores:
            break
        for name, (label, part) in missed.items():  # more draws than in the search, and other models beside it
            needs[name].add(f"{replicas[name]} have {part:.1%} of class {label} in time")
    if not router and not unplaced:
        full = busy > _FULL * devices.replica_cores
        slowed = {model.name for model in setup.models if full and model.device != CUDA}
        problems += [
            _short_of(name, *worst, replicas[name], busy if name in slowed else 0.0, devices)
            for name, worst in missed.items()
            if name not in explained
        ]
    choices = [
        choice
        for model in setup.models
        for choice in _choices(model, needs[model.name], replicas[model.name], placement)
    ]
    return Plan(
        replicas, tuple(choices), expectation, tuple(problems), placement.placed, setup.duration_s, setup.begin_s
    )


def router_problem(setup: Setup, rate: float) -> str:
    """Why the routers cannot hold so many requests per second, with the remedy; empty: they can."""
    load = rate * ROUTER_S
    if load <= ROUTER_FULL * setup.routers:
        return ""
    return (
        f"router: {rate:.0f} requests per second keep {setup.routers} router processes {load / setup.routers:.0%} busy;"
        f" set router.replicas to {ceil(load / ROUTER_FULL)} on as many cores more, or send more rows per request"
    )


def target_of(setup: Setup, label: str, target: float) -> float:
    """The part of a class that is to be in time: its ``protect`` if it has one, or else the general target."""
    settings = next(settings for priority, settings in setup.classes.items() if priority.label == label)
    return settings.protect or target


def _need(setup: Setup, model: Costed, every: Sequence[Arrivals], target: float, tell: Tell) -> _Need:
    arrivals = [to_model(each, model.name) for each in every[:_SEARCH_DRAWS]]
    found: dict[int, Expectation] = {}

    def at(replicas: int) -> Expectation:
        if replicas not in found:
            found[replicas] = expect(setup, {model.name: replicas}, arrivals, advance=lambda: tell(""))
        return found[replicas]

    def holds(replicas: int) -> bool:
        return not _below(setup, at(replicas), target)

    formula = [heavy_traffic(model, each, setup.duration_s, setup.network_s) for each in arrivals]
    work = median(SLOWDOWNS) * mean(work for work, _ in formula)
    start = max(1, ceil(max(needed for _, needed in formula)))
    fewest = floor(work) + 1  # with fewer, the queue grows for as long as the demand lasts
    short = too_short(model, arrivals[0])
    number = None if short else least(holds, start, max(fewest, min(MOST, 4 * start + 4)), fewest)
    replicas = start if number is None else number
    busy = at(replicas).utilisation[model.name].value
    if short is not None:
        label, timeout_s, needed_s = short
        problem = (
            f"{model.name}: no number of replicas holds class {label}: its deadline of {_ms(timeout_s)} is shorter than"
            f" a request alone takes, {_ms(needed_s)}; allow more time, or give it a faster variant"
        )
        return _Need(replicas, busy, f"{start} by the heavy-traffic formula", problem)
    if number is None:
        most = max(found)
        worst, part, _ = _below(setup, at(most), target)[0]
        problem = (
            f"{model.name}: no number of replicas holds class {worst}: {most} have {part:.1%} in time, since batches of"
            " other requests are in the way or deadlines leave no time to wait; allow more time, or lower"
            f" batching.max_rows or the target"
        )
        return _Need(replicas, busy, f"{start} by the heavy-traffic formula", problem)
    if number == fewest > 1:
        return _Need(number, busy, f"the demand keeps {work:.2f} replicas busy")
    if number > 1:
        worst, part, _ = _below(setup, at(number - 1), target)[0]
        return _Need(number, busy, f"{number - 1} have {part:.1%} of class {worst} in time")
    return _Need(number, busy, "one holds the target")


def _below(setup: Setup, expectation: Expectation, target: float) -> list[tuple[str, float, str]]:
    """Classes below their target, the worst first: label, part in time, and model."""
    missed = [
        (each.in_time.value, each.label, each.model)
        for each in expectation.classes
        if each.in_time.value < target_of(setup, each.label, target)
    ]
    return [(label, part, model) for part, label, model in sorted(missed)]


def _missed(setup: Setup, expectation: Expectation, target: float) -> dict[str, tuple[str, float]]:
    """By model, its worst class below the target, and the part in time."""
    found: dict[str, tuple[str, float]] = {}
    for label, part, model in reversed(_below(setup, expectation, target)):
        found[model] = label, part
    return found


def _busy_cores(models: Sequence[Costed], needs: Mapping[str, _Need]) -> float:
    on_cpu = [(needs[model.name], model.threads) for model in models if model.device != CUDA]
    return sum(need.replicas * need.busy * threads for need, threads in on_cpu)


def _short_of(model: str, label: str, part: float, replicas: int, busy: float, devices: Devices) -> str:
    if not busy:
        return (
            f"{model}: class {label} has {part:.1%} in time with {replicas} beside the other models; give more devices,"
            " lower the rates, or allow more time"
        )
    return (
        f"{model}: class {label} has {part:.1%} in time, since replicas slow each other down: they keep {busy:.1f} of"
        f" {devices.replica_cores} cores busy; give more cores (--cpus), lower the rates, or allow more time"
    )


def _choices(model: Costed, need: _Need, replicas: int, placement: Placement) -> list[Choice]:
    def choice(key: str, value: object, because: str) -> Choice:
        return Choice(model.name, key, value, because)

    why = need.because if replicas == need.replicas else f"{need.replicas} are needed, and no more fit"
    found = [
        choice("autoscaling.min_replicas", replicas, why),
        choice("autoscaling.max_replicas", replicas, "the expectation is for a fixed number"),
        choice("batching.max_rows", model.scheduling.max_rows, model.because["batching.max_rows"]),
    ]
    if (share := placement.shares.get(model.name)) is not None:
        order = f"; list the models as {', '.join(placement.order)}" if placement.order else ""
        found += [
            choice("resources.gpus", share.gpus, f"its memory, or {need.busy:.0%} of a GPU's time{order}"),
            choice("resources.gpu_memory", share.gpu_memory, "the most that its profile added on the GPU"),
        ]
    elif model.device != CUDA:
        found += [
            choice("resources.threads", model.threads, model.because["resources.threads"]),
            choice("resources.instances", 1, "more replicas do the same, and were simulated"),
        ]
    found.append(choice("resources.row_sizes", None, "as configured; auto is measured at a replica's start"))
    return found + [choice(key, None, why) for key, why in model.because.items() if key.startswith("variants.")]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
