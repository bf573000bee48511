"""The same Triton with three levels of priority and the time that each request gives: what waits longer is refused.

Triton's guide to its dynamic batcher ("Queue Policy") names both for requests of different urgency.
"""

from __future__ import annotations

from pytriton.model_config import DynamicBatcher
from pytriton.model_config.common import QueuePolicy, TimeoutAction

from benchmarks.peers.apps import triton_app
from benchmarks.peers.apps.settings import Settings
from benchmarks.peers.apps.triton_settings import find_library

_LEVELS = 3
_PATIENCE_US = 60_000_000


def batcher(settings: Settings) -> DynamicBatcher:
    """Level 1 goes first."""
    policy = QueuePolicy(TimeoutAction.REJECT, _PATIENCE_US, allow_timeout_override=True)
    return DynamicBatcher(
        max_queue_delay_microseconds=round(settings.max_wait_ms * 1000),
        priority_levels=_LEVELS,
        default_priority_level=2,
        default_queue_policy=policy,
    )


if __name__ == "__main__":
    find_library()
    told = Settings.from_command_line()
    triton_app.main(told, batcher(told))
