"""The systems that are compared, and how many runs of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks.scheduling.ablations import ABLATIONS
from benchmarks.scheduling.baselines.triton import Triton
from benchmarks.scheduling.conditions import OVERHEADS
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import MakeSystem
from serve_app_simulator.scenario import Scenario
from serve_app_simulator.system import Request

OURS = "serve-app"
IN_PROCESS = "serve-app in process"
"""As if routers were where the replicas are: what the ways between them cost."""
WITHOUT_SHARES = "serve-app, min_share 0"
TRITON = "triton"
SLIDING = "sliding"
BASELINES = ("ray-serve", "clipper", "clockwork", "nexus", "symphony")


@dataclass(frozen=True, slots=True)
class Contender:
    """A system under test.

    Attributes:
        make_system: Makes it, in any process.
        without: Parts of the scheduler that are taken away from it; see `ablations`.
        tuned: Whether it is a baseline with settings that tuning has found.
    """

    make_system: MakeSystem
    without: tuple[str, ...] = ()
    tuned: bool = False

    def on(self, scenario: Scenario) -> Scenario:
        """The scenario as this contender meets it: without its parts that are settings."""
        for part in self.without:
            scenario = ABLATIONS[part].settings(scenario)
        return scenario


def ours(*without: str, **arguments: Any) -> Contender:
    """serve_app that allows for the overheads there are, without some of its parts."""
    arguments.setdefault("network_s", (OVERHEADS.send_s + OVERHEADS.answer_s) * OVERHEADS.mean_factor)
    for part in without:
        arguments |= ABLATIONS[part].arguments
    return Contender(partial(ServeApp, **arguments), without)


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario and who meets it.

    Attributes:
        scenario: What happens.
        contenders: By name.
        tuned: Baselines that take part with the settings that suit the scenario best; see `tuning.tuned`.
        bound: Whether the bound is wanted.
        value: Of the number that is swept.
        key: Where it belongs, for experiments that sweep several numbers.
        step_s: Resolution of series.
        tune_s: Tuning looks at so many seconds of the scenario at most.
        slot_s: Of the linear programme, where it is needed; coarse slots and short windows are quicker and looser.
        window_s: Likewise.
    """

    scenario: Scenario
    contenders: dict[str, Contender] = field(default_factory=lambda: {OURS: ours()})
    tuned: tuple[str, ...] = (TRITON,)
    bound: bool = False
    value: float | None = None
    key: tuple[Any, ...] = ()
    step_s: float = 1.0
    tune_s: float = 12.0
    slot_s: float | None = None
    window_s: float | None = None

    def tuning_scenario(self) -> Scenario:
        """What tuning looks at."""
        return replace(self.scenario, duration_s=min(self.scenario.duration_s, self.tune_s))


class TritonWithoutCancels(Triton):
    """Triton whose clients never call back a frame that a newer one has made worthless."""

    def arrive(self, request: Request) -> None:
        """See `System.arrive`."""
        request.stream = -1
        super().arrive(request)
