"""What a run sets by itself so that all models fit: HAProxy's connections, and the CPUs that Ray may give away."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from serve_app.config import DEFAULT_MAXCONN, MAXCONN_VARIABLE, AppArgs, ServeFile
from serve_app.config.budget import HAPROXY_VARIABLE, fitting_connections

_AT_ONCE = 2
"""A redeploy starts new replicas beside the old ones."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What a run sets, and what there is to say about it.

    Attributes:
        variables: For the environment of Serve's processes.
        cpus: CPUs that Ray is told of.
        problems: Why it cannot run, one line each.
        notes: What somebody should know, one line each.
    """

    variables: Mapping[str, str]
    cpus: int
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def run_limits(file: ServeFile, environ: Mapping[str, str], *, files: int, cores: int) -> RunLimits:
    """Compute what a file takes on this machine.

    Args:
        file: What is to be served.
        environ: Environment variables. What stands there, as what stands in the file, is taken as it is.
        files: Most files that a process here may have open.
        cores: CPUs of this machine.
    """
    variables: dict[str, str] = {}
    problems: list[str] = []
    notes = list(_cpu_notes(file.args, cores))
    if file.env_vars.get(HAPROXY_VARIABLE, environ.get(HAPROXY_VARIABLE)) == "1":
        needed = max(DEFAULT_MAXCONN, file.connections_needed)
        given = file.env_vars.get(MAXCONN_VARIABLE, environ.get(MAXCONN_VARIABLE))
        fitting = fitting_connections(files)
        if given is not None:
            if not str(given).isdecimal():
                problems.append(f"{MAXCONN_VARIABLE}: must be a whole number, got {given}")
            elif (problem := file.args.budget().problem(int(given), file.args.router.replicas)) is not None:
                problems.append(f"{MAXCONN_VARIABLE}: {problem}")
            elif int(given) > fitting:
                problems.append(f"{MAXCONN_VARIABLE}: {_too_many(int(given), files, fitting)}")
        elif needed > fitting:
            variables[MAXCONN_VARIABLE] = str(fitting)
            notes.append(
                f"HAProxy holds {fitting} connections: {_too_many(needed, files, fitting)}. Until then clients"
                f" of port {file.http_address[1]} beyond these wait without regard to priority; those of"
                " router.http.port do not"
            )
        else:
            variables[MAXCONN_VARIABLE] = str(needed)
    if fitting_connections(files) < 1:
        problems.append(f"a process here may open {files} files, which is too few; raise it with ulimit -n")
    return RunLimits(variables, _cpus(file.args, cores), tuple(problems), tuple(notes))


def cluster_notes(file: ServeFile, cores: int) -> tuple[str, ...]:
    """What ``serve-app run`` sets by itself, and has to be set for any other way to start, one line each."""
    notes = []
    needed = file.connections_needed
    if (
        file.env_vars.get(HAPROXY_VARIABLE) == "1"
        and MAXCONN_VARIABLE not in file.env_vars
        and needed > DEFAULT_MAXCONN
    ):
        notes.append(
            f"HAProxy has to hold {needed} connections: `serve-app run` sees to it; for `serve run` and KubeRay, set"
            f' {MAXCONN_VARIABLE}: "{needed}" in controller_options.runtime_env.env_vars'
        )
    reserved = _reserved(file.args)
    if reserved > cores:
        notes.append(
            f"replicas and routers reserve {reserved:g} CPUs at the start: `serve-app run` makes room for what"
            " resources.cpus is by default, whatever the machine has; for `serve run` and KubeRay the cluster must"
            " have them, or set less"
        )
    return tuple(notes)


def _too_many(wanted: int, files: int, fitting: int) -> str:
    return (
        f"{wanted} take {math.ceil(wanted * 2.5)} open files and some, and a process here may open {files},"
        f" enough for {fitting}; raise that (ulimit -Hn, LimitNOFILE=, --ulimit nofile=)"
    )


def _cpu_notes(args: AppArgs, cores: int) -> Iterator[str]:
    started = args.router.replicas + sum(
        model.most_versions * model.autoscaling.start_replicas for model in args.models
    )
    if _reserved(args) > cores:
        yield f"{started} processes of replicas and routers share {cores} CPUs"


def _reserved(args: AppArgs) -> float:
    """CPUs reserved at the start."""
    routers = args.router.replicas * args.router.cpus
    return routers + sum(
        model.most_versions * model.autoscaling.start_replicas * model.resources.cpus for model in args.models
    )


def _cpus(args: AppArgs, cores: int) -> int:
    """CPUs to tell Ray of, so that whatever reserves what is reserved by default finds room, also in a redeploy.

    A reservation that somebody has written down is kept to: it finds room on the real CPUs, or waits.
    """
    given = default = 0.0
    for model in args.models:
        cpus = model.most_versions * model.autoscaling.max_replicas * model.resources.cpus
        if "cpus" in model.resources.model_fields_set:
            given += cpus
        else:
            default += cpus
    routers = args.router.replicas * args.router.cpus
    if "cpus" in args.router.model_fields_set:
        given += routers
    else:
        default += routers
    return max(cores, math.ceil(min(_AT_ONCE * given, cores) + _AT_ONCE * default))
