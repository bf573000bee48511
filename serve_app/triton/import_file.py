"""``serve-app import triton``: writes a configuration for the models of a Triton repository."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import yaml

from serve_app.errors import ConfigError
from serve_app.triton.repository import RepositoryModel, TritonRepository, read_repository

_HEAD: Final = """\
# The models of Triton's repository {path}. A comment tells what is done otherwise than by Triton.
# Check it with `serve-app validate`, start it with `serve-app run`.

http_options:
  host: 127.0.0.1
  port: 8000

controller_options:
  runtime_env:
    env_vars:
      RAY_SERVE_ENABLE_HA_PROXY: "1"
      RAY_SERVE_THROUGHPUT_OPTIMIZED: "1"
      RAY_SERVE_HAPROXY_RETRY_ON: "conn-failure empty-response"
      RAY_SERVE_HAPROXY_METRICS_ENABLED: "0"
      RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH: "134217728"
      RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S: "300"
      RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S: "60"
      RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S: "1"
      RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S: "2"
      RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S: "1"

applications:
  - name: serve-app
    import_path: serve_app.app:build
    route_prefix: /
    logging_config:
      enable_access_log: false
      log_level: WARNING
    autoscaling_policy:
      policy_function: "serve_app.deployments.autoscaling:ScaleByDemand"
    args:
      router:
        grpc: {{port: 8001}} # Triton's port; HTTP is on 8000, as there
"""
_INDENT: Final = 6


def triton_file(path: str, environ: Mapping[str, str]) -> str:
    """Write a repository's configuration, with a comment for each feature without counterpart.

    Args:
        path: The repository's folder, as in a configuration.

    Raises:
        ConfigError: The repository is unreadable, or none of its models can be served. One line per fault.
    """
    repository = read_repository(path, environ=environ)
    if not repository.served:
        raise ConfigError((*repository.notes, f"{path}: no model can be served"))
    return "".join((_HEAD.format(path=path), *(f"{line}\n" for line in _lines(repository))))


def _lines(repository: TritonRepository) -> Iterator[str]:
    if repository.classes:
        yield from _indented({"classes": dict(repository.classes)}, _INDENT)
    yield from _section("models", (model for model in repository.models if not _is_served_pipeline(model)))
    if repository.pipelines:
        yield from _section("pipelines", filter(_is_served_pipeline, repository.models))


def _is_served_pipeline(model: RepositoryModel) -> bool:
    return model.is_pipeline and model.keys is not None


def _section(key: str, entries: Iterable[RepositoryModel]) -> Iterator[str]:
    yield f"{' ' * _INDENT}{key}:"
    for entry in entries:
        yield from (f"{' ' * (_INDENT + 2)}# {note}" for note in entry.notes)
        if entry.keys is not None:
            yield from _indented([dict(entry.keys)], _INDENT + 2)


def _indented(value: Any, spaces: int) -> Iterator[str]:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1000)
    yield from (f"{' ' * spaces}{line}" for line in text.splitlines())
