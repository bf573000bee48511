"""Jobs, items and outcomes in Redis: hashes of texts, and packed arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from serve_app.jobs.records import Item, Job, Lease, NewItem, NewJob, Outcome
from serve_app.jobs.states import JobState


class _Packed(msgspec.Struct, array_like=True):
    """A stored item."""

    model: str
    url: str
    body: bytes
    headers: Mapping[str, str]
    custom_id: str


class _Result(msgspec.Struct, array_like=True):
    """A stored outcome."""

    ended: float
    status: int
    body: bytes
    headers: Mapping[str, str]
    code: str
    message: str


_PACKED: Final = msgspec.msgpack.Decoder(_Packed)
_RESULT: Final = msgspec.msgpack.Decoder(_Result)
_pack: Final = msgspec.msgpack.Encoder().encode


def job_fields(job: NewJob, total: int, models: Sequence[str]) -> dict[str, str | bytes | int]:
    """The hash of a new job with this many items for these models."""
    return {
        "id": job.id,
        "kind": job.kind,
        "owner": job.owner,
        "state": JobState.PENDING.value,
        "created": repr(job.created),
        "expires": repr(job.expires),
        "keep_s": repr(job.keep_s),
        "total": total,
        "completed": 0,
        "failed": 0,
        "headers": json.dumps(dict(job.headers)),
        "callback": job.callback,
        "meta": job.meta,
        "code": "",
        "told": "",
        "attempts": 0,
        "idempotency_key": job.idempotency_key,
        "models": json.dumps(models),
    }


def as_job(found: Mapping[bytes, bytes]) -> Job | None:
    """Decode a job's hash; ``None`` for an empty one."""
    if not found:
        return None

    def text(name: str) -> str:
        return found[name.encode()].decode()

    def when(name: str) -> float | None:
        return None if name.encode() not in found else float(text(name))

    return Job(
        id=text("id"),
        kind=text("kind"),
        owner=text("owner"),
        state=JobState(text("state")),
        created=float(text("created")),
        expires=float(text("expires")),
        started=when("started"),
        ended=when("ended"),
        kept_until=when("kept_until"),
        total=int(text("total")),
        completed=int(text("completed")),
        failed=int(text("failed")),
        callback=text("callback"),
        meta=found[b"meta"],
        code=text("code"),
        told=text("told"),
    )


def pack_item(item: NewItem) -> bytes:
    """Encode an item."""
    return _pack(_Packed(item.model, item.url, item.body, item.headers, item.custom_id))


def pack_outcome(outcome: Outcome, ended: float) -> bytes:
    """Encode an outcome."""
    return _pack(_Result(ended, outcome.status, outcome.body, outcome.headers, outcome.code, outcome.message))


def as_item(index: int, state: JobState, name: bytes | None, packed: bytes | None) -> Item:
    """Decode an item for display.

    Args:
        name: The client's name for it, if any.
        packed: Its outcome, if it exists.
    """
    called = (name or b"").decode()
    if packed is None:
        return Item(index, JobState.PENDING if state is JobState.COMPLETED else state, called)
    return Item(index, state, called, *msgspec.structs.astuple(_RESULT.decode(packed)))


def as_lease(item: bytes, owner: bytes, expires: bytes, headers: bytes, losses: bytes, packed: bytes) -> Lease:
    """Decode a lease from the script EXCHANGE."""
    name = item.decode()
    job, place, _ = name.split("/", 2)
    kept = _PACKED.decode(packed)
    request = NewItem(kept.model, kept.url, kept.body, {**json.loads(headers), **kept.headers}, kept.custom_id)
    return Lease(name, job, int(place), owner.decode(), float(expires), request, int(losses))
