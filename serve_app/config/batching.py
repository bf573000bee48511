"""Settings of a model's batches, for the server and for scenarios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from serve_app.config.problems import Location, hint, short_repr
from serve_app.config.values import Milliseconds, Positive, Section, Share
from serve_app.domain.settings import JoinSettings
from serve_app.scheduling.settings import ModelScheduling

_AUTO_ROWS, _MOST_AUTO_ROWS = 32, 64


class BatchingConfig(Section):
    """How one model's rows are put into batches."""

    policy: Literal["auto", "eager"] = "auto"
    """Whether a batch waits for more rows while the replica is free.

    `auto`: where the next request is due so soon that waiting for it saves time, as in a burst. `eager`: never.
    """

    size_fairness: float = Field(default=0.0, ge=0.0, le=0.9)
    """In overload, each request size (rows, cost bucket) reaches at least this part of its class's attainment.

    Attainment: the fraction of requests answered in time. 0: no such guarantee; expensive requests, those of many rows
    or long sequences, are given up first, but where to run them costs no answers.
    """

    max_rows: Literal["auto"] | Positive = "auto"
    """Most rows in one batch.

    `auto`: 32. A replica on a CPU, outside of pools, measures at its start: it takes 64 where that
    saves a twentieth of the time per row, and fewer than 32 where these would not fit into 70% of the memory
    that is left.
    """

    slo_ms: Milliseconds = 1000.0
    """Latency the model is tuned for: batches are not grown past it."""

    high_slowdown: float = Field(default=1.2, ge=1.01, le=1000.0)
    """How many times its usual 99th percentile class `high` may take beside work that can wait, such as a job's.

    That is class `low` with a deadline over a minute away: its batches are kept short while `high` is asked for. More
    of it per second with larger values.
    """

    window: int = Field(default=8, ge=1, le=16)
    """In-flight limit per router, replica and class, in full batches (`max_rows` rows each; of 32 with `auto`).

    Larger values give the replica more requests to choose from.
    """

    @property
    def configured_rows(self) -> int:
        """Most rows of a batch before any measurement."""
        return _AUTO_ROWS if self.max_rows == "auto" else self.max_rows

    @property
    def most_rows(self) -> int:
        """Most rows of a batch after any measurement."""
        return _MOST_AUTO_ROWS if self.max_rows == "auto" else self.max_rows

    def scheduling(self, name: str, fallbacks: tuple[str, ...] = ()) -> ModelScheduling:
        """The values for the scheduler."""
        return ModelScheduling(
            name=name,
            max_rows=self.configured_rows,
            slo_s=self.slo_ms / 1000,
            window=self.window,
            policy=self.policy,
            size_fairness=self.size_fairness,
            high_slowdown=self.high_slowdown,
            fallbacks=fallbacks,
        )


Axis = Annotated[int, Field(ge=0, le=7)]


class ModelBatchingConfig(BatchingConfig):
    """How one model's rows are put into batches, and when they may be."""

    join: Literal["auto", "never"] = "auto"
    """`auto`: requests share runs where that is proven to change no answer. `never`: each is run as it came.

    `batching: none` is short for `{join: never}`.
    """

    axis: Axis | dict[str, Axis] | None = None
    """Batch dimension of all inputs and outputs, counted from 0, or a mapping by tensor name.

    Default: 0, unless the model file fixes dimension 0 to more than 1; such tensors have no batch dimension. An
    explicit 0 overrides that.
    """

    tolerance: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """Largest difference that sharing a run may make to an answer, relative to the largest value of its output.

    By default 1e-12 of FP64, 1e-5 of FP32, 2e-3 of FP16, 1.6e-2 of BF16, and 0 of everything else.
    """

    verify: Share = 0.002
    """Part of a replica's computing time that is spent on running answered requests again, alone, to compare.

    One that differs by more than the tolerance ends the sharing of runs. 0: none is.
    """

    unverified: Literal["refuse", "allow"] = "refuse"
    """`allow`: requests share runs without proof, and every answer says so in `X-Unverified`."""

    def joining(self) -> JoinSettings:
        """The settings for sharing runs."""
        return JoinSettings(
            join=self.join == "auto",
            axes=self.axis,
            unverified=self.unverified == "allow",
            tolerance=self.tolerance,
        )


def fallback_problems(fallbacks: Sequence[str], variants: Sequence[str]) -> Iterator[tuple[Location, str]]:
    """Problems with a model's ``fallbacks``: each must name another of its variants."""
    for number, name in enumerate(fallbacks):
        if name not in variants:
            known = sorted(set(variants))
            yield ("fallbacks", number), f"there is no variant {short_repr(name)}; {hint(name, known)}"
        elif name in fallbacks[:number]:
            yield ("fallbacks", number), f"{short_repr(name)} is used twice"
