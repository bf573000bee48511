"""What tells one state of a model from another: a digest over all that its answers depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from serve_app import __version__
from serve_app.composition.locate import ModelLocation
from serve_app.config.model import ModelConfig
from serve_app.errors import ConfigError


def identities(model: ModelConfig, locations: Mapping[str, ModelLocation]) -> dict[str, str]:
    """What tells this state of a model from any other that would answer differently, by variant.

    The contents of its files count, wherever and whenever they were copied, so that all routers and every redeploy of
    the same agree; so do the settings that its answers depend on, and the version of this package.

    Args:
        model: The model.
        locations: Its files, from `find_files`.

    Raises:
        ConfigError: A file cannot be read.
    """
    processor = None if model.processor is None else model.processor.model_dump(mode="json", exclude_unset=True)
    joining = model.batching.model_dump(mode="json", include={"join", "axis", "tolerance", "unverified"})
    settings = (__version__, model.task, processor, locations[""].kind.name, model.backend_options, joining)
    begun = hashlib.sha256(msgspec.json.encode(settings, order="sorted"))
    try:
        exact = _digest(locations[""])
        found = {}
        for variant, location in locations.items():
            digest = begun.copy()
            digest.update(exact)  # media become tensors by the files beside the exact model, whatever runs
            digest.update(_digest(location) if variant else b"")
            found[variant] = digest.hexdigest()
    except OSError as error:
        raise ConfigError((f"model {model.name!r}: {error}",)) from None
    return found


def _digest(location: ModelLocation) -> bytes:
    digest = hashlib.sha256(location.version.encode())
    for name, file in sorted((str(file.relative_to(location.root)), file) for file in location.files()):
        with file.open("rb") as opened:
            digest.update(msgspec.json.encode((name, file.stat().st_size)))
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.digest()
