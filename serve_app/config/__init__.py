"""The configuration: the ``args:`` of a Serve file, checked and converted to values for the layers below.

`AppArgs` is the typed form. `parse_args` makes one from plain data and `load_file` from a whole Serve file; both raise
`serve_app.errors.ConfigError` with one readable line per fault.
"""

from __future__ import annotations

from serve_app.config.args import AppArgs, parse_args
from serve_app.config.autoscaling import AutoscalingConfig
from serve_app.config.batching import BatchingConfig
from serve_app.config.budget import DEFAULT_MAXCONN, MAXCONN_VARIABLE, Budget
from serve_app.config.file import IMPORT_PATH, ServeFile, load_file, parse_document, read_document
from serve_app.config.files import cache_folder
from serve_app.config.logging import LoggingConfig
from serve_app.config.model import (
    HealthConfig,
    ModelConfig,
    VariantConfig,
)
from serve_app.config.names import ROUTER, deployment_name
from serve_app.config.pool import PoolConfig
from serve_app.config.resources import ResourcesConfig
from serve_app.config.router import ClassConfig, ClassesConfig, RouterConfig
from serve_app.payloads import TENSORS

__all__ = [
    "DEFAULT_MAXCONN",
    "IMPORT_PATH",
    "MAXCONN_VARIABLE",
    "ROUTER",
    "TENSORS",
    "AppArgs",
    "AutoscalingConfig",
    "BatchingConfig",
    "Budget",
    "ClassConfig",
    "ClassesConfig",
    "HealthConfig",
    "LoggingConfig",
    "ModelConfig",
    "PoolConfig",
    "ResourcesConfig",
    "RouterConfig",
    "ServeFile",
    "VariantConfig",
    "cache_folder",
    "deployment_name",
    "load_file",
    "parse_args",
    "parse_document",
    "read_document",
]
