"""Calls over a link, awaited."""

from __future__ import annotations

import asyncio
from functools import partial

from serve_app.payloads import Bundle, BundleResult
from serve_app.transport.replica_link import ReplicaLink


async def ask(link: ReplicaLink, bundle: Bundle) -> BundleResult:
    """Send a bundle and wait for its result. Raises what comes instead."""
    came: asyncio.Future[BundleResult] = asyncio.get_running_loop().create_future()
    link.send(bundle, partial(_settle, came))
    try:
        return await came
    finally:
        del bundle, came  # which the traceback of an error would keep, in a cycle


def _settle(came: asyncio.Future[BundleResult], result: BundleResult | BaseException) -> None:
    if came.done():  # nobody waits any more
        return
    if isinstance(result, BaseException):
        came.set_exception(result)
    else:
        came.set_result(result)
