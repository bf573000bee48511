"""API keys and their rights."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from serve_app.domain.priority import Priority

PREFIX: Final = "sa_"
"""Prefix of every key, by which scanners recognise leaked keys."""

_RANDOM_BYTES: Final = 32
_KEY: Final = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{8,}}")


@dataclass(frozen=True, slots=True)
class Rate:
    """How often a key may be used.

    Attributes:
        per_second: Requests, in the long run.
        burst: Requests at once after a pause, at least 1.
    """

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, known only by its digest.

    Attributes:
        name: For people, logs and metrics.
        digest: SHA-256 of the key.
        models: Names of the models that it may use and see; ``None`` for all.
        highest: The most urgent class that it may use.
        lowers: Whether requests for a more urgent class are served in the highest one, and not refused.
        rate: ``None`` for unlimited use.
        admin: Whether it may change the server, and see more than single models.
        expires_at: POSIX time.
        disabled: Whether it is invalid for now.
        weight: Its part of a contended class's server time, relative to other keys; over 0.
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
    """Make a key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(key: bytes) -> bytes:
    """The stored digest of a key.

    A slow hash (bcrypt, Argon2) makes guessing passwords expensive, which people choose among few. 256 random bits
    cannot be guessed, and every request would pay for the slowness.
    """
    return hashlib.sha256(key).digest()


def scrubbed(text: str) -> str:
    """The text without anything that could be a key."""
    return _KEY.sub(f"{PREFIX}***", text)
