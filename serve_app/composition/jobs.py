"""What the configuration says of jobs, as values of the parts."""

from __future__ import annotations

import os
from collections.abc import Mapping

from serve_app.config.files import home, read_file
from serve_app.config.jobs import CallbacksConfig, JobsConfig
from serve_app.errors import ConfigError
from serve_app.jobs.settings import CallbackSettings, JobSettings

_PLACE = "args.router.jobs.callbacks"


def job_settings(config: JobsConfig | None, environ: Mapping[str, str] | None = None) -> JobSettings | None:
    """How jobs are kept and run; ``None``: there are none.

    Args:
        config: What is configured.
        environ: Environment variables; by default those of this process.

    Raises:
        ConfigError: A secret is not where it should be.
    """
    if config is None:
        return None
    environ = os.environ if environ is None else environ
    return JobSettings(
        path=home(environ) / config.path,
        redis=None if config.redis is None else config.redis.settings(environ, "args.router.jobs.redis"),
        batches=config.batches,
        max_bytes_in_flight=int(config.max_bytes_in_flight),
        lease_s=config.lease_s,
        timeout_s=config.timeout_s,
        max_timeout_s=config.max_timeout_s,
        keep_s=config.keep_s,
        max_items=config.max_items,
        max_jobs=config.max_jobs,
        max_bytes=int(config.max_bytes),
        max_result=int(config.max_result),
        max_file=int(config.max_file),
        max_files=config.max_files,
        callbacks=_callbacks(config.callbacks, environ),
    )


def _callbacks(config: CallbacksConfig, environ: Mapping[str, str]) -> CallbackSettings:
    return CallbackSettings(
        hosts=frozenset(config.hosts),
        networks=config.parsed_networks(),
        secret=_secret(config, environ),
        timeout_s=config.timeout_s,
        attempts=config.attempts,
        retry_s=config.retry_s,
    )


def _secret(config: CallbacksConfig, environ: Mapping[str, str]) -> bytes:
    if config.secret_variable is not None:
        if not (secret := environ.get(config.secret_variable, "")):
            raise ConfigError((f"{_PLACE}.secret_variable: {config.secret_variable!r} is not set",))
        return secret.encode()
    if config.secret_file is None:
        return b""
    try:
        return read_file(config.secret_file, environ).strip()
    except ConfigError as error:
        raise ConfigError(tuple(f"{_PLACE}.secret_file: {problem}" for problem in error.problems)) from None
