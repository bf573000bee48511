"""What the tests of this folder share."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The server logs every failed request; here many fail on purpose, and the tally tells what is to be known."""
    caplog.set_level(logging.CRITICAL, logger="serve_app")
