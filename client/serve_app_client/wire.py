"""Names and limits on the wire that client and server must agree on, without importing each other.

Error codes are beside their exceptions (`errors`), and datatypes beside numpy's (`tensors`).
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

__version__ = "0.1.0"

Priority: TypeAlias = Literal["high", "normal", "low"]

PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")

MAX_TIMEOUT_S: Final = 24 * 3600.0
"""The longest deadline that the server takes."""

# Headers, by lower-case name
X_PRIORITY: Final = "x-priority"
X_TIMEOUT_MS: Final = "x-timeout-ms"
X_STREAM_TIMEOUT_MS: Final = "x-stream-timeout-ms"
X_VARIANT: Final = "x-variant"
X_MODEL_VERSION: Final = "x-model-version"
X_FALLBACK: Final = "x-fallback"
X_REQUEST_ID: Final = "x-request-id"
X_CACHE: Final = "x-cache"
HEAD_LENGTH: Final = "inference-header-content-length"
"""Bytes of a body's JSON head, before its binary tensors."""
IDEMPOTENCY_KEY: Final = "idempotency-key"
