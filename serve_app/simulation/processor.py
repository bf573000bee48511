"""A simulated router's processor: the rounds of its event loop, as `serve_app.http.turns` has them, on the virtual clock.

One thing after the other takes its time: refusals, new work, answers on their way back, and reading what has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice

from serve_app.scheduling.entry import Priority
from serve_app.scheduling.intake import AT_ONCE, MOST_WAITING, PER_ROUND, REFUSALS, Intake
from serve_app.simulation.scenario import Overheads
from serve_app.simulation.system import Request, World


class Processor:
    """A thread with an event loop. It reads and refuses requests, begins them, and sends answers back.

    Each round first refuses and begins requests of the intake. Then it takes what has come meanwhile: answers, and
    requests, which are begun at once while few come and none waits. What is done takes effect together at the end of
    its half of a round.

    Args:
        world: Whose clock it follows.
        overheads: What each thing costs. Where all cost nothing, everything is done at once.
        min_share: Part of all turns that a class gets while it waits; see `Intake`.
        begin: Begins a request.
        refuse: Refuses one.
    """

    def __init__(
        self,
        world: World,
        overheads: Overheads,
        min_share: Mapping[Priority, float],
        begin: Callable[[Request], None],
        refuse: Callable[[Request], None],
    ) -> None:
        self._world = world
        self._costs = overheads
        self._is_free = not overheads.router_takes_time
        self._intake = Intake[Request](min_share, MOST_WAITING)
        self._begin = begin
        self._refuse = refuse
        self._unread: list[Request] = []
        self._answers: list[Callable[[], None]] = []
        self._answered = 0  # requests in them
        self._busy = False

    def arrive(self, request: Request) -> None:
        """A request has reached the router's socket."""
        if self._is_free:
            self._begin(request)
            return
        self._unread.append(request)
        if not self._busy:
            self._poll(0)

    def answer(self, requests: int, send: Callable[[], None]) -> None:
        """Answers to this many requests have come from a replica; they go on when the processor has sent them."""
        if self._costs.router_answer_s <= 0.0:
            send()
            return
        self._answers.append(send)
        self._answered += requests
        if not self._busy:
            self._poll(0)

    def _round(self) -> None:
        """Refuse what cannot be in time, and begin the most urgent."""
        intake, costs, now = self._intake, self._costs, self._world.now
        refused = list(islice(intake.give_up(now), REFUSALS)) if intake.waiting else []
        begun: list[Request] = []
        while len(begun) < PER_ROUND and (taken := intake.take(now)) is not None:
            begun.append(taken)
        seconds = len(refused) * costs.router_refusal_s + len(begun) * costs.router_s
        self._world.at(now + seconds, partial(self._end_round, refused, begun))

    def _end_round(self, refused: list[Request], begun: list[Request]) -> None:
        for request in refused:
            self._refuse(request)
        for request in begun:
            self._begin(request)
        self._poll(len(begun))

    def _poll(self, begun: int) -> None:
        """Take what has come: answers, and requests."""
        unread, self._unread = self._unread, []
        answers, self._answers = self._answers, []
        answered, self._answered = self._answered, 0
        self._busy = bool(unread or answers or self._intake.waiting)
        if not self._busy:
            return
        free = 0 if self._intake.waiting else min(len(unread), AT_ONCE - begun)
        costs = self._costs
        seconds = answered * costs.router_answer_s + len(unread) * costs.router_read_s + free * costs.router_s
        self._world.at(self._world.now + seconds, partial(self._end_poll, answers, unread, free))

    def _end_poll(self, answers: list[Callable[[], None]], unread: list[Request], free: int) -> None:
        now = self._world.now
        for send in answers:
            send()
        for request in unread[:free]:
            self._begin(request)
        for request in unread[free:]:
            self._intake.offer(request, request.priority, request.deadline, now)
        if self._intake.waiting:
            self._round()
        else:
            self._poll(0)
