"""How many replicas a model has: start-up, autoscaling, deaths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from serve_app.scheduling.demand import ModelDemand
from serve_app.scheduling.room import WEIGHTS, Claim
from serve_app_simulator.loop import Event, Loop
from serve_app_simulator.machine import Machine
from serve_app_simulator.scalers import DemandScaler, FleetState, ScalingStep
from serve_app_simulator.scenario import Failure, SimulatedModel


class Fleet:
    """The replicas of one model: they start, die, and come and go with the load.

    Attributes:
        listed: Replicas that systems know, by name, oldest first.
        target: Replicas wanted.
        running_rows: Rows in execution.
        arrived_rows: Rows that have reached the system since autoscaling last looked.
        changes: How autoscaling changed the target.
    """

    def __init__(
        self,
        model: SimulatedModel,
        loop: Loop,
        make_machine: Callable[[Fleet, int], Machine],
        tell: Callable[[Fleet], None],
        waiting_rows: Callable[[str], int],
        read_demand: Callable[[str], ModelDemand],
    ) -> None:
        self.model = model
        self.name = model.scheduling.name
        self.listed: dict[str, Machine] = {}
        self.target = model.replicas
        self.running_rows = 0
        self._loop = loop
        self._make_machine = make_machine
        self._tell = tell
        self._waiting_rows = waiting_rows
        self._read_demand = read_demand
        self._starting: list[Event] = []
        self._last = 0
        self.arrived_rows = 0
        self.changes: list[ScalingStep] = []
        self._demand = ModelDemand()
        self._scaler = None if model.autoscaling is None else model.autoscaling.scaler()

    def start(self) -> None:
        """List the first replicas."""
        for _ in range(self.model.replicas):
            self._list()
        self._tell(self)

    def fail(self, failure: Failure) -> None:
        """Break a replica now. Nothing happens if it is not there."""
        alive = self._alive()
        if failure.replica >= len(alive):
            return
        machine = alive[failure.replica]
        if failure.kind == "hang":
            machine.hang(failure)
        elif failure.kind == "fail":
            machine.fail(failure)
        else:
            self._die(machine, failure)

    def kill(self, machine: Machine) -> None:
        """Kill a replica's process if it hangs."""
        if machine.status != "hangs":
            return
        if machine.name in self.listed and machine.hang_of is not None:
            self._die(machine, machine.hang_of)
        else:
            machine.die()

    def _die(self, machine: Machine, failure: Failure) -> None:
        machine.gone = now = self._loop.now
        self._start(failure.down_s)
        self._loop.at(now + min(failure.noticed_s, failure.down_s), partial(self._unlist, machine))
        machine.die()

    def _alive(self) -> list[Machine]:
        return [machine for machine in self.listed.values() if not machine.dead]

    def _list(self) -> None:
        self._last += 1
        machine = self._make_machine(self, self._last)
        machine.listed()
        self.listed[machine.name] = machine

    def _unlist(self, machine: Machine) -> None:
        if machine.gone is None:
            machine.gone = self._loop.now
        if self.listed.pop(machine.name, None) is not None:
            self._tell(self)

    def _start(self, after_s: float) -> None:
        """Ask for one more replica."""

        def up() -> None:
            self._starting.remove(event)
            self._list()
            self._tell(self)

        event = self._loop.at(self._loop.now + after_s, up)
        self._starting.append(event)

    def _stop_one(self) -> None:
        """Stop a replica: one that starts, else the one listed last, which finishes its work."""
        if self._starting:
            self._starting.pop().cancel()
        elif alive := self._alive():
            self._unlist(alive[-1])

    def decide(self) -> tuple[int, str]:
        """Ask the scaler how many replicas there should be, and what decided; the target where there is none."""
        if self._scaler is None:
            return self.target, ""
        self._demand = self._read_demand(self.name)
        state = FleetState(
            self._loop.now,
            self.target,
            len(self._alive()),
            self._waiting_rows(self.name) + self.running_rows + self._demand.turned_away_rows,
            self.running_rows,
            self.arrived_rows,
            self._demand,
        )
        self.arrived_rows = 0
        return self._scaler.decide(state)

    def claim(self, wanted: int) -> Claim | None:
        """The claim on the scenario's room after `decide`; ``None`` if replicas do not follow the demand."""
        if not isinstance(self._scaler, DemandScaler) or self.model.autoscaling is None:
            return None
        return Claim(
            wanted,
            self.model.autoscaling.min_replicas,
            self.target,
            self._scaler.needed,
            sum([WEIGHTS[priority] * demand.requests for priority, demand in self._demand.of_class.items()]),
            self.model.needs,
            self._scaler.start_s,
        )

    def resize(self, wanted: int, because: str) -> None:
        """Start or stop replicas."""
        if wanted != self.target:
            self.changes.append(ScalingStep(self._loop.now, wanted, because))
        while self.target < wanted:
            self.target += 1
            self._start(self.model.startup_s)
        while self.target > wanted:
            self.target -= 1
            self._stop_one()
