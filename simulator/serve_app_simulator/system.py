"""What a simulated serving system must do, and what the world does for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from serve_app.domain.priority import Priority
from serve_app.scheduling.demand import ModelDemand
from serve_app_simulator.scenario import Overheads, Scenario


class Request:
    """One simulated request.

    Attributes:
        id: Its place in the order of arrival.
        deadline: When the answer becomes worthless; end to end.
        stream: Number of the video stream that it is a frame of, or -1. A newer frame makes a waiting one worthless.
        tenant: Its sender, or empty.
        ended: When it was answered, rejected or dropped; ``None`` before that.
        answered: Whether it ended with an answer (in time or not).
        raised: Whether its last execution raised, so that it has no answer. Set by the world.
        replaced: Set by a system before it drops a frame for a newer one.
        server_s: Server time charged to it so far, seconds.
        waits: Whether it has reached the system, does not execute and has not ended. Set by the world.
    """

    __slots__ = (
        "answered", "arrival", "bucket", "deadline", "ended", "id", "model", "priority", "raised", "replaced", "rows",
        "server_s", "stream", "tenant", "waits",
    )  # fmt: skip

    def __init__(
        self,
        id: int,  # noqa: A002 - the glossary's word
        model: str,
        priority: Priority,
        arrival: float,
        deadline: float,
        rows: int = 1,
        bucket: int = 0,
        stream: int = -1,
        tenant: str = "",
    ) -> None:
        self.id = id
        self.model = model
        self.priority = priority
        self.arrival = arrival
        self.deadline = deadline
        self.rows = rows
        self.bucket = bucket
        self.stream = stream
        self.tenant = tenant
        self.ended: float | None = None
        self.answered = False
        self.raised = False
        self.replaced = False
        self.server_s = 0.0
        self.waits = False


class Execution(NamedTuple):
    """How an execution ended.

    Attributes:
        seconds: Its duration, as the replica would measure it.
        failed: Whether the replica died under it, so that nothing was answered.
        raised: Whether the model raised: the replica lives, and its answers are errors.
    """

    seconds: float
    failed: bool = False
    raised: bool = False


class Loaded(NamedTuple):
    """A member of a pool has been loaded.

    Attributes:
        replica: The replica that runs it, for `World.execute`.
        seconds: Duration of the load.
        nbytes: Memory it holds.
    """

    replica: str
    seconds: float
    nbytes: int


Status = Literal["works", "hangs", "dead"]
"""Of a replica's process."""


Hop = Literal["send", "answer", "direct", "timer"]
"""From a router to a replica; from there to the client by the router; to the client without one; from the time at which
a replica's timer is due to its call."""


class Timer(Protocol):
    """A scheduled action."""

    def cancel(self) -> None:
        """Do not run the action. No-op if it has run."""


class World(Protocol):
    """The virtual world: clock, replicas, clients. All times are virtual seconds from 0."""

    @property
    def now(self) -> float:
        """The time."""

    @property
    def scenario(self) -> Scenario:
        """The scenario. Systems may read models' settings and, where ``known``, curves; never the noise."""

    @property
    def overheads(self) -> Overheads:
        """The scenario's overheads, without the hop to the system, which is over when a request arrives there.

        They are medians. The system itself waits (`at`) for what a message really takes (`hop_s`).
        """

    def hop_s(self, hop: Hop) -> float:
        """Draw the time that the next message takes, seconds. Systems must not plan with it."""

    def next_stall_s(self) -> float:
        """Seconds from the end of a stall of a router's processor to the next; ``inf`` where there are none."""

    def at(self, when: float, action: Callable[[], None]) -> Timer:
        """Run ``action`` at ``when``; times in the past mean now. Equal times run in the order they were asked for."""

    def execute(
        self,
        model: str,
        replica: str,
        requests: Sequence[Request],
        rows: int,
        bucket: int,
        done: Callable[[Execution], None],
        variant: str = "",
    ) -> None:
        """Run a batch now at a replica that is idle (ValueError otherwise) and call ``done`` when it ends.

        Padding counts in ``rows``. A replica that is dead ends the execution at once as failed. Server time is
        charged to the requests by their rows; what is charged to one that is not answered in time is waste.
        A replica that has left the list because there are too many still runs what it is given.
        """

    def idle(self, replica: str) -> bool:
        """Whether nothing runs there."""

    def ready_at(self, replica: str) -> float:
        """When an idle replica can begin: now, or after the pause since its last execution."""

    def status(self, replica: str) -> Status:
        """Whether a replica's process runs. A replica that hangs reads no message before it goes on."""

    def watch(self, replica: str, changed: Callable[[], None]) -> None:
        """Call ``changed`` when a replica that hung goes on, and when it dies; not when it begins to hang."""

    def kill(self, replica: str) -> None:
        """Kill a replica that hangs; its successor starts at once. Any other is left alone."""

    def example_runs(self, replica: str) -> bool:
        """Whether an input that is known to be good runs at a replica now. Takes no time."""

    def answer(self, request: Request, left: float | None = None, hop: Hop = "answer") -> None:
        """Send the answer by this hop. No-op if the request has ended.

        If its last execution raised, the answer is an error: the request counts as dropped. A system that has waited
        for the hop itself says when the answer ``left``; then it arrives now.
        """

    def drop(self, request: Request) -> None:
        """End a request without an answer: rejected, expired, or shed. No-op if it has ended."""

    def load(self, model: str) -> int:
        """Rows running at the model's replicas."""

    def hosts(self, pool: str) -> Sequence[str]:
        """Names of the processes of a pool."""

    def load_member(self, model: str, host: str, done: Callable[[Loaded], None]) -> None:
        """Load a member of a pool at a host now, and call ``done`` when it can execute.

        Raises ValueError if the host has or loads the member already, or lacks the memory. Loads at one host run at the
        same time; a system that wants them one by one has to wait.
        """

    def evict_member(self, model: str, host: str) -> None:
        """Unload a member. Raises ValueError if it is not loaded, or executes."""


class System(Protocol):
    """A serving system under test: takes requests and decides what runs where. Made anew for every run.

    Every request must end in `World.answer` or `World.drop`; those that have not when the simulation ends count as
    missed.
    """

    def start(self, world: World) -> None:
        """Begin; called once before anything else."""

    def replicas(self, model: str, names: Sequence[str]) -> None:
        """Take over a changed list of a model's replicas; first called right after `start`."""

    def arrive(self, request: Request) -> None:
        """Take in a request that has reached the system now."""

    def queued_rows(self, model: str) -> int:
        """Rows that wait for an execution."""

    def read_demand(self, model: str) -> ModelDemand:
        """What was asked of a model since the last call, for autoscaling."""
