"""How a router collects cycles."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc
from serve_app.deployments.garbage import tune_garbage_collection

tune_garbage_collection()
assert gc.isenabled() and gc.get_freeze_count() > 1000 and gc.get_threshold()[0] > 10_000


class Node:
    pass


def cycle():
    node = Node()
    node.itself = node


for _ in range(100_000):
    cycle()
assert sum(isinstance(each, Node) for each in gc.get_objects()) < 50_000
"""


def test_cycles_are_collected_seldom_and_what_was_loaded_never() -> None:
    """In a process of its own: what the collector was told holds for the whole process."""
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=60)
