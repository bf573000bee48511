"""What a simulated serving system must do, and what the world does for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from serve_app.scheduling.entry import Priority
from serve_app_simulator.scenario import Overheads, Scenario


class Request:
    """One simulated request.

    Attributes:
        id: Its place in the order of arrival.
        model: Name of the model.
        priority: Its class.
        arrival: When the client sent it, virtual seconds.
        deadline: When the answer becomes worthless; end to end.
        rows: Rows it adds to a batch.
        bucket: Its cost bucket.
        stream: Number of the video stream that it is a frame of, or -1. A newer frame makes a waiting one worthless.
        tenant: Who sent it; empty for nobody in particular.
        ended: When it was answered, rejected or dropped; ``None`` before that.
        answered: Whether it ended with an answer (in time or not).
        raised: Whether its last execution raised, so that it has no answer; the world's.
        replaced: Set by a system before it drops a frame because a newer one of its stream has arrived.
        server_s: Server time charged to it so far, seconds.
        waits: Whether it has reached the system, does not execute and has not ended; the world's.
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
        seconds: How long it ran, as the replica would measure it.
        failed: Whether the replica died under it; then nobody was answered.
        raised: Whether the model raised: the replica lives, and what would be answered of it is an error.
    """

    seconds: float
    failed: bool = False
    raised: bool = False


class Loaded(NamedTuple):
    """A member of a pool has been loaded.

    Attributes:
        replica: What runs it from now on, as `World.execute` takes it.
        seconds: How long that took.
        nbytes: What it holds, bytes.
    """

    replica: str
    seconds: float
    nbytes: int


Status = Literal["works", "hangs", "dead"]
"""Of a replica's process."""


Hop = Literal["send", "answer", "direct"]
"""From a router to a replica; from there to the client by the router; and to the client without one."""


class Timer(Protocol):
    """A scheduled action."""

    def cancel(self) -> None:
        """Do not run it. Harmless when it has run."""


class World(Protocol):
    """The virtual world: clock, replicas, clients. All times are virtual seconds from 0."""

    @property
    def now(self) -> float:
        """The time."""

    @property
    def scenario(self) -> Scenario:
        """What is simulated. Systems may read models' settings and, where ``known``, curves; never the noise."""

    @property
    def overheads(self) -> Overheads:
        """The scenario's, without the hop to the system, which is over when a request arrives there.

        They are medians: what a message really takes is drawn (`hop_s`), and the system itself waits for it (`at`).
        """

    def hop_s(self, hop: Hop) -> float:
        """How long the next message takes, seconds; each call draws anew. Systems must not plan by what they draw."""

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
        """Whether a replica's process runs. Nothing that is sent to one that hangs is read before it goes on."""

    def watch(self, replica: str, changed: Callable[[], None]) -> None:
        """Have ``changed`` called when a replica goes on that hung, and when it dies. What hangs tells nobody."""

    def kill(self, replica: str) -> None:
        """End the process of a replica that hangs; any other is left alone. Its successor starts at once."""

    def example_runs(self, replica: str) -> bool:
        """Whether an input that is known to be good runs at a replica now. Takes no time."""

    def answer(self, request: Request, left: float | None = None, hop: Hop = "answer") -> None:
        """The answer leaves now and reaches the client by this hop. No-op when ended already.

        Where the last execution raised, it is an error: the request gets no answer.

        Args:
            request: Whose answer it is.
            left: When it left, if that is past: then the system has waited for the hop itself, and it is there now.
            hop: Which way it goes.
        """

    def drop(self, request: Request) -> None:
        """It gets no answer: rejected, expired, or shed. No-op when ended already."""

    def load(self, model: str) -> int:
        """Rows running at the model's replicas."""

    def hosts(self, pool: str) -> Sequence[str]:
        """The processes of a pool, by name."""

    def load_member(self, model: str, host: str, done: Callable[[Loaded], None]) -> None:
        """Have a host load a member of its pool now, and call ``done`` when it can execute.

        Raises ValueError for what a server must never do: a member that the host has or loads, and one for which it
        has not the memory. Loads of one host run at the same time; it is the system's to have them wait.
        """

    def evict_member(self, model: str, host: str) -> None:
        """Have a host unload a member. Raises ValueError where it is not there, or executes."""


class System(Protocol):
    """A serving system under test: takes requests, says what runs where. Made anew for every run.

    Every request must end in `World.answer` or `World.drop`; those that have not when the simulation ends count as
    missed.
    """

    def start(self, world: World) -> None:
        """Called once before anything else."""

    def replicas(self, model: str, names: Sequence[str]) -> None:
        """The list of a model's replicas has changed; called for the first ones right after `start`."""

    def arrive(self, request: Request) -> None:
        """A request has reached the system now."""

    def queued_rows(self, model: str) -> int:
        """Rows that wait for an execution, for autoscaling."""
