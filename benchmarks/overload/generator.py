"""The load generator (``load.c``): built by the system's C compiler, and run."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from benchmarks.failure import BenchmarkError

CLASSES = ("high", "normal", "low")
SHARED, OWN = "shared", "own"
_CLOSED = 64


class Answers(msgspec.Struct):
    """What became of the requests of one class: as `load.c` tells. Times in milliseconds, of good answers."""

    offered: int
    good: int
    in_time: int
    full: int
    expired: int
    other: int
    failed: int
    p50_ms: float
    p99_ms: float
    max_ms: float = 0.0


class _Printed(msgspec.Struct):
    generator_late_ms: float
    classes: list[Answers]


@dataclass(frozen=True, slots=True)
class Offer:
    """Requests of one class.

    Attributes:
        connections: That carry them.
        request: One whole request.
        share: Part of the rate.
    """

    connections: int
    request: bytes
    share: float


class Generator:
    """The load generator, built into a folder.

    Raises:
        BenchmarkError: There is no C compiler.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise BenchmarkError("the load generator needs a C compiler: install build-essential, or what has cc")
        self._folder, self._program = folder, folder / "load"
        source = Path(__file__).with_name("load.c")
        subprocess.run([compiler, "-O2", "-o", self._program, source, "-lm"], check=True)

    def run(
        self, url: str, path: str, body: bytes, deadline_ms: float, rate: float, seconds: float, connections: str
    ) -> tuple[float, dict[str, Answers]]:
        """Load a server; see `load.c`. A rate of 0 is a closed loop. Returns the generator's lateness, and answers.

        Raises:
            BenchmarkError: The generator failed.
        """
        port = httpx.URL(url).port
        shared = rate == 0 or connections == SHARED
        of_classes = (_CLOSED, 0, 0) if rate == 0 else (2048, 0, 0) if shared else (512, 1536, 512)
        offers = []
        for name, own, share in zip(CLASSES, of_classes, (0.2, 0.6, 0.2), strict=True):
            fields = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json"]
            fields += [f"Content-Length: {len(body)}", f"X-Priority: {name}"]
            fields += [f"X-Timeout-Ms: {deadline_ms:g}"] * (rate > 0)
            offers.append(Offer(own, "\r\n".join((*fields, "", "")).encode() + body, share))
        late_ms, answers = self.offer(url, offers, deadline_ms if rate else 60_000, rate, seconds, shared=shared)
        return late_ms, dict(zip(CLASSES, answers, strict=True))

    def offer(
        self, url: str, offers: Sequence[Offer], deadline_ms: float, rate: float, seconds: float, *, shared: bool
    ) -> tuple[float, list[Answers]]:
        """Load a server with any requests, of three classes at most. Several may run at once. As `run`."""
        given: list[object] = [httpx.URL(url).port, seconds, 1.0, rate, deadline_ms, int(shared)]
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            for number in range(len(CLASSES)):
                offer = offers[number] if number < len(offers) else Offer(0, b"", 0.0)
                file = Path(folder) / f"{number}.request"
                file.write_bytes(offer.request)
                given += [offer.connections, file, offer.share]
            done = subprocess.run([self._program, *map(str, given)], capture_output=True, check=False)
        if done.returncode:
            raise BenchmarkError(f"the load generator ended with {done.returncode}: {done.stderr.decode().strip()}")
        printed = msgspec.json.decode(done.stdout, type=_Printed)
        return printed.generator_late_ms, printed.classes
