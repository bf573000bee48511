"""Both event loops: the protocol relies on how they hand out memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test here on both."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
