"""Parts of the scheduler, each with a way to take it away.

Most are settings. The others have no switch, and need none in the product: while a simulation runs, one method of the
scheduler is replaced by one that does not do that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from serve_app.domain.priority import Priority
from serve_app.scheduling import gate, scheduler
from serve_app.scheduling.batching import run_search
from serve_app.scheduling.batching.blocking_limit import BlockingLimit
from serve_app.scheduling.batching.filling import Filling
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.overhead import Overhead
from serve_app.scheduling.placement import devices
from serve_app.scheduling.queueing.probes import Probes
from serve_app.scheduling.queueing.queue import ModelQueue
from serve_app.scheduling.queueing.sizes import Size, SizeFairness
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.scenario import Scenario

Change = Callable[[Scenario], Scenario]


def _as_it_is(scenario: Scenario) -> Scenario:
    return scenario


@dataclass(frozen=True, slots=True)
class Ablation:
    """How a part is taken away.

    Attributes:
        what: What is gone then, for readers.
        settings: The scenario without it.
        arguments: Of `ServeApp` without it.
        replaced: Attributes that are replaced for the time of a simulation: (owner, name, value).
    """

    what: str
    settings: Change = _as_it_is
    arguments: Mapping[str, Any] = field(default_factory=dict)
    replaced: tuple[tuple[Any, str, Any], ...] = ()


@contextmanager
def taken_away(parts: tuple[str, ...]) -> Iterator[None]:
    """Within it, these parts are missing from every scheduler of this process."""
    with ExitStack() as stack:
        for part in parts:
            for owner, name, value in ABLATIONS[part].replaced:
                stack.enter_context(replaced(owner, name, value))
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within it, an attribute of a class or module has another value. The owner must have it itself."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _scheduling(**changes: Any) -> Change:
    def change(scenario: Scenario) -> Scenario:
        models = tuple(replace(model, scheduling=replace(model.scheduling, **changes)) for model in scenario.models)
        return replace(scenario, models=models)

    return change


def _without_shares(scenario: Scenario) -> Scenario:
    classes = {priority: replace(settings, min_share=0.0) for priority, settings in scenario.classes.items()}
    return replace(scenario, classes=classes)


_fill = Filling.fill


def _nothing(*_: Any) -> None:
    return None


def _never(*_: Any) -> bool:
    return False


def _no_sizes(*_: Any) -> list[Size]:
    return []


def _any_length(*_: Any) -> float:
    return inf


def _fill_high_freely(filling: Filling, queue: ModelQueue, chosen: Priority, *arguments: Any) -> None:
    if chosen is Priority.HIGH:
        filling.room = filling.room._replace(longest_s=inf)
    _fill(filling, queue, chosen, *arguments)


def _slack_alone(latency: LatencyModel, _: ModelScheduling, rows: int, bucket: int, left_s: float) -> float:
    return left_s if latency.predict(rows, bucket) <= left_s else inf


def _in_one_process(scenario: Scenario) -> Scenario:
    overheads = scenario.overheads
    answer_s = max(0.0, overheads.answer_s - overheads.send_s)
    return replace(scenario, overheads=replace(overheads, send_s=0.0, answer_s=answer_s, router_s=0.0))


ABLATIONS: dict[str, Ablation] = {
    "best run": Ablation(
        "a batch begins at the first entry that can be in time", replaced=((run_search, "_BETTER", inf),)
    ),
    "waiting": Ablation("a free session takes what is there (`eager`)", _scheduling(policy="eager")),
    "second batch ahead": Ablation("no more is sent ahead than one batch", _scheduling(window=1)),
    "coalescing": Ablation("each entry travels as it comes", replaced=((devices, "_COALESCE_FRACTION", 0.0),)),
    "small bundles": Ablation(
        "a bundle may hold as much as a batch", replaced=((devices, "_MAX_PARTS_OF_BATCH", 1e-6),)
    ),
    "admission": Ablation("nothing is refused for its deadline", replaced=((scheduler, "too_slow", _nothing),)),
    "fill": Ablation("no rows of other classes in a batch", replaced=((Filling, "fill", _nothing),)),
    "cap on lower classes": Ablation(
        "batches with rows of lower classes of any length",
        replaced=((BlockingLimit, "bound_s", _any_length), (BlockingLimit, "likely_blocks", _never)),
    ),
    "cap on filled rows": Ablation(
        "rows that fill batches of class `high` up may make its batch longer",
        replaced=((Filling, "fill", _fill_high_freely),),
    ),
    "holding back": Ablation(
        "a long low bundle is not held back", replaced=((BlockingLimit, "likely_blocks", _never),)
    ),
    "guaranteed share": Ablation("min_share 0", _without_shares),
    "latency target": Ablation(
        "batches as long as their heads' deadlines allow",
        replaced=((run_search, "target_s", _slack_alone), (gate, "target_s", _slack_alone)),
    ),
    "probes": Ablation(
        "nothing runs that is predicted to be late",
        replaced=((gate.Gate, "_is_probe", _never), (Probes, "allow", _never)),
    ),
    "learned overhead": Ablation("the configured allowance stays", replaced=((Overhead, "observe", _nothing),)),
    "fairness inside a class": Ablation("all requests count as one tenant's", arguments={"by_tenant": False}),
    "fairness over sizes": Ablation(
        "requests that cost most are given up first", replaced=((SizeFairness, "short", _no_sizes),)
    ),
    "sizes only where free": Ablation(
        "half of its class's mean is guaranteed to each size", _scheduling(size_fairness=0.5)
    ),
    "passing over": Ablation("a batch ends at the first longer request", replaced=((run_search, "_ASIDE", 0),)),
    "ties": Ablation("entries are bound to a replica when they are sent", _scheduling(copies=1)),
    "ways to replicas": Ablation("routers cost nothing, and are where the replicas are", _in_one_process),
    "fallbacks": Ablation("no lighter variant stands in", _scheduling(fallbacks=())),
    "newest frame wins": Ablation("older frames stay queued", arguments={"newest_frame_wins": False}),
}
