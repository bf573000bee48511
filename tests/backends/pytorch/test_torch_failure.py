"""What PyTorch and models say of a failure, in one safe line."""

from __future__ import annotations

import pytest

from serve_app.backends.pytorch.failure import describe_failure

INTERPRETER = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript, serialized code (most recent call last):
  File "code/__torch__.py", line 11, in forward
      ops.prim.RaiseException(_0, "builtins.ValueError")

Traceback of TorchScript, original code (most recent call last):
  File "/home/somebody/model.py", line 6, in forward
            raise ValueError("negative")
            ~~~~~~~~~~~~~~~~ <--- HERE
builtins.ValueError: negative values of /home/somebody/x.npy
and more
"""


ASSERTED = INTERPRETER.rpartition("builtins")[0] + "RuntimeError: AssertionError: too many\n"
SHAPES = "mat1 and mat2 shapes cannot be multiplied (2x4 and 3x4)"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError(INTERPRETER), "negative values of"),
        (RuntimeError(ASSERTED), "AssertionError: too many"),
        (RuntimeError(f"{SHAPES}\nException raised from meta"), SHAPES),
        (AssertionError("Guard failed: x.size()[1] == 3"), "Guard failed: x.size()[1] == 3"),
        (AssertionError(), "AssertionError"),
        (RuntimeError("x" * 1000), "x" * 239 + "…"),
    ],
)
def test_one_line(error: Exception, text: str) -> None:
    """Neither the model's source nor a path."""
    assert describe_failure(error) == text
