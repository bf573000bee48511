"""What a router makes of what its replicas say of sharing runs."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import pytest
from runtime_harness import MODEL, Serving, Transport, make_dispatcher, serve, tensor

from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo, RequestOptions
from serve_app.payloads import Joinable, ModelSignature, TensorSpec

PROVEN, EXACT = Joinable("proven", "by the graph"), Joinable("exact", "tried")
CLOSE, CLOSER = Joinable("close", "nearly", 0.02), Joinable("close", "nearly", 0.01)
DEPENDENT = Joinable("dependent", "they meet", 0.001)
LONG = EXACT._replace(padding="changes")
CARE = (PROVEN, EXACT, CLOSER, CLOSE, LONG, DEPENDENT)
"""From the least careful to the most."""


def make_service(transport: Transport, **info: Any) -> Serving:
    """A service of one model whose bundles take up to four rows."""
    spec = TensorSpec("x", "FP32", (-1, -1))
    timeouts = dict.fromkeys(Priority, 30.0)
    signature = info.pop("signature", ModelSignature((spec,), (spec._replace(name="y"),)))
    told = ModelInfo(MODEL, "1", ("1",), "tensors", signature, 4, 64, timeouts, (), ("light",), **info)
    dispatcher, metrics = make_dispatcher(transport)
    return serve(told, dispatcher, metrics)


def of(service: Serving, variant: str = "") -> Joinable | None:
    """What clients are told."""
    return service.inference.find(MODEL).joinable.get(variant)


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(CARE)), 3)), ids=str)
async def test_of_several_replicas_the_most_careful_counts(order: tuple[int, ...]) -> None:
    """In whatever order they tell it: one that could try nothing, or that is close, takes back nothing."""
    service = make_service(Transport())
    for place in order:
        service.models.on_joinable(MODEL, {"": CARE[place]})
    assert CARE[max(order)] == of(service)


async def test_what_is_told_reaches_clients_and_the_status() -> None:
    """By variant; of a model that is not served here nothing is taken."""
    service = make_service(Transport())
    service.models.on_joinable("another", {"": DEPENDENT})
    service.models.on_joinable(MODEL, {"": EXACT, "light": DEPENDENT})
    assert (EXACT, DEPENDENT) == (of(service), of(service, "light"))
    status = service.administration.status()["models"][MODEL]["joinable"]
    assert ({"": "exact", "light": "dependent"}, 0.001) == (
        {variant: verdict["verdict"] for variant, verdict in status.items()},
        status["light"]["deviation"],
    )


@pytest.mark.parametrize(
    ("verdict", "sizes"), [(EXACT, [3]), (CLOSE, [3]), (PROVEN, [3]), (DEPENDENT, [1, 1, 1]), (None, [3])]
)
async def test_requests_that_share_no_run_share_no_bundle(verdict: Joinable | None, sizes: list[int]) -> None:
    """While nobody knows, they do: the replica decides."""
    transport = Transport()
    service = make_service(transport)
    if verdict is not None:
        service.models.on_joinable(MODEL, {"": verdict})
    asking = [asyncio.ensure_future(service.inference.submit(MODEL, tensor(1.0), RequestOptions())) for _ in range(3)]
    found = []
    for _ in sizes:
        sent = await transport.next()
        found.append(len(sent.bundle.entries))
        sent.succeed()
    await asyncio.gather(*asking)
    assert sizes == found


@pytest.mark.parametrize(
    ("payload", "rows"),
    [
        ({"x": np.ones((3, 2))}, 3),
        ({"x": np.ones((3, 2)), "z": np.ones((1, 2))}, 3),
        ({"x": np.ones((0, 2))}, 1),
        ({"x": np.ones((3, 2)), "z": np.ones((3, 2)), "bias": np.ones(7)}, 1),
    ],
    ids=["rows", "one and three", "empty", "optional"],
)
async def test_the_rows_that_a_request_counts_for(payload: Any, rows: int) -> None:
    """For the scheduler: as many as its run has, and one where it is run as it came."""
    specs = tuple(TensorSpec(name, "FP32", (-1, -1)) for name in "xz")
    transport = Transport()
    signature = ModelSignature(specs, specs, (TensorSpec("bias", "FP32", (7,)),))
    service = make_service(transport, signature=signature)
    asking = asyncio.ensure_future(service.inference.submit(MODEL, payload, RequestOptions()))
    sent = await transport.next()
    sent.succeed()
    await asking
    assert [rows] == [entry.rows for entry in sent.bundle.entries]


async def test_a_request_without_rows_counts_for_one() -> None:
    """Whatever its shapes, or none at all."""
    transport = Transport()
    service = make_service(transport, joinable={"": Joinable("whole", "", rows=False)})
    payloads: list[Any] = [{}, {"x": np.float64(1)}, {"x": np.ones((99, 2))}]
    for payload in payloads:
        asking = asyncio.ensure_future(service.inference.submit(MODEL, payload, RequestOptions()))
        sent = await transport.next()
        sent.succeed()
        await asking
        assert [1] == [entry.rows for entry in sent.bundle.entries]


async def test_an_answer_of_a_build_without_proof_says_so() -> None:
    """By the variant that answered."""
    transport = Transport()
    service = make_service(transport, joinable={"": EXACT, "light": Joinable("unverified", "allowed")})
    marked = []
    for variant in ("", "light"):
        asking = asyncio.ensure_future(service.inference.submit(MODEL, tensor(1.0), RequestOptions(variant=variant)))
        (await transport.next()).succeed(variant)
        marked.append((await asking).unverified)
    assert [False, True] == marked
