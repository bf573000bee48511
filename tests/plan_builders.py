"""A server's configuration with profiles, for tests of the planner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from serve_app.config.file import ServeFile, load_file
from serve_app.config.profile import FORMAT, Machine, Memory, Profile
from serve_app.config.profile_points import Point, fit_points
from serve_app.domain.priority import Priority
from serve_app_simulator.plan.command import make_setup
from serve_app_simulator.plan.demand import Demanded
from serve_app_simulator.plan.devices import Devices
from serve_app_simulator.plan.expectation import Setup
from serve_app_simulator.scenario import Stream

GIB = 1 << 30
LARGE = Devices(cores=65, memory=64 * GIB)
"""A node with 64 cores for replicas."""


def profile(model: str = "images", alpha_s: float = 0.02, beta_s: float = 0.004, **changes: Any) -> Profile:
    """A profile of 1 to 16 rows, of the CPU."""
    seconds = {rows: alpha_s + beta_s * rows for rows in (1, 2, 4, 8, 16)}
    points = [
        Point.of([0.95 * each, each, 1.05 * each], (0.05, 0.5, 0.95), rows=rows, bucket=0, variant="").model_copy(
            update={"peak_rss_bytes": GIB // 4, "gpu_bytes": 3 * GIB}
        )
        for rows, each in seconds.items()
    ]
    values: dict[str, Any] = {
        "format": FORMAT,
        "serve_app": "0.1.0",
        "measured": "2026-01-31T12:00:00+00:00",
        "model": model,
        "task": "tensors",
        "version": "1",
        "files": {"": "ab" * 32},
        "device": "cpu",
        "threads": 1,
        "machine": Machine(cpu="a", cores=2, system="Linux", python="3.12", runtime="1.23"),
        "memory": Memory(gpu_before_load_bytes=GIB),
        "points": tuple(points),
        "fits": fit_points(points),
    }
    return Profile(**{**values, **changes})


def write_config(folder: Path, models: Mapping[str, Profile | None], **args: Any) -> Path:
    """A Serve file with these models, and their profiles beside it."""
    entries: list[dict[str, Any]] = []
    for name, measured in models.items():
        path = folder / f"{name}.json"
        if measured is not None:
            measured.write(path)
        batching = {"max_rows": 16, "slo_ms": 400}
        entries.append({"name": name, "path": f"models/{name}", "profile": str(path), "batching": batching})
    document = {
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [{"name": "app", "import_path": "serve_app.app:build", "args": {"models": entries, **args}}],
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    return config


def stream(rate: float = 25.0, timeout_s: float = 0.4, model: str = "images", **changes: Any) -> Stream:
    """Poisson arrivals."""
    return Stream(**{"kind": "poisson", "model": model, "rate": rate, "timeout_s": timeout_s, **changes})


def make(
    folder: Path, *streams: Stream, devices: Devices = LARGE, seconds: float | None = 4.0, **changes: Any
) -> Setup:
    """What is simulated for streams to the model ``images``, whose profile has these changes."""
    config = write_config(folder, {"images": profile(**changes)})
    return make_setup(config, load(config), Demanded(streams, ("images",)), devices, seconds)


def load(config: Path) -> ServeFile:
    """The checked file."""
    return load_file(config)


CLASSES = {Priority.HIGH: 0.3, Priority.NORMAL: 0.7}
