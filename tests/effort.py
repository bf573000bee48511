"""How much property tests try: a little in ``make test``, ten times that in ``make test-thorough``."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import Phase, settings

THOROUGH: Final = os.environ.get("SERVE_APP_THOROUGH") == "1"
_MORE: Final = 10
_PHASES: Final = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
"""All but `Phase.explain`: what a failure comes down to is printed as soon as that is found, within the test's time."""


def examples(quick: int) -> int:
    """How many examples a test tries that is worth more, or costs more, than others.

    Args:
        quick: In ``make test``.
    """
    return _MORE * quick if THOROUGH else quick


def load_profile() -> None:
    """Set what Hypothesis does by default. No example has a time limit: how long it takes depends on what else runs."""
    settings.register_profile("quick", deadline=None, max_examples=50, phases=_PHASES)
    settings.register_profile("thorough", deadline=None, max_examples=50 * _MORE, phases=_PHASES)
    settings.load_profile("thorough" if THOROUGH else "quick")
