"""Models that fail: on some rows, on all, with nonsense, too slowly, or by killing their process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks import faulty_models
from benchmarks.chaos.kills import lost, require_right
from benchmarks.chaos.questions import Bank, Question, bank_of, tensor_question
from benchmarks.chaos.records import End, share_in_time
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.server import Setup
from benchmarks.chaos.setups import fixed
from benchmarks.chaos.stage import Stage, mix_of
from benchmarks.process import OUT
from serve_app.cli.processes import Process
from serve_app.config import ModelConfig
from serve_app.config.model import HealthConfig

_WIDTH = 8
_REPLICAS = 3
_GOOD, _GUILTY = 400, 40
_FOLDER = OUT / "faulty-models"

_REFUSED = {
    "raises": ("inference_failed",),
    "nan": ("inference_failed",),
    "drops": ("inference_failed",),
    "slow": (),
    "crashes": ("model_unavailable", "inference_failed"),
}
"""How a request must end that makes the model fail; one that is only slow is answered."""

_NEIGHBOUR = "tiny"


def _model(kind: str, replicas: int = 1) -> dict[str, Any]:
    model = fixed({"name": kind, "path": str(_FOLDER / kind), "batching": {"max_rows": 32, "slo_ms": 50}}, replicas)
    if kind == "nan" and "refuse_non_finite" in HealthConfig.model_fields:
        model["health"]["refuse_non_finite"] = True
    return model


def _make() -> None:
    for kind in faulty_models.KINDS:
        faulty_models.make(_FOLDER / kind / "1" / "model.onnx", kind)


def _ask(models: Sequence[ModelConfig]) -> Bank:
    """Questions for the faulty models and for their neighbours."""
    faulty = [model.name for model in models if model.name in faulty_models.KINDS]
    others = bank_of([model for model in models if model.name not in faulty])
    good = {name: [_question(name, number, guilty=False) for number in range(_GOOD)] for name in faulty}
    guilty = {name: [_question(name, number, guilty=True) for number in range(_GUILTY)] for name in faulty}
    return Bank({**good, **{name: [others.take(name) for _ in range(_GOOD)] for name in others.models}}, guilty)


def _question(model: str, number: int, *, guilty: bool) -> Question:
    x = np.random.default_rng((number, guilty)).uniform(0.0, 100.0, (1, _WIDTH)).astype(np.float32)
    if guilty:
        x[0, 0] = faulty_models.GUILTY
    refusals = _REFUSED[model] if guilty else ()
    return tensor_question(model, x, x + 1, binary=bool(number % 2), refusals=refusals)


_BAD_ROWS = Setup(
    "bad rows",
    [
        fixed({"name": _NEIGHBOUR, "path": "models/tiny"}, 1),
        *(_model(kind) for kind in ("raises", "nan", "drops", "slow")),
    ],
    prepare=_make,
)

_CRASHES = Setup(
    "crashes",
    [fixed({"name": _NEIGHBOUR, "path": "models/tiny"}, 1), _model("crashes", _REPLICAS)],
    prepare=_make,
)


async def _bad_rows(stage: Stage) -> None:
    async with stage.load(0.4):
        await stage.hold(4.0)
        stage.spoil("from here on 1% of the requests make their model fail", 100)
        await stage.hold(20.0)
    require_right(stage)
    failed = [each for each in stage.records if each.failed]
    stage.require_none("only the guilty fail", failed)
    guilty = [each for each in stage.records if each.end is End.RIGHT and each.code]
    models = {each.model for each in guilty}
    stage.require("requests were refused by each of the three models", len(models) == 3, f"{len(guilty)} refused")


async def _slow_rows(stage: Stage) -> None:
    mix = mix_of({"slow": 0.3, _NEIGHBOUR: 0.7})
    async with stage.load(0.3, mix=mix):
        await stage.hold(4.0)
        stage.spoil("from here on 1% of the requests to one model take a hundred times as long", 100)
        await stage.hold(20.0)
    require_right(stage)
    stage.require_none("no accepted request is lost", lost(stage.records))
    others = [each for each in stage.records if each.model != "slow" and each.priority == "high"]
    share = share_in_time(others)
    stage.require("`high` of other models is in time for at least 99%", share >= 0.99, f"{share:.2%}")


async def _crashing(stage: Stage) -> None:
    async with stage.load(0.4):
        await stage.hold(4.0)
        for _ in range(stage.times(3)):
            mark = stage.mark("a request that kills every replica that runs it")
            before = set(await stage.find("crashes"))
            stage.bank.spoil_next("crashes")
            await stage.until(partial(_died, stage, before), "the death of a replica", 20.0)
            await stage.hold(1.0)
            dead = len(before - set(await stage.find("crashes")))
            stage.notes.append(f"{dead} of {_REPLICAS} replicas died of one request, at {stage.now():.1f} s")
            await stage.until(lambda: stage.server.replicas("crashes") == _REPLICAS, "all replicas again")
            stage.mended(mark)
            await stage.hold(3.0)
    require_right(stage)
    poison = [each for each in stage.records if each.end is End.RIGHT and each.code]
    stage.require("requests that kill their replica are refused", bool(poison), f"{len(poison)} refused")
    stage.require_none("no other request is lost", lost(stage.records))


def _died(stage: Stage, before: set[Process]) -> bool:
    return bool(before - set(stage.server.find("crashes")))


SCENARIOS = (
    Scenario(
        "bad-rows",
        "1% of the requests make their model raise, answer NaN, or lose a row",
        _BAD_ROWS,
        _bad_rows,
        mix_of({"raises": 1.0, "nan": 1.0, "drops": 1.0, _NEIGHBOUR: 1.0}),
        _ask,
    ),
    Scenario(
        "slow-rows",
        "1% of the requests to a model take a hundred times as long",
        _BAD_ROWS,
        _slow_rows,
        mix_of({"raises": 1.0, "nan": 1.0, "drops": 1.0, _NEIGHBOUR: 1.0}),
        _ask,
    ),
    Scenario(
        "poison",
        "some requests kill the process of their replica",
        _CRASHES,
        _crashing,
        mix_of({"crashes": 0.3, _NEIGHBOUR: 0.7}),
        _ask,
    ),
)
