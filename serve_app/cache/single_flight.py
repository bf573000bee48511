"""Single-flight: requests that are the same, at the same time, are one piece of work, and all of them are answered.

The first to ask *leads*: its request is queued like any other. Who asks while it is under way *follows* and waits, with
its own deadline, in its own class. Nobody is worse off than alone:

- Who is more urgent than everybody who leads, by class, or in the same class by deadline, leads as well: its request is
  queued as its own class and deadline say. The first answer is everybody's, and what is still queued is taken out.
- Where the last one that leads leaves, is refused or runs out of time, the most urgent follower leads. Only errors that
  tell of the request itself are shared.
- What was answered differently because of its class, by a fallback, is no answer to the more urgent.
- Followers are bounded, by number and by bytes. Beyond that, a request is queued by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer
from serve_app.errors import DeadlineExceeded, InferenceFailed, InvalidRequest, ServeAppError, error_from_code
from serve_app.scheduling.entry import Entry
from serve_app.timers import call_at

_MUCH_EARLIER: Final = 0.1
"""A deadline counts as the earlier one if it is so by this part of the time that is left until it."""
_OF_THE_REQUEST: Final = (InvalidRequest, InferenceFailed)


@dataclass(frozen=True, slots=True)
class Caller:
    """One of the same requests.

    Attributes:
        arrival: When it came, seconds on the router's monotonic clock.
        deadline: When its answer becomes worthless, on the same clock.
        nbytes: Bytes that it holds while it waits.
    """

    priority: Priority
    arrival: float
    deadline: float
    nbytes: int = 0

    def much_before(self, other: Caller) -> bool:
        """Whether it is so much more urgent than another that it must not wait for that one's turn."""
        if self.priority != other.priority:
            return self.priority < other.priority
        return self.deadline < other.deadline - _MUCH_EARLIER * (self.deadline - self.arrival)


class Lead:
    """A request that is being worked on for all that are the same.

    Attributes:
        caller: Whose it is.
        entry: The same in the scheduler, once it is there.
        early: The answer, where another one was first.
    """

    __slots__ = ("caller", "early", "entry")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.entry: Entry | None = None
        self.early: Answer | None = None

    def queued(self, entry: Entry) -> None:
        """Take note of the entry that it has become."""
        self.entry = entry


@dataclass(slots=True, eq=False)
class _Follower:
    caller: Caller
    future: asyncio.Future[Answer | Lead]


class _SharedRun:
    __slots__ = ("followers", "key", "leads", "variant")

    def __init__(self, key: Hashable, variant: str) -> None:
        self.key = key
        self.variant = variant
        self.leads: list[Lead] = []
        self.followers: list[_Follower] = []


class SingleFlight:
    """All requests that are under way, by what makes them the same.

    Args:
        end_early: Ends an entry with an answer that came another way; says whether it had not ended by itself.
        max_followers: Most requests that wait for others at once.
        max_bytes: Most bytes that these hold.

    Attributes:
        followers: Requests that wait for others.
        nbytes: Bytes that these hold.
    """

    def __init__(self, end_early: Callable[[Entry, Answer], bool], max_followers: int, max_bytes: int) -> None:
        self._end_early = end_early
        self._max_followers = max_followers
        self._max_bytes = max_bytes
        self._flights: dict[Hashable, _SharedRun] = {}
        self.followers = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._flights)

    async def answer(
        self, key: Hashable, caller: Caller, variant: str, work: Callable[[Lead], Awaitable[Answer]]
    ) -> tuple[Answer, bool]:
        """Answer a request: by work of its own, or by that of the same one under way.

        Args:
            key: What makes requests the same.
            caller: The request.
            variant: The variant that it asks for; empty for the exact model.
            work: Does it. It is to tell the `Lead` what entry it has become, and to return ``early`` once that is set.

        Returns:
            The answer, and whether it is another request's.

        Raises:
            DeadlineExceeded: It waited for another until its deadline.
            ServeAppError: As ``work`` raises it, here or for another of the same.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _SharedRun(key, variant)
        elif self._may_follow(flight, caller):
            outcome = await self._follow(flight, caller)
            if not isinstance(outcome, Lead):
                return outcome, True
            return await self._lead(flight, outcome, work)
        lead = Lead(caller)
        flight.leads.append(lead)
        return await self._lead(flight, lead, work)

    def _may_follow(self, flight: _SharedRun, caller: Caller) -> bool:
        if self.followers >= self._max_followers or self.nbytes + caller.nbytes > self._max_bytes:
            return False
        return not all(caller.much_before(lead.caller) for lead in flight.leads)

    async def _lead(
        self, flight: _SharedRun, lead: Lead, work: Callable[[Lead], Awaitable[Answer]]
    ) -> tuple[Answer, bool]:
        try:
            answer = await work(lead)
        except ServeAppError as error:
            self._failed(flight, lead, error)
            raise
        except BaseException:  # it is cancelled: its client has left
            self._failed(flight, lead, None)
            raise
        finally:
            lead.entry = None  # which has the future of an error, whose traceback has the lead
        if lead.early is not None:
            return lead.early, True
        self._answered(flight, lead, answer)
        return answer, False

    async def _follow(self, flight: _SharedRun, caller: Caller) -> Answer | Lead:
        loop = asyncio.get_running_loop()
        follower = _Follower(caller, loop.create_future())
        flight.followers.append(follower)
        self.followers += 1
        self.nbytes += caller.nbytes
        timer = call_at(loop, caller.deadline, _expire, follower)
        try:
            return await follower.future
        except asyncio.CancelledError:
            future = follower.future
            if not future.cancelled() and future.exception() is None and isinstance(lead := future.result(), Lead):
                self._failed(flight, lead, None)  # it was to lead, and has left in the same turn
            raise
        finally:
            timer.cancel()
            if follower in flight.followers:
                flight.followers.remove(follower)
            self.followers -= 1
            self.nbytes -= caller.nbytes
            del follower  # an error's traceback has this frame, and the future the error

    def _answered(self, flight: _SharedRun, lead: Lead, answer: Answer) -> None:
        """Give the answer to everybody to whom it is one."""
        flight.leads.remove(lead)
        plain = is_plain(answer, flight.variant)
        for other in list(flight.leads):
            takes = plain or other.caller.priority >= lead.caller.priority
            if takes and (other.entry is None or self._end_early(other.entry, answer)):
                flight.leads.remove(other)
                other.early = answer
        for follower in flight.followers:
            if not follower.future.done() and (plain or follower.caller.priority >= lead.caller.priority):
                follower.future.set_result(answer)
        self._go_on(flight)

    def _failed(self, flight: _SharedRun, lead: Lead, error: ServeAppError | None) -> None:
        """Let the others go on without this one."""
        if lead not in flight.leads:
            return  # it was answered early, and left in the same turn
        flight.leads.remove(lead)
        if isinstance(error, _OF_THE_REQUEST) and not flight.leads:
            for follower in flight.followers:
                if not follower.future.done():
                    follower.future.set_exception(_copy(error))
        self._go_on(flight)

    def _go_on(self, flight: _SharedRun) -> None:
        """See to it that somebody leads as long as somebody waits."""
        if flight.leads:
            return
        waiting = [follower for follower in flight.followers if not follower.future.done()]
        if waiting:
            first = min(waiting, key=lambda follower: (follower.caller.priority, follower.caller.deadline))
            lead = Lead(first.caller)
            flight.leads.append(lead)
            first.future.set_result(lead)
        elif self._flights.get(flight.key) is flight:
            del self._flights[flight.key]


def is_plain(answer: Answer, variant: str) -> bool:
    """Whether an answer is what anybody who asks for this variant would get, and no fallback's."""
    return answer.variant == variant


def _copy(error: ServeAppError) -> ServeAppError:
    # Raised in several tasks, one error would collect all of their frames.
    return error_from_code(error.code, error.message, error.retry_after_s)


def _expire(follower: _Follower) -> None:
    if not follower.future.done():
        allowed_s = follower.caller.deadline - follower.caller.arrival
        follower.future.set_exception(
            DeadlineExceeded(
                f"the deadline of {allowed_s * 1000:.0f} ms passed while waiting for an identical request in"
                " flight; use a longer timeout or a higher priority"
            )
        )
