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

from serve_app.scheduling import composition, devices, gate, scheduler
from serve_app.scheduling.arrivals import ArrivalPattern
from serve_app.scheduling.batching import Auto, Waiting
from serve_app.scheduling.claims import Claims
from serve_app.scheduling.overhead import Earliness, Overhead
from serve_app.simulation.scenario import Scenario

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
                stack.enter_context(_replaced(owner, name, value))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
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


_open_at = Auto.open_at


def _without_deferral(self: Auto, waiting: Waiting) -> float:
    return _open_at(self, waiting._replace(usable=1))


def _nothing(*_: Any) -> None:
    return None


def _no_fill(*arguments: Any) -> int:
    return int(arguments[4].rows)


def _in_order(ticket: gate.Ticket) -> tuple[int, float, int]:
    return 0, 0.0, ticket.id


ABLATIONS: dict[str, Ablation] = {
    "early drop": Ablation("entries that cannot be in time are run all the same", _scheduling(early_drop=False)),
    "just-in-time staging": Ablation(
        "the next bundle is sent as soon as the replica has a slot",
        replaced=((devices.Device, "_lead_s", lambda *_: inf),),
    ),
    "staging": Ablation("a replica gets its next bundle when it has answered the last", _scheduling(window=1)),
    "burst waiting": Ablation(
        "no waiting for the rest of a burst",
        replaced=((Auto, "_BURST", inf), (ArrivalPattern, "in_bursts", property(lambda _: False))),
    ),
    "deferral": Ablation("no waiting while other replicas work", replaced=((Auto, "open_at", _without_deferral),)),
    "waiting": Ablation(
        "a bundle goes as soon as a replica can take it", replaced=((Auto, "open_at", lambda _, w: w.now),)
    ),
    "admission": Ablation("nothing is refused for its deadline", replaced=((scheduler, "too_slow", _nothing),)),
    "fill": Ablation("no lower-class rows in a bundle", replaced=((composition, "_fill", _no_fill),)),
    "cap on lower classes": Ablation(
        "lower-class bundles of any length",
        replaced=((Claims, "bounds_s", lambda *_: (inf, inf, inf)), (Claims, "likely_blocks", lambda *_: False)),
    ),
    "holding back": Ablation(
        "a long low bundle is not held back", replaced=((Claims, "likely_blocks", lambda *_: False),)
    ),
    "guaranteed share": Ablation("min_share 0", _without_shares),
    "learned overhead": Ablation("the configured allowance stays", replaced=((Overhead, "observe", _nothing),)),
    "learned earliness": Ablation(
        "deferral to the last moment, although executions scatter", replaced=((Earliness, "observe", _nothing),)
    ),
    "device groups": Ablation("every model is scheduled for itself", arguments={"co_schedule": False}),
    "fallbacks": Ablation("no lighter variant stands in", _scheduling(fallbacks=())),
    "newest frame wins": Ablation("older frames stay queued", arguments={"newest_frame_wins": False}),
    "gate order": Ablation("first come, first served at the replica", replaced=((gate, "_urgency", _in_order),)),
}
