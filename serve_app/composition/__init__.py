"""Builds the parts from a configuration: finds, reads, describes and loads models, and makes a router's settings.

In this package ``environ`` defaults to this process's environment variables, and ``locations`` are a model's files by
variant, from `find_files`.
"""

from __future__ import annotations

from serve_app.composition.arguments import read_args
from serve_app.composition.description import describe_models, model_info, read_models
from serve_app.composition.identity import identities
from serve_app.composition.profile import read_priors
from serve_app.composition.router import router_settings
from serve_app.composition.versions import with_versions
from serve_app.composition.wing_parts import expand_models

__all__ = [
    "describe_models",
    "expand_models",
    "identities",
    "model_info",
    "read_args",
    "read_models",
    "read_priors",
    "router_settings",
    "with_versions",
]
