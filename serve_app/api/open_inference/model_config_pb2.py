"""The messages of ``model_config.proto``."""

from __future__ import annotations

from typing import Final

from serve_app.api.open_inference import definitions

DESCRIPTOR: Final = definitions.file("model_config.proto")

globals().update(definitions.message_types(DESCRIPTOR))
