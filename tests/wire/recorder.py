"""Asks real servers in this process everything, and gives what they answered."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import onnx_models
from local_server import LocalServer, every_kind_of_model

from serve_app.api.http_app import HttpSettings
from serve_app.cli.key_file import add
from wire import calls, requests
from wire.asking import Ask, GrpcAsk, Server, ask, ask_grpc
from wire.goldens import Answers
from wire.requests import MOST_BYTES
from wire.steady import Steady, differences

KEYS: Final[dict[str, dict[str, Any]]] = {
    "admin": {"admin": True},
    "all": {},
    "normal": {"highest_class": "normal"},
    "lowered": {"highest_class": "low", "above_highest": "lower"},
    "strings": {"models": ["strings"]},
    "disabled": {"disabled": True},
    "expired": {"expires_at": "2020-01-01"},
    # The next request may come after more than the longest time that Retry-After tells: the header does not change.
    "rare": {"rate": "0.01/h"},
    "rare-too": {"rate": "0.01/h"},
    "rare-grpc": {"rate": "0.01/h"},
    "rare-stream": {"rate": "0.01/h"},
}
"""API keys of the server that has them: their names and what they may do."""

AS_GOOD: Final = "<that of: good>"
"""What stands for a long body that is that of the route's good answer."""
_LONG: Final = 200


def record(folder: Path) -> tuple[dict[str, Answers], set[tuple[str, str]]]:
    """Ask everything, in order.

    Args:
        folder: For models and keys. Empty.

    Returns:
        Answers by family and title, and method and path of what the servers say that they serve.

    Raises:
        AssertionError: Two requests have one title.
    """
    asked: list[tuple[str, Ask | GrpcAsk]] = [*requests.everything(), *calls.everything()]
    steady = Steady(folder)
    found: dict[str, Answers] = {}
    good: dict[str, Any] = {}
    with _servers(folder) as (servers, keys), ExitStack() as stack:
        served = {(route.method, route.path) for server in servers.values() for route in server.app.described()}
        channels = {name: stack.enter_context(grpc.insecure_channel(server.grpc)) for name, server in servers.items()}
        for family, what in asked:
            answers = found.setdefault(family, {})
            assert what.title not in answers, f"{what.title}: is asked twice"
            if isinstance(what, Ask):
                route, part = what.route, "body"
                answer = steady.http(what, ask(servers[what.server].url, what, keys))
            else:
                route, part = what.rpc, "messages"
                answer = steady.grpc(what, ask_grpc(channels[what.server], what, keys))
            if what.name == "good":
                good[route] = answer[part]
            elif route in good and _is_long(good[route]) and not differences("", good[route], answer[part]):
                answer[part] = AS_GOOD
            answers[what.title] = answer
    return found, served


def _is_long(content: Any) -> bool:
    return len(json.dumps(content)) > _LONG


@contextmanager
def _servers(folder: Path) -> Iterator[tuple[dict[Server, LocalServer], dict[str, str]]]:
    """A server with API keys and one without, and the keys by name."""
    args = every_kind_of_model(folder)
    onnx_models.make(folder / "failing" / "1" / "model.onnx", "fail_on_negative")
    for version in ("1", "2"):
        onnx_models.make(folder / "versions" / version / "model.onnx", "sum_diff")
    args["models"] += [
        {
            "name": "versions",
            "path": str(folder / "versions"),
            "versions": [1, 2],
            "aliases": {"stable": 1, "candidate": 2},
        },
        {"name": "failing", "path": str(folder / "failing")},
        {"name": "cached", "path": str(folder / "sum_diff"), "cache": {"ttl_s": 3600.0}},
    ]
    file = folder / "keys.yaml"
    keys = {name: add(file, name, wishes) for name, wishes in KEYS.items()}
    settings = HttpSettings(max_body=MOST_BYTES, offload_above=4096)
    router = {"limits": {"max_body": MOST_BYTES}}
    # Nobody is to be late because this machine is busy.
    args["classes"] = {name: {"timeout_ms": 60_000} for name in ("high", "normal", "low")}
    args["classes"]["low"]["queue_bytes"] = MOST_BYTES
    guarded = args | {"router": {**router, "access": {"keys_file": str(file)}}}
    log = logging.getLogger("serve_app")
    level = log.level
    log.setLevel(logging.WARNING)  # requests show it, and change it
    try:
        with (
            LocalServer(args | {"router": router}, settings) as open_to_all,
            LocalServer(guarded, settings) as with_keys,
        ):
            yield {"open": open_to_all, "guarded": with_keys}, keys
    finally:
        log.setLevel(level)
