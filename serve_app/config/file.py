"""A whole Serve file: reads it, finds the application, and checks consistency."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from serve_app.config.args import AppArgs, parse_args
from serve_app.config.budget import MAXCONN_VARIABLE
from serve_app.config.loader import load_yaml
from serve_app.config.problems import short_repr
from serve_app.errors import ConfigError, some_of

IMPORT_PATH = "serve_app.app:build"
"""The import path that makes an application of a Serve file ours."""

LOOPBACK = "127.0.0.1"
"""The interface that only this machine reaches."""

SCALING_POLICY = "serve_app.deployments.autoscaling:ScaleByDemand"
"""The import path of the policy by which replicas follow the demand."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeFile:
    """A checked Serve file.

    Attributes:
        document: The whole file.
        application: Its position.
        args: The application's arguments.
    """

    document: Mapping[str, Any]
    application: int
    args: AppArgs

    @property
    def name(self) -> str:
        """The application's name; Serve's default if unnamed."""
        return str(self.document["applications"][self.application].get("name", "default"))

    @property
    def env_vars(self) -> Mapping[str, str]:
        """The file's environment variables for Serve's processes."""
        return _env_vars(self.document)

    @property
    def connections_needed(self) -> int:
        """Connections that one HAProxy must hold, before all router processes of a node."""
        return self.args.budget().requests * self.args.router.fewest

    @property
    def http_address(self) -> tuple[str, int]:
        """Serve's HTTP host and port, or its defaults."""
        options = self._http_options
        return str(options.get("host") or "0.0.0.0"), int(options.get("port", 8000))  # noqa: S104 - Serve's default

    @property
    def names_host(self) -> bool:
        """Whether it sets HTTP's interfaces. Serve's default is all."""
        return bool(self._http_options.get("host"))

    def on_loopback(self) -> ServeFile:
        """The same file with HTTP on the loopback interface."""
        return replace(self, document={**self.document, "http_options": {**self._http_options, "host": LOOPBACK}})

    @property
    def grpc_port(self) -> int | None:
        """Serve's gRPC port, if set."""
        options = self.document.get("grpc_options") or {}
        return int(options.get("port", 9000)) if options.get("grpc_servicer_functions") else None

    def scaled(self) -> ServeFile:
        """The same file with serve_app's scaling policy, unless it names one."""
        applications = [dict(each) for each in self.document["applications"]]
        if applications[self.application].get("autoscaling_policy") is not None:
            return self
        applications[self.application]["autoscaling_policy"] = {"policy_function": SCALING_POLICY}
        return replace(self, document={**self.document, "applications": applications})

    def unscaled(self) -> tuple[str, ...]:
        """The models that need `serve-app run` to get more replicas, in at most one line."""
        models = [model for model in self.args.models if model.pool is None]
        scaled = [model.name for model in models if model.autoscaling.most() > model.autoscaling.min_replicas]
        if not scaled or self.document["applications"][self.application].get("autoscaling_policy") is not None:
            return ()
        line = (
            f"applications[{self.application}].autoscaling_policy: missing; serve-app run adds it, and without it"
            f" replicas do not follow the load of {some_of(scaled)}; write"
            f" autoscaling_policy: {{policy_function: {SCALING_POLICY}}}"
        )
        return (line,)

    def open_ports(self) -> tuple[str, ...]:
        """Ports that are unexpectedly reachable from outside, one line each."""
        host, port = self.http_address
        router = self.args.router
        said = []
        if not self.names_host:
            said.append(
                f"http_options.host: missing, and Serve opens {port} to the network then, but serve-app run only to"
                f" this machine; write {LOOPBACK}, or 0.0.0.0 if others should reach it"
            )
        if router.tls is not None and not is_loopback(host):
            ports = f"{port}" if self.grpc_port is None else f"{port} and {self.grpc_port}"
            said.append(
                f"http_options.host: {host} opens {ports} to the network without TLS, which router.tls does not give"
                " them; use 127.0.0.1 and the routers' own ports, or end TLS in front of it"
            )
        own = [str(number) for _, number in router.own_ports]
        if router.tls is None and own and not is_loopback(router.host):
            said.append(
                f"args.router.host: {router.host} opens {' and '.join(own)} to the network"
                " without TLS; set router.tls, or 127.0.0.1"
            )
        if self.grpc_port is not None and is_loopback(host):
            said.append(
                f"grpc_options: Serve listens for gRPC on all interfaces behind port {self.grpc_port}, whatever"
                " http_options.host says; where there is one machine, leave it out and set args.router.grpc.port"
            )
        if self.env_vars.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
            said += [
                f"http_options.{key}: is not for HAProxy, and breaks its way to the routers; leave it out"
                for key in self._http_options
                if key.startswith("ssl_")
            ]
        return tuple(said)

    @property
    def _http_options(self) -> Mapping[str, Any]:
        return self.document.get("http_options") or {}

    @property
    def route_prefix(self) -> str:
        """The application's path prefix, without a trailing slash."""
        return str(self.document["applications"][self.application].get("route_prefix", "/")).rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_document(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: The file is unreadable, no YAML, repeats a key or holds no mapping.
    """
    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError((f"cannot be read: {error.strerror}",)) from None
    except UnicodeDecodeError as error:
        raise ConfigError((f"is not UTF-8 text: byte {error.start}",)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError((f"{where}{error.problem or error.context}",)) from None
    except yaml.YAMLError as error:
        raise ConfigError((f"is not YAML: {' '.join(str(error).split())}",)) from None
    if not isinstance(document, dict):
        raise ConfigError((f"must hold a mapping with the key applications, got {short_repr(document)}",))
    return document


def parse_document(document: Mapping[str, Any], parse: Callable[[Any], AppArgs] = parse_args) -> ServeFile:
    """Check the application's part of a Serve file.

    Args:
        parse: Checks the ``args:``.

    Raises:
        ConfigError: One line per fault.
    """
    applications = document.get("applications")
    if not isinstance(applications, list):
        raise ConfigError(("applications: must be a list of applications",))
    ours = [
        number
        for number, application in enumerate(applications)
        if isinstance(application, Mapping) and application.get("import_path") == IMPORT_PATH
    ]
    if len(ours) != 1:
        found = "none" if not ours else f"{len(ours)} of them"
        raise ConfigError((f"applications: needs one application with import_path: {IMPORT_PATH}, found {found}",))
    args = parse(applications[ours[0]].get("args"))
    problems = _maxconn_problems(document, args)
    if problems:
        raise ConfigError(problems)
    return ServeFile(document, ours[0], args)


def load_file(path: Path, parse: Callable[[Any], AppArgs] = parse_args) -> ServeFile:
    """Read and check the application's part of a Serve file. ``serve-app validate`` checks Serve's.

    Args:
        parse: Checks the ``args:``.

    Raises:
        ConfigError: One line per fault.
    """
    return parse_document(read_document(path), parse)


def _maxconn_problems(document: Mapping[str, Any], args: AppArgs) -> tuple[str, ...]:
    """Check HAProxy's connection limit, for all router processes of a node."""
    place = f"controller_options.runtime_env.env_vars.{MAXCONN_VARIABLE}"
    given = _env_vars(document).get(MAXCONN_VARIABLE)
    if given is None:
        return ()  # `serve-app run` sets it, other ways to start follow `validate`
    if not str(given).isdecimal():
        return (f"{place}: must be a whole number in quotes, got {short_repr(given)}",)
    problem = args.budget().problem(int(given), args.router.fewest)
    return () if problem is None else (f"{place}: {problem}",)


def _env_vars(document: Mapping[str, Any]) -> Mapping[str, Any]:
    node: Any = document
    for step in ("controller_options", "runtime_env", "env_vars"):
        node = node.get(step) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}
