"""Settings of the response cache."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.cache.composition import cache_settings
from serve_app.config.args import AppArgs, parse_args
from serve_app.errors import ConfigError

CACHED = {"name": "m", "path": "m", "cache": {}}


def parse(cache: Any = None, model: Any = None) -> AppArgs:
    """A configuration of one model."""
    return parse_args({"router": {"cache": cache or {}}, "models": [model or CACHED]})


def faults(**given: Any) -> str:
    """What is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        parse(**given)
    return str(caught.value)


def test_no_model_has_a_cache_unless_it_says_so() -> None:
    """Nor does one that has switched it off."""
    for model in ({"name": "m", "path": "m"}, {**CACHED, "cache": {"enabled": False}}):
        config = parse(model=model)
        assert not any(each.caches for each in config.models)
        assert "waiting for the same request" not in config.budget().in_flight


def test_values_reach_the_runtime() -> None:
    """In its units; the requests that may wait are counted with all others."""
    config = parse({"max_waiting": 7}, {**CACHED, "cache": {"ttl_s": 2, "max_bytes": "1KiB"}})
    settings = cache_settings(config)
    assert settings.max_followers == 7
    assert config.budget().in_flight["waiting for the same request"] == 7
