"""Reduces PyTorch's failure messages to what a client may see."""

from __future__ import annotations

import re

from serve_app.backends.failure import safe_line

# The last line of what TorchScript's interpreter says; above it are lines of the model's source.
_RAISED = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception): (.*)", re.MULTILINE)


def describe_failure(error: BaseException) -> str:
    """The reason inside an exception of PyTorch or a model, on one line.

    Without source code and paths of the server, at most 240 characters.
    """
    text = str(error).strip()
    if "TorchScript interpreter" in text.partition("\n")[0]:
        text = (_RAISED.findall(text) or [""])[-1]
    return safe_line(text) or type(error).__name__
