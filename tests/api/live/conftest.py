"""One server for all tests that only ask it things."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_server import LocalServer, every_kind_of_model

DATA = Path(__file__).resolve().parents[2] / "data"
PICTURE = DATA / "digits" / "4_1244_64px_light_rgb.jpg"
PNG = DATA / "digits" / "0_1258_28px_dark_palette.png"
SOUND = DATA / "speech" / "eight_en-gb-scotland_iven4_80wpm_22050_mono.wav"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A model of every task, and jobs."""
    folder = tmp_path_factory.mktemp("models")
    router = {"jobs": {"path": str(folder / "jobs.sqlite")}}
    with LocalServer({**every_kind_of_model(folder), "router": router}) as running:
        yield running
