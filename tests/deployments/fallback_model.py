"""A model whose exact build is too slow for some requests, and whose fallback is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import slow_models

NAME = "slow"
EXACT, LIGHT = 0.0, 1.0
"""What the builds answer to zeros."""


def bring(folder: Path) -> dict[str, Any]:
    """Write the builds and return the model's configuration."""
    exact = slow_models.write(folder / "exact", NAME, seconds=0.4)
    light = slow_models.write(folder / "light", NAME, seconds=0.0, more=LIGHT)
    return exact | {
        "batching": {"max_rows": 1, "slo_ms": 5000},
        "variants": [{"name": "light", "path": light["path"]}],
        "fallbacks": ["light"],
    }
