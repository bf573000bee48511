"""Reduces ONNX Runtime's failure messages to what a client may see."""

from __future__ import annotations

import re

from serve_app.backends.failure import safe_line

# The C++ function that failed, written out: "void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) ".
_FUNCTION = re.compile(r"(?:static )?[\w:]+[*&]? onnxruntime::[\w:]+\([^)]*\)(?: const)? ")
_PREFIXES = (
    re.compile(r"^Error in execution: "),
    re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : "),
    re.compile(r"^\w+\.(?:h|cc|cpp):\d+ \w+ "),
    re.compile(r"^Load model (?:from )?.*? failed[:.] ?"),
    re.compile(r"^.*Status Message: "),
)
# A fault of CUDA reads: what went wrong, then GPU, host name, source file, line and expression after semicolons.
_CUDA_PLACE = re.compile(r"\s*; GPU=.*$")


def describe_failure(error: BaseException) -> str:
    """The reason inside an exception of ONNX Runtime, on one line.

    Only its first line, without status codes, functions, source locations, paths of the server and host names, at most
    240 characters.
    """
    text = _FUNCTION.sub("", str(error).strip().partition("\n")[0])
    for prefix in _PREFIXES:
        text = prefix.sub("", text, count=1)
    return safe_line(_CUDA_PLACE.sub("", text)) or type(error).__name__
