"""Deadlines of several steps in the simulator: how much of the whole each step is given.

One client request becomes one request to each step's model, one after the other. `Chain` makes them, over the system
that the scheduler's other experiments measure: it starts the next step when one is answered, and ends the client's
request when the last one is, or when one is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from serve_app.domain.priority import Priority
from serve_app.pipelines.policy import Course, TimeBudget
from serve_app.scheduling.demand import ModelDemand
from serve_app.scheduling.settings import ClassSettings, ModelScheduling
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Noise, Scenario, SimulatedModel, Stream
from serve_app_simulator.system import Hop, Request, System, World

ALPHA_S: Final = 0.004
BETA_S: Final = 0.001
MAX_ROWS: Final = 16
SLACK: Final = 5.0
"""The deadline of the whole, in executions of one row of every step."""

Allow = Callable[[TimeBudget, str, float, float], float]
"""Seconds that a step is given, of its budget, its name, what is left of the whole, and the whole."""


def anew(_budget: TimeBudget, _step: str, _left_s: float, whole_s: float) -> float:
    """A client that calls one model after the other, each with the timeout that it would give one alone."""
    return whole_s


def what_is_left(_budget: TimeBudget, _step: str, left_s: float, _whole_s: float) -> float:
    """A client that passes on what is left."""
    return left_s


def less_later(budget: TimeBudget, step: str, left_s: float, _whole_s: float) -> float:
    """What is left after the costs of the steps behind."""
    return left_s - budget.behind_s[step]


def strict(budget: TimeBudget, step: str, left_s: float, _whole_s: float) -> float:
    """Equal flexibility, and no more."""
    return min(left_s - budget.behind_s[step], budget.share_s(step, left_s))


def flexible(budget: TimeBudget, step: str, left_s: float, _whole_s: float) -> float:
    """As a pipeline does it: equal flexibility, with some lenience."""
    return budget.timeout_s(step, left_s)


POLICIES: Final[Mapping[str, Allow]] = {
    "each call its own timeout": anew,
    "what is left": what_is_left,
    "left after later costs": less_later,
    "equal flexibility alone": strict,
    "pipeline": flexible,
}


class Chain:
    """A system that serves requests to the first model by all of its models, one after the other.

    It refuses what could not be in time as a pipeline does, whatever each step is given.

    Args:
        allow: What each step is given.
        again: Whether a step that was dropped before the whole was late is tried once more with all that is left.
        inner: What serves the steps.
    """

    def __init__(self, allow: Allow, inner: Callable[[], System] = ServeApp, *, again: bool = False) -> None:
        self._allow = allow
        self._again = again
        self._inner = inner()
        self._ways: dict[Request, _Way] = {}

    def start(self, world: World) -> None:
        """See `System.start`."""
        self._world = world
        scenario = world.scenario
        self._models = [model.scheduling.name for model in scenario.models]
        self._own_s = {model.scheduling.name: model.curve(1, 0) for model in scenario.models}
        following = zip(self._models, [*self._models[1:], ""], strict=True)
        self._course = Course({name: (after,) if after else () for name, after in following}, self._models)
        self._inner.start(_Between(world, self))

    def replicas(self, model: str, names: Sequence[str]) -> None:
        """See `System.replicas`."""
        self._inner.replicas(model, names)

    def read_demand(self, model: str) -> ModelDemand:
        """See `System.read_demand`."""
        return self._inner.read_demand(model)

    def queued_rows(self, model: str) -> int:
        """See `System.queued_rows`."""
        return self._inner.queued_rows(model)

    def arrive(self, request: Request) -> None:
        """See `System.arrive`."""
        now = self._world.now
        budget = self._course.budget(self._own_s, request.priority)
        admitted = self._course.admit(budget, request.deadline - now, now)
        if admitted is None:
            self._world.drop(request)
        else:
            self._begin(_Way(request, admitted, 0, now))

    def _begin(self, way: _Way, *, again: bool = False) -> None:
        whole, now, model = way.whole, self._world.now, self._models[way.step]
        left_s = whole.deadline - now
        allowed_s = left_s if again else self._allow(way.budget, model, left_s, whole.deadline - whole.arrival)
        if allowed_s <= 0.0:
            self._world.drop(whole)
            return
        step = Request(whole.id, model, whole.priority, now, now + allowed_s, whole.rows, whole.bucket)
        way.began, way.tried = now, again
        self._ways[step] = way
        self._inner.arrive(step)

    def ended(self, step: Request, *, answered: bool) -> None:
        """A step has ended."""
        if step.ended is not None:
            return
        way, now = self._ways.pop(step), self._world.now
        step.ended = now
        if not answered:
            if (
                self._again
                and not way.tried
                and now + self._own_s[step.model] + way.budget.behind_s[step.model] <= way.whole.deadline
                and step.deadline < way.whole.deadline
            ):
                self._begin(way, again=True)
            else:
                self._world.drop(way.whole)
            return
        self._course.measured(step.model, step.priority, self._own_s[step.model], now - way.began)
        way.step += 1
        if way.step == len(self._models):
            self._world.answer(way.whole)
        else:
            self._begin(way)


@dataclass(slots=True)
class _Way:
    whole: Request
    budget: TimeBudget
    step: int
    began: float
    tried: bool = False


class _Between:
    """The world as the system below sees it: ends of steps come to the chain."""

    def __init__(self, world: World, chain: Chain) -> None:
        self._world = world
        self._chain = chain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def answer(self, request: Request, left: float | None = None, hop: Hop = "answer") -> None:  # noqa: ARG002
        """See `World.answer`. What raised has no answer."""
        self._chain.ended(request, answered=not request.raised)

    def drop(self, request: Request) -> None:
        """See `World.drop`."""
        self._chain.ended(request, answered=False)


def scenario(steps: int, load: float, *, cv: float = 2.0, seconds: float = 120.0, slack: float = SLACK) -> Scenario:
    """Models in sequence, with one replica each and the same cost, asked by a gamma process.

    Args:
        steps: How many.
        load: Rows per second as a part of what full batches of one model could run.
        cv: Coefficient of variation of the gaps between requests.
        seconds: How long.
        slack: The deadline, in executions of one row of every step.
    """
    curve = Affine(ALPHA_S, BETA_S)
    most = MAX_ROWS / curve(MAX_ROWS)
    deadline_s = slack * steps * curve(1)
    names = [f"step{number + 1}" for number in range(steps)]
    return Scenario(
        name=f"{steps} steps at {load:.0%}",
        models=tuple(
            SimulatedModel(ModelScheduling(name, max_rows=MAX_ROWS, slo_s=deadline_s), curve) for name in names
        ),
        workload=(Stream("gamma", names[0], rate=load * most, timeout_s=deadline_s, cv=cv),),
        duration_s=seconds,
        classes={
            priority: ClassSettings(queue_entries=100_000, queue_bytes=1 << 50, timeout_s=deadline_s)
            for priority in Priority
        },
        noise=Noise("lognormal", 0.1),
        warm_up_s=5.0,
    )


def attainment(steps: int, load: float, seed: int, policy: str, **options: Any) -> float:
    """The part of all requests whose last step was in time."""
    run = partial(Chain, POLICIES[policy], again=options.pop("again", False))
    return simulate(scenario(steps, load, **options), run, seed).attainment
