"""Sends callbacks at the ends of jobs: CloudEvents 1.0, signed as Standard Webhooks, to allowed hosts.

A pending callback is stored together with the job's end, so it survives routers. It is sent at least once, always with
the same event id.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import Context
from datetime import UTC, datetime
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from serve_app.errors import InvalidRequest, StoreUnavailable
from serve_app.jobs.records import Callback, Job
from serve_app.jobs.settings import CallbackSettings
from serve_app.jobs.shown import shown
from serve_app.jobs.store import Store

logger = logging.getLogger(__name__)

Post: TypeAlias = Callable[[str, dict[str, str], bytes], Awaitable[int]]
"""Sends a body with headers to a URL, and gives the status of the answer. Raises `OSError` and `ValueError`."""

_AT_ONCE: Final = 32
_AT_ONCE_TO_ONE: Final = 8
"""To one host: one that does not answer leaves the others their turn."""
_LOOK_S: Final = 2.0
_LATER_S: Final = 30.0
"""How much later, at most, one comes again whose host had no turn for it: each at another time."""
_LONGEST_PAUSE_S: Final = 3600.0
_GONE: Final = 410
"""The receiver wants no more of this."""
_MOST_URL: Final = 2048


def check_callback(url: str, settings: CallbackSettings) -> None:
    """Check the URL of a callback, without resolving it.

    Raises:
        InvalidRequest: It is malformed, or its host is not configured.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise InvalidRequest("callback: expected a URL") from None
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= _MOST_URL
    if not plain or parts.scheme not in {"http", "https"} or not host or parts.username or parts.password:
        raise InvalidRequest("callback: expected a URL with http or https, a host, and no user or password")
    usual = 443 if parts.scheme == "https" else 80
    port = usual if port is None else port
    if f"{host}:{port}" not in settings.hosts and (port != usual or host not in settings.hosts):
        raise InvalidRequest(f"callback: {host[:253]}:{port} is none of router.jobs.callbacks.hosts, which may be told")


def event_of(job: Job) -> bytes:
    """The event of a job's end: CloudEvents 1.0, in JSON's structured mode."""
    assert job.ended is not None
    event = {
        "specversion": "1.0",
        "id": job.id,
        "source": "/v1/jobs",
        "type": f"serve_app.job.{job.state.lower()}",
        "subject": job.id,
        "time": datetime.fromtimestamp(job.ended, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": shown(job),
    }
    return json.dumps(event).encode()


def signed(event: str, sent: int, body: bytes, secret: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks, with a signature over id, time and body.

    Args:
        event: The event's id.
        sent: POSIX time of this attempt, whole seconds.
        secret: Shared with the receiver; empty: no signature.
    """
    headers = {"webhook-id": event, "webhook-timestamp": str(sent)}
    if secret:
        digest = hmac.digest(secret, f"{event}.{sent}.".encode() + body, hashlib.sha256)
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


class Callbacks:
    """Sends due callbacks, a few at once, from `start` to `close`.

    Attributes:
        results: Attempts by result: ``delivered``, ``failed`` (retried) or ``given_up``.
    """

    def __init__(self, store: Store, settings: CallbackSettings, post: Post, now: Callable[[], float]) -> None:
        self._store = store
        self._settings = settings
        self._post = post
        self._now = now
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._sending: dict[asyncio.Task[None], str] = {}  # the host of each
        self.results: Counter[str] = Counter()

    def start(self) -> None:
        """Start sending, if any host is allowed."""
        if self._settings.hosts:
            self._worker = asyncio.get_running_loop().create_task(self._work(), context=Context())

    def wake(self) -> None:
        """Check for callbacks after the end of a job."""
        self._wake.set()

    async def close(self) -> None:
        """Stop; another router sends the rest, or this one after its next start."""
        tasks = [*self._sending] if self._worker is None else [self._worker, *self._sending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            try:
                due = await self._begin(_AT_ONCE - len(self._sending))
            except StoreUnavailable as error:
                due = 0
                logger.warning("Callbacks wait: %s", error.message)
            except Exception:
                due = 0
                logger.exception("Callbacks wait after a failure")
            if not due:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._wake.wait()

    async def _begin(self, most: int) -> int:
        """Start sending due callbacks; returns their number."""
        if not most:
            return 0
        due = await self._store.due_callbacks(self._now(), most, 2 * self._settings.timeout_s + 10)
        for callback in due:
            host = urlsplit(callback.job.callback).netloc
            if list(self._sending.values()).count(host) < _AT_ONCE_TO_ONE:
                task = asyncio.create_task(self._deliver_safely(callback))
                self._sending[task] = host
                task.add_done_callback(self._on_sent)
            else:
                later = self._now() + random.uniform(0.0, _LATER_S)  # noqa: S311 - no secret
                await self._store.told(callback.job.id, "pending", callback.attempts, later)
        return len(due)

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        self._wake.set()

    async def _deliver_safely(self, callback: Callback) -> None:
        """`_deliver`, but a failure only delays the callback until its lease ends."""
        try:
            await self._deliver(callback)
        except StoreUnavailable as error:
            logger.warning("Callbacks wait: %s", error.message)
        except Exception:
            logger.exception("The callback of job %s waits after a failure", callback.job.id)

    async def _deliver(self, callback: Callback) -> None:
        job, attempts = callback.job, callback.attempts + 1
        fault, final = await self._attempt(job)
        if not fault:
            result, due = "delivered", 0.0
        elif final or attempts >= self._settings.attempts:
            result, due = "given_up", 0.0
            logger.warning("The callback of job %s is given up after %d attempts: %s", job.id, attempts, fault)
        else:
            result = "pending"
            pause_s = min(_LONGEST_PAUSE_S, self._settings.retry_s * 4.0 ** (attempts - 1))
            due = self._now() + pause_s * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
            logger.info("The callback of job %s failed, attempt %d: %s", job.id, attempts, fault)
        self.results["failed" if result == "pending" else result] += 1
        await self._store.told(job.id, result, attempts, due)

    async def _attempt(self, job: Job) -> tuple[str, bool]:
        """Why one attempt failed, or empty; and whether retrying is pointless."""
        try:
            check_callback(job.callback, self._settings)  # the configuration may be another one by now
        except InvalidRequest as error:
            return error.message, True
        body = event_of(job)
        headers = {
            "content-type": "application/cloudevents+json; charset=utf-8",
            **signed(job.id, int(self._now()), body, self._settings.secret),
        }
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                status = await self._post(job.callback, headers, body)
        except TimeoutError:
            return "no answer in time", False
        except OSError as error:
            return f"{type(error).__name__}: {error.strerror or error}", False
        except ValueError as error:
            return f"{type(error).__name__}: {error}", False
        return ("", False) if 200 <= status < 300 else (f"status {status}", status == _GONE)
