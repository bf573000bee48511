"""Random cases: models, rates, mixes, class shares, burstiness, deadlines, and settings of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from serve_app.domain.priority import Priority
from serve_app_simulator.plan.search import WAY_S
from serve_app_simulator.scenario import Curve, Stream

BUCKETS: Final = {"minilm": 16}
_ROWS: Final = {"tiny": (1, 8), "wide": (4, 8, 16, 32), "resnet50": (1, 2, 4), "minilm": (1, 2, 4, 8)}
_MIXES: Final = (
    ("wide",), ("minilm",), ("resnet50",), ("tiny",), ("wide", "minilm"), ("tiny", "resnet50"), ("tiny", "wide"),
    ("minilm", "resnet50"),
)  # fmt: skip
_SHARES: Final[Sequence[Mapping[Priority, float]]] = (
    {Priority.NORMAL: 1.0},
    {Priority.HIGH: 0.2, Priority.NORMAL: 0.8},
    {Priority.HIGH: 0.1, Priority.NORMAL: 0.6, Priority.LOW: 0.3},
)
_LOADS, _FACTORS, _CVS = (0.3, 1.3), (2.0, 20.0), (1.0, 6.0)
_MOST_RATE = 250.0
"""Requests per second: the generator and the router share a core, which is not what is tested."""
_LEAST_DEADLINE_S = 0.03
"""Likewise: the generator is late by a few milliseconds."""
_TRACES = 0.3
"""Part of the cases whose demand the planner is given as a trace."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings of the server that differ from the benchmark's file.

    Attributes:
        name: For the report.
        models: Changed sections of every model, by the section's name.
        max_rows: Factor of every model's.
        args: Changed sections of the application.
    """

    name: str
    models: Mapping[str, Mapping[str, Any]]
    max_rows: float = 1.0
    args: Mapping[str, Any] | None = None

    def document(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The Serve file of these settings."""
        document = deepcopy(dict(base))
        args = document["applications"][0]["args"]
        args |= deepcopy(dict(self.args or {}))
        for model in args["models"]:
            for section, changes in self.models.items():
                model[section] = {**model.get(section, {}), **changes}
            model["batching"]["max_rows"] = max(1, round(self.max_rows * model["batching"]["max_rows"]))
        return document


CONFIGURATIONS: Final = (
    Configuration("as in the file", {}),
    Configuration("window 1, half of max_rows", {"batching": {"window": 1}}, 0.5),
    Configuration("policy eager, short queues", {"batching": {"policy": "eager"}},
                  args={"classes": {"normal": {"queue": 32}, "low": {"queue": 16}}}),
    Configuration("slo_ms 60, high protected", {"batching": {"slo_ms": 60, "window": 2}},
                  args={"classes": {"high": {"protect": 0.98}, "low": {"min_share": 0.2}}}),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked in one run.

    Attributes:
        number: From 1.
        configuration: Of the server.
        streams: One per model.
        load: In sum over the models, where 1 is what full batches do.
        seed: Of the arrivals.
        as_trace: Whether the planner is given the arrivals themselves, or their distribution.
    """

    number: int
    configuration: str
    streams: tuple[Stream, ...]
    load: float
    seed: int
    as_trace: bool

    @property
    def title(self) -> str:
        """For people."""
        asked = " and ".join(
            f"{stream.model} {stream.rate:.3g}/s of {stream.rows}" + (f", CV {stream.cv:.1f}" if stream.cv > 1 else "")
            for stream in self.streams
        )
        return f"{self.number}: {asked}, load {self.load:.2f}" + (", as a trace" if self.as_trace else "")

    @property
    def tightest_s(self) -> float:
        """The tightest deadline, seconds."""
        return min(seconds for stream in self.streams for seconds in (stream.timeout_s, *stream.timeouts_s.values()))


def draw_cases(
    configuration: Configuration,
    numbers: Sequence[int],
    seed: int,
    curves: Mapping[str, Curve],
    rows: Mapping[str, int],
) -> list[Case]:
    """Draw the cases of a configuration; a number's case is the same whatever others are drawn.

    Args:
        numbers: Of the cases.
        curves: What batches cost, by model.
        rows: Most rows of a batch, likewise.
    """
    found = []
    for number in numbers:
        rng = np.random.default_rng((seed, number))
        models = _MIXES[int(rng.integers(len(_MIXES)))]
        load = float(rng.uniform(*_LOADS))
        streams = tuple(_stream(model, load / len(models), rng, curves[model], rows[model]) for model in models)
        as_trace = bool(rng.random() < _TRACES)
        found.append(Case(number, configuration.name, streams, load, seed * 1000 + number, as_trace))
    return found


def _stream(model: str, load: float, rng: np.random.Generator, curve: Curve, max_rows: int) -> Stream:
    bucket = BUCKETS.get(model, 0)
    capacity = max_rows / curve(max_rows, bucket)
    fitting = [rows for rows in _ROWS[model] if rows <= max_rows and load * capacity / rows <= _MOST_RATE]
    rows = int(rng.choice(fitting or [max(_ROWS[model])]))
    rate = min(load * capacity / rows, float(rng.uniform(0.2, 1.0)) * _MOST_RATE)
    alone_s = curve(rows, bucket) + WAY_S
    low, high = np.log(_FACTORS)
    share = _SHARES[int(rng.integers(len(_SHARES)))]
    factors = sorted(np.exp(rng.uniform(low, high, len(share))).tolist())
    timeouts = {
        priority: max(_LEAST_DEADLINE_S, factor * alone_s) for priority, factor in zip(share, factors, strict=True)
    }
    bursty, cv = rng.random() < 0.5, float(rng.uniform(*_CVS))
    cv = max(1.0, min(cv, rate))  # or a run may have no request
    first = min(share)
    several = len(share) > 1
    return Stream(
        "gamma" if bursty else "poisson",
        model=model,
        priority=first,
        rate=rate,
        timeout_s=timeouts[first],
        rows=rows,
        bucket=bucket,
        cv=cv if bursty else 1.0,
        share=share if several else {},
        timeouts_s=timeouts if several else {},
    )
