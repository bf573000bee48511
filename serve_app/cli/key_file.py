"""Edits a file of API keys."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from serve_app.config.api_keys import ApiKeyConfig, ApiKeysConfig, parse_api_keys, read_api_keys
from serve_app.domain.keys import digest_of, new_key
from serve_app.errors import ConfigError

Entries: TypeAlias = list[dict[str, Any]]

_OTHERS = stat.S_IRWXO


def add(file: Path, name: str, fields: Mapping[str, Any]) -> str:
    """Add a new key to a file, creating it if necessary.

    Args:
        fields: Further fields of `ApiKeyConfig`; ``None`` for the default.

    Returns:
        The key, of which the file holds only the SHA-256.

    Raises:
        ConfigError: The name exists, a field is wrong, or the file cannot be read or written.
    """
    key = new_key()
    wanted = {field: value for field, value in fields.items() if value is not None}
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
        ConfigError: The key is unknown, or the file cannot be read or written.
    """

    def without(keys: Entries) -> Entries:
        left = [key for key in keys if key["name"] != name]
        if len(left) == len(keys):
            raise ConfigError((f"there is no key {name!r}",))
        return left

    _change(file, without)


def read(file: Path) -> tuple[ApiKeyConfig, ...]:
    """The keys of a file. Raises `ConfigError` if it is unreadable or invalid."""
    return parse_api_keys(read_api_keys(file)).keys


def is_open_to_others(file: Path) -> bool:
    """Whether any user of this machine has access to a file."""
    return bool(file.stat().st_mode & _OTHERS)


def _change(file: Path, change: Callable[[Entries], Entries]) -> None:
    """Rewrite the file, if the result is valid."""
    target = file.resolve()  # follows a link
    try:
        with _alone_in(target.parent):
            before = _entries(parse_api_keys(read_api_keys(target))) if target.exists() else []
            content = yaml.safe_dump({"keys": change(before)}, sort_keys=False, allow_unicode=True).encode()
            parse_api_keys(content)
            _replace(target, content)
    except OSError as error:
        raise ConfigError((f"cannot be written: {error.strerror}",)) from None


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder against concurrent commands, whose changes would be lost."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _entries(config: ApiKeysConfig) -> Entries:
    entries = [key.model_dump(exclude_unset=True) for key in config.keys]
    return [{**entry, "models": list(entry["models"])} if "models" in entry else entry for entry in entries]


def _replace(target: Path, content: bytes) -> None:
    """Replace atomically, keeping owner and group, without more access for others."""
    before = target.stat() if target.exists() else None
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # for its owner only
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as written:
            if before is not None:
                _copy_ownership(handle, before)
            written.write(content)
            written.flush()
            os.fsync(handle)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _copy_ownership(handle: int, before: os.stat_result) -> None:
    """Give a file the owner and access of its predecessor."""
    mine = os.fstat(handle)
    if (mine.st_uid, mine.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(handle, before.st_uid, before.st_gid)
        except PermissionError:
            whose = f"{before.st_uid}:{before.st_gid}"
            raise ConfigError(
                (f"belongs to {whose}, and this user cannot write one like it: do this as its owner, or as root",)
            ) from None
    os.fchmod(handle, stat.S_IMODE(before.st_mode) & ~_OTHERS)
