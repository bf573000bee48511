"""Today's serving systems, as the simulator runs them: what each really does, and where it is simplified.

Their settings are their operators' to choose: `benchmarks.scheduling.baselines.tuning` lists sensible ones and finds
the best for a scenario.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from benchmarks.scheduling.baselines.clipper import Clipper
from benchmarks.scheduling.baselines.clockwork import Clockwork
from benchmarks.scheduling.baselines.nexus import Nexus
from benchmarks.scheduling.baselines.ray_serve import RayServeBatch
from benchmarks.scheduling.baselines.sliding import SlidingWindow
from benchmarks.scheduling.baselines.symphony import Symphony
from benchmarks.scheduling.baselines.triton import Triton
from serve_app_simulator.system import System

BASELINES: Mapping[str, Callable[..., System]] = MappingProxyType(
    {
        baseline.name: baseline
        for baseline in (RayServeBatch, Triton, SlidingWindow, Clipper, Clockwork, Nexus, Symphony)
    }
)
"""By name, what makes each with its default settings; further arguments are its own settings."""

__all__ = ["BASELINES", "Clipper", "Clockwork", "Nexus", "RayServeBatch", "SlidingWindow", "Symphony", "Triton"]
