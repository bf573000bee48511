"""A router of a pool that ends, with a host that the test steers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
from pool_models import infer_body, pool_args
from runtime_harness import settle

from serve_app.composition import describe_models, read_args, router_settings
from serve_app.domain.hosting import LoadOutcome, Owner
from serve_app.payloads import Bundle, BundleResult
from serve_app.router.router import Router
from serve_app.router.settings import HttpPort, ReplicaReport


async def test_a_router_that_is_closed_leaves_its_hosts_to_the_next(tmp_path: Path) -> None:
    """What waits there for a load is refused, with when to ask again, and not loaded at the cost of its successor."""
    orders: asyncio.Queue[asyncio.Future[LoadOutcome]] = asyncio.Queue()

    async def change(_p: str, _h: str, _o: Owner, _e: Sequence[str], _load: str, _urgent: bool) -> LoadOutcome:
        order: asyncio.Future[LoadOutcome] = asyncio.get_running_loop().create_future()
        orders.put_nowait(order)
        return await order

    async def call(model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:
        raise AssertionError(model, bundle, replica, nbytes)

    config = read_args(pool_args(tmp_path, 2))
    settings = router_settings(config, describe_models(config), priors={}, identities={})
    router = Router(replace(settings, http_port=HttpPort("127.0.0.1", 0)), call, change_host=change)
    router.start()
    router.on_hosts("small", {"h": ReplicaReport()})
    await router.opened()
    assert router.http_address is not None
    url = "http://{}:{}/v2/models/m1/infer".format(*router.http_address)
    async with httpx.AsyncClient(timeout=30.0) as client, asyncio.timeout(30.0):
        asked = asyncio.ensure_future(client.post(url, json=infer_body(1.0)))
        order = await orders.get()
        closing = asyncio.ensure_future(router.close(30.0, grace_s=0.0))
        await settle()
        order.set_result(LoadOutcome(fault="another router has it", superseded=1e12))
        answer = await asked
        await closing
    assert (answer.status_code, answer.json()["error"]) == (503, "another router has it")
    assert int(answer.headers["retry-after"]) >= 1
    assert orders.empty()
