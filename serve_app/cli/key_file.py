"""Changes a file of API keys."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from serve_app.config.api_keys import ApiKeyConfig, ApiKeysConfig, parse_api_keys, read_api_keys
from serve_app.errors import ConfigError
from serve_app.protocols.access.keys import digest_of, new_key

Entries: TypeAlias = list[dict[str, Any]]

_OTHERS = stat.S_IRWXO


def add(file: Path, name: str, wishes: Mapping[str, Any]) -> str:
    """Add a new key to a file, which is made where there is none.

    Args:
        file: The file.
        name: Of the key.
        wishes: Further fields of `ApiKeyConfig`; ``None`` for the default.

    Returns:
        The key, of which the file holds the SHA-256 only.

    Raises:
        ConfigError: There is such a key already, a field is wrong, or the file cannot be read or written.
    """
    key = new_key()
    wanted = {field: value for field, value in wishes.items() if value is not None}
    entry = {"name": name, "hash": f"sha256:{digest_of(key.encode()).hex()}", **wanted}

    def added(keys: Entries) -> Entries:
        if any(other["name"] == name for other in keys):
            raise ConfigError((f"there is a key {name!r} already; revoke it first, or use another name",))
        return [*keys, entry]

    _change(file, added)
    return key


def remove(file: Path, name: str) -> None:
    """Remove a key from a file.

    Raises:
        ConfigError: There is no such key, or the file cannot be read or written.
    """

    def without(keys: Entries) -> Entries:
        left = [key for key in keys if key["name"] != name]
        if len(left) == len(keys):
            raise ConfigError((f"there is no key {name!r}",))
        return left

    _change(file, without)


def read(file: Path) -> tuple[ApiKeyConfig, ...]:
    """What a file says of its keys. Raises `ConfigError` where it cannot be read or understood."""
    return parse_api_keys(read_api_keys(file)).keys


def is_open_to_others(file: Path) -> bool:
    """Whether every user of this machine may do anything with a file."""
    return bool(file.stat().st_mode & _OTHERS)


def _change(file: Path, change: Callable[[Entries], Entries]) -> None:
    """Write the file anew, and only if what comes of the change is valid."""
    target = file.resolve()  # of a link, what it points to
    before = _entries(parse_api_keys(read_api_keys(target))) if target.exists() else []
    content = yaml.safe_dump({"keys": change(before)}, sort_keys=False, allow_unicode=True).encode()
    parse_api_keys(content)
    try:
        _replace(target, content)
    except OSError as error:
        raise ConfigError((f"cannot be written: {error.strerror}",)) from None


def _entries(config: ApiKeysConfig) -> Entries:
    entries = [key.model_dump(exclude_unset=True) for key in config.keys]
    return [{**entry, "models": list(entry["models"])} if "models" in entry else entry for entry in entries]


def _replace(target: Path, content: bytes) -> None:
    """At once, so that nobody reads half of it; for its owner, and the group where that could read it before."""
    mode = stat.S_IMODE(target.stat().st_mode) & ~_OTHERS if target.exists() else 0o600
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # for its owner only
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        temporary.chmod(mode)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
