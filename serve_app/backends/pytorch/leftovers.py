"""What PyTorch keeps of every program of ``torch.export`` that it has loaded, for as long as the process lives."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, MutableMapping
from typing import Any


def generated_code(torch: Any) -> MutableMapping[str, str]:
    """The code that PyTorch has generated of programs, which it shows in tracebacks, by its name there.

    It is private to PyTorch: another version may keep it elsewhere, and this is empty.
    """
    return getattr(getattr(torch.fx.graph_module, "_loader", None), "eval_cache", {})


def drop_leftovers(torch: Any, names: Iterable[str]) -> None:
    """Have PyTorch let go of what it keeps of a program that runs no more.

    Args:
        torch: PyTorch.
        names: Of the code that was generated of it. Tracebacks through it have no lines any more.
    """
    kept = generated_code(torch)
    for name in names:
        kept.pop(name, None)
        linecache.cache.pop(name, None)
    # Its methods' caches hold every program's symbolic sizes, some without bound. They only save time, during loads.
    for method in vars(torch.fx.experimental.symbolic_shapes.ShapeEnv).values():
        if hasattr(method, "cache_clear"):
            method.cache_clear()
