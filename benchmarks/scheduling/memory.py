"""What was calculated before: results of baselines and bounds, which do not change while the scheduler does.

Each is kept in a file under ``benchmarks/out``, named by a digest of all that it depends on: the scenario, seeds and
settings, the simulator's source without serve_app's own part, and recorded arrivals.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import serve_app
import serve_app_simulator
from benchmarks.process import OUT
from serve_app_simulator.scenario import Scenario

FOLDER = OUT / "scheduling"
"""Where the files are."""
_OURS = {"ours.py", "router.py", "replica.py", "report.py", "plots.py", "command.py"}
_SHARED = (
    "scheduling/entry.py", "scheduling/batching/latency.py", "scheduling/scaling.py", "scheduling/settings.py",
    "pools/policy/settings.py",
)  # fmt: skip
"""What baselines use of the server."""

T = TypeVar("T")


def remembered(what: tuple[Any, ...], scenario: Scenario, calculate: Callable[[], T]) -> T:
    """A result, from its file where there is one.

    Args:
        what: What tells it from others of the scenario; its `repr` must hold no addresses.
        scenario: On which it depends; its name does not matter.
        calculate: Makes it.
    """
    key = sha256(repr((_source(), what, scenario, _recorded(scenario))).encode()).hexdigest()
    path = FOLDER / f"{key}.pickle"
    try:
        found: T = pickle.loads(path.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):
        found = calculate()
        FOLDER.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{id(found)}")
        beside.write_bytes(pickle.dumps(found))
        beside.replace(path)
    return found


def forget() -> None:
    """Remove all files."""
    for path in FOLDER.glob("*.pickle"):
        path.unlink()


def _recorded(scenario: Scenario) -> list[str]:
    """Digests of the traces."""
    paths = [stream.path for stream in scenario.workload if stream.path]
    return [sha256(Path(path).read_bytes()).hexdigest() for path in paths]


@cache
def _source() -> str:
    server, simulator = Path(serve_app.__file__).parent, Path(serve_app_simulator.__file__).parent
    paths = [path for path in simulator.rglob("*.py") if path.name not in _OURS]
    paths += [server / name for name in _SHARED]
    content = b"".join(path.read_bytes() for path in sorted(paths))
    return sha256(content + np.__version__.encode()).hexdigest()
