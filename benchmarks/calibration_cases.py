"""What calibration sends: workloads of each model, as the simulator describes them, and more of one for two routers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serve_app.domain.priority import Priority
from serve_app_simulator.scenario import Curve, Stream


@dataclass(frozen=True, slots=True)
class Load:
    """How a model is asked.

    Attributes:
        model: Its name.
        rows: Rows of a request: enough that the model is busy long before HTTP is.
        bucket: Its cost bucket.
        max_rows: Most rows of a batch.
    """

    model: str
    rows: int
    bucket: int
    max_rows: int

    def capacity(self, curve: Curve) -> float:
        """Requests per second that full batches would serve without a pause."""
        return self.max_rows / curve(self.max_rows, self.bucket) / self.rows


@dataclass(frozen=True, slots=True)
class Case:
    """One workload of one model.

    Attributes:
        name: Of the workload.
        load: Of the model.
        stream: The workload.
        seconds: Its length.
        routers: How many serve it.
    """

    name: str
    load: Load
    stream: Stream
    seconds: float
    routers: int = 1

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.load.model}, {self.name}"

    @property
    def tightest_s(self) -> float:
        """The tightest deadline of a request, seconds."""
        return min(self.stream.timeouts_s.values(), default=self.stream.timeout_s)


def cases(load: Load, curve: Curve, seconds: float) -> list[Case]:
    """The workloads of a model, in proportion to what it can do.

    Deadlines are multiples of a full batch's time T.

    ============ ======================================================== ==========================================
    poisson      0.7 of the capacity                                      5 T
    gamma        0.6 of the capacity, gaps with CV 4                      8 T
    flash crowd  0.45 of the capacity, 3 times that for a third of it     high (a fifth) 8 T, normal 16 T, low 40 T
    ============ ======================================================== ==========================================

    Args:
        load: How the model is asked.
        curve: What its batches cost.
        seconds: Length of each.
    """
    capacity, full_s = load.capacity(curve), curve(load.max_rows, load.bucket)
    shares: Mapping[Priority, float] = {Priority.HIGH: 0.2, Priority.NORMAL: 0.5, Priority.LOW: 0.3}
    timeouts = {Priority.HIGH: 8 * full_s, Priority.NORMAL: 16 * full_s, Priority.LOW: 40 * full_s}
    common = {"model": load.model, "rows": load.rows, "bucket": load.bucket}
    return [
        Case(name, load, Stream(**{**common, **settings}), seconds)  # type: ignore[arg-type]
        for name, settings in (
            ("Poisson", {"kind": "poisson", "rate": 0.7 * capacity, "timeout_s": 5 * full_s}),
            ("gamma, CV 4", {"kind": "gamma", "rate": 0.6 * capacity, "cv": 4.0, "timeout_s": 8 * full_s}),
            (
                "flash crowd x3",
                {
                    "kind": "flash_crowd",
                    "rate": 0.45 * capacity,
                    "surge": 3.0,
                    "surge_at_s": seconds / 3,
                    "surge_s": seconds / 3,
                    "share": shares,
                    "timeouts_s": timeouts,
                    "timeout_s": 16 * full_s,
                },
            ),
        )
    ]


def routed_cases(load: Load, curve: Curve, seconds: float, routers: int) -> list[Case]:
    """The workloads for a number of routers: what their numbers differ in is what a second router costs.

    Deadlines are multiples of a lone request's time L: high 3 L, normal 8 L, low 30 L. All are Poisson.

    ===== ==========================================================================
    mixed 0.3, 0.5 and 0.8 of the capacity; a tenth is high, 0.6 normal, 0.3 low
    flood low at 3 times the capacity, and high at a fifth of it
    ===== ==========================================================================

    Args:
        load: How the model is asked.
        curve: What its batches cost.
        seconds: Length of each.
        routers: How many there are.
    """
    capacity, solo_s = load.capacity(curve), curve(load.rows, load.bucket)
    mixed = {Priority.HIGH: 0.1, Priority.NORMAL: 0.6, Priority.LOW: 0.3}
    timeouts = {Priority.HIGH: 3 * solo_s, Priority.NORMAL: 8 * solo_s, Priority.LOW: 30 * solo_s}
    flood = {Priority.HIGH: 0.2 / 3.2, Priority.LOW: 3.0 / 3.2}
    workloads = [(f"mixed at {part:g}", part, mixed) for part in (0.3, 0.5, 0.8)] + [("flood of low", 3.2, flood)]
    return [
        Case(
            f"{name}, {routers} router{'s' if routers > 1 else ''}",
            load,
            Stream(
                kind="poisson",
                model=load.model,
                rows=load.rows,
                bucket=load.bucket,
                rate=part * capacity,
                share=share,
                timeouts_s={priority: timeouts[priority] for priority in share},
                timeout_s=timeouts[Priority.LOW],
            ),
            seconds,
            routers,
        )
        for name, part, share in workloads
    ]
