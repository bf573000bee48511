"""A job's form in answers and callbacks."""

from __future__ import annotations

from typing import Any

import msgspec

from serve_app.jobs.records import Job
from serve_app.jobs.states import JobState


def counts(job: Job) -> dict[str, int]:
    """Items by result."""
    left = job.total - job.completed - job.failed
    ended = {"cancelled": 0, "expired": 0, "waiting": 0}
    ended["waiting" if not job.has_ended else "cancelled" if job.state is JobState.CANCELLED else "expired"] = left
    return {"total": job.total, "completed": job.completed, "failed": job.failed, **ended}


def shown(job: Job) -> dict[str, Any]:
    """A job as JSON data. Times are POSIX seconds."""
    meta = msgspec.json.decode(job.meta)
    done = job.completed + job.failed
    return {
        "id": job.id,
        "object": "job",
        "state": job.state,
        "progress": 1.0 if job.has_ended or not job.total else round(done / job.total, 4),
        "items": counts(job),
        "created_at": int(job.created),
        "started_at": _seconds(job.started),
        "ended_at": _seconds(job.ended),
        "expires_at": int(job.expires),
        "kept_until": _seconds(job.kept_until),
        "error": _error(job),
        "callback": {"url": job.callback, "state": job.told or "waiting"} if job.callback else None,
        "metadata": meta.get("metadata", {}),
    }


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)


def _error(job: Job) -> dict[str, str] | None:
    if job.code:
        return {"code": job.code, "message": "the job's deadline passed before all items had ended"}
    if job.state is JobState.ERROR:
        return {"code": "items_failed", "message": f"{job.failed} of {job.total} items failed; see the results"}
    return None
