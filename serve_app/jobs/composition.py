"""What the configuration says of jobs, as values of the parts."""

from __future__ import annotations

import binascii
import os
from collections.abc import Mapping
from functools import partial

from serve_app.config.args import AppArgs
from serve_app.config.files import home, read_file
from serve_app.domain.service import ModelInfo
from serve_app.errors import ConfigError
from serve_app.jobs.config import CallbacksConfig, JobsConfig
from serve_app.jobs.router import make_part
from serve_app.jobs.settings import CallbackSettings, JobSettings
from serve_app.router.part import MakePart

_PLACE = "args.router.jobs.callbacks"
_ENCODED = b"whsec_"
"""Begins a secret that is written in base64, as Standard Webhooks has it."""


def router_part(args: AppArgs, infos: Mapping[str, ModelInfo]) -> MakePart:  # noqa: ARG001 - of all wings
    """Make the part of a router that keeps jobs; without ``router.jobs`` it has the routes alone."""
    return partial(make_part, job_settings(args.router.jobs))


def machine_problems(args: AppArgs, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Find problems with Redis' files on this machine, one line each.

    Args:
        environ: Default: this process's.
    """
    jobs = args.router.jobs
    return () if jobs is None or jobs.redis is None else jobs.redis.problems(environ)


def job_settings(config: JobsConfig | None, environ: Mapping[str, str] | None = None) -> JobSettings | None:
    """How jobs are kept and run; ``None``: there are none.

    Args:
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
        ask_for_replicas=config.ask_for_replicas,
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
        place = "secret_variable"
        if not (secret := environ.get(config.secret_variable, "").encode()):
            raise ConfigError((f"{_PLACE}.{place}: {config.secret_variable!r} is not set",))
    elif config.secret_file is not None:
        place = "secret_file"
        try:
            secret = read_file(config.secret_file, environ).strip()
        except ConfigError as error:
            raise ConfigError(tuple(f"{_PLACE}.{place}: {problem}" for problem in error.problems)) from None
    else:
        return b""
    if secret.startswith(_ENCODED):
        try:
            secret = binascii.a2b_base64(secret.removeprefix(_ENCODED), strict_mode=True)
        except binascii.Error:
            raise ConfigError((f"{_PLACE}.{place}: expected base64 after {_ENCODED.decode()}",)) from None
    if not secret:
        raise ConfigError((f"{_PLACE}.{place}: the secret is empty",))
    return secret
