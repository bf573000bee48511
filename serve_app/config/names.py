"""Names of models: the public one for clients, and the deployment's, derived from it.

A public name is free text in URLs (percent-encoded), gRPC messages, metrics and logs. Ray Serve's deployments,
processes and log files need plain names, as do serve_app's files: `deployment_name`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from serve_app.config.problems import short_repr

RUN_VARIABLE: Final = "SERVE_APP_RUN"
"""Environment variable of all processes that `serve-app run` starts."""

ROUTER: Final = "router"
"""Name of the router's deployment. A model may be called so; its deployment is then called otherwise."""

MOST_BYTES: Final = 255
"""The longest public name, in UTF-8."""

_FITS: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_READABLE: Final = 48
_HASH_DIGITS: Final = 10


def checked_public_name(name: str) -> str:
    """Return a valid name.

    Raises:
        ValueError: It is no single URL segment, or not readable in logs and metrics.
    """
    if not name or len(name.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise ValueError(f"must have 1 to {MOST_BYTES} bytes of UTF-8, got {short_repr(name)}")
    if name != name.strip():
        raise ValueError(f"must not begin or end with a blank, got {short_repr(name)}")
    if "/" in name or not name.isprintable():
        raise ValueError(f"must be printable characters without '/', got {short_repr(name)}")
    if name in {".", ".."}:
        raise ValueError(f"must not be {short_repr(name)}: in a URL it would lead elsewhere")
    return name


def checked_model_name(name: str) -> str:
    """`checked_public_name` for models. Refuses ``*``, which means all models in a file of API keys."""
    if name == "*":
        raise ValueError("must not be '*', which stands for every model in a file of API keys")
    return checked_public_name(name)


def checked_variant_name(name: str) -> str:
    """`checked_public_name` for variants: ASCII without commas, for the header X-Variant."""
    if not name.isascii() or "," in name:
        raise ValueError(f"must be ASCII without ',': it travels in the header X-Variant, got {short_repr(name)}")
    return checked_public_name(name)


def deployment_name(model: str) -> str:
    """The name of a model's deployment.

    A model's own name, if it has 1 to 63 ASCII letters, digits, ``-``, ``_`` or ``.`` with a letter or digit at both
    ends, and is not the router's. Otherwise its readable part, ``~``, and the start of its SHA-256. Unchanged names
    hold no ``~``, so the two kinds cannot collide.
    """
    if _FITS.fullmatch(model) and model != ROUTER:
        return model
    readable = _UNFIT.sub("-", model)[:_READABLE].strip("._-") or "model"
    return f"{readable}~{hashlib.sha256(model.encode()).hexdigest()[:_HASH_DIGITS]}"
