"""Keys by the names and at the places that they had: they work for one release, and are told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from serve_app.config import parse_args
from serve_app.errors import ConfigError

MODELS = [{"name": "m", "path": "m"}]


def parse_router(**keys: Any) -> Any:
    """What becomes of these keys below ``router``."""
    return parse_args({"router": keys, "models": MODELS}).router


@pytest.mark.parametrize(
    ("former", "value", "now"),
    [
        ("direct_host", "::1", "host"),
        ("direct_port", 8100, "http.port"),
        ("grpc_outputs", "as_inputs", "grpc.outputs"),
        ("max_body", 4096, "limits.max_body"),
        ("rescue_share", 0.25, "faults.hedge_share"),
        ("replica_kill_s", None, "faults.replica_kill_s"),
    ],
)
def test_a_former_key_works_and_is_told(former: str, value: Any, now: str, caplog: pytest.LogCaptureFixture) -> None:
    """One line for it, which names the place where it is now."""
    found = parse_router(**{former: value})
    for step in now.split("."):
        found = getattr(found, step)
    assert found == value
    (record,) = caplog.records
    told = f"router.{former} is router.{now} now; the former key works until version 0.2"
    assert (record.levelno, record.getMessage()) == (logging.WARNING, told)


def test_a_former_key_stands_beside_what_its_section_has_now() -> None:
    """Also where the section itself is given."""
    router = parse_router(http={"connections": 7}, direct_port=8100, connections_per_client=3)
    assert (router.http.port, router.http.connections, router.http.connections_per_client) == (8100, 7, 3)


@pytest.mark.parametrize(
    ("router", "faults"),
    [
        (
            {"direct_port": 8100, "http": {"port": 8100}},
            ["args.router.direct_port: is router.http.port now, which is given, too: leave this one out"],
        ),
        (
            {"direct_host": "::1", "host": "::1"},
            ["args.router.direct_host: is router.host now, which is given, too: leave this one out"],
        ),
        (
            {"hedge_share": 0.1, "rescue_share": 0.1},
            [
                (
                    "args.router.rescue_share: is router.faults.hedge_share now, which router.hedge_share gives, too:"
                    " leave this one out"
                )
            ],
        ),
        (
            {"max_body": 1, "limits": {"max_body": 0}, "cpus": -1},
            [
                "args.router.max_body: is router.limits.max_body now, which is given, too: leave this one out",
                "args.router.cpus: must be at least 0, got -1",
                "args.router.limits.max_body: must be more than 0, got 0",
            ],
        ),
        ({"direct_port": 8100, "http": 5}, ["args.router.http: must be a mapping, got 5"]),
    ],
)
def test_a_setting_is_given_once(router: dict[str, Any], faults: list[str]) -> None:
    """Twice is a fault of one line, beside all others that there are."""
    with pytest.raises(ConfigError) as caught:
        parse_router(**router)
    assert list(caught.value.problems) == faults


@pytest.mark.parametrize(
    ("router", "fault"),
    [
        ({"direct_port": "http"}, "args.router.direct_port: must be a whole number, got 'http'"),
        ({"high_headroom": -1}, "args.router.high_headroom: must be at least 0, got -1"),
        (
            {"open_without_key": ["docs", "all"]},
            "args.router.open_without_key[1]: must be 'docs', 'metrics' or 'status', got 'all'",
        ),
        ({"replica_kill_s": 1}, "args.router.replica_kill_s: must be at least replica_silence_s, or null"),
        (
            {"direct_port": 1, "direct_grpc_port": 1},
            "args.router.direct_grpc_port: must be another port than router.http.port",
        ),
        ({"http": {"prot": 1}}, "args.router.http.prot: unknown key; did you mean port?"),
    ],
)
def test_faults_are_told_where_they_were_written(router: dict[str, Any], fault: str) -> None:
    """A former key's at the former place."""
    with pytest.raises(ConfigError) as caught:
        parse_router(**router)
    assert list(caught.value.problems) == [fault]


@pytest.mark.parametrize("document", [[], {"router": 5}, {"router": ["direct_port"]}])
def test_what_is_no_mapping_has_no_former_keys(document: Any) -> None:
    """It is a fault like any other."""
    with pytest.raises(ConfigError, match="must be a mapping"):
        parse_args(document)
