"""A simulated router's processor: the rounds of `serve_app.http.turns`, on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

from serve_app.domain.priority import Priority
from serve_app.scheduling.intake import LATE, MOST_WAITING, PER_ROUND, PER_ROUND_QUEUED, SHED, Intake
from serve_app_simulator.system import Request, World


class Processor:
    """A thread with an event loop that reads requests, refuses or begins them, and sends answers.

    A round first refuses and begins requests of the intake. Then it takes the answers and requests that arrived
    meanwhile, and begins those requests at once while they are few and none waits. What is done in one half of a round
    takes effect at its end. Where the overheads of the world are zero, everything is done at once. Connections are not
    modelled: every request that has arrived is read.
    """

    def __init__(
        self,
        world: World,
        min_share: Mapping[Priority, float],
        begin: Callable[[Request], None],
        refuse: Callable[[Request], None],
    ) -> None:
        self._world = world
        self._costs = world.overheads
        self._intake = Intake[Request](min_share, MOST_WAITING)
        self._begin = begin
        self._refuse = refuse
        self._unread: list[Request] = []
        self._answers: list[Callable[[], None]] = []
        self._answered = 0  # requests in them
        self._busy = False
        self._stall_at = world.next_stall_s()

    def arrive(self, request: Request) -> None:
        """Queue a request that has reached the router."""
        if not self._costs.router_takes_time:
            self._begin(request)
            return
        self._unread.append(request)
        if not self._busy:
            self._poll(0)

    def answer(self, requests: int, send: Callable[[], None]) -> None:
        """Queue the answers to some requests; ``send`` is called once they are encoded."""
        if self._costs.router_answer_s <= 0.0:
            send()
            return
        self._answers.append(send)
        self._answered += requests
        if not self._busy:
            self._poll(0)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` after so much work; stalls delay it."""
        now, stall_s = self._world.now, self._world.scenario.noise.router_stall_s
        end = now + seconds
        while self._stall_at < end:
            over = self._stall_at + stall_s
            end += max(0.0, over - max(now, self._stall_at))
            self._stall_at = over + self._world.next_stall_s()
        self._world.at(end, action)

    def _round(self) -> None:
        """Refuse requests that would be late, and begin the most urgent ones."""
        intake, costs, now = self._intake, self._costs, self._world.now
        refused = list(islice(intake.give_up(now), SHED))
        begun: list[Request] = []
        taken_up = 0.0
        while taken_up < PER_ROUND_QUEUED and (taken := intake.take(now)) is not None:
            request, late = taken
            (refused if late else begun).append(request)
            taken_up += LATE if late else 1.0
        seconds = len(refused) * costs.router_refusal_s + len(begun) * costs.router_s
        self._after(seconds, partial(self._end_round, refused, begun))

    def _end_round(self, refused: Sequence[Request], begun: Sequence[Request]) -> None:
        for request in refused:
            self._refuse(request)
        for request in begun:
            self._begin(request)
        self._poll(len(begun))

    def _poll(self, begun: int) -> None:
        """Take arrived requests and answers; ``begun`` requests were begun in this round already."""
        unread, self._unread = self._unread, []
        answers, self._answers = self._answers, []
        answered, self._answered = self._answered, 0
        self._busy = bool(unread or answers or self._intake.waiting)
        if not self._busy:
            return
        free = 0 if self._intake.waiting else min(len(unread), PER_ROUND - begun)
        costs = self._costs
        seconds = answered * costs.router_answer_s + len(unread) * costs.router_read_s + free * costs.router_s
        self._after(seconds, partial(self._end_poll, answers, unread, free))

    def _end_poll(self, answers: Sequence[Callable[[], None]], unread: Sequence[Request], free: int) -> None:
        for send in answers:
            send()
        for request in unread[:free]:
            self._begin(request)
        for request in unread[free:]:
            self._intake.offer(request, request.priority, request.deadline, self._world.now)
        if self._intake.waiting:
            self._round()
        else:
            self._poll(0)
