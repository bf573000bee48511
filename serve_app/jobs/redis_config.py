"""Settings of a Redis server that routers share."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, field_validator, model_validator

from serve_app.config.files import home
from serve_app.config.problems import Location, short_repr, validation_error
from serve_app.config.values import Milliseconds, Section
from serve_app.domain.settings import RedisSettings
from serve_app.errors import ConfigError

_SCHEMES = ("redis", "rediss", "unix")
_PLACE = "args.router.jobs.redis"


class RedisConfig(Section):
    """A Redis server, or one that speaks its protocol, that routers share."""

    url: str
    """Where it is: `redis://host:port/db`, `rediss://...` for TLS, or `unix:///path`. Without a password."""

    username: str | None = Field(default=None, min_length=1)
    """User to log in as; by default the server's default user."""

    password_variable: str | None = Field(default=None, min_length=1)
    """Environment variable of the routers that holds the password."""

    password_file: str | None = Field(default=None, min_length=1)
    """File that holds the password, readable by the routers. Relative paths start from SERVE_APP_HOME."""

    ca_file: str | None = Field(default=None, min_length=1)
    """File with the certificates that a `rediss://` server is checked by; by default those of the system.

    Relative paths start from SERVE_APP_HOME.
    """

    prefix: str = "serve-app:"
    """Beginning of every key."""

    write_ms: Milliseconds = 1000.0
    """How long a new connection may take."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            parts = None
        if parts is None or parts.scheme not in _SCHEMES or not (parts.hostname or parts.scheme == "unix"):
            raise ValueError("must be redis://host:port/db, rediss://host:port/db or unix:///path")
        query = parse_qs(parts.query, keep_blank_values=True)
        if parts.password is not None or parts.username is not None or query.keys() & {"username", "password"}:
            raise ValueError(
                "must not hold a user or a password: name them by username and password_variable or password_file"
            )
        if query.keys() - {"db"} or not all(each.isdecimal() for each in query.get("db", ())):
            raise ValueError("must not hold options, the number of a database apart (?db=1)")
        return url

    @model_validator(mode="after")
    def _check(self) -> RedisConfig:
        faults: list[tuple[Location, str]] = []
        if self.password_variable is not None and self.password_file is not None:
            faults.append((("password_file",), "give this or password_variable, not both"))
        if self.ca_file is not None and not self.url.startswith("rediss://"):
            faults.append((("ca_file",), "counts for nothing unless url begins with rediss://"))
        if faults:
            raise validation_error(faults)
        return self

    def settings(self, environ: Mapping[str, str] | None = None, place: str = _PLACE) -> RedisSettings:
        """The values for one router process.

        Args:
            environ: Environment variables; by default those of this process.
            place: Where this stands in the configuration, for messages.

        Raises:
            ConfigError: The password is not where it should be; names the place.
        """
        environ = os.environ if environ is None else environ
        return RedisSettings(
            url=self.url,
            username=self.username,
            password=self._password(environ, place),
            ca_file=None if self.ca_file is None else str(home(environ) / self.ca_file),
            prefix=self.prefix,
            write_s=self.write_ms / 1000,
        )

    def problems(self, environ: Mapping[str, str] | None = None, place: str = _PLACE) -> tuple[str, ...]:
        """Say what is wrong with the files of this machine, one line each. The variable is the routers' own.

        Args:
            environ: Environment variables; by default those of this process.
            place: Where this stands in the configuration.
        """
        environ = os.environ if environ is None else environ
        problems: list[str] = []
        if self.password_file is not None:
            try:
                self._password(environ, place)
            except ConfigError as error:
                problems += error.problems
        if self.ca_file is not None:
            path = home(environ) / self.ca_file
            try:
                ssl.create_default_context(cafile=path)
            except ssl.SSLError:
                problems.append(f"{place}.ca_file: {path}: holds no certificates in PEM")
            except OSError as error:
                problems.append(f"{place}.ca_file: {path}: cannot be read: {error.strerror or error}")
        return tuple(problems)

    def _password(self, environ: Mapping[str, str], place: str) -> str | None:
        if self.password_variable is not None:
            password = environ.get(self.password_variable)
            if not password:
                raise ConfigError((f"{place}.password_variable: {short_repr(self.password_variable)} is not set",))
            return password
        if self.password_file is None:
            return None
        path = home(environ) / self.password_file
        try:
            return path.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError:
            raise ConfigError((f"{place}.password_file: {path}: is not text in UTF-8",)) from None
        except OSError as error:
            raise ConfigError((f"{place}.password_file: {path}: cannot be read: {error.strerror or error}",)) from None
