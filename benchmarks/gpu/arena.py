"""Does the limit of the GPU memory arena hold, and what does a replica do when it is reached?"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.subjects import MIB, Bench, distance, gpu_memory_used, make_inputs
from serve_app.errors import InferenceFailed

_LIMITS_MIB = (512, 1024, 2048)
_ROWS = tuple(1 << exponent for exponent in range(10))


def check(bench: Bench) -> dict[str, Any]:
    """Grow batches of `resnet50` past each limit, in one session and in fresh ones."""
    empty = gpu_memory_used()
    tiny = bench.load("tiny", memory=16 * MIB)
    tiny.run(make_inputs(tiny.signature, 1, 1))
    context = gpu_memory_used() - empty
    limits = [_grow(bench, limit, context + empty) for limit in _LIMITS_MIB]
    tiny.close()
    return {"model": "resnet50", "context_mib": context / MIB, "limits": limits, "too_small": _too_small(bench)}


def _grow(bench: Bench, limit_mib: int, base: int) -> dict[str, Any]:
    backend = bench.load("resnet50", memory=limit_mib * MIB)
    one = make_inputs(backend.signature, 1, 1)
    expected = backend.run(one)
    steps = []
    failure = None
    for rows in _ROWS:
        try:
            backend.run(make_inputs(backend.signature, rows, 1))
        except InferenceFailed as error:
            failure = {"rows": rows, "message": error.message}
            break
        steps.append({"rows": rows, "above_context_mib": (gpu_memory_used() - base) / MIB})
        if bench.device == "cpu" and rows >= 4:
            break
    after = distance(backend.run(one), expected)
    peak = (gpu_memory_used() - base) / MIB
    backend.close()
    # The corners of a warm-up come first: the largest batch then finds an arena that is not in pieces.
    fresh = 0
    for rows in reversed(_ROWS if bench.device == "cuda" else _ROWS[:2]):
        other = bench.load("resnet50", memory=limit_mib * MIB)
        try:
            other.run(one)
            other.run(make_inputs(other.signature, rows, 1))
            fresh = rows
        except InferenceFailed:
            continue
        finally:
            other.close()
        break
    return {
        "limit_mib": limit_mib,
        "steps": steps,
        "failure": failure,
        "most_above_context_mib": peak,
        "distance_after_failure": after,
        "left_after_close_mib": (gpu_memory_used() - base) / MIB,
        "largest_rows_in_fresh_session": fresh,
    }


def _too_small(bench: Bench) -> str:
    """A limit that not even the weights fit into."""
    try:
        backend = bench.load("resnet50", memory=32 * MIB)
        backend.run(make_inputs(backend.signature, 1, 1))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "loaded and ran"
