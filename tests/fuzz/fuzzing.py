"""What the fuzz targets share: tensors to begin with, and libFuzzer from a few good inputs on."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import atheris  # type: ignore[import-untyped]

from serve_app.payloads import DTYPES, TensorSpec


def one_row(spec: TensorSpec) -> tuple[list[int], bytes]:
    """The shape of one row of an input, with 2 for what may vary, and its data in binary: zeros, or texts ``a``."""
    shape = [1, *(2 if size < 0 else size for size in spec.shape[1:])]
    count = math.prod(shape)
    text = spec.datatype == "BYTES"
    return shape, b"\x01\0\0\0a" * count if text else bytes(count * DTYPES[spec.datatype].itemsize)


def fuzz(one_input: Callable[[bytes], None], seeds: Sequence[bytes]) -> None:
    """Run libFuzzer, with the arguments of this process.

    Args:
        one_input: Raises where something is wrong.
        seeds: Inputs to begin with.
    """
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds):
            Path(corpus, str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, corpus], one_input)
        atheris.Fuzz()
