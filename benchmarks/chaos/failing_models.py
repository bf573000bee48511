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
from serve_app.config.model import ModelConfig

REPLICAS = 3
_GOOD, _GUILTY = 400, 40
_FOLDER = OUT / "faulty-models"

_REFUSED = ("raises", "gives_nan")
_FAILING = (*_REFUSED, "drops_rows", "wrong_shape")
_ROWS_GONE = ("drops_rows", "wrong_shape")
_SLOW, KILLS, _GROWS = "slow", "kills", "grows"
_SLOW_BY = -0.2
"""Makes a row of the slow model take hundreds of times as long."""

_NEIGHBOUR = "tiny"
_BREAKER = {"window_s": 4, "reset_s": 4}
KILLING_MIX = mix_of({KILLS: 0.3, _NEIGHBOUR: 0.7})
_MIX = mix_of({**dict.fromkeys(_FAILING, 1.0), _NEIGHBOUR: 1.0})


def faulty_model(kind: str, replicas: int = 1) -> dict[str, Any]:
    """A model that fails in one of `benchmarks.faulty_models`' ways. `make_models` makes its files."""
    model = fixed({"name": kind, "path": str(_FOLDER / kind), "batching": {"max_rows": 32, "slo_ms": 50}}, replicas)
    model["warm_up"] = {
        "inputs": {"x": {"range": [1, 1000]}}
    }  # or a replica would find the rows that kill it by itself
    if kind in _ROWS_GONE:
        model["batching"]["unverified"] = "allow"  # their rows may not be joined otherwise, and outputs have any shape
    model["health"]["refuse_non_finite"] = kind == "gives_nan"
    model["breaker"] = dict(_BREAKER)
    return model


def make_models() -> None:
    """Make the files of all faulty models."""
    for kind in faulty_models.KINDS:
        faulty_models.make(_FOLDER / kind / "1" / "model.onnx", kind)


def ask(models: Sequence[ModelConfig]) -> Bank:
    """Make questions for the faulty models and for their neighbours."""
    faulty = [model.name for model in models if model.name in faulty_models.KINDS]
    others = bank_of([model for model in models if model.name not in faulty])
    good = {name: [_question(name, 1.0 + 2.0 * number) for number in range(_GOOD)] for name in faulty}
    guilty = {name: [_guilty(name, number) for number in range(_GUILTY)] for name in faulty}
    return Bank({**good, **{name: [others.take(name) for _ in range(_GOOD)] for name in others.models}}, guilty)


def _question(model: str, value: float, refusals: tuple[str, ...] = ()) -> Question:
    x = np.array([[value]], np.float32)
    return tensor_question(model, x, 2 * x, binary=int(value) % 4 == 1, refusals=refusals)


def _guilty(model: str, number: int) -> Question:
    """What makes a model fail. One that is only slow answers; an open breaker refuses before the model can fail.

    What a model answers alone is its answer, if in another number of rows or another shape than its file declares.
    """
    bad = faulty_models.BAD - number
    if model == "drops_rows":
        return tensor_question(model, np.array([[1.0], [bad]], np.float32), np.array([2.0]), binary=number % 4 == 1)
    if model == "wrong_shape":
        return tensor_question(model, np.array([[bad]], np.float32), np.array([2 * bad] * 2), binary=number % 4 == 1)
    if model == _SLOW:
        return _question(model, _SLOW_BY - number / 1000)
    if model == _GROWS:
        return _question(model, faulty_models.BAD - number)
    refusals = ("inference_failed",) if model == KILLS else ("inference_failed", "model_unavailable")
    return _question(model, faulty_models.BAD - number, refusals)


_BAD_ROWS = Setup(
    "bad rows",
    [fixed({"name": _NEIGHBOUR, "path": "models/tiny"}, 1), *(faulty_model(kind) for kind in (*_FAILING, _SLOW))],
    prepare=make_models,
)

_CRASHES = Setup(
    "crashes",
    [
        fixed({"name": _NEIGHBOUR, "path": "models/tiny"}, 1),
        faulty_model(KILLS, REPLICAS),
        {**faulty_model(_GROWS, 2), "resources": {"cpus": 0.1, "memory_limit": "500MiB"}},
    ],
    prepare=make_models,
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
    stage.require("requests were refused by every model that fails", models == set(_REFUSED), f"{len(guilty)} refused")


async def _slow_rows(stage: Stage) -> None:
    mix = mix_of({_SLOW: 0.3, _NEIGHBOUR: 0.7})
    async with stage.load(0.3, mix=mix):
        await stage.hold(4.0)
        stage.spoil("from here on 1% of the requests to one model take a hundred times as long", 100)
        await stage.hold(20.0)
    require_right(stage)
    stage.require_none("no accepted request is lost", lost(stage.records))
    others = [each for each in stage.records if each.model != _SLOW and each.priority == "high"]
    share = share_in_time(others)
    stage.require("`high` of other models is in time for at least 99%", share >= 0.99, f"{share:.2%}")


async def _breaker(stage: Stage) -> None:
    """For a while nobody asks the model anything that it can answer; then everybody does again."""
    model = "raises"
    mix = mix_of({model: 0.4, _NEIGHBOUR: 0.6})
    async with stage.load(0.4, mix=mix):
        await stage.hold(4.0)
        mark = stage.spoil(f"from here on every request makes {model} fail", 1)
        opened = await stage.until(partial(_state_is, stage, model, "open"), "an open breaker", 30.0)
        stage.notes.append(f"the breaker opened {opened:.1f} s after the first failure")
        await stage.hold(6.0)
        stage.bank.spoil(0)
        mark = stage.mark("from here on every request is good again")
        closed = await stage.until(partial(_state_is, stage, model, "closed"), "a closed breaker", 30.0)
        stage.mended(mark)
        stage.notes.append(f"the breaker closed {closed:.1f} s after the model could answer again")
        settled = stage.now()
        await stage.hold(6.0)
    require_right(stage)
    refused = [each for each in stage.records if each.model == model and each.code == "model_unavailable"]
    stage.require("while it is open requests are refused with 503", bool(refused), len(refused))
    others = [each for each in stage.records if each.model != model]
    stage.require_none("other models lose nothing", lost(others))
    after = [each for each in stage.records if each.sent_s > settled]
    stage.require_none("once it is closed nothing fails", [each for each in after if each.failed])


def _state_is(stage: Stage, model: str, state: str) -> bool:
    builds = (stage.server.status().get(model, {}).get("breaker") or {}).get("builds", {})
    return bool(builds.get("exact", {}).get("state") == state)


async def _leaking(stage: Stage) -> None:
    async with stage.load(0.4, mix=mix_of({_GROWS: 0.5, _NEIGHBOUR: 0.5})):
        await stage.hold(4.0)
        for _ in range(stage.times(2)):
            before = set(await stage.find(_GROWS))
            mark = stage.mark("a request after which its replica holds 400 MB more")
            stage.bank.spoil_next(_GROWS)
            await stage.until(partial(_died, stage, before, _GROWS), "the end of the replica that has grown", 60.0)
            await stage.until(lambda: stage.server.replicas(_GROWS) == 2, "two replicas again")
            stage.mended(mark)
            await stage.hold(3.0)
    require_right(stage)
    stage.require_none("no accepted request is lost", lost(stage.records))


async def crashing(stage: Stage) -> None:
    """Now and then a request kills the processes that run it."""
    async with stage.load(0.4):
        await stage.hold(4.0)
        rounds = stage.times(3)
        for _ in range(rounds):
            mark = stage.mark("a request that kills every replica that runs it")
            before = set(await stage.find(KILLS))
            stage.bank.spoil_next(KILLS)
            await stage.until(partial(_died, stage, before, KILLS), "the death of a replica", 20.0)
            await stage.hold(1.0)
            dead = len(before - set(await stage.find(KILLS)))
            stage.notes.append(f"{dead} of {REPLICAS} replicas died of one request, at {stage.now():.1f} s")
            await stage.until(lambda: _all_there(stage), "all replicas again")
            stage.mended(mark)
            await stage.hold(3.0)
    require_right(stage)
    poison = [each for each in stage.records if each.end is End.RIGHT and each.code]
    says = "each request that kills its replica is refused"
    stage.require(says, len(poison) == rounds, f"{len(poison)} of {rounds} refused")
    stage.require_none("no other request is lost", lost(stage.records))


def _all_there(stage: Stage) -> bool:
    """Whether all replicas of the model that dies run, and the router reaches them."""
    return stage.server.replicas(KILLS) == len(stage.server.find(KILLS)) == REPLICAS


def _died(stage: Stage, before: set[Process], model: str) -> bool:
    return bool(before - set(stage.server.find(model)))


SCENARIOS = (
    Scenario(
        "bad-rows",
        "1% of the requests make their model raise, answer NaN, lose a row, or answer in another shape",
        _BAD_ROWS,
        _bad_rows,
        _MIX,
        ask,
    ),
    Scenario(
        "slow-rows",
        "1% of the requests to a model take a hundred times as long",
        _BAD_ROWS,
        _slow_rows,
        _MIX,
        ask,
    ),
    Scenario(
        "breaker",
        "a model fails everything that it is asked, and works again",
        _BAD_ROWS,
        _breaker,
        _MIX,
        ask,
    ),
    Scenario(
        "poison",
        "some requests kill the process of their replica",
        _CRASHES,
        crashing,
        KILLING_MIX,
        ask,
    ),
    Scenario(
        "leak",
        "a replica comes to hold more memory than it may",
        _CRASHES,
        _leaking,
        KILLING_MIX,
        ask,
    ),
)
