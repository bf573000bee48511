"""What a run sets by itself: HAProxy's connections and the CPUs that Ray is told of."""

from __future__ import annotations

from typing import Any

from serve_app.cli.limits import RunLimits, cluster_notes, run_limits
from serve_app.config.budget import MAXCONN_VARIABLE
from serve_app.config.file import ServeFile, parse_document

MANY_FILES = 1 << 20
NEEDS = "queues (256 high + 1024 normal + 1536 low) + in flight (256 m0) + headroom (256) = 3328 requests"
REMEDY = "or lower classes.*.queue, autoscaling.max_replicas or batching.max_rows"


def serve_file(models: int, router: dict[str, Any] | None = None, /, **variables: str) -> ServeFile:
    """A Serve file of models with nothing but their defaults, behind HAProxy."""
    return parse_document(
        {
            "controller_options": {"runtime_env": {"env_vars": {"RAY_SERVE_ENABLE_HA_PROXY": "1", **variables}}},
            "applications": [
                {
                    "import_path": "serve_app.app:build",
                    "args": {
                        "models": [{"name": f"m{number}", "path": "m"} for number in range(models)],
                        "router": router or {},
                    },
                }
            ],
        }
    )


def test_a_run_of_few_models_changes_nothing_on_a_machine_that_is_large_enough() -> None:
    """HAProxy keeps Serve's own limit, and Ray the machine's CPUs."""
    assert run_limits(serve_file(1), {}, files=MANY_FILES, cores=2) == RunLimits({MAXCONN_VARIABLE: "4096"}, 2)


def test_fifty_models_fit_on_two_cores() -> None:
    """HAProxy holds all that may wait or run; Ray is told of CPUs for all replicas and as many new ones."""
    limits = run_limits(serve_file(50), {}, files=MANY_FILES, cores=2)
    assert limits == RunLimits(
        {MAXCONN_VARIABLE: "15872"}, 51, notes=("51 processes of replicas and routers share 2 CPUs",)
    )


def test_a_reservation_by_hand_is_kept_to() -> None:
    """Who writes down what a router reserves gets no more CPUs than there are."""
    assert run_limits(serve_file(1, {"cpus": 8.0}), {}, files=MANY_FILES, cores=2).cpus == 3


def test_too_few_open_files_lower_the_limit_and_say_so() -> None:
    """HAProxy would not start where it may not open two and a half files for each of its connections."""
    limits = run_limits(serve_file(50), {}, files=10_512, cores=64)
    assert limits.problems == ()
    assert limits.variables == {MAXCONN_VARIABLE: "4000"}
    assert limits.notes == (
        (
            "HAProxy holds 4000 connections: 15872 take 39680 open files and some, and a process here may open 10512,"
            " enough for 4000; raise that (ulimit -Hn, LimitNOFILE=, --ulimit nofile=). Until then clients of port 8000"
            " beyond these wait without regard to priority; those of router.http.port do not"
        ),
    )


def test_a_limit_by_hand_stays() -> None:
    """Neither the file's nor the environment's is changed."""
    assert run_limits(serve_file(1, **{MAXCONN_VARIABLE: "5000"}), {}, files=MANY_FILES, cores=2).variables == {}
    assert run_limits(serve_file(1), {MAXCONN_VARIABLE: "5000"}, files=MANY_FILES, cores=2).variables == {}


def test_a_limit_by_hand_is_noted_where_more_routers_may_come() -> None:
    """By default there is one at the start, and as many as half of the cores later."""
    file = serve_file(1, **{MAXCONN_VARIABLE: "5000"})
    assert run_limits(file, {}, files=MANY_FILES, cores=2).notes == ()
    assert run_limits(file, {}, files=MANY_FILES, cores=8).notes == (
        (
            f"{MAXCONN_VARIABLE}: 5000 is too small for 4 routers, which router.replicas: auto may start here;"
            " 13312 connections would do"
        ),
    )
    assert run_limits(serve_file(1), {}, files=MANY_FILES, cores=8).variables == {MAXCONN_VARIABLE: "13312"}


def test_a_limit_by_hand_that_is_too_small_or_too_large_is_refused() -> None:
    """In one line: what is needed, or what the machine lets it open."""
    small = run_limits(serve_file(1), {MAXCONN_VARIABLE: "100"}, files=MANY_FILES, cores=2)
    assert small.problems == (f"{MAXCONN_VARIABLE}: 100 is too small: {NEEDS}; raise it to at least 3328, {REMEDY}",)
    large = run_limits(serve_file(1, **{MAXCONN_VARIABLE: "8192"}), {}, files=20_000, cores=2)
    assert large.problems == (
        (
            f"{MAXCONN_VARIABLE}: 8192 take 20480 open files and some, and a process here may open 20000, enough for"
            " 7795; raise that (ulimit -Hn, LimitNOFILE=, --ulimit nofile=)"
        ),
    )


def test_other_ways_to_start_are_told_what_to_set() -> None:
    """`serve run` and KubeRay take the environment and the CPUs as they are."""
    assert cluster_notes(serve_file(1), cores=2) == ()
    assert cluster_notes(serve_file(50), cores=2) == (
        (
            "HAProxy has to hold 15872 connections: `serve-app run` sees to it; for `serve run` and KubeRay, set"
            ' RAY_SERVE_HAPROXY_MAXCONN: "15872" in controller_options.runtime_env.env_vars'
        ),
        (
            "replicas and routers reserve 12.75 CPUs at the start: `serve-app run` makes room for what"
            " resources.cpus is by default, whatever the machine has; for `serve run` and KubeRay the"
            " cluster must have them, or set less"
        ),
    )
