"""Model statistics for the V2 extension: of one router, and of several together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from serve_app.domain.service import ModelInfo
from serve_app.telemetry.metrics import ModelStatistics

Statistics: TypeAlias = Mapping[str, Any]
"""One object of ``model_stats``."""

_COMPUTE = ("compute_input", "compute_infer", "compute_output")


def describe(info: ModelInfo, numbers: ModelStatistics, now: float) -> dict[str, Any]:
    """The statistics of a model.

    Args:
        now: On the dispatcher's clock, seconds.
    """
    done = numbers.succeeded
    answered, answered_s = done + numbers.hits + numbers.shared, numbers.hits_s + numbers.shared_s
    return {
        "name": info.name,
        "version": info.version,
        "last_inference": _epoch_ms(numbers.last_arrival, now),
        "inference_count": numbers.rows,
        "execution_count": round(numbers.executions),
        "inference_stats": {
            "success": _duration(answered, numbers.succeeded_s + answered_s),
            "fail": _duration(numbers.failed, numbers.failed_s),
            "queue": _duration(done, numbers.queue_s),
            "compute_input": _duration(done, numbers.preprocess_s),
            "compute_infer": _duration(done, numbers.execute_s),
            "compute_output": _duration(done, numbers.postprocess_s),
            "cache_hit": _duration(numbers.hits, numbers.hits_s),
            "cache_miss": _duration(numbers.misses, numbers.misses_s),
        },
        "response_stats": {},  # of models that answer one request several times
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _duration(batch.executions, batch.preprocess_s),
                "compute_infer": _duration(batch.executions, batch.execute_s),
                "compute_output": _duration(batch.executions, batch.postprocess_s),
            }
            for rows, batch in sorted(numbers.batches.items())
        ],
        "memory_usage": [],
    }


def total(parts: Sequence[Statistics]) -> Statistics:
    """Merge the statistics of a model over several routers.

    Args:
        parts: From `describe`, at least one.
    """
    if len(parts) == 1:
        return parts[0]
    sizes: dict[int, list[Mapping[str, Any]]] = {}
    for part in parts:
        for batch in part["batch_stats"]:
            sizes.setdefault(batch["batch_size"], []).append(batch)
    return {
        **parts[0],
        "last_inference": max(part["last_inference"] for part in parts),
        "inference_count": sum(part["inference_count"] for part in parts),
        "execution_count": sum(part["execution_count"] for part in parts),
        "inference_stats": _durations(part["inference_stats"] for part in parts),
        "batch_stats": [
            {"batch_size": size, **_durations({name: batch[name] for name in _COMPUTE} for batch in batches)}
            for size, batches in sorted(sizes.items())
        ],
    }


def _durations(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    every = list(parts)
    return {name: {unit: sum(part[name][unit] for part in every) for unit in ("count", "ns")} for name in every[0]}


def _duration(count: float, seconds: float) -> dict[str, int]:
    return {"count": round(count), "ns": round(seconds * 1e9)}


def _epoch_ms(moment: float | None, now: float) -> int:
    """Milliseconds since 1970 of a time on the dispatcher's clock; 0 for none."""
    return 0 if moment is None else round((datetime.now(UTC).timestamp() - (now - moment)) * 1e3)
