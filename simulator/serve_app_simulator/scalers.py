"""What decides how many replicas a model has."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from serve_app.scheduling.demand import ModelDemand
from serve_app.scheduling.scaling import ReplicaPolicy, desired_replicas

_ROUNDING_S = 1e-9


class ScalingStep(NamedTuple):
    """A change of a model's number of replicas.

    Attributes:
        at_s: When it was decided.
        because: What decided; see `serve_app.scheduling.scaling.Sizing`.
    """

    at_s: float
    replicas: int
    because: str


class FleetState(NamedTuple):
    """What a scaler may know of a model.

    Attributes:
        target: Replicas decided on before.
        listed: Replicas that work.
        load_rows: Rows queued, running, and turned away since the last look.
        running_rows: Of these, those running.
        arrived_rows: Rows that have reached the system since the last look.
        demand: What was asked since the last look, as far as the system counts it.
    """

    now: float
    target: int
    listed: int
    load_rows: int
    running_rows: int
    arrived_rows: int
    demand: ModelDemand


class Scaler(Protocol):
    """Decides how many replicas a model should have; one object for each model of a run."""

    def decide(self, state: FleetState) -> tuple[int, str]:
        """The number, and what decided."""


class DemandScaler:
    """The server's `ReplicaPolicy`.

    Attributes:
        needed: Replicas for the demand at the last look, as a fraction.
        start_s: Time that a start is expected to take.
    """

    def __init__(self, minimum: int, maximum: int, hold_s: float | None = None) -> None:
        self._minimum, self._maximum = minimum, maximum
        self._policy = ReplicaPolicy(hold_s)
        self.needed = self.start_s = 0.0

    def decide(self, state: FleetState) -> tuple[int, str]:
        """See `Scaler`."""
        sizing = self._policy.decide(
            state.demand.of_class,
            state.now,
            listed=state.listed,
            target=state.target,
            minimum=self._minimum,
            maximum=self._maximum,
            backlog_s=state.demand.backlog_s,
        )
        self.needed, self.start_s = sizing.needed, sizing.start_s
        return sizing.replicas, sizing.because


class QueueScaler:
    """The server's rule for ``target_queue``, with Ray Serve's delays: a direction must be wanted for that long."""

    def __init__(
        self, minimum: int, maximum: int, target_rows: float, upscale_delay_s: float, downscale_delay_s: float
    ) -> None:
        self._minimum, self._maximum, self._target_rows = minimum, maximum, target_rows
        self._delays_s = {1: upscale_delay_s, -1: downscale_delay_s}
        self._wanted: tuple[int, float] | None = None  # which direction, and since when

    def decide(self, state: FleetState) -> tuple[int, str]:
        """See `Scaler`."""
        wanted = desired_replicas(state.load_rows, self._target_rows, state.target, self._minimum, self._maximum)
        direction = (wanted > state.target) - (wanted < state.target)
        if not direction:
            self._wanted = None
            return state.target, "queue"
        if self._wanted is None or self._wanted[0] != direction:
            self._wanted = (direction, state.now)
        if state.now - self._wanted[1] < self._delays_s[direction] - _ROUNDING_S:
            return state.target, "queue"
        self._wanted = None
        return wanted, "queue"
