"""Makes failure messages of foreign code fit for clients."""

from __future__ import annotations

import re
from typing import Final

_LIMIT: Final = 240
_PATH: Final = re.compile(r"(?:[A-Za-z]:)?(?<![\w.])/[^\s:'\",;()]*/[^\s:'\",;()]+(?::\d+)?")


def one_line(text: str) -> str:
    """The text on one line, without paths of the server, at most 240 characters."""
    line = " ".join(_PATH.sub("", text).split())
    return line if len(line) <= _LIMIT else line[: _LIMIT - 1].rstrip() + "…"


def safe_line(text: str) -> str:
    """The first line of a text, as `one_line`."""
    return one_line(text.strip().partition("\n")[0])
