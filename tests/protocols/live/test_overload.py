"""The overload ladder in a running server: asked for more than it can do until it has climbed, then left alone."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import onnx_models
from local_server import LocalServer
from onnx import TensorProto, helper

_WIDTH = 1024
_LAYERS, _LIGHT_LAYERS = 40, 20
_TIMEOUT_S = 30.0
_EACH = 30
"""Requests per class of one burst: they wait for much more than the part of their time at which the ladder climbs."""
_BURSTS = 60
_STEPS = ("none", "batches", "variant", "shed-low", "shed-normal")


class Seen(NamedTuple):
    """One answer of the server."""

    priority: str
    status: int
    overload: str
    variant: str
    message: str

    @property
    def rationed(self) -> str:
        """The class whose ration was used up; empty where that is not why it was refused."""
        return self.message.partition("ration of class ")[2].partition(" ")[0]


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
            "climb_at": 0.0003,
            "descend_at": 0.0001,
            "climb_ms": 40,
            "smoothing_ms": 50,
            "dwell_s": 1.0,
            "ration": 0.0,
            "steps": list(_STEPS[1:]),
        },
    }


async def _ask(http: httpx.AsyncClient, priority: str, variant: str = "") -> Seen:
    headers = {"X-Priority": priority, "X-Timeout-Ms": str(round(_TIMEOUT_S * 1000))}
    if variant:
        headers["X-Variant"] = variant
    body = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}],
        "outputs": [{"name": "y", "parameters": {"classification": 1}}],  # an answer of a few bytes
    }
    reply = await http.post("/v2/models/heavy/infer", json=body, headers=headers)
    return Seen(
        priority,
        reply.status_code,
        reply.headers.get("x-overload", ""),
        reply.headers.get("x-variant", ""),
        reply.json().get("error", ""),
    )


async def _until_none(http: httpx.AsyncClient) -> list[str]:
    """Ask for the status until the ladder is down. Returns the steps that it took."""
    while (told := (await http.get("/status")).json()["models"]["heavy"]["overload"])["step"] != "none":
        pass
    return [move["step"] for move in told["recent"]]


async def _scenario(url: str) -> tuple[list[Seen], list[str], str]:
    async with httpx.AsyncClient(
        base_url=url, timeout=2 * _TIMEOUT_S, limits=httpx.Limits(max_connections=None)
    ) as http:
        for _ in range(4):  # so that the server knows what both variants take
            for variant in ("", "light"):
                assert (await _ask(http, "high", variant)).status == 200
        seen: list[Seen] = []
        for _ in range(_BURSTS):
            seen += await asyncio.gather(*(_ask(http, each) for each in ("high", "normal", "low") * _EACH))
            if any(each.rationed == "normal" for each in seen):
                break
        return seen, await _until_none(http), (await http.get("/metrics")).text


def test_more_than_it_can_do_climbs_the_ladder_and_its_end_brings_it_down(tmp_path: Path) -> None:
    """The variant before refusals, `low` before `normal`, `high` always; answers tell the step; then none again."""
    with LocalServer(_served(tmp_path)) as server:
        seen, moves, metrics = asyncio.run(_scenario(server.url))
    high = [each for each in seen if each.priority == "high"]
    assert {(each.status, each.variant) for each in high} == {(200, "")}
    assert any(each.overload for each in high)
    light = [each for each in seen if each.variant]
    assert {(each.status, each.variant, bool(each.overload)) for each in light} == {(200, "light", True)}
    assert {(each.rationed, each.status, each.overload) for each in seen if each.rationed} <= {
        ("low", 429, "shed-low"),
        ("low", 429, "shed-normal"),
        ("normal", 429, "shed-normal"),
    }
    assert any(each.rationed == "normal" for each in seen)
    rungs = [_STEPS.index(step) for step in moves]
    assert {abs(after - before) for before, after in pairwise(rungs)} == {1}
    assert (max(rungs), rungs[-1]) == (_STEPS.index("shed-normal"), 0)
    for line in (
        'serve_app_overload_step{model="heavy"} 0.0',
        'serve_app_overload_moves_total{direction="up",model="heavy"}',
        'serve_app_shed_total{model="heavy",priority="normal"}',
        'serve_app_overload_step_seconds_total{model="heavy",step="variant"}',
    ):
        assert line in metrics
