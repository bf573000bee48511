"""Sends hostile requests over a few connections, and looks at what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httptools

from hostile.cases import Case, case, request

_PATIENCE_S = 30.0
_UNFINISHED_S = 0.02
"""How long a head that may never end is given for an answer, seconds."""
_SAID_AT_MOST = 20
_LEAKS = (b"Traceback", b"site-packages", b'File \\"', b"/serve_app/")
_CANARY_EVERY = 200
_NOT_OURS = frozenset({501})
"""The one 5xx that always blames the request: a part of the protocol that is not served."""
_OWN_TIME = re.compile(rb"stream[-_]timeout", re.IGNORECASE)
"""A request that says how long its answer may take may be too late by that: 504 is its own doing."""


@dataclass
class Findings:
    """What came back.

    Attributes:
        asked: Cases sent, by kind.
        statuses: Answers by kind and status; 0: the connection ended without one.
        faults: What must not be, in words; the first few.
        faulty: How many cases went wrong.
    """

    asked: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    faulty: int = 0

    def fault(self, what: str) -> None:
        """Something went wrong."""
        self.faulty += 1
        if len(self.faults) < _SAID_AT_MOST:
            self.faults.append(what)


class _Response:
    """Collects one response; what comes after it is left out.

    Args:
        bodiless: Whether it ends with its head, as the answer to HEAD does.
    """

    def __init__(self, *, bodiless: bool) -> None:
        self._bodiless = bodiless
        self.parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.body = bytearray()
        self.complete = False
        self.closes = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"connection" and value.lower() == b"close":
            self.closes = True

    def on_headers_complete(self) -> None:
        if not self.complete:
            self.status = self.parser.get_status_code()
            self.complete = self._bodiless

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


class Asker:
    """Asks cases, over one connection after the other.

    Args:
        host: Of the server.
        port: Of the server.
        seed: Of the cases.
        findings: Where it notes what came back.
    """

    def __init__(self, host: str, port: int, seed: int, findings: Findings) -> None:
        self._address = host, port
        self._seed = seed
        self._findings = findings
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, numbers: Iterator[int], told: Callable[[], None]) -> None:
        """Ask the cases of these numbers, for as long as the server takes connections.

        Args:
            numbers: Shared with other askers.
            told: Called after each.
        """
        for number in numbers:
            asked = case(self._seed, number)
            self._findings.asked[asked.kind] += 1
            try:
                await self._ask(number, asked)
                if number % _CANARY_EVERY == 0:
                    await self._canary(number)
            except OSError as error:  # only connecting raises it
                self._findings.fault(f"case {number} ({asked.kind}): no connection: {error}")
                break
            told()
        await self._hang_up()

    async def _ask(self, number: int, asked: Case) -> None:
        findings = self._findings
        try:
            response = await self._exchange(asked)
        except TimeoutError:
            findings.fault(f"case {number} ({asked.kind}): no answer within {_PATIENCE_S:.0f} s")
            await self._hang_up()
            return
        findings.statuses[asked.kind, response.status] += 1
        late = response.status == 504 and _OWN_TIME.search(asked.wire)
        if response.status >= 500 and response.status not in _NOT_OURS and not late:
            findings.fault(f"case {number} ({asked.kind}): {response.status} {bytes(response.body[:300])!r}")
        elif response.status == 0 and asked.http and asked.whole:
            findings.fault(f"case {number} ({asked.kind}): the connection ended without an answer")
        elif any(leak in response.body for leak in _LEAKS):
            findings.fault(f"case {number} ({asked.kind}): it tells of the server: {bytes(response.body[:300])!r}")
        elif response.status >= 400 and response.body and not _is_error(response.body):
            findings.fault(f"case {number} ({asked.kind}): not an error of ours: {bytes(response.body[:300])!r}")

    async def _exchange(self, asked: Case) -> _Response:
        """Send a case and read what comes back."""
        if self._writer is None or not asked.http:
            await self._connect()
        assert self._reader is not None
        assert self._writer is not None
        response = _Response(bodiless=asked.wire.startswith(b"HEAD "))
        patience_s = _PATIENCE_S if asked.whole else _UNFINISHED_S
        with contextlib.suppress(ConnectionError):
            try:
                async with asyncio.timeout(patience_s):
                    self._writer.write(asked.wire)
                    await self._writer.drain()
                    while not response.complete and (data := await self._reader.read(65536)):
                        response.parser.feed_data(data)
            except TimeoutError:
                if asked.whole:
                    raise
            except httptools.HttpParserError:
                response.closes = True  # more than one answer, to more than one request in the case
        if response.closes or not response.complete or not asked.whole or not asked.http:
            await self._hang_up()
        return response

    async def _canary(self, number: int) -> None:
        """Ask a good request: it is answered, and correctly, whatever was asked before."""
        values = [number % 1000] * 16
        kind = {"shape": [1, 16], "datatype": "INT32", "data": values}
        tensors = [{"name": name, **kind} for name in ("INPUT0", "INPUT1")]
        wire = request("/v2/models/sum_diff/infer", json.dumps({"inputs": tensors}).encode())
        try:
            response = await self._exchange(Case("canary", wire))
            outputs = json.loads(response.body)["outputs"]
        except (TimeoutError, ValueError, KeyError) as error:
            self._findings.fault(f"after case {number}, a good request was not answered: {error!r}")
            return
        if {"OUTPUT0": [2 * values[0]] * 16, "OUTPUT1": [0] * 16} != {out["name"]: out["data"] for out in outputs}:
            self._findings.fault(f"after case {number}, a good request was answered wrongly: {outputs}")

    async def _connect(self) -> None:
        await self._hang_up()
        self._reader, self._writer = await asyncio.open_connection(*self._address, limit=2**20)

    async def _hang_up(self) -> None:
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def _is_error(body: bytes | bytearray) -> bool:
    """Whether a body is this server's JSON for an error, in its own shape or in OpenAI's."""
    try:
        document: Any = json.loads(body)
    except ValueError:
        return False
    return isinstance(document, dict) and bool(document.get("error"))
