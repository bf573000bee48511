"""What an API key is, and what it may do."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from serve_app.scheduling.entry import Priority

PREFIX: Final = "sa_"
"""What every key begins with, so that whoever looks for leaked secrets knows one when they see it."""

_RANDOM_BYTES: Final = 32
_KEY: Final = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{8,}}")


@dataclass(frozen=True, slots=True)
class Rate:
    """How often a key may be used.

    Attributes:
        per_second: Requests, in the long run.
        burst: Requests that may come at once after a pause, at least 1.
    """

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. The key itself is not known here, only its digest.

    Attributes:
        name: For people, logs and metrics.
        digest: SHA-256 of the key.
        models: Names of the models that it may use and see; ``None`` for all.
        highest: The most urgent class that it may use.
        lowers: Whether what asks for a more urgent class is served in the highest one, and not refused.
        rate: How often it may be used; ``None`` for any number of times.
        admin: Whether it may change the server, and see what is not of one model.
        expires_at: From when on it is not valid, POSIX time.
        disabled: Whether it is not valid at all, for now.
        weight: Its part of a class's server time where several want it, relative to other keys; over 0.
    """

    name: str
    digest: bytes = field(repr=False)
    models: frozenset[str] | None = None
    highest: Priority = Priority.HIGH
    lowers: bool = False
    rate: Rate | None = None
    admin: bool = False
    expires_at: float = math.inf
    disabled: bool = False
    weight: float = 1.0


def new_key() -> str:
    """A key that nobody can guess: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(key: bytes) -> bytes:
    """What is kept of a key.

    A slow hash (bcrypt, Argon2) makes guessing passwords expensive, which people choose among few. Of 256 random bits
    nobody ever tries a noticeable part, and every request would pay for the slowness.
    """
    return hashlib.sha256(key).digest()


def scrubbed(text: str) -> str:
    """The text without anything that could be a key."""
    return _KEY.sub(f"{PREFIX}***", text)
