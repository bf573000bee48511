"""The command ``rowproof``: tries to prove the rows of ONNX files independent."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rowproof.onnx_graph.proof import prove_rows
from rowproof.result import RowProof


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each file. Returns 0 if all are proven, 1 if some are not; exits with 2 on a wrong call."""
    parser = argparse.ArgumentParser("rowproof", description="Prove that the rows of ONNX models are independent.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="ONNX files")
    parser.add_argument(
        "--axis",
        action="append",
        default=[],
        metavar="NAME=AXIS",
        help="axis of the rows of an input or output, if not 0",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, an object for each file")
    given = parser.parse_args(arguments)
    axes: dict[str, int] = {}
    for each in given.axis:
        name, _, axis = each.rpartition("=")
        if not name or not axis.isdecimal():
            parser.error(f"--axis: expected NAME=AXIS, got {each!r}")
        axes[name] = int(axis)
    for model in given.models:
        if not model.is_file():
            parser.error(f"{model}: no such file")
    found = {str(model): prove_rows(model, axes=axes) for model in given.models}
    for model, proof in found.items():
        sys.stdout.write(
            (json.dumps({"model": model, **proof._asdict()}) if given.json else _line(model, proof)) + "\n"
        )
    return 0 if all(proof.independent for proof in found.values()) else 1


def _line(model: str, proof: RowProof) -> str:
    verdict = "independent" if proof.independent else "dependent" if proof.dependent else "not proven"
    sizes = ", if " + " and ".join(map(_equal, proof.equal_sizes)) if proof.equal_sizes else ""
    return f"{model}: {verdict}{sizes}: {proof.reason}{f' ({proof.advice})' if proof.advice else ''}"


def _equal(group: Sequence[tuple[str, int]]) -> str:
    return " = ".join(f"{name}[{axis}]" for name, axis in group)


if __name__ == "__main__":
    sys.exit(main())
