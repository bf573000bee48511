"""The overload ladder in a running server: flooded until it has climbed, then left alone until it is down."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import onnx_models
from local_server import LocalServer
from onnx import TensorProto, helper

_WIDTH = 1024
_LAYERS = 50
"""A run takes some ten times as long as asking for it: clients and server share this process."""
_LIGHT_LAYERS = 30
_FLOODERS = 50
"""Clients per class that flood: more than twice as many as the light variant can answer in their time."""
_RUNS_ALLOWED = 15
_GIVE_UP_S = 60.0


class Seen(NamedTuple):
    """One answer of the server."""

    status: int
    overload: str
    variant: str
    message: str


def _make_model(path: Path, layers: int) -> None:
    """Multiply a row by the same matrix so many times."""
    path.parent.mkdir(parents=True)
    names = ["wide", *(f"h{layer}" for layer in range(1, layers)), "y"]
    onnx_models.write(
        path,
        [
            helper.make_node("MatMul", ["x", "widen"], ["wide"]),
            *(helper.make_node("MatMul", [names[at], "w"], [names[at + 1]]) for at in range(layers)),
        ],
        [("x", TensorProto.FLOAT, [None, 1])],
        [("y", TensorProto.FLOAT, [None, _WIDTH])],
        {"w": np.eye(_WIDTH, dtype=np.float32), "widen": np.ones((1, _WIDTH), np.float32)},
    )


def _served(folder: Path) -> dict[str, Any]:
    _make_model(folder / "exact" / "1" / "model.onnx", _LAYERS)
    _make_model(folder / "light" / "1" / "model.onnx", _LIGHT_LAYERS)
    return {
        "models": [
            {
                "name": "heavy",
                "path": str(folder / "exact"),
                "batching": {"max_rows": 1},
                "variants": [{"name": "light", "path": str(folder / "light")}],
                "fallbacks": ["light"],
            }
        ],
        "overload": {
            "climb_at": 0.5,
            "descend_at": 0.25,
            "climb_ms": 60,
            "smoothing_ms": 50,
            "dwell_s": 0.1,
            "ration": 0.2,
        },
    }


class Clients:
    """Asks the model of one server, and notes what comes back per class."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.seen: list[tuple[str, Seen]] = []
        self.at_top = asyncio.Event()
        self._body = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}],
            "outputs": [{"name": "y", "parameters": {"classification": 1}}],  # an answer of a few bytes
        }

    async def ask(self, priority: str, timeout_s: float, variant: str = "") -> Seen:
        """Send one request."""
        headers = {"X-Priority": priority, "X-Timeout-Ms": str(round(timeout_s * 1000))}
        if variant:
            headers["X-Variant"] = variant
        reply = await self._http.post("/v2/models/heavy/infer", json=self._body, headers=headers)
        seen = Seen(
            reply.status_code,
            reply.headers.get("x-overload", ""),
            reply.headers.get("x-variant", ""),
            reply.json().get("error", ""),
        )
        self.seen.append((priority, seen))
        if "ration of class normal" in seen.message:
            self.at_top.set()
        return seen

    async def flood(self, priority: str, timeout_s: float) -> None:
        """Ask again and again; after a refusal, not at once."""
        while True:
            if (await self.ask(priority, timeout_s)).status == 429:
                await asyncio.sleep(timeout_s)  # what a client does that was told to try later

    async def until_none(self) -> None:
        """Ask for the status until the ladder is down."""
        while (await self._http.get("/status")).json()["models"]["heavy"]["overload"]["step"] != "none":
            pass

    async def metrics(self) -> str:
        """The page of metrics."""
        return (await self._http.get("/metrics")).text


async def _measured_s(clients: Clients) -> float:
    """The least that a request takes while nobody else asks. Teaches the server what both variants take, too."""
    took = []
    for _ in range(6):
        for variant in ("", "light"):
            started = asyncio.get_running_loop().time()
            assert (await clients.ask("high", 30.0, variant)).status == 200
            took.append(asyncio.get_running_loop().time() - started)
    return min(took[::2])


async def _scenario(url: str) -> tuple[Clients, str]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=_GIVE_UP_S, limits=limits) as http:
        clients = Clients(http)
        timeout_s = _RUNS_ALLOWED * await _measured_s(clients)
        floods = [
            asyncio.create_task(clients.flood(priority, timeout_s))
            for priority in ("normal", "low")
            for _ in range(_FLOODERS)
        ]
        try:
            await clients.at_top.wait()
            for _ in range(3):
                await clients.ask("high", 30.0)
        finally:
            for flood in floods:
                flood.cancel()
            await asyncio.gather(*floods, return_exceptions=True)
        await clients.until_none()
        return clients, await clients.metrics()


def _rationed(seen: Seen) -> bool:
    return "takes only a ration" in seen.message


def test_a_flood_climbs_the_ladder_and_its_end_brings_it_down(tmp_path: Path) -> None:
    """Variant before refusals, `low` before `normal`, `high` always; each answer tells the step; then none again."""
    with LocalServer(_served(tmp_path)) as server:
        clients, metrics = asyncio.run(asyncio.wait_for(_scenario(server.url), _GIVE_UP_S))
    high = [seen for priority, seen in clients.seen if priority == "high"]
    assert {seen.status for seen in high} == {200}
    assert {(seen.variant, bool(seen.overload)) for seen in high[-3:]} == {("", True)}
    lower = [seen for priority, seen in clients.seen if priority != "high"]
    assert {seen.status for seen in lower if seen.variant == "light"} == {200}
    assert "variant" in {seen.overload for seen in lower}
    rationed = [(seen.message.partition("class ")[2].partition(" ")[0], seen) for seen in lower if _rationed(seen)]
    assert rationed[0][0] == "low"
    assert {seen.status for _, seen in rationed} == {429}
    assert {seen.overload for _, seen in rationed} >= {"shed-low", "shed-normal"}
    for line in (
        'serve_app_overload_step{model="heavy"} 0.0',
        'serve_app_overload_moves_total{direction="up",model="heavy"}',
        'serve_app_shed_total{model="heavy",priority="low"}',
        'serve_app_overload_step_seconds_total{model="heavy",step="variant"}',
    ):
        assert line in metrics
