"""How much property tests try: a sample in ``make test``, ten times that in ``make test-thorough``."""

from __future__ import annotations

import os
from typing import Final

import pytest
from hypothesis import Phase, settings

THOROUGH: Final = os.environ.get("SERVE_APP_THOROUGH") == "1"

thorough: Final = pytest.mark.skipif(not THOROUGH, reason="takes long; run it with: make test-thorough")
"""Marks what takes too long for every day, in the folders that ``make test-thorough`` names."""

_MORE: Final = 10
TIMEOUT_S: Final = 3600.0 if THOROUGH else 600.0
"""Of a property test. Hypothesis looks for the smallest failure for 300 s at most. A test that is ended while it does
so fails with what the end did to Hypothesis, and not with what it found.
"""
_PHASES: Final = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
"""All but `Phase.explain`, which runs the smallest failure again and again before it is printed."""


def examples(quick: int, thorough: int | None = None) -> int:
    """How many examples a test tries whose examples are worth more, or cost more, than those of others.

    Args:
        quick: In ``make test``.
        thorough: In ``make test-thorough``; by default ten times as many.
    """
    if not THOROUGH:
        return quick
    return _MORE * quick if thorough is None else thorough


def load_profile() -> None:
    """Set what Hypothesis does by default: profile ``quick``, or ``thorough`` where ``SERVE_APP_THOROUGH`` is 1."""
    # No example has a time limit: how long it takes depends on what else runs. One failure at a time: the smallest
    # example of each other one costs as long again.
    common = settings(deadline=None, phases=_PHASES, report_multiple_bugs=False, print_blob=True)
    settings.register_profile("quick", common, max_examples=50)
    settings.register_profile("thorough", common, max_examples=50 * _MORE)
    settings.load_profile("thorough" if THOROUGH else "quick")
