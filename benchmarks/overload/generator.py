"""The load generator (``load.c``), built by the system's C compiler, and its requests."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import msgspec
import orjson

from benchmarks.failure import BenchmarkError
from benchmarks.requests import Request
from benchmarks.wires import HEADER_LENGTH

Tells = Literal["headers", "parameters", "nothing"]

CLASSES = ("high", "normal", "low")
SHARED, OWN = "shared", "own"


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
class Asked:
    """What a server is asked.

    Attributes:
        path: Where.
        plain: The request, of no class.
        deadline_ms: When its answer counts.
        tells: Whether class and deadline stand in headers, in parameters of the body as Triton takes them, or nowhere.
    """

    path: str
    plain: Request
    deadline_ms: float
    tells: Tells = "headers"

    def request(self, name: str, *, timed: bool) -> Request:
        """One of a class, with the deadline if it is ``timed``."""
        headers, body = dict(self.plain.headers), self.plain.body
        if self.tells == "headers":
            headers |= {"X-Priority": name} | ({"X-Timeout-Ms": f"{self.deadline_ms:g}"} if timed else {})
        elif self.tells == "parameters":
            size = int(headers.get(HEADER_LENGTH, len(body)))
            document = orjson.loads(body[:size])
            told = document.setdefault("parameters", {})
            told["priority"] = 1 + CLASSES.index(name)
            if timed:
                told["timeout"] = round(self.deadline_ms * 1e3)
            head = orjson.dumps(document)
            body = head + body[size:]
            headers |= {HEADER_LENGTH: str(len(head))} if HEADER_LENGTH in headers else {}
        return Request({**headers, "Content-Length": str(len(body))}, body)


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
        self,
        url: str,
        asked: Asked,
        rate: float,
        seconds: float,
        connections: str,
        closed: int = 64,
        high: float = 0.2,
    ) -> tuple[float, dict[str, Answers]]:
        """Load a server; see `load.c`.

        Args:
            url: Of it.
            asked: Requests.
            rate: Per second; 0 for a closed loop.
            seconds: Length.
            connections: Whether classes share theirs.
            closed: Connections of a closed loop.
            high: Share of `high`; of the rest `normal` has three quarters.

        Returns:
            How late the generator was, milliseconds, and what became of each class.

        Raises:
            BenchmarkError: The generator failed.
        """
        port = httpx.URL(url).port
        shared = rate == 0 or connections == SHARED
        of_classes = (closed, 0, 0) if rate == 0 else (2048, 0, 0) if shared else (512, 1536, 512)
        shares = (high, 0.75 * (1.0 - high), 0.25 * (1.0 - high))
        offers = []
        for name, own, share in zip(CLASSES, of_classes, shares, strict=True):
            request = asked.request(name, timed=rate > 0)
            fields = [f"POST {asked.path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
            fields += [f"{field}: {value}" for field, value in request.headers.items()]
            offers.append(Offer(own, "\r\n".join((*fields, "", "")).encode() + request.body, share))
        deadline_ms = asked.deadline_ms if rate else 60_000
        late_ms, answers = self.offer(url, offers, deadline_ms, rate, seconds, shared=shared)
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
