"""A cache of file digests: a file that has not changed since it was read need not be read again.

A digest is stored with the file's metadata, which show a change with one exception: a file changed twice within one
tick of the filesystem's clock may look the same after both. So a digest is stored only if the file had not changed for
a while when it was read, as in git's index ("racy git").
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from serve_app.composition.copies import is_being_written
from serve_app.config.files import cache_folder

LEFT_ALONE_S: Final = 2.0
"""Least age of a file's last change for its digest to be stored, seconds. Filesystems distinguish changes that are 2 s
apart (FAT), most of them those that are 10 ms apart.
"""

WORTH_BYTES: Final = 256 * 1024
"""A smaller file is read as quickly as its stored digest."""

_THREADS: Final = 8
_log = logging.getLogger(__name__)


class _State(NamedTuple):
    """Metadata of a file. With the exception above, its content cannot change without one of these."""

    device: int
    inode: int
    nbytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> _State:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


class _DigestRecord(NamedTuple):
    path: str
    state: _State
    digest: bytes


class Digests:
    """SHA-256 of files, from the cache folder if they have not changed. Thread-safe.

    Faults of that folder are ignored.

    Args:
        environ: Names the cache folder.
        now_ns: The clock of filesystems, nanoseconds since 1970.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._folder = cache_folder(environ) / "digests"
        self._now_ns = now_ns
        self._records: dict[str, _DigestRecord] = {}

    def of(self, file: Path) -> bytes:
        """The digest of a file's content.

        Raises:
            OSError: It cannot be read.
        """
        with file.open("rb") as opened:
            state = _State.of(os.fstat(opened.fileno()))
            if state.nbytes < WORTH_BYTES:
                return hashlib.file_digest(opened, "sha256").digest()
            path = str(file.resolve())
            kept = self._find(path)
            if kept is not None and kept.state == state:
                return kept.digest
            began_ns = self._now_ns()
            digest = hashlib.file_digest(opened, "sha256").digest()
            rested_ns = began_ns - max(state.modified_ns, state.changed_ns)
            unchanged = _State.of(os.fstat(opened.fileno())) == state
        if unchanged and rested_ns >= LEFT_ALONE_S * 1e9 and not is_being_written(file):
            self._keep(_DigestRecord(path, state, digest))
        return digest

    def read_ahead(self, files: Iterable[Path]) -> None:
        """Store the digests of these files, several at a time. Unreadable ones are ignored."""
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
            for _ in threads.map(self.read, files):
                pass

    def read(self, file: Path) -> None:
        """Store the digest of a file, if it can be read."""
        try:
            self.of(file)
        except OSError as error:
            _log.debug("%s cannot be read ahead: %s", file, error)

    def _find(self, path: str) -> _DigestRecord | None:
        if (record := self._records.get(path)) is not None:
            return record
        try:
            found = msgspec.msgpack.decode(self._record(path).read_bytes(), type=_DigestRecord)
        except (OSError, msgspec.MsgspecError):
            return None
        return found if found.path == path else None

    def _keep(self, record: _DigestRecord) -> None:
        target = self._record(record.path)
        self._records[record.path] = record
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
                file.write(msgspec.msgpack.encode(record))
            Path(file.name).replace(target)
        except OSError as error:
            _log.info("The digest of %s cannot be kept in %s: %s", record.path, self._folder, error.strerror)

    def _record(self, path: str) -> Path:
        return self._folder / hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:32]
