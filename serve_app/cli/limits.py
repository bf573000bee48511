"""Computes a run's limits so that all models fit: HAProxy's connections, and Ray's CPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from serve_app import wings
from serve_app.config.args import AppArgs
from serve_app.config.budget import DEFAULT_MAXCONN, HAPROXY_VARIABLE, MAXCONN_VARIABLE, fitting_connections
from serve_app.config.file import ServeFile

_AT_ONCE = 2
"""A redeploy starts new replicas beside the old ones."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of a run, with messages.

    Attributes:
        variables: For the environment of Serve's processes.
        cpus: For Ray.
        problems: Reasons against the run, one line each.
        notes: Notes for the user, one line each.
    """

    variables: Mapping[str, str]
    cpus: int
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def run_limits(file: ServeFile, environ: Mapping[str, str], *, files: int, cores: int) -> RunLimits:
    """Compute a file's limits on this machine.

    Args:
        environ: Its values, like those of the file, take precedence.
        files: Most open files per process.
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
            elif (problem := file.args.budget().problem(int(given), file.args.router.fewest)) is not None:
                problems.append(f"{MAXCONN_VARIABLE}: {problem}")
            elif int(given) > fitting:
                problems.append(f"{MAXCONN_VARIABLE}: {_too_many(int(given), files, fitting)}")
            elif (later := file.args.budget().requests * file.args.most_routers(cores)) > int(given):
                notes.append(
                    f"{MAXCONN_VARIABLE}: {given} is too small for {file.args.most_routers(cores)} routers, which"
                    f" router.replicas: auto may start here; {later} connections would do"
                )
        elif needed > fitting:
            variables[MAXCONN_VARIABLE] = str(fitting)
            notes.append(
                f"HAProxy holds {fitting} connections: {_too_many(needed, files, fitting)}. Until then clients"
                f" of port {file.http_address[1]} beyond these wait without regard to priority; those of"
                " router.http.port do not"
            )
        else:
            later = file.args.budget().requests * file.args.most_routers(cores)
            variables[MAXCONN_VARIABLE] = str(max(needed, min(later, fitting)))
    if fitting_connections(files) < 1:
        problems.append(f"a process here may open {files} files, which is too few; raise it with ulimit -n")
    return RunLimits(variables, _cpus(file.args, cores), tuple(problems), tuple(notes))


def cluster_notes(file: ServeFile, cores: int) -> tuple[str, ...]:
    """Settings of ``serve-app run`` that other ways to start have to make, one line each."""
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


class _Processes(NamedTuple):
    """Replicas of a model, or hosts of a pool.

    Attributes:
        started: Initial number.
        most: Largest number.
        cpus: Reserved by each.
        given: Whether that is configured.
    """

    started: int
    most: int
    cpus: float
    given: bool


def _processes(args: AppArgs) -> Iterator[_Processes]:
    for model in args.models:
        if model.pool is None:
            of_versions, scaling = model.most_versions, model.autoscaling
            yield _Processes(
                of_versions * scaling.start_replicas,
                of_versions * model.most_replicas,
                model.resources.cpus,
                "cpus" in model.resources.model_fields_set,
            )
    for processes in wings.hooks("config", "processes"):
        for count, cpus, given in processes(args):
            yield _Processes(count, count, cpus, given)


def _cpu_notes(args: AppArgs, cores: int) -> Iterator[str]:
    started = args.router.fewest + sum(each.started for each in _processes(args))
    if _reserved(args) > cores:
        yield f"{started} processes of replicas and routers share {cores} CPUs"


def _reserved(args: AppArgs) -> float:
    """CPUs reserved initially."""
    routers = args.router.fewest * args.router.cpus
    return routers + sum(each.started * each.cpus for each in _processes(args))


def _cpus(args: AppArgs, cores: int) -> int:
    """CPUs for Ray, so that default reservations always fit, also in a redeploy.

    A configured reservation counts against the real CPUs, or waits.
    """
    given = default = 0.0
    for each in _processes(args):
        if each.given:
            given += each.most * each.cpus
        else:
            default += each.most * each.cpus
    routers = args.most_routers(cores) * args.router.cpus
    if "cpus" in args.router.model_fields_set:
        given += routers
    else:
        default += routers
    return max(cores, math.ceil(min(_AT_ONCE * given, cores) + _AT_ONCE * default))
