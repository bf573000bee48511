"""What the library of a backend says about a failure, reduced to what a reader may see and can use."""

from __future__ import annotations

import re

_LIMIT = 240
_PATH = re.compile(r"(?:[A-Za-z]:)?(?<![\w.])/[^\s:'\",;()]*/[^\s:'\",;()]+(?::\d+)?")


def one_line(text: str) -> str:
    """The text on one line, without paths of the server, at most 240 characters."""
    text = " ".join(_PATH.sub("", text).split())
    return text if len(text) <= _LIMIT else text[: _LIMIT - 1].rstrip() + "…"
