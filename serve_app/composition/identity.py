"""The identity of a model's state: a digest over everything that its answers depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from serve_app import __version__
from serve_app.composition.digests import Digests
from serve_app.composition.locate import ModelLocation
from serve_app.composition.model import named_files, processes_itself
from serve_app.config.model import ModelConfig
from serve_app.config.processor import CustomOptions
from serve_app.errors import ConfigError
from serve_app.processors.custom import find_class, source_of

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "path": "the contents of the files count, wherever they are",
    "version": "the version that was found counts, with its files",
    "versions": "each of them is a model of its own here",
    "aliases": "which version a request is for is decided before",
    "traffic": "which version a request is for is decided before",
    "sticky": "which version a request is for is decided before",
    "shadow": "what it answers reaches no client",
    "variants.__all__.path": "the contents of the files count, wherever they are",
    "variants.__all__.version": "the version that was found counts, with its files",
    "fallbacks": "an answer of a fallback is not kept",
    "pool": "says which processes run it",
    "cache": "says what is kept and for how long",
    "profile": "predicts how long batches take",
    "autoscaling": "all replicas are alike",
    "breaker": "says which replicas and builds are asked, and all of a kind are alike",
    "batching.policy": "which requests share a run varies with the load as well",
    "batching.size_fairness": "which requests share a run varies with the load as well",
    "batching.high_slowdown": "which requests share a run varies with the load as well",
    "batching.slo_ms": "which requests share a run varies with the load as well",
    "batching.window": "which requests share a run varies with the load as well",
    "health.check_period_s": "watches replicas",
    "health.check_timeout_s": "watches replicas",
    "health.stall_timeout_s": "watches replicas",
    "health.drain_timeout_s": "ends replicas",
    "resources.cpus": "is a reservation",
    "resources.instances": "says how many batches run at once",
    "resources.memory_limit": "watches replicas",
    "resources.preprocess_threads": "each picture, sound or text is converted by one thread",
}
"""Settings of a model that cannot change its answers, and why. All others count, future ones included."""


def identities(
    model: ModelConfig, locations: Mapping[str, ModelLocation], digests: Digests | None = None
) -> dict[str, str]:
    """Identities of a model's builds, by variant: states that answer alike have the same.

    The contents of its files count, wherever and whenever they were copied, so that all routers and redeploys agree. So
    do its settings but for `WITHOUT_EFFECT`, and the version of this package.

    Args:
        digests: By default those of this process's cache folder.

    Raises:
        ConfigError: A file cannot be read.
    """
    content = (Digests() if digests is None else digests).of
    settings = model.model_dump(mode="json", exclude=_nested(WITHOUT_EFFECT))
    begun = hashlib.sha256(msgspec.json.encode((__version__, locations[""].kind.name, settings), order="sorted"))
    try:
        for name in named_files(model):
            if (file := locations[""].sidecars().find(name)) is not None:
                begun.update(content(file))  # it may lie outside of the model's folder
        if isinstance(model.processor, CustomOptions) and not processes_itself(model, locations[""]):
            cls = find_class(model.processor.class_, model.task, locations[""].sidecars())
            begun.update(content(source) if (source := source_of(cls)) is not None else b"")
        exact = _digest(locations[""], content)
        found = {}
        for variant, location in locations.items():
            digest = begun.copy()
            digest.update(exact)  # media become tensors by the files beside the exact model, whatever runs
            digest.update(_digest(location, content) if variant else b"")
            found[variant] = digest.hexdigest()
    except OSError as error:
        raise ConfigError((f"model {model.name!r}: {error}",)) from None
    return found


def _nested(places: Mapping[str, str]) -> dict[str, Any]:
    """The same places as pydantic's nested dictionaries."""
    found: dict[str, Any] = {}
    for place in places:
        *sections, key = place.split(".")
        node = found
        for section in sections:
            node = node.setdefault(section, {})
        node[key] = True
    return found


def _digest(location: ModelLocation, content: Callable[[Path], bytes]) -> bytes:
    digest = hashlib.sha256(location.version.encode())
    for name, file in sorted((str(file.relative_to(location.root)), file) for file in location.files()):
        digest.update(msgspec.json.encode((name, file.stat().st_size)))
        digest.update(content(file))
    return digest.digest()
