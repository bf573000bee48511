"""What a configuration makes of the parts: models found, read, described and loaded, and the settings of a router."""

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
