"""Frees what PyTorch keeps of each loaded program of ``torch.export`` for the life of the process."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, MutableMapping
from typing import Any


def generated_code(torch: Any) -> MutableMapping[str, str]:
    """PyTorch's generated code of programs, shown in tracebacks, by name.

    Private to PyTorch: another version may keep it elsewhere, and this is then empty.
    """
    return getattr(getattr(torch.fx.graph_module, "_loader", None), "eval_cache", {})


def drop_leftovers(torch: Any, names: Iterable[str]) -> None:
    """Free what PyTorch keeps of a program that no longer runs.

    Args:
        names: Of its generated code. Tracebacks lose its lines.
    """
    kept = generated_code(torch)
    for name in names:
        kept.pop(name, None)
        linecache.cache.pop(name, None)
    # Its methods' caches hold every program's symbolic sizes, some without bound. They only save time, during loads.
    for method in vars(torch.fx.experimental.symbolic_shapes.ShapeEnv).values():
        if hasattr(method, "cache_clear"):
            method.cache_clear()
