"""Sizes of tensors in a program's graph: numbers, symbols, and expressions of symbols."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SYMBOL = re.compile(r"Symbol\('([A-Za-z_]\w*)'[^()]*\)|([A-Za-z_]\w*)")


def text_of(size: Mapping[str, Any]) -> str:
    """A size as text: decimal digits, or an expression."""
    return str(size["as_int"]) if "as_int" in size else str(size["as_expr"]["expr_str"])


def symbol_of(text: str) -> str | None:
    """The symbol of a size that varies freely; ``None`` if it is fixed or an expression."""
    found = _SYMBOL.fullmatch(text)
    return None if found is None else found[1] or found[2]
