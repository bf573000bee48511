"""The budget of requests: queues, work in flight and headroom fit through the doors in front of the router."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.config.args import parse_args
from serve_app.config.budget import Budget
from serve_app.config.file import parse_document
from serve_app.errors import ConfigError

REMEDY = "or lower classes.*.queue, autoscaling.max_replicas or batching.max_rows"
MODELS = [
    {"name": "a", "path": "a", "batching": {"max_rows": 16, "window": 3}, "autoscaling": {"max_replicas": 4}},
    {"name": "b", "path": "b"},
]


def document(args: dict[str, Any], **variables: Any) -> dict[str, Any]:
    """A Serve file with an environment for Serve's own processes."""
    return {
        "controller_options": {"runtime_env": {"env_vars": variables}},
        "applications": [{"import_path": "serve_app.app:build", "args": args}],
    }


def test_a_budget_counts_queues_flights_and_headroom() -> None:
    """In flight are max_replicas x window x max_rows of every model: each row may be a request."""
    budget = parse_args({"models": MODELS, "router": {"limits": {"headroom": 100}}}).budget()
    assert budget == Budget({"high": 256, "normal": 1024, "low": 1536}, {"a": 192, "b": 256}, 100)
    assert budget.requests == 3364


@pytest.mark.parametrize(("limit", "routers", "fits"), [(10, 1, True), (9, 1, False), (20, 2, True), (19, 2, False)])
def test_a_budget_fits_exactly(limit: int, routers: int, fits: bool) -> None:
    """A port that lets through just what is needed is wide enough; several routers share HAProxy."""
    assert (Budget({"high": 4}, {"a": 3}, 3).problem(limit, routers) is None) == fits


def test_limits_follow_the_models() -> None:
    """Fifty models with their defaults need nothing set; few models leave Serve's own limits as they are."""
    many = [{"name": f"m{number}", "path": "m"} for number in range(50)]
    file = parse_document(document({"models": many}))
    assert file.args.ongoing_requests == 256 + 1024 + 1536 + 50 * 256 + 256
    assert file.connections_needed == 15872
    assert parse_args({"models": MODELS}).ongoing_requests == 4096


def test_too_few_ongoing_requests_are_refused_with_the_numbers() -> None:
    """The message does the sum, and says what to change."""
    args = {"models": MODELS, "classes": {"low": {"queue": 4096}}, "router": {"limits": {"max_ongoing_requests": 4096}}}
    with pytest.raises(ConfigError) as caught:
        parse_args(args)
    assert caught.value.problems == (
        "args.router.limits.max_ongoing_requests: 4096 is too small: queues (256 high + 1024 normal + 4096 low)"
        " + in flight (192 a + 256 b) + headroom (256) = 6080 requests; raise it to at least 6080, " + REMEDY,
    )


def test_a_refusal_names_the_first_of_many_models() -> None:
    """One line stays one line."""
    budget = Budget({"high": 1}, {f"m{number}": 2 for number in range(11)}, 0)
    listed = " + ".join(f"2 m{number}" for number in range(8))
    assert budget.problem(22) == (
        f"22 is too small: queues (1 high) + in flight ({listed} + 6 of 3 more) + headroom (0) = 23 requests;"
        f" raise it to at least 23, {REMEDY}"
    )


def test_too_few_connections_are_refused_with_the_numbers() -> None:
    """HAProxy stands before all routers of a node, so their needs add up."""
    args = {"models": MODELS, "router": {"replicas": 2}}
    with pytest.raises(ConfigError) as caught:
        parse_document(document(args, RAY_SERVE_HAPROXY_MAXCONN="4096"))
    assert caught.value.problems == (
        "controller_options.runtime_env.env_vars.RAY_SERVE_HAPROXY_MAXCONN: 4096 is too small:"
        " queues (256 high + 1024 normal + 1536 low) + in flight (192 a + 256 b) + headroom (256)"
        " = 3520 requests for each of 2 routers; raise it to at least 7040, " + REMEDY,
    )


def test_a_process_of_serve_is_told_that_haproxy_holds_too_few() -> None:
    """By whoever started the cluster without `serve-app run`; nothing is said where there is no HAProxy."""
    many = parse_args({"models": [{"name": f"m{number}", "path": "m"} for number in range(17)]})
    problem = many.haproxy_problem({"RAY_SERVE_ENABLE_HA_PROXY": "1"})
    assert problem is not None
    assert problem.startswith("RAY_SERVE_HAPROXY_MAXCONN: 4096 is too small: ")
    assert many.haproxy_problem({"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_HAPROXY_MAXCONN": "7424"}) is None
    assert many.haproxy_problem({}) is None


def test_more_connections_are_taken_from_the_file() -> None:
    """Raising the variable in the file makes room."""
    args = {"models": MODELS, "router": {"replicas": 2}}
    assert parse_document(document(args, RAY_SERVE_HAPROXY_MAXCONN="7040")).args.router.replicas == 2


def test_a_variable_that_is_no_number_is_refused() -> None:
    """Ray would fail to start on it, far from the file."""
    with pytest.raises(ConfigError) as caught:
        parse_document(document({"models": MODELS}, RAY_SERVE_HAPROXY_MAXCONN="lots"))
    place = "controller_options.runtime_env.env_vars.RAY_SERVE_HAPROXY_MAXCONN"
    assert caught.value.problems == (f"{place}: must be a whole number in quotes, got 'lots'",)


@pytest.mark.parametrize(
    ("args", "on_two", "on_sixteen", "anywhere"),
    [
        ({}, 1, 8, 8),
        ({"router": {"replicas": 3}}, 3, 3, 3),
        pytest.param(
            {"pools": [{"name": "p", "path": "p/*", "memory": "1GiB"}]}, 1, 1, 1, marks=pytest.mark.wing("pools")
        ),
    ],
)
def test_routers_leave_half_of_the_cores_to_replicas(
    args: dict[str, Any], on_two: int, on_sixteen: int, anywhere: int
) -> None:
    """Where one has to decide there is one."""
    config = parse_args({"models": MODELS, **args})
    assert [config.most_routers(cores) for cores in (2, 16, None)] == [on_two, on_sixteen, anywhere]
