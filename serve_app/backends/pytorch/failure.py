"""What PyTorch says about a failure, reduced to what a reader may see and can use."""

from __future__ import annotations

import re

from serve_app.backends.failure import safe_line

# The last line of what TorchScript's interpreter says; above it are lines of the model's source.
_RAISED = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception): (.*)", re.MULTILINE)


def describe_failure(error: BaseException) -> str:
    """The reason inside an exception that PyTorch or a model raised, on one line.

    Without the model's source, PyTorch's own and paths of the server, at most 240 characters.
    """
    text = str(error).strip()
    if "TorchScript interpreter" in text.partition("\n")[0]:
        text = (_RAISED.findall(text) or [""])[-1]
    return safe_line(text) or type(error).__name__
