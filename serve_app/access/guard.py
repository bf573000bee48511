"""Finds the key of every request, and remembers it while the request is worked on.

The key of the current request is a context variable: every request is a task, and work for it inherits its context.
`serve_app.access.guarded` checks it for every right. A request admitted by no port has no key, and no rights.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, Literal, TypeAlias

from serve_app.access.credentials import credential_from, missing_key
from serve_app.access.rate_limiter import RateLimiter
from serve_app.domain.keys import Key, digest_of
from serve_app.domain.options import parse_qos_headers
from serve_app.domain.priorities import DEFAULT_LEVELS, PriorityLevels
from serve_app.domain.priority import Priority
from serve_app.errors import PermissionDenied, RateLimited, Unauthenticated

Part: TypeAlias = Literal["docs", "metrics", "status"]
"""What may be open without a key, besides health checks."""

Policy: TypeAlias = Literal["key", "health", "docs", "metrics", "status", "administration", "stream"]
"""Who may ask something, and what is counted against a key's rate. Every route and every gRPC call has one.

==================  =================================================================
``key``             callers with a key
``health``          all callers
a `Part`            all callers if it is open; else ``docs`` is for callers with a key,
                    ``metrics`` and ``status`` are for administrators
``administration``  administrators, or all callers if there are no keys and the
                    configuration says so: the guard's caller checks that
``stream``          callers with a key; each of its requests is authorized by itself
==================  =================================================================
"""

_ADMINISTRATORS: Final[frozenset[Policy]] = frozenset({"metrics", "status"})

_ANONYMOUS: Final = Key(name="", digest=b"", models=frozenset())
"""A caller of an open route without a key."""
_current: Final[ContextVar[Key | None]] = ContextVar("serve_app_key", default=None)


def wall_clock() -> float:
    """POSIX time, seconds."""
    return datetime.now(UTC).timestamp()


class Guard:
    """Admits requests by their keys.

    Args:
        open_parts: Parts that need no key.
        routers: Number of processes that divide the keys' rates.
        now: Monotonic, seconds.
        wall: POSIX time, for expiring keys.

    Attributes:
        counts: Requests by name of the key and ``admitted``, ``rate_limited`` or ``unauthenticated`` (no name).
        reloads: Number of replacements of the keys, and of failed ones.
        loaded_at: When the present keys were read, POSIX time.
        fault: The error of the last replacement, or empty.
    """

    def __init__(
        self,
        keys: Iterable[Key],
        *,
        open_parts: Iterable[Part] = ("docs",),
        routers: int = 1,
        levels: PriorityLevels = DEFAULT_LEVELS,
        now: Callable[[], float] = monotonic,
        wall: Callable[[], float] = wall_clock,
    ) -> None:
        self._open: frozenset[Policy] = frozenset({"health", *open_parts})
        self._routers = routers
        self._levels = levels
        self._now, self._wall = now, wall
        self._keys: Mapping[bytes, Key] = {}
        self._limiters: Mapping[bytes, RateLimiter] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.reloads: Counter[str] = Counter(ok=0, failed=0)
        self.fault = ""
        self._use_keys(keys)

    @property
    def number(self) -> int:
        """The number of keys."""
        return len(self._keys)

    def replace(self, keys: Iterable[Key]) -> None:
        """Replace the keys. A remaining key keeps its used rate."""
        self._use_keys(keys)
        self.reloads["ok"] += 1

    def keep(self, fault: str) -> None:
        """Record that other keys could not be read; the present ones stay."""
        self.fault = fault
        self.reloads["failed"] += 1

    def share(self, routers: int) -> None:
        """Set the number of processes that divide the keys' rates."""
        if routers != self._routers:
            self._routers = routers
            self._limit()

    def _use_keys(self, keys: Iterable[Key]) -> None:
        self._keys, self.fault, self.loaded_at = {key.digest: key for key in keys}, "", self._wall()
        self._limit()

    def _limit(self) -> None:
        limiters: dict[bytes, RateLimiter] = {}
        for digest, key in self._keys.items():
            if key.rate is not None:
                limiter = limiters[digest] = RateLimiter(key.rate, self._routers)
                if (before := self._limiters.get(digest)) is not None:
                    limiter.due = before.due
        self._limiters = limiters

    def status(self) -> dict[str, Any]:
        """The number of keys and the state of reading them, without the keys."""
        return {
            "keys": self.number,
            "loaded_at": datetime.fromtimestamp(self.loaded_at, UTC).isoformat(timespec="seconds"),
            "reloads": dict(self.reloads),
            "fault": self.fault,
        }

    def admit(self, headers: Mapping[bytes, bytes]) -> None:
        """Admit one request, and count it against its key's rate.

        Args:
            headers: Of the request, or the call's metadata, by lower-case name.

        Raises:
            Unauthenticated: It has no valid key.
            RateLimited: The key's rate is exceeded.
            PermissionDenied: The key may not use the class in the headers.
            InvalidRequest: The class does not exist.
        """
        key = self._authenticate(headers)
        _current.set(key)  # even where it is refused now: the log names it
        if (limiter := self._limiters.get(key.digest)) is not None and (wait_s := limiter.take(self._now())) > 0.0:
            self.counts[key.name, "rate_limited"] += 1
            raise _limited(wait_s)
        self.counts[key.name, "admitted"] += 1
        if key.highest is not Priority.HIGH and b"x-priority" in headers:
            allowed_class(key, parse_qos_headers(headers, self._levels)[0])  # the body need not be read to refuse this

    def waits_as(self, headers: Mapping[bytes, bytes], priority: Priority) -> tuple[Priority, str, float]:
        """The class in which a request waits for admission, the name of its key, and its weight.

        The requested class, if the key may use it.
        """
        try:
            key = self._find(headers)
        except Unauthenticated:
            key, priority = _ANONYMOUS, Priority.LOW
        return max(priority, key.highest), key.name, key.weight

    def act_for(self, name: str) -> None:
        """Admit a deferred request of the key with this name. It was counted on arrival.

        Raises:
            Unauthenticated: No valid key has this name any more.
        """
        _current.set(None)
        now = self._wall()
        for key in self._keys.values():
            if key.name == name and not key.disabled and key.expires_at > now:
                _current.set(key)
                return
        raise Unauthenticated("the API key that this was asked with was removed, disabled or has expired")

    def authorize(self, policy: Policy, headers: Mapping[bytes, bytes]) -> None:
        """Admit a request that runs no model. Raises what `admit` raises, and `PermissionDenied` for administration."""
        if policy in self._open:
            self._authenticate_optional(headers)
        elif policy == "stream":
            _current.set(self._authenticate(headers))
        else:
            self.admit(headers)
            if policy in _ADMINISTRATORS:
                self.require_admin()

    def is_open(self, policy: Policy) -> bool:
        """Whether this policy needs no key."""
        return policy in self._open

    def current(self) -> Key:
        """The present state of the current request's key.

        Raises:
            Unauthenticated: There is none, or it was removed meanwhile.
        """
        key = _current.get()
        if key is None:
            raise missing_key()
        if key is _ANONYMOUS:
            return key
        now = self._keys.get(key.digest)
        if now is None or now.disabled:
            raise Unauthenticated("this API key was removed or disabled while the request was in progress")
        return now

    @property
    def name(self) -> str:
        """Name of the current request's key, admitted or not; empty if unknown."""
        key = _current.get()
        return "" if key is None else key.name

    @staticmethod
    def is_anonymous() -> bool:
        """Whether the current request uses an open route without a key."""
        return _current.get() is _ANONYMOUS

    def require_admin(self) -> None:
        """Allow the current request to change the server, or to see more than single models.

        Raises:
            PermissionDenied: Its key may not.
            Unauthenticated: It has none.
        """
        key = self.current()
        if key is _ANONYMOUS:
            raise missing_key()
        if not key.admin:
            raise PermissionDenied("this operation requires an API key with admin: true")

    def _authenticate(self, headers: Mapping[bytes, bytes]) -> Key:
        _current.set(None)
        try:
            return self._find(headers)
        except Unauthenticated as error:
            self.counts["", "unauthenticated"] += 1
            error.counted = True
            raise

    def _authenticate_optional(self, headers: Mapping[bytes, bytes]) -> None:
        """Admit requests without a key, but authenticate given ones, which may see more."""
        try:
            key = self._find(headers)
        except Unauthenticated:
            key = _ANONYMOUS
        _current.set(key)

    def _find(self, headers: Mapping[bytes, bytes]) -> Key:
        given = credential_from(headers)
        if given is None:
            raise missing_key()
        # Looking a digest up takes a time that depends on it, but a client cannot choose keys by their digests:
        # what is learned from it tells nothing of a key. The comparison that decides takes the same time for all.
        digest = digest_of(given)
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise Unauthenticated("unknown API key")
        if key.disabled:
            raise Unauthenticated("this API key is disabled")
        if key.expires_at <= self._wall():
            raise Unauthenticated("this API key has expired")
        return key


def allowed_class(key: Key, priority: Priority | None) -> Priority | None:
    """The class for a requested one; ``None`` for the default.

    Raises:
        PermissionDenied: The key may not use it.
    """
    if priority is None:
        return key.highest if key.highest > Priority.NORMAL else None
    if priority >= key.highest:
        return priority
    if key.lowers:
        return key.highest
    raise PermissionDenied(
        f"this API key may not use priority {priority.label}; its highest allowed priority is {key.highest.label}"
    )


def _limited(wait_s: float) -> RateLimited:
    # Not where it is raised: in a variable there, it would be in a cycle with its traceback.
    error = RateLimited("this API key is over its rate limit; retry after Retry-After, or send fewer requests", wait_s)
    error.counted = True
    return error
