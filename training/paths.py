"""Where the scripts of this folder read and write, relative to the checkout they belong to."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"
REQUIREMENTS = ROOT / "requirements"
BUILD = ROOT / "build"
TEST_DATA = ROOT / "tests" / "data"
