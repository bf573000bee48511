"""The messages of ``inference.proto``."""

from __future__ import annotations

from typing import Final

from serve_app.api.open_inference import definitions

DESCRIPTOR: Final = definitions.file("inference.proto")

globals().update(definitions.message_types(DESCRIPTOR))
