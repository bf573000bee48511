"""Frozen settings of the scheduler. `serve_app.config` makes them; nothing here reads a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

COPIES = 8
"""Replicas that have an entry at once; half of a model's replicas gain little, all of them what one queue would."""


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """Limits of one class, per router process.

    Attributes:
        queue_entries: Most entries queued at once, over all models.
        queue_bytes: Most bytes queued at once, over all models.
        timeout_s: Deadline of an entry that names none, seconds after its arrival.
        overflow: What happens to an entry that finds the queue full: refuse it, or try the next lower class.
        min_share: Part of each model's predicted server time that this class gets while it has work queued, 0 to 1.
        protect: Part of its requests that is to be in time whatever that costs the other classes, 0 to 1; 0: none.
    """

    queue_entries: int
    queue_bytes: int
    timeout_s: float
    overflow: Literal["reject", "demote"] = "reject"
    min_share: float = 0.0
    protect: float = 0.0


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When a model's circuit breakers open and close, and when a replica is ejected.

    Attributes:
        consecutive_failures: Faults in a row that open a breaker.
        failure_ratio: Part of the answers within the window that, if they are faults, opens it, over 0 to 1.
        window_s: The window, seconds.
        min_samples: Answers in the window before their ratio says anything.
        reset_s: How long an open breaker refuses before it lets probes through, seconds.
        probes: Probes at once, answered ones that close it, and suspects in a row that open it again.
        ejection_s: How long a replica is ejected the first time, seconds.
        max_ejected: Part of a model's replicas that may be ejected at once, 0 to 1.
    """

    consecutive_failures: int = 3
    failure_ratio: float = 0.5
    window_s: float = 10.0
    min_samples: int = 20
    reset_s: float = 60.0
    probes: int = 3
    ejection_s: float = 30.0
    max_ejected: float = 0.5


@dataclass(frozen=True, slots=True)
class ModelScheduling:
    """How one model's entries are batched.

    Attributes:
        max_rows: Most rows in one bundle (an entry with more rows travels alone).
        slo_s: Latency the model is tuned for, seconds; batches are not grown past it.
        window: Full batches of rows in flight per replica: what its gate composes batches of.
        policy: ``auto``: a batch waits for more rows where that is likely to pay; ``eager``: it never waits.
        fallbacks: Variants that may stand in for the exact model where it would be too late, most exact first.
        resident_bytes: Memory that it holds where it is loaded, on a device that models share.
        variants: All variants that a request may name.
        breaker: When its circuit breakers open and close; ``None``: there are none.
        copies: Most replicas that have an entry at once: who is free first runs it. 1: the one that was chosen.
        size_fairness: Guaranteed attainment of each size of request as a part of its class's mean, 0 to 1.
        high_slowdown: How many times its 99th percentile class `high` may take beside rows that can wait; over 1.
    """

    name: str
    max_rows: int
    slo_s: float
    window: int = 8
    policy: Literal["auto", "eager"] = "auto"
    fallbacks: tuple[str, ...] = ()
    resident_bytes: int = 0
    variants: tuple[str, ...] = ()
    breaker: BreakerSettings | None = None
    copies: int = COPIES
    size_fairness: float = 0.0
    high_slowdown: float = 1.2


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of a router process over all classes.

    Attributes:
        total_bytes: Most bytes queued and running at once.
        high_headroom: Part of ``total_bytes`` that only the class ``high`` may use, 0 to 1.
        network_s: Allowance for everything around an execution (transport, splitting) until it was measured, seconds.
    """

    total_bytes: int
    high_headroom: float = 0.1
    network_s: float = 0.002
