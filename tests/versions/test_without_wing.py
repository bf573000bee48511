"""A server that has no wing of versions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx_models

PROBE = """
import asyncio, sys
sys.modules["serve_app.versions"] = None
from serve_app.cli.commands import app
from serve_app.composition import describe_models, router_settings, with_versions
from serve_app.config.args import parse_args
from serve_app.errors import ConfigError
from serve_app.router.router import Router

model = {"name": "m", "path": sys.argv[1]}
for key, value in {"versions": [1], "traffic": {1: 1}, "aliases": {"a": 1}, "sticky": "key", "shadow": {}}.items():
    try:
        parse_args({"models": [model | {key: value}]})
    except ConfigError as error:
        assert error.problems == (
            f"args.models[0].{key}: needs the package serve_app.versions, which is not installed",
        )
    else:
        raise AssertionError(key)
args = with_versions(parse_args({"models": [model]}))

async def serve():
    router = Router(router_settings(args, describe_models(args), priors={}, identities={}), None)
    router.restore_traffic()
    router.on_traffic("m", "origin", b"")
    assert router.inference.find("m", "1").name == "m"
    assert not [route for route in router.app.described() if "traffic" in route.path]
    await router.close(0.0)

asyncio.run(serve())
"""


def test_a_model_has_one_version_then(tmp_path: Path) -> None:
    """A setting that needs the wing is refused by name, and everything else works."""
    onnx_models.make(tmp_path / "model.onnx", "add_one")
    subprocess.run([sys.executable, "-c", PROBE, str(tmp_path)], check=True, timeout=120)
