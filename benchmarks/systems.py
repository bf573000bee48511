"""The two servers that are compared, as Serve files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from serve_app.config.file import IMPORT_PATH, read_document

STOCK_SETTINGS = {"max_batch_size": 32, "batch_wait_timeout_s": 0.01, "max_ongoing_requests": 1024}
"""Of the stock server. Serve's defaults of 10 rows per batch and 5 requests at once would hold it back."""


def ours(config: Path, model: str) -> dict[str, Any]:
    """A configuration of serve_app with one of its models; the rest of it as it is.

    Raises:
        ConfigError: It cannot be read.
        KeyError: It has no such model.
    """
    document = read_document(config)
    args = _application(document)["args"]
    args["models"] = [_model(args, model)]
    return document


def stock(config: Path, model: str) -> dict[str, Any]:
    """The same model and logging, served the way Ray Serve's documentation shows, by `benchmarks.stock`.

    Raises:
        ConfigError: The configuration cannot be read.
        KeyError: It has no such model.
    """
    application = _application(read_document(config))
    return {
        "applications": [
            {
                "name": "stock",
                "route_prefix": "/",
                "import_path": "benchmarks.stock:build",
                "logging_config": application["logging_config"],  # an access log alone would cost it a fifth
                "args": {"model": _model(application["args"], model), **STOCK_SETTINGS},
            }
        ]
    }


def _application(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in document["applications"] if each["import_path"] == IMPORT_PATH)
    return found


def _model(args: dict[str, Any], name: str) -> dict[str, Any]:
    found = next((each for each in args["models"] if each["name"] == name), None)
    if found is None:
        raise KeyError(name)
    return dict(found)
