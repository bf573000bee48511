"""Files of API keys and certificates that a configuration names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from serve_app.access.guard import Guard
from serve_app.access.key_file_watcher import KeyFile, KeyFileWatcher
from serve_app.config.api_keys import keys_of, read_api_keys
from serve_app.config.files import home
from serve_app.config.router import RouterConfig
from serve_app.domain.priorities import DEFAULT_LEVELS, PriorityLevels
from serve_app.errors import ConfigError
from serve_app.http.tls import make_context


def watched_keys(router: RouterConfig, levels: PriorityLevels = DEFAULT_LEVELS) -> KeyFileWatcher | None:
    """Read the file of API keys; ``None`` if there is none.

    Args:
        router: Names it.
        levels: Meaning of priority numbers.

    Raises:
        ConfigError: It cannot be read or understood.
    """
    if router.access.keys_file is None:
        return None
    file = KeyFile(home(os.environ) / router.access.keys_file, read_api_keys, keys_of)
    make = partial(Guard, open_parts=router.access.open_without_key, routers=router.fewest, levels=levels)
    try:
        return KeyFileWatcher(file, router.access.keys_check_s, make)
    except ConfigError as error:
        named = (f"args.router.access.keys_file: {file.path}: {problem}" for problem in error.problems)
        raise ConfigError(tuple(named)) from None


def key_problems(router: RouterConfig, *, must_be_here: bool) -> tuple[str, ...]:
    """Faults in the file of API keys, one line each.

    Args:
        router: Names it.
        must_be_here: Whether a missing file is one; it may be on the routers' nodes only.
    """
    if router.access.keys_file is None:
        return ()
    if not must_be_here and not (home(os.environ) / router.access.keys_file).exists():
        return ()
    try:
        watched_keys(router)
    except ConfigError as error:
        return error.problems
    return ()


def tls_problems(router: RouterConfig, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Faults of this machine's certificates, one line each."""
    if router.tls is None:
        return ()
    try:
        make_context(router.tls.files(environ))
    except ConfigError as error:
        return tuple(f"args.router.tls: {problem}" for problem in error.problems)
    return ()
