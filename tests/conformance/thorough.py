"""What takes too long for every day: ``make test-thorough`` runs it, and writes what it found to ``build``."""

from __future__ import annotations

import pytest
from hypothesis_profiles import THOROUGH
from serve_process import ROOT

TIMEOUT_S = 3600

thorough = pytest.mark.skipif(not THOROUGH, reason="takes minutes; run it with: make test-thorough")


def report(name: str, text: str) -> None:
    """Write a report to ``build`` and show where it is."""
    file = ROOT / "build" / "conformance" / f"{name}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    print(f"\n{text}\nwritten to {file}")
