"""What reading a configuration loads."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

HEAVY: Final = (
    "onnxruntime",
    "PIL",
    "redis",
    "grpc",
    "ray",
    "starlette",
    "tokenizers",
    "soundfile",
    "prometheus_client",
)
"""What runs, decodes, stores or serves."""

PROBE: Final = """
import importlib, pkgutil, sys
import serve_app.config
for module in pkgutil.walk_packages(serve_app.config.__path__, "serve_app.config."):
    importlib.import_module(module.name)
print(*sorted(sys.modules))
"""


def test_configuration_is_values_only() -> None:
    """So that an editor's check, a client's script or a command without models starts at once."""
    found = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    loaded = found.stdout.split()
    packages = {name.split(".")[1] for name in loaded if name.startswith("serve_app.")}

    assert not [name for name in HEAVY if name in loaded]
    assert packages == {
        "cache",
        "config",
        "domain",
        "errors",
        "jobs",
        "payloads",
        "pipelines",
        "pools",
        "scheduling",
        "versions",
        "wings",
    }
