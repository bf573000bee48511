"""A simulated replica on its own: what it composes of what routers say of their entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from simulation_builders import NORMAL, make_arrivals, make_model, make_scenario

from serve_app.domain.priority import Priority
from serve_app.errors import DeadlineExceeded
from serve_app.payloads import NO_ATTRIBUTES
from serve_app.scheduling.decisions import Dispatch
from serve_app.scheduling.demand import ModelDemand
from serve_app.scheduling.entry import Entry
from serve_app_simulator.replica import Sent, SimulatedReplica
from serve_app_simulator.scenario import Affine
from serve_app_simulator.system import Request, World
from serve_app_simulator.ties import SimulatedTies
from serve_app_simulator.world import SimulatedWorld

LATE_S = 0.02
"""Enough for the fallback, and not for the exact model."""


_NO_SHARES = dict.fromkeys(Priority, 0.0)


class OneBundle:
    """Gives its replica each request in a bundle of its own, and notes the variant that it ran on, or its error."""

    name = "one bundle"

    def __init__(self, *, exact: bool, probe: bool, overhead_s: float = 0.0) -> None:
        self.ends: list[str] = []
        self._exact, self._probe, self._overhead_s = exact, probe, overhead_s

    def start(self, world: World) -> None:
        self._world = world

    def replicas(self, model: str, names: Sequence[str]) -> None:
        settings = self._world.scenario.models[0].scheduling
        (name,) = names
        self._replica = SimulatedReplica(self._world, settings, name, _NO_SHARES, SimulatedTies(), planned=False)
        self._replica.gate.seed([(1, 0, 0.05, ""), (1, 0, 0.005, "light")])

    def arrive(self, request: Request) -> None:
        now = self._world.now
        entry = Entry(1, "m", NORMAL, now, request.deadline, 1, 0, 0, request, attributes=NO_ATTRIBUTES)
        entry.probe = self._probe
        dispatch = Dispatch(1, "m", "m#0", [entry], 1, 0, 0.0, exact=self._exact, overhead_s=self._overhead_s)
        self._replica.arrive(Sent(dispatch, now, (), self._ended, self._ended))

    def read_demand(self, model: str) -> ModelDemand:
        """See `System.read_demand`."""
        return ModelDemand()

    def queued_rows(self, model: str) -> int:
        return 0

    def _ended(self, sent: Sent) -> None:
        self.ends += [variant for _, _, _, variant in sent.executions] or list(sent.codes.values())


CASES: Mapping[str, tuple[dict[str, Any], str]] = {
    "a fallback stands in where the exact model would be late": ({"exact": False, "probe": False}, "light"),
    "not where the bundle is for the exact model": ({"exact": True, "probe": False}, DeadlineExceeded.code),
    "and a probe runs all the same": ({"exact": True, "probe": True}, ""),
    "whatever the ways take": ({"exact": True, "probe": True, "overhead_s": LATE_S}, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_what_routers_say_of_an_entry_holds_at_the_gate(case: str) -> None:
    """As `serve_app.replica.runner` has it from the wire."""
    said, expected = CASES[case]
    system = OneBundle(**said)
    model = make_model(curve=Affine(0.05, 0.0), variants={"light": Affine(0.005, 0.0)})
    model = replace(model, scheduling=replace(model.scheduling, fallbacks=("light",)))
    scenario = make_scenario(models=(model,))
    SimulatedWorld(scenario, 0, 1.0).run(system, make_arrivals((1.0, 1.0 + LATE_S)))
    assert system.ends == [expected]
