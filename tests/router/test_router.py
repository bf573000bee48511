"""A router put together from plain values, without a cluster."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import onnx_models
import pytest

from serve_app.composition import describe_models, router_settings
from serve_app.config.args import parse_args
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app.payloads import Bundle, BundleResult, Execution
from serve_app.router.router import Router
from serve_app.router.settings import GrpcPort, HttpPort, RouterSettings
from serve_app.scheduling.settings import ClassSettings, ProcessLimits
from serve_app.telemetry.statistics import Statistics


async def no_replicas(model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:
    """Nothing is ever sent."""
    raise AssertionError(model, bundle, replica, nbytes)


async def test_a_router_begins_with_what_profiles_say(tmp_path: Path) -> None:
    """Its scheduler predicts before any replica has reported; a model without a profile is unknown."""
    for name in ("m", "n"):
        onnx_models.make(tmp_path / name / "1" / "model.onnx", "add_one")
    config = parse_args(
        {"models": [{"name": name, "path": str(tmp_path / name), "batching": {"max_rows": 4}} for name in ("m", "n")]}
    )
    priors = {"m": [Execution(1, 0, 0.25), Execution(4, 0, 0.25)]}
    router = Router(router_settings(config, describe_models(config), priors=priors, identities={}), no_replicas)
    shown = router.administration.status()["models"]
    assert [shown[name]["latency_s"] for name in ("m", "n")] == [{"0": {"1": 0.25, "4": 0.25}}, {}]


async def test_a_router_schedules_as_configured_and_shows_it(tmp_path: Path) -> None:
    """Policies and fallbacks reach its scheduler, and /status tells them."""
    for name in ("m", "n", "light"):
        onnx_models.make(tmp_path / name / "1" / "model.onnx", "add_one")
    config = parse_args(
        {
            "models": [
                {
                    "name": "m",
                    "path": str(tmp_path / "m"),
                    "batching": {"policy": "eager"},
                    "variants": [{"name": "light", "path": str(tmp_path / "light")}],
                    "fallbacks": ["light"],
                },
                {"name": "n", "path": str(tmp_path / "n")},
            ],
        }
    )
    router = Router(router_settings(config, describe_models(config), priors={}, identities={}), no_replicas)
    models = router.administration.status()["models"]
    keys = ("policy", "fallbacks")
    assert {name: {key: shown[key] for key in keys if key in shown} for name, shown in models.items()} == {
        "m": {"policy": "eager", "fallbacks": ["light"]},
        "n": {"policy": "auto"},
    }


class SilentPeers:
    """Another router that does not answer."""

    alone = False

    def own_name(self) -> str:
        """See `serve_app.router.router.Peers`."""
        return "r1"

    async def pages(self) -> Mapping[str, str]:
        """Nothing comes in time."""
        return {}

    async def statistics(self) -> Sequence[Mapping[str, Statistics]]:
        """Nothing comes in time."""
        return ()

    async def tell_traffic(self, model: str, origin: str, table: bytes) -> None:
        """Nobody hears it."""


class NoPeers(SilentPeers):
    """There may be more routers, and is none now."""

    alone = True


@pytest.mark.parametrize("peers", [None, NoPeers(), SilentPeers()])
async def test_series_name_their_router_where_there_may_be_several(peers: SilentPeers | None) -> None:
    """Also while the others do not answer: else series would change their names when a router is ill."""
    router = Router(_nothing_served(), no_replicas, peers)
    transport = httpx.ASGITransport(router.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        page = (await client.get("/metrics")).text
    await router.close(0.0)
    assert ('router="r1"' in page) == (peers is not None and not peers.alone)


async def test_a_port_that_is_taken_is_named() -> None:
    """By the setting that says it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = HttpPort("127.0.0.1", other.getsockname()[1], setting="args.router.http.port")
        with pytest.raises(ConfigError, match=r"args\.router\.http\.port: cannot listen on 127\.0\.0\.1:"):
            Router(replace(_nothing_served(), http_port=port), no_replicas).start()


async def test_a_router_may_be_drained_and_closed_more_than_once() -> None:
    """Nothing is left open, and nothing is ended twice."""
    port = HttpPort("127.0.0.1", 0)
    router = Router(replace(_nothing_served(), http_port=port, grpc_port=GrpcPort("127.0.0.1", 0)), no_replicas)
    router.start()
    await router.opened()
    address = router.http_address
    assert address is not None
    assert await router.drain(1.0) == 0
    await router.close(1.0, grace_s=0.0)
    await router.close(1.0, grace_s=0.0)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address)


def _nothing_served() -> RouterSettings:
    classes = {priority: ClassSettings(16, 1 << 20, 1.0) for priority in Priority}
    return RouterSettings(classes=classes, limits=ProcessLimits(1 << 20))
