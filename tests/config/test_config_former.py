"""Keys by the names that they had: they work for one release, and are told."""

from __future__ import annotations

import logging

import pytest

from serve_app.config import parse_args
from serve_app.errors import ConfigError

MODELS = [{"name": "m", "path": "m"}]


@pytest.mark.parametrize(
    ("former", "name", "value"), [("rescue_share", "hedge_share", 0.25), ("decode_aside_above", "offload_above", 4096)]
)
def test_a_former_name_works_and_is_told(
    former: str, name: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    """With the name that it has now; both at once are a fault."""
    config = parse_args({"router": {former: value}, "models": MODELS})
    assert getattr(config.router, name) == value
    (record,) = caplog.records
    told = f"router.{former} is called {name} now; the former name works until version 0.2"
    assert (record.levelno, record.getMessage()) == (logging.WARNING, told)
    with pytest.raises(ConfigError) as caught:
        parse_args({"router": {former: value, name: value}, "models": MODELS})
    assert str(caught.value) == f"args.router.{former}: is {name} now, which is given, too: leave this one out"
