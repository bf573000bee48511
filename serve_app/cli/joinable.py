"""Reports which models of a started server share runs, why others do not, and their cores."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape

from serve_app.domain.facts import ASSUMED, WARNING
from serve_app.domain.service import ModelInfo
from serve_app.payloads import PADDING, PROVEN, UNVERIFIED, Compute

_MOST_BYTES = 16 * 2**20
_LISTED = 10
_WORTH_SAYING = frozenset({"max length", "pooling"})


def joinable_lines(host: str, port: int, prefix: str) -> Iterator[str]:
    """Lines with rich's markup; empty if the server refuses, e.g. without an API key.

    Args:
        host: Its host.
        port: Of Serve's HTTP.
        prefix: Of its routes.
    """
    models = _models(host, port, f"{prefix}/status")
    joined, untried, apart = [], [], []
    cores: list[str] = []
    disabled: list[str] = []
    for name, model in models.items():
        compute = Compute(**model["compute"]) if "compute" in model else None
        if compute is not None and compute.threads * compute.instances > 1:
            cores.append(escape(f"{name} ({compute.told})"))
        for variant, verdict in model.get("joinable", {}).items():
            build = escape(f"{name}/{variant}" if variant else name)
            known = f"{verdict['verdict']}, {verdict['deviation']:.1g}" if verdict["deviation"] else verdict["verdict"]
            known += PADDING.get(verdict.get("padding", ""), "")
            if verdict.get("disabled_optimizers"):
                disabled.append(f"{build} ({', '.join(verdict['disabled_optimizers'])})")
            if verdict["verdict"] in {"exact", "close", "unverified"}:
                joined.append(f"{build} ({known})")
            elif verdict["verdict"] == PROVEN and "pool" in model:
                untried.append(build)
            else:
                apart.append(f"[yellow]not batched:[/] {build} ({known}): {escape(verdict['reason'])}")
    if joined:
        yield f"[green]batched across requests:[/] {_listed(joined)}"
    if untried:
        yield f"batched if that changes no answer, which is tried when they are loaded: {_listed(untried)}"
    yield from apart
    if disabled:
        yield f"[yellow]ONNX Runtime optimizers that made answers wrong are disabled:[/] {_listed(disabled)}"
    if cores:
        yield f"[green]several cores:[/] {_listed(cores)}"


def described_lines(infos: Mapping[str, ModelInfo]) -> Iterator[str]:
    """Lines about models by their files, before anything runs; no markup."""
    proven, joined, unverified, apart = [], [], [], []
    for name, info in infos.items():
        for variant, verdict in info.joinable.items():
            build = f"{name}/{variant}" if variant else name
            if verdict.verdict == PROVEN:
                proven.append(build)
            elif verdict.verdict == UNVERIFIED:
                unverified.append(build)
            elif verdict.joins:
                joined.append(build)
            else:
                apart.append(f"not batched: {build} ({verdict.verdict}): {verdict.reason}")
    for builds, words in (
        (proven, "batched across requests if that changes no answer, which is tried at the start"),
        (joined, "batched across requests"),
        (unverified, "batched across requests without proof (batching.unverified: allow)"),
    ):
        if builds:
            yield f"{words}: {_listed(builds)}"
    yield from apart[:_LISTED]
    if len(apart) > _LISTED:
        yield f"and {len(apart) - _LISTED} more that are not batched"


def noted_lines(infos: Mapping[str, ModelInfo]) -> Iterator[str]:
    """Lines of notes on models' folders: contradictions and assumptions; no markup."""
    for name, info in infos.items():
        for fact in info.facts:
            if fact.name == WARNING:
                yield f"{name}: {fact.source}: {fact.value}"
            elif fact.source == ASSUMED and fact.name in _WORTH_SAYING:
                yield f"{name}: {fact.name}: assumed {fact.value}, since no file says"


def explained_lines(infos: Mapping[str, ModelInfo]) -> Iterator[str]:
    """Lines of all settings read from models' folders and options; no markup."""
    for name, info in infos.items():
        yield f"{name}: {info.task}"
        for fact in info.facts:
            yield f"  {fact.name}: {fact.value} ({fact.source})"


def _listed(builds: Sequence[str]) -> str:
    more = "" if len(builds) <= _LISTED else f" and {len(builds) - _LISTED} more"
    return f"{', '.join(builds[:_LISTED])}{more}"


def _models(host: str, port: int, path: str) -> Mapping[str, Any]:
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        found: Mapping[str, Any] = json.loads(answer.read(_MOST_BYTES))["models"] if answer.status == 200 else {}
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return {}
    finally:
        connection.close()
    return found
