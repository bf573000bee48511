"""Serves models and judges every answer by what ONNX Runtime alone says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np
from local_server import LocalServer

from conformance.alone import Tensors, difference
from conformance.asking import CLIENTS, Ask, Reply, Way, ask_together
from conformance.row_requests import Request
from conformance.tally import Outcome, Tally
from serve_app.composition import describe_models
from serve_app.config.args import parse_args
from serve_app.errors import ConfigError


class Candidate(NamedTuple):
    """A model that is to be served.

    Attributes:
        name: What it is called in the tally.
        model: The bytes of its file.
        requests: What clients ask of it.
    """

    name: str
    model: bytes
    requests: Sequence[Request]


def model_args(name: str, folder: Path, *, unverified: bool = False) -> dict[str, Any]:
    """How one model is configured.

    Args:
        name: In URLs.
        folder: Of its versions.
        unverified: Whether to join its requests without proof.
    """
    # A breaker would refuse valid requests after others had failed: here each is judged by itself.
    made: dict[str, Any] = {"name": name, "path": str(folder), "breaker": {"enabled": False}}
    if unverified:
        made["batching"] = {"unverified": "allow"}
    return made


def server_args(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How a server of so many models is configured."""
    return {
        "models": [dict(model) for model in models],
        "router": {"limits": {"max_ongoing_requests": 1_000_000, "max_request_rows": 16_384}},
        "classes": {"normal": {"timeout_ms": 60_000}},
    }


def write_model(model: bytes, folder: Path) -> Path:
    """Write a model's file where the server looks for it, and return its folder."""
    file = folder / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(model)
    return folder


def refusal(args: Mapping[str, Any]) -> str | None:
    """Why the server refuses to serve a model, before it serves anything; ``None`` where it does not."""
    try:
        describe_models(parse_args(server_args([args])))
    except ConfigError as error:
        return "; ".join(error.problems)
    return None


def judge(
    candidates: Sequence[Candidate],
    folder: Path,
    tally: Tally,
    rng: np.random.Generator,
    *,
    rounds: int,
    unverified: bool = False,
) -> None:
    """Serve them all at once, ask all of them from several clients, and note what became of each.

    Args:
        candidates: The models.
        folder: Where their files go.
        tally: Is told.
        rng: Chooses who asks what.
        rounds: How many times `CLIENTS` clients ask each model.
        unverified: See `model_args`.
    """
    served: dict[str, Candidate] = {}
    args: dict[str, dict[str, Any]] = {}
    for number, candidate in enumerate(candidates):
        name = f"m{number}"
        one = model_args(name, write_model(candidate.model, folder / name), unverified=unverified)
        reason = refusal(one)
        if reason is None:
            served[name], args[name] = candidate, one
        else:
            tally.add(candidate.name, Outcome.REFUSED_MODEL, reason)
    _judge_served(served, args, tally, rng, rounds)


def _judge_served(
    served: Mapping[str, Candidate],
    args: Mapping[str, Mapping[str, Any]],
    tally: Tally,
    rng: np.random.Generator,
    rounds: int,
) -> None:
    if not served:
        return
    found = Tally(tally.title)
    try:
        with LocalServer(server_args([args[name] for name in served])) as server:
            for name, candidate in served.items():
                _judge_one(server, name, candidate, found, rng, rounds)
            found.runs += _runs(server)
        tally.merge(found)
    except Exception as error:  # whatever keeps a server that was validated from starting, or from answering at all
        if len(served) == 1:
            (candidate,) = served.values()
            tally.add(candidate.name, Outcome.FAILED_LATER, f"{type(error).__name__}: {error}")
            return
        names = list(served)  # one of them keeps the others from being served: find it
        for half in (names[: len(names) // 2], names[len(names) // 2 :]):
            _judge_served({name: served[name] for name in half}, args, tally, rng, rounds)


def _judge_one(
    server: LocalServer, name: str, candidate: Candidate, tally: Tally, rng: np.random.Generator, rounds: int
) -> None:
    chosen = [[candidate.requests[int(at)] for at in _choice(rng, candidate, turn)] for turn in range(rounds)]
    asks = [
        [Ask(name, request.inputs, _way(request, client, turn)) for client, request in enumerate(asked)]
        for turn, asked in enumerate(chosen)
    ]
    ended: Counter[Outcome] = Counter()
    details: dict[Outcome, str] = {}
    for asked, ways, replies in zip(chosen, asks, ask_together(server, asks), strict=True):
        for request, ask, reply in zip(asked, ways, replies, strict=True):
            tally.requests += request.expected is not None
            tally.beyond += request.expected is None and reply.status == 200
            outcome, detail = _outcome(request, reply)
            ended[outcome] += 1
            details.setdefault(outcome, f"{ask.way} {_shapes(request.inputs)}: {detail}")
    worst = next((outcome for outcome in (Outcome.WRONG, Outcome.REFUSED_REQUEST) if ended[outcome]), Outcome.RIGHT)
    tally.add(candidate.name, worst, f"{ended[worst]} of {ended.total()}, e.g. {details.get(worst, '')}")


def _runs(server: LocalServer) -> int:
    """How often it has run its models."""
    with urlopen(f"{server.url}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("serve_app_batch_rows_count{"))


def _choice(rng: np.random.Generator, candidate: Candidate, turn: int) -> list[int]:
    """What each client asks in this turn: everything once before anything twice, the model's own data first."""
    number = len(candidate.requests)
    order = list(range(number)) if turn == 0 else [int(at) for at in rng.permutation(number)]
    return [order[client % number] for client in range(CLIENTS)]


def _outcome(request: Request, reply: Reply) -> tuple[Outcome, str]:
    if request.expected is None:
        return Outcome.RIGHT, ""  # a fault of the client, who may be told so or get rows that the model can make
    if reply.outputs is None:
        return Outcome.REFUSED_REQUEST, f"{reply.status} {reply.message[:200]}"
    wrong = difference(request.expected, reply.outputs)
    return (Outcome.RIGHT, "") if wrong is None else (Outcome.WRONG, wrong)


def _way(request: Request, client: int, turn: int) -> Way:
    """Binary HTTP, and of the first turn one request by gRPC and one in JSON, where that can carry it."""
    if turn == 0 and client == CLIENTS - 1:
        return "grpc"
    if turn == 0 and client == CLIENTS - 2 and request.expected is not None:
        arrays = [*request.inputs.values(), *request.expected.values()]
        if all(array.dtype.kind != "V" and _is_json(array) for array in arrays):
            return "json"
    return "binary"


def _is_json(array: Any) -> bool:
    return array.dtype.kind in "biuO" or (array.dtype.kind == "f" and bool(np.isfinite(array).all()))


def _shapes(inputs: Tensors) -> str:
    return ", ".join(f"{name}{list(array.shape)}" for name, array in inputs.items())
