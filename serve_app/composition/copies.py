"""Copies of remote models in the cache: each is complete, as of one moment, or absent."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from serve_app.errors import ConfigError

_MARKS: Final = ("size", "ETag", "etag", "mtime", "LastModified", "Last-Modified", "updated", "created")
_ENCODED: Final = ("contentEncoding", "ContentEncoding")
"""Facts by which a size is not that of the read file."""

_log = logging.getLogger(__name__)

Listing = Mapping[str, Mapping[str, Any]]
"""Facts of the filesystem, by the path of a file."""


def listing(filesystem: Any, root: str) -> Listing:
    """The files at and below a path, with their facts. Raises what the filesystem raises."""
    if PurePosixPath(root).suffix and filesystem.isfile(root):  # whose whole content HTTP would search for links
        return {root: filesystem.info(root)}
    found: dict[str, Any] = filesystem.find(root, detail=True)
    if not found and (facts := filesystem.info(root))["type"] == "file":  # of which some filesystems find nothing
        found[root] = facts
    return {
        name: facts if facts.get("size") is not None else filesystem.info(name) for name, facts in sorted(found.items())
    }


def marks(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Facts that change with a remote file's contents, as far as its filesystem has any."""
    return tuple(str(facts.get(mark, "")) for mark in _MARKS)


def seen(listed: Listing) -> tuple[Hashable, ...]:
    """A fingerprint of names and marks of all files."""
    return tuple((name, *marks(facts)) for name, facts in listed.items())


class Copying:
    """One copy in progress, from `copying`.

    Args:
        filesystem: The source.
        folder: The destination.
        label: For messages.
    """

    def __init__(self, filesystem: Any, folder: Path, label: str) -> None:
        self._filesystem = filesystem
        self._label = label
        self._got: dict[str, Listing] = {}
        self.folder = folder

    def get(self, item: str, name: str) -> None:
        """Copy a remote file or folder under this name.

        Raises:
            ConfigError: It does not arrive whole, or would have another name.
        """
        item = item.rstrip("/")
        target = self.folder / name
        if not target.resolve().is_relative_to(self.folder.resolve()):
            raise ConfigError((f"{self._label}: {name} is outside its folder",))
        target.parent.mkdir(parents=True, exist_ok=True)
        listed = listing(self._filesystem, item)
        if not listed:  # an empty folder
            return
        mebibytes = sum(facts.get("size") or 0 for facts in listed.values()) / 1024**2
        _log.info("Copying %s, %s (%.1f MiB)", self._label, name, mebibytes)
        try:
            if list(listed) == [item]:
                self._filesystem.get_file(item, str(target))
            else:
                self._filesystem.get(item, str(target), recursive=True)
        except FileNotFoundError:
            raise self._changed() from None
        for path, facts in listed.items():
            self._check_size(path, facts, target / path.removeprefix(item).lstrip("/"))
        self._got[item] = listed

    def publish(self, target: Path) -> None:
        """Move the copy to this folder, unless another process's copy is there.

        Raises:
            ConfigError: The source has changed meanwhile.
        """
        self._filesystem.invalidate_cache()
        for item, listed in self._got.items():
            try:
                now = seen(listing(self._filesystem, item))
            except FileNotFoundError:
                raise self._changed() from None
            if now != seen(listed):
                raise self._changed()
        try:
            self.folder.rename(target)
        except OSError:
            if not target.is_dir():  # no other process was faster: it is a real fault
                raise
        _log.info("Copied %s to %s", self._label, target)

    def _check_size(self, name: str, facts: Mapping[str, Any], copy: Path) -> None:
        size = facts.get("size")
        if not size or any(facts.get(key) for key in _ENCODED):  # the size is unknown or of other contents
            return
        found = copy.stat().st_size if copy.is_file() else 0
        if found != size:
            raise ConfigError((f"{self._label}: {found} of {size} bytes of {name} were received",))

    def _changed(self) -> ConfigError:
        return ConfigError((f"{self._label}: it changed while it was copied; try again",))


@contextmanager
def copying(filesystem: Any, cache: Path, label: str) -> Iterator[Copying]:
    """Make a copy in this folder, which is removed unless it is published.

    Args:
        filesystem: The source.
        cache: Folder of copies.
        label: For messages.
    """
    with staging(cache, ".copying-") as folder:
        (folder / "copy").mkdir()
        yield Copying(filesystem, folder / "copy", label)


def forget(copy: Path) -> None:
    """Remove a copy, without ever leaving a part of it visible."""
    with staging(copy.parent, ".copying-") as folder, suppress(OSError):  # somebody else was faster
        copy.rename(folder / "copy")


def use_folder(folder: Path, until: ExitStack) -> bool:
    """Protect a folder from `forget_unused` of all processes of this machine. Returns whether it is there.

    Without locks in the filesystem, nothing is protected.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    until.callback(os.close, opened)
    with suppress(OSError):
        fcntl.flock(opened, fcntl.LOCK_SH)
    try:
        return os.path.samestat(folder.stat(), os.fstat(opened))
    except FileNotFoundError:  # it was forgotten in between
        return False


def forget_unused(folder: Path) -> None:
    """Remove a folder unless a process uses it."""
    with ExitStack() as held:
        try:
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, opened)
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:  # there are no locks, or somebody else was faster
            pass
        forget(folder)


@contextmanager
def staging(folder: Path, prefix: str) -> Iterator[Path]:
    """A temporary folder inside this one, removed at the end.

    So are folders of killed processes: each process holds a lock on its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with ExitStack() as alone:
            if _lock(folder, alone, wait=True):
                _remove_left(folder.glob(f"{prefix}*"))
            made = Path(held.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=prefix)))
            _lock(made, held)
        yield made


def _remove_left(folders: Iterable[Path]) -> None:
    for left in folders:
        with ExitStack() as held:
            if _lock(left, held):
                _log.info("Removing %s, which an ended process has left", left)
                shutil.rmtree(left, ignore_errors=True)


def _lock(folder: Path, until: ExitStack, *, wait: bool = False) -> bool:
    """Lock a folder against other processes. Returns whether it is locked; some filesystems cannot."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        until.callback(os.close, opened)
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def is_being_written(file: Path) -> bool:
    """Whether a process of this machine has a file open for writing, if the system can tell (`fcntl(2)`, leases)."""
    with file.open("rb") as opened:
        try:
            # A writer that comes at this very moment waits; what tells of it is by default ignored, as SIGIO is not.
            fcntl.fcntl(opened, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            return True
        except OSError:  # not our file, or a filesystem without leases
            return False
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
