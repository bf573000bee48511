"""The file of API keys with their rights. It holds digests, not keys, and its content is never shown.

Example:
    keys:
      - name: dashboard
        hash: sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
        models: [digits]
        highest_class: normal
        rate: 100/s
        expires_at: 2027-01-01
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from serve_app.config.lines import Lines
from serve_app.config.loader import load_yaml
from serve_app.config.problems import Location, problems_of, validation_error
from serve_app.config.values import Positive, Section, Weight
from serve_app.domain.keys import Key, Rate, scrubbed
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError

ALL: Final = "*"
"""Stands for every model."""

MOST_BYTES: Final = 4 * 2**20

_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RATE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)/(s|min|h)")
_SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0}


class ApiKeyConfig(Section):
    """One key."""

    name: str
    """For people, logs and metrics."""

    hash: str
    """``sha256:`` and the SHA-256 of the key in hex, as `serve-app key new` writes it."""

    models: Annotated[tuple[str, ...], Field(strict=False, json_schema_extra={"minItems": 1})] = (ALL,)
    """Models that it may use and see; `*` for all."""

    highest_class: Literal["high", "normal", "low"] = "high"
    """The most urgent class that it may use."""

    above_highest: Literal["refuse", "lower"] = "refuse"
    """What happens to a request for a more urgent class: it is refused (403), or served in the highest one allowed."""

    rate: str | None = None
    """How often it may be used: `100/s`, `600/min` or `1000/h`. Default: any number of times."""

    burst: Positive | None = None
    """Requests that may come at once after a pause. Default: what `rate` allows in a second, at least 1."""

    weight: Weight = 1.0
    """Its part of a class's server time where several keys want more than there is, relative to theirs: with 2 it gets
    twice what a key with 1 gets."""

    admin: bool = False
    """Whether it may change the server (its log, the traffic of versions), and see metrics and status where these are
    not open to everybody."""

    expires_at: Annotated[datetime | None, Field(strict=False)] = None
    """From when on it is not valid: a date or a time, UTC where it names no zone."""

    disabled: bool = False
    """Whether it is not valid at all, for now."""

    note: str = ""
    """Whatever is worth knowing; nothing reads it."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _KEY_NAME.fullmatch(name) or scrubbed(name) != name:
            raise ValueError("must be 1 to 63 letters, digits, '-', '_' or '.', and not a key")
        return name

    @field_validator("hash")
    @classmethod
    def _check_hash(cls, written: str) -> str:
        if not _HASH.fullmatch(written):
            raise ValueError("must be sha256: and 64 hex digits in lower case, as `serve-app key new` writes it")
        return written

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        if not models:
            raise ValueError(f"needs at least one model, or '{ALL}'; disabled: true is for a key that may use none")
        return models

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: str | None) -> str | None:
        if rate is not None and ((found := _RATE.fullmatch(rate)) is None or float(found[1]) <= 0):
            raise ValueError("must be a number of requests per time, more than 0: 100/s, 600/min or 1000/h")
        return rate

    @model_validator(mode="after")
    def _check(self) -> ApiKeyConfig:
        if self.burst is not None and self.rate is None:
            raise validation_error([(("burst",), "counts for nothing without rate")])
        return self

    def key(self) -> Key:
        """The value for the layers below."""
        expires = self.expires_at
        if expires is not None and expires.tzinfo is None:
            expires = expires.replace(tzinfo=UTC)
        return Key(
            name=self.name,
            digest=bytes.fromhex(self.hash.removeprefix("sha256:")),
            models=None if ALL in self.models else frozenset(self.models),
            highest=Priority[self.highest_class.upper()],
            lowers=self.above_highest == "lower",
            rate=self._rate(),
            admin=self.admin,
            expires_at=float("inf") if expires is None else expires.timestamp(),
            disabled=self.disabled,
            weight=self.weight,
        )

    def _rate(self) -> Rate | None:
        found = None if self.rate is None else _RATE.fullmatch(self.rate)
        if found is None:
            return None
        per_second = float(found[1]) / _SECONDS[found[2]]
        return Rate(per_second, self.burst or max(per_second, 1.0))


class ApiKeysConfig(Section):
    """The whole file."""

    keys: Annotated[tuple[ApiKeyConfig, ...], Field(strict=False)]
    """The keys. None at all: nobody is let in."""

    @model_validator(mode="after")
    def _check(self) -> ApiKeysConfig:
        faults: list[tuple[Location, str]] = []
        for what in ("name", "hash"):
            seen: dict[str, int] = {}
            for number, key in enumerate(self.keys):
                first = seen.setdefault(getattr(key, what), number)
                if first != number:
                    faults.append((("keys", number, what), f"is also the {what} of keys[{first}]"))
        if faults:
            raise validation_error(faults)
        return self


def parse_api_keys(content: bytes) -> ApiKeysConfig:
    """Check the content of a file of keys.

    Raises:
        ConfigError: One line per fault, with its line in the file and nothing of its content.
    """
    try:
        text = content.decode()
        given = load_yaml(text)
    except UnicodeDecodeError as error:
        raise ConfigError((f"is not UTF-8 text: byte {error.start}",)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError((f"{where}is not valid YAML or JSON",)) from None
    try:
        config = ApiKeysConfig.model_validate(given)
    except ValidationError as error:
        lines = Lines(text)
        found = problems_of(error, given, ApiKeysConfig.model_json_schema(), hide_values=True)
        raise ConfigError(tuple(scrubbed(lines.mark(problem)) for problem in found)) from None
    if not text.endswith("\n") and not text.lstrip().startswith("{"):
        # The defaults are generous: without its last lines a key could do more than with them.
        raise ConfigError(("does not end with a line break: some of it may be missing",))
    return config


def read_api_keys(path: Path) -> bytes:
    """The content of a file of keys.

    Raises:
        ConfigError: It is unreadable or too large.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError((f"cannot be read: {error.strerror}",)) from None
    if len(content) > MOST_BYTES:
        raise ConfigError((f"has more than {MOST_BYTES} bytes",))
    return content


def keys_of(content: bytes) -> tuple[Key, ...]:
    """The keys in a file's content. Raises what `parse_api_keys` raises."""
    return tuple(entry.key() for entry in parse_api_keys(content).keys)
