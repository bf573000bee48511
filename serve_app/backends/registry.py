"""All kinds of backends. A new one is a module of its own, and a row here."""

from __future__ import annotations

from serve_app.backends.kind import AnyKind
from serve_app.backends.onnx.kind import ONNX
from serve_app.backends.python.kind import PYTHON
from serve_app.backends.pytorch.kind import TORCH_EXPORT, TORCH_SCRIPT
from serve_app.config.problems import nearest, short_repr
from serve_app.errors import ConfigError

BACKENDS: dict[str, AnyKind] = {kind.name: kind for kind in (ONNX, TORCH_SCRIPT, TORCH_EXPORT, PYTHON)}
"""By name."""


def kinds_of(name: str | None) -> tuple[AnyKind, ...]:
    """The kind of this name; without a name, all kinds that do not run code.

    Raises:
        ConfigError: The name is unknown; lists the known ones.
    """
    if name is None:
        return tuple(kind for kind in BACKENDS.values() if not kind.runs_code)
    if name not in BACKENDS:
        guess = nearest(name, BACKENDS)
        hint = f"did you mean {guess}?" if guess else f"there is {', '.join(BACKENDS)}"
        raise ConfigError((f"unknown backend {short_repr(name)}; {hint}",))
    return (BACKENDS[name],)
