"""A server without one wing: ``python unplugged_server.py WING FOLDER``; prints what it answers, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import httpx

MODEL: Final = {"name": "sum_diff", "path": "none"}
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "pools": {"pools": [{"name": "many", "path": "models/*", "memory": "1GiB"}]},
    "versions": {"models": [{**MODEL, "versions": [1, 2]}]},
    "pipelines": {"models": [MODEL], "pipelines": [{"name": "two"}]},
    "jobs": {"models": [MODEL], "router": {"jobs": {}}},
    "cache": {"models": [{**MODEL, "cache": {}}]},
    "triton": {"repository": {"path": "models"}},
}
"""Settings that need each wing."""


def main(wing: str, folder: Path) -> dict[str, Any]:
    """Serve two models without the wing, ask each, and check settings that need the wing."""
    sys.modules[f"serve_app.{wing}"] = None  # type: ignore[assignment] # the import system's way to block it
    from local_server import LocalServer, every_kind_of_model

    from serve_app.composition import read_args
    from serve_app.errors import ConfigError

    told: dict[str, Any] = {}
    inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [2] * 16} for name in ("INPUT0", "INPUT1")]
    models = [model for model in every_kind_of_model(folder)["models"] if model["name"] in {"words", "sum_diff"}]
    with LocalServer({"models": models}) as server, httpx.Client(base_url=server.url) as client:
        told["infer"] = client.post("/v2/models/sum_diff/infer", json={"inputs": inputs}).status_code
        told["embeddings"] = client.post("/v1/embeddings", json={"model": "words", "input": "the cat"}).status_code
        told["ready"] = client.get("/v2/health/ready").status_code
        told["status"] = sorted(client.get("/status").json())
        told["paths"] = sorted(client.get("/openapi.json").json()["paths"])
    try:
        read_args(SETTINGS[wing])
    except ConfigError as error:
        told["problems"] = error.problems
    return told


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
