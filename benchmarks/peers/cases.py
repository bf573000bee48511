"""What is compared: which servers answer which requests, over how many connections, and what the figures should be."""

from __future__ import annotations

from dataclasses import dataclass

OURS, OURS_PROXY = "serve_app", "serve_app (HAProxy)"
"""Two ways into the same server: straight to the router, and through Serve's proxy."""
STOCK = "stock Ray Serve"
TRITON, FASTAPI, SYNC = "Triton", "FastAPI", "synchronous"
LITSERVE, BENTOML, MLSERVER = "LitServe", "BentoML", "MLServer"
RAW = "ONNX Runtime alone"
"""No server: a loop in a process of its own, on the same cores."""


PATIENCE_S = 60.0
"""How long clients wait where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Aim:
    """A ratio of answers per second that serve_app should reach.

    Attributes:
        against: The other system.
        connections: Where it counts.
        at_least: The ratio.
    """

    against: str
    connections: int
    at_least: float


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison.

    Attributes:
        name: For the command line and the report.
        model: Of `configs/bench.yaml`.
        wire: ``json`` or ``binary``: the form of requests for all who speak it.
        connections: Numbers of connections that are kept busy.
        systems: Names, in the order of the report.
        aims: What should come out.
        timeout_s: How long a client waits; an answer after that is a failure.
        paced: Systems whose latency is measured at fixed rates, too.
        title: A phrase for people.
    """

    name: str
    model: str
    wire: str
    connections: tuple[int, ...]
    systems: tuple[str, ...]
    aims: tuple[Aim, ...]
    title: str
    timeout_s: float = PATIENCE_S
    paced: tuple[str, ...] = ()


_SERVERS = (OURS, STOCK, TRITON, FASTAPI, SYNC, LITSERVE, BENTOML, MLSERVER, RAW)

CASES = (
    Case(
        "tiny",
        "tiny",
        "json",
        (1, 16, 64, 256),
        _SERVERS,
        (Aim(TRITON, 64, 1.15), Aim(FASTAPI, 64, 1.0), Aim(STOCK, 64, 25.0)),
        "64 numbers in, 10 out, as JSON: what the server itself costs",
        paced=(OURS, TRITON, FASTAPI),
    ),
    Case(
        "pool",
        "pool",
        "binary",
        (32,),
        (OURS, TRITON, FASTAPI, LITSERVE, BENTOML, MLSERVER, RAW),
        (Aim(TRITON, 32, 1.0),),
        "602 KB in, 3 numbers out: moving large tensors",
    ),
    Case(
        "resnet50",
        "resnet50",
        "binary",
        (8, 32),
        (OURS, TRITON, FASTAPI, RAW),
        (Aim(RAW, 8, 0.95), Aim(RAW, 32, 0.95)),
        "602 KB in and a ResNet-50 on them: compute",
        paced=(OURS, TRITON, FASTAPI),
    ),
    Case(
        "wide",
        "wide",
        "binary",
        (64,),
        (OURS, TRITON, FASTAPI, RAW),
        (Aim(RAW, 64, 0.85),),
        "four layers of 2048 x 2048, bound by memory and so much cheaper in batches",
    ),
    Case(
        "wide-sync",
        "wide",
        "binary",
        (100, 500, 1000),
        (OURS, SYNC),
        (Aim(SYNC, 100, 3.5), Aim(SYNC, 500, 6.0)),
        "the same beside the server that teams write first, for clients that wait 2 s",
        timeout_s=2.0,
    ),
    Case(
        "minilm",
        "minilm",
        "binary",
        (32,),
        (OURS, TRITON, FASTAPI, RAW),
        (Aim(RAW, 32, 0.9),),
        "token ids of mixed lengths into a sentence encoder, one text per request",
    ),
)
