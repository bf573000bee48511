"""Today's serving systems, as the simulator runs them: what each really does, and where it is simplified.

Their settings are their operators' to choose: `serve_app.simulation.baselines.tuning` lists sensible ones and finds the
best for a scenario.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from serve_app.simulation.baselines.clipper import Clipper
from serve_app.simulation.baselines.clockwork import Clockwork
from serve_app.simulation.baselines.nexus import Nexus
from serve_app.simulation.baselines.ray_serve import RayServeBatch
from serve_app.simulation.baselines.sliding import SlidingWindow
from serve_app.simulation.baselines.symphony import Symphony
from serve_app.simulation.baselines.triton import Triton
from serve_app.simulation.system import System

BASELINES: Mapping[str, Callable[..., System]] = MappingProxyType(
    {
        baseline.name: baseline
        for baseline in (RayServeBatch, Triton, SlidingWindow, Clipper, Clockwork, Nexus, Symphony)
    }
)
"""By name, what makes each with its default settings; further arguments are its own settings."""

__all__ = ["BASELINES", "Clipper", "Clockwork", "Nexus", "RayServeBatch", "SlidingWindow", "Symphony", "Triton"]
