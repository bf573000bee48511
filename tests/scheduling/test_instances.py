"""The gate of a replica of several instances: when one is free, and what is left for the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import AFFINE, make_entry

from serve_app.scheduling.gate import Gate
from serve_app.scheduling.instances import Instances
from serve_app.scheduling.settings import ModelScheduling

_RUN_S = 0.009
"""Predicted of four rows."""


def gate_of(instances: int, entries: int, *, max_rows: int = 4) -> Gate:
    """A gate where so many entries of one row wait: 5 ms and 1 ms for each row of a batch."""
    settings = ModelScheduling("m", max_rows, slo_s=60.0, policy="eager")
    gate = Gate(settings, {}, instances=instances) if False else _gate(settings, instances)
    for _ in range(entries):
        gate.add(make_entry(deadline=1e3), 0.0)
    return gate


def _gate(settings: ModelScheduling, instances: int) -> Gate:
    from serve_app.scheduling.entry import Priority

    gate = Gate(settings, dict.fromkeys(Priority, 0.0), instances=instances)
    gate.seed(AFFINE)
    return gate
