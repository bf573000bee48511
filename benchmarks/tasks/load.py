"""The load generator: a process of its own that costs little, sends requests made beforehand and counts answers.

A closed loop sends the next request of a connection when the answer has come. An open loop sends at times fixed
beforehand, over connections that are opened as they are needed; latencies count from those times.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import msgspec
import numpy as np

from benchmarks.failure import BenchmarkError
from benchmarks.process import ROOT
from benchmarks.requests import Request, read_requests

CLASSES = {"high": 0.2, "normal": 0.6, "low": 0.2}
"""Shares of the classes where requests have one."""

EXACT = "X-Fallback: never"
"""Where nothing is urgent, all systems have to run the same model: serve_app does not take the demo's 8-bit one."""

_SEED = 31
_MOST_CONNECTIONS = 1024
_PATIENCE_S = 10.0
_OK = 200
_READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one kind.

    Attributes:
        name: Of the kind.
        ports: Of 127.0.0.1; connections are dealt to them in turn.
        path: Where requests are posted.
        requests: A file of them (see `benchmarks.requests`), which are sent in turn.
        connections: Kept busy in a closed loop; opened beforehand in an open one.
        rate: Requests per second of an open loop; 0 for a closed one.
        deadline_ms: Of requests with a class and a deadline; 0 for requests without.
    """

    name: str
    ports: tuple[int, ...]
    path: str
    requests: str
    connections: int
    rate: float = 0.0
    deadline_ms: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of the requests of a stream.

    Attributes:
        per_second: Good answers per second.
        p50_ms: Median latency of the good answers, milliseconds; 0 where there are none.
        p99_ms: 99th percentile.
        answers: Good answers.
        failures: Other answers, and requests without one.
        in_time: Share of the requests with a good answer before the deadline, by class.
        fallbacks: Good answers that another build of the model gave.
        late_p99_ms: 99th percentile of how late an open loop sent, waits for a connection left out.
        cpu: How much of a core the load generator used, 0 to 1, for all streams together.
        bad: The first answer that was not good.
    """

    per_second: float
    p50_ms: float
    p99_ms: float
    answers: int
    failures: int
    in_time: dict[str, float]
    fallbacks: int
    late_p99_ms: float
    cpu: float
    bad: str


def measure(streams: Sequence[Stream], warm_up_s: float, seconds: float) -> dict[str, Seen]:
    """Load a server from a process of its own.

    Args:
        streams: What is sent, all at once.
        warm_up_s: Load before the measurement, seconds.
        seconds: Length of the measurement.

    Raises:
        BenchmarkError: The process failed.
    """
    told = json.dumps({"streams": [asdict(each) for each in streams], "warm_up_s": warm_up_s, "seconds": seconds})
    command = [sys.executable, "-m", "benchmarks.tasks.load", told]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if finished.returncode != 0:
        raise BenchmarkError(f"the load generator failed: {finished.stderr.strip()[-1000:]}")
    return msgspec.json.decode(finished.stdout, type=dict[str, Seen])


def encode(request: Request, path: str, more: Sequence[str] = ()) -> bytes:
    """A request as it is sent.

    Args:
        request: Headers and body.
        path: Where it is posted.
        more: Further lines of the head.
    """
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        *(f"{name}: {value}" for name, value in request.headers.items()),
    ]
    return "\r\n".join([*lines, *more, f"Content-Length: {len(request.body)}", "", ""]).encode() + request.body


def complete(answer: bytes | bytearray) -> int:
    """The status of an answer that has come as a whole, otherwise 0."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return 0
    head = bytes(answer[:end]).lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        whole = len(answer) - end - 4 >= int(head[at + 17 :].partition(b"\r\n")[0])
    else:
        whole = answer.endswith(b"0\r\n\r\n")
    return int(head[9:12]) if whole else 0


class _Connection:
    """One connection, with at most one request on its way."""

    __slots__ = ("answer", "due", "is_busy", "kind", "port", "socket", "stream", "unsent")

    def __init__(self, stream: _Stream, port: int) -> None:
        self.stream, self.port = stream, port
        self.answer = bytearray()
        self.unsent = memoryview(b"")
        self.due, self.kind, self.is_busy = 0.0, 0, False
        self.open()

    def open(self) -> None:
        """Open it, without waiting."""
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(("127.0.0.1", self.port))


class _Stream:
    """A stream while it runs: what is sent next, and what came back."""

    def __init__(self, told: Stream, seconds: float, number: int) -> None:
        self.told = told
        requests = read_requests(Path(told.requests))
        heads = [[f"X-Priority: {name}", f"X-Timeout-Ms: {told.deadline_ms}"] for name in CLASSES]
        kinds = heads if told.deadline_ms else [[EXACT]]
        self.encoded = [[encode(each, told.path, more) for each in requests] for more in kinds]
        random = np.random.default_rng((_SEED, number))
        count = round(told.rate * seconds)
        times = np.sort(random.random(count) * seconds).tolist()
        drawn = random.choice(len(kinds), count, p=list(CLASSES.values()) if told.deadline_ms else None).tolist()
        self.arrivals: deque[tuple[float, int]] = deque(zip(times, drawn, strict=True))
        self.offered = list(zip(times, drawn, strict=True))
        self.sent = 0
        self.connections = 0
        self.idle: list[_Connection] = []
        self.waiting: deque[tuple[float, int]] = deque()
        self.outcomes: list[tuple[float, int, int, float, bool]] = []  # due, class, status, latency, by a fallback
        self.late: list[float] = []
        self.bad = ""


class _Load:
    """One run."""

    def __init__(self, streams: Sequence[Stream], warm_up_s: float, seconds: float) -> None:
        self._streams = [_Stream(each, warm_up_s + seconds, number) for number, each in enumerate(streams)]
        self._warm_up_s, self._seconds = warm_up_s, seconds
        self._poll = select.epoll()
        self._by_number: dict[int, _Connection] = {}
        self._busy = 0

    def run(self) -> dict[str, Seen]:
        """Send everything, and wait for the last answers."""
        for stream in self._streams:
            for _ in range(stream.told.connections):
                self._connect(stream)
        gc.disable()
        began, cpu = perf_counter(), process_time()
        until, measured = began + self._warm_up_s + self._seconds, 0.0
        while (now := perf_counter()) < until or (self._is_unfinished() and now < until + _PATIENCE_S):
            pause = 0.1
            for stream in self._streams:
                pause = min(pause, self._send_due(stream, began, now, now < until))
            for number, event in self._poll.poll(pause):
                self._handle(self._by_number[number], event)
            measured = measured or (process_time() - cpu if now >= until else 0.0)
        cpu_share = (measured or process_time() - cpu) / (self._warm_up_s + self._seconds)
        return {each.told.name: self._seen(each, began + self._warm_up_s, cpu_share) for each in self._streams}

    def _is_unfinished(self) -> bool:
        return self._busy > 0 or any(stream.waiting for stream in self._streams)

    def _send_due(self, stream: _Stream, began: float, now: float, is_on: bool) -> float:
        """Send what is due on idle connections. Returns how long nothing more will be, seconds."""
        if not stream.told.rate:
            while is_on and stream.idle:
                self._send(stream, now, 0)
            return 0.1
        while stream.arrivals and began + stream.arrivals[0][0] <= now:
            after, kind = stream.arrivals.popleft()
            stream.waiting.append((began + after, kind))
            stream.late.append(now - began - after)
        while stream.waiting:
            if not stream.idle:
                if stream.connections >= _MOST_CONNECTIONS:
                    break
                self._connect(stream)
            self._send(stream, *stream.waiting.popleft())
        return max(0.0, began + stream.arrivals[0][0] - now) if stream.arrivals else 0.1

    def _connect(self, stream: _Stream) -> None:
        connection = _Connection(stream, stream.told.ports[stream.connections % len(stream.told.ports)])
        stream.connections += 1
        stream.idle.append(connection)
        self._register(connection)

    def _register(self, connection: _Connection) -> None:
        self._by_number[connection.socket.fileno()] = connection
        self._poll.register(connection.socket, select.EPOLLIN)

    def _send(self, stream: _Stream, due: float, kind: int) -> None:
        connection = stream.idle.pop()
        encoded = stream.encoded[kind]
        connection.unsent = memoryview(encoded[stream.sent % len(encoded)])
        connection.due, connection.kind, connection.is_busy = due, kind, True
        stream.sent += 1
        self._busy += 1
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        try:
            connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._end(connection, 0)
            return
        if connection.unsent:
            self._poll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)

    def _handle(self, connection: _Connection, event: int) -> None:
        if event & select.EPOLLOUT and connection.unsent:
            self._poll.modify(connection.socket, select.EPOLLIN)
            self._write(connection)
        if not event & ~select.EPOLLOUT:
            return
        try:
            content = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        connection.answer += content
        status = complete(connection.answer)
        if status or not content:
            self._end(connection, status)

    def _end(self, connection: _Connection, status: int) -> None:
        """Count an answer, or that there is none."""
        stream, answer = connection.stream, connection.answer
        if connection.is_busy:
            self._busy -= 1
            connection.is_busy = False
            took = perf_counter() - connection.due
            is_fallback = status == _OK and b"\nx-variant: int8" in answer[:1000].lower()
            stream.outcomes.append((connection.due, connection.kind, status, took, is_fallback))
            stream.idle.append(connection)
            if status != _OK:
                stream.bad = stream.bad or (bytes(answer[:300]).decode(errors="replace") or "the connection was closed")
        if not status or connection.unsent or b"\nconnection: close" in answer[:1000].lower():
            self._poll.unregister(connection.socket)
            del self._by_number[connection.socket.fileno()]
            connection.socket.close()
            connection.open()
            self._register(connection)
        connection.answer = bytearray()
        connection.unsent = memoryview(b"")

    def _seen(self, stream: _Stream, since: float, cpu: float) -> Seen:
        """Closed loops count what was answered while they were measured, open ones what was due then."""
        until = since + self._seconds
        closed = not stream.told.rate
        counted = [each for each in stream.outcomes if since <= each[0] + (each[3] if closed else 0.0) < until]
        good = np.array([latency for _, _, status, latency, _ in counted if status == _OK])
        p50, p99 = (float(value) * 1000 for value in np.quantile(good, (0.5, 0.99))) if good.size else (0.0, 0.0)
        offered = [kind for after, kind in stream.offered if after >= self._warm_up_s]
        in_time = {}
        for kind, name in enumerate(CLASSES if stream.told.deadline_ms else ()):
            limit = stream.told.deadline_ms / 1000
            times = sum(of == kind and status == _OK and latency <= limit for _, of, status, latency, _ in counted)
            in_time[name] = times / max(1, offered.count(kind))
        late = float(np.quantile(stream.late, 0.99)) * 1000 if stream.late else 0.0
        return Seen(
            per_second=good.size / self._seconds,
            p50_ms=p50,
            p99_ms=p99,
            answers=good.size,
            failures=(len(counted) if closed else len(offered)) - good.size,
            in_time=in_time,
            fallbacks=sum(is_fallback for *_, is_fallback in counted),
            late_p99_ms=late,
            cpu=cpu,
            bad=stream.bad,
        )


def main(told: dict[str, Any]) -> None:
    """Send, and print what came back."""
    streams = [Stream(**{**each, "ports": tuple(each["ports"])}) for each in told["streams"]]
    found = _Load(streams, told["warm_up_s"], told["seconds"]).run()
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
