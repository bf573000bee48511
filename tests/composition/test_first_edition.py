"""A configuration as it was written before the router's settings had sections: every one of those keys still works."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import onnx_models
import pytest
import yaml

from benchmarks.ports import free_ports
from serve_app.composition import describe_models, router_settings
from serve_app.config import parse_args
from serve_app.config.router import FORMER_KEYS
from serve_app.payloads import Bundle, BundleResult
from serve_app.router.router import Router

EARLIER_STILL = {"rescue_share", "decode_aside_above"}
"""Names that two of the keys had before; they stand for the same settings."""

FIRST_EDITION = """
router:
  replicas: 2
  cpus: 0.5
  direct_port: {http}
  direct_host: 127.0.0.1
  direct_grpc_port: {grpc}
  connections: 101
  connections_per_client: 11
  grpc_connections: 102
  grpc_streams: 103
  grpc_stream_idle_s: 104
  grpc_keepalive_s: 105
  grpc_outputs: as_inputs
  grpc_client_ping_s: 106
  max_body: 1MiB
  max_request_rows: 107
  max_ongoing_requests: 8000
  headroom: 108
  max_bytes: 512MiB
  high_headroom: 0.2
  shared_memory: 1MiB
  by_reference_above: 2MiB
  offload_above: 3MiB
  decode_threads: 4
  bundle_timeout_s: 109
  drain_timeout_s: 110
  replica_silence_s: 3
  replica_kill_s: 5
  hedge_share: 0.01
  network_ms: 3
  api_keys_file: {keys}
  api_keys_check_s: 1
  open_without_key: [docs, metrics, status]
  open_administration: true
  cache: {{max_waiting: 12}}
models:
  - {{name: m, path: {model}}}
"""

NOW = """
router:
  replicas: 2
  cpus: 0.5
  drain_timeout_s: 110
  network_ms: 3
  host: 127.0.0.1
  http: {{port: {http}, connections: 101, connections_per_client: 11}}
  grpc:
    port: {grpc}
    connections: 102
    keepalive_s: 105
    client_ping_s: 106
    streams: 103
    stream_idle_s: 104
    outputs: as_inputs
  limits:
    max_body: 1MiB
    max_request_rows: 107
    max_ongoing_requests: 8000
    headroom: 108
    max_bytes: 512MiB
    high_headroom: 0.2
  access: {{keys_file: {keys}, keys_check_s: 1, open_without_key: [docs, metrics, status], open_administration: true}}
  faults: {{bundle_timeout_s: 109, replica_silence_s: 3, replica_kill_s: 5, hedge_share: 0.01}}
  transport: {{shared_memory: 1MiB, by_reference_above: 2MiB, offload_above: 3MiB, decode_threads: 4}}
  cache: {{max_waiting: 12}}
models:
  - {{name: m, path: {model}}}
"""


async def no_replicas(model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:
    """Nothing is ever sent."""
    raise AssertionError(model, bundle, replica, nbytes)


async def test_a_configuration_of_the_first_edition_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It means what the same settings mean in their sections; every key that has moved is told once."""
    onnx_models.make(tmp_path / "m" / "1" / "model.onnx", "add_one")
    (tmp_path / "keys.yaml").write_text("keys: []\n")
    http, grpc = free_ports(2)
    names = {"http": http, "grpc": grpc, "keys": tmp_path / "keys.yaml", "model": tmp_path / "m"}
    first = yaml.safe_load(FIRST_EDITION.format(**names))
    config = parse_args(first)
    assert config == parse_args(yaml.safe_load(NOW.format(**names)))
    moved = FORMER_KEYS.keys() - EARLIER_STILL
    assert moved <= first["router"].keys()
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        f"router.{key} is router.{'.'.join(FORMER_KEYS[key])} now; the former key works until version 0.2"
        for key in moved
    )
    settings = router_settings(config, describe_models(config), priors={}, identities={})
    router = Router(settings, no_replicas)
    try:
        await router.opened()
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{http}/v2/health/live")).status_code == 200
        assert router.grpc_address == ("127.0.0.1", grpc)
    finally:
        await router.close(1.0, grace_s=0.0)


def test_every_setting_of_the_router_is_in_that_configuration() -> None:
    """So that the two are compared in all that has moved, and not with defaults."""
    names = {"http": 1, "grpc": 2, "keys": "keys.yaml", "model": os.devnull}
    now = parse_args(yaml.safe_load(NOW.format(**names))).router
    for where in FORMER_KEYS.values():
        *groups, name = where
        section = now
        for group in groups:
            section = getattr(section, group)
        assert name in section.model_fields_set, where
