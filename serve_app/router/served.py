"""A model as a router serves it: its description, the cost of its requests, and the order of its verdicts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from serve_app.backends.batch import most_rows
from serve_app.domain.agreed import Told
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.errors import InvalidRequest
from serve_app.payloads import PROVEN, Joinable, Payload
from serve_app.processors.processor import Processor
from serve_app.router.answer_cache import ModelCache
from serve_app.router.settings import ReplicaReport, RoutedModel
from serve_app.router.versions import ModelVersions

_INFOS: Final = 64
"""Remembered states of a model: a payload made for one of them, before a reload, needs its description."""


class Served:
    """A served model.

    Attributes:
        key: Its name, or the key of one of several versions.
        processor: Prices its requests if it takes media.
        cache: Of answers.
        on_demand: Whether it may have no replica while idle.
        pool: The pool that it is a member of.
        scheduling: Settings shown by the status.
        warm_up: Results of its replicas' warm-up, shown by the status.
        versions: All versions of the model, if there are several.
        infos: Descriptions of the states it was served from, by revision, the latest last: payloads made for any of
            them run on the others.
        in_work: Requests being answered.
        left: Set when the last of them has ended; there since the model was removed.
    """

    __slots__ = (
        "cache",
        "in_work",
        "info",
        "infos",
        "key",
        "left",
        "on_demand",
        "pool",
        "processor",
        "scheduling",
        "versions",
        "warm_up",
    )

    def __init__(self, model: RoutedModel, cache: ModelCache | None, versions: ModelVersions | None) -> None:
        self.key = model.name
        self.infos: dict[str, ModelInfo] = {}
        self.take(model)
        self.versions = versions
        self.cache = cache
        self.on_demand = model.on_demand
        self.pool = model.pool
        self.scheduling = _scheduling(model)
        self.warm_up: Mapping[str, Any] = {}
        self.in_work = 0
        self.left: asyncio.Event | None = None

    def take(self, model: RoutedModel) -> None:
        """Switch to this state of its files."""
        self.processor = model.processor
        self.info = model.info
        self.infos.pop(model.info.revision, None)
        self.infos[model.info.revision] = model.info
        while len(self.infos) > _INFOS:
            del self.infos[next(iter(self.infos))]

    async def ended(self) -> None:
        """Wait until no request is being answered. Called once, when no more can come."""
        if self.in_work:
            self.left = asyncio.Event()
            await self.left.wait()


def cost_of(info: ModelInfo, processor: Processor | None, payload: Payload) -> tuple[int, int]:
    """The cost of a request in its batch, as of `Processor.estimate`: rows, and a cost bucket.

    Args:
        processor: Of the model, if it takes media.

    Raises:
        InvalidRequest: The payload does not fit the model.
    """
    if isinstance(payload, dict):
        # Of one tensor nothing else can disagree.
        shape = next(iter(payload.values())).shape if len(payload) == 1 else ()
        signature = info.signature
        if not info.joinable[""].rows or (signature.optional and len(payload) > len(signature.inputs)):
            rows = 1  # it is run by itself, whatever its shapes
        else:
            rows = (shape and shape[0]) or most_rows(payload)[0] or 1
        return rows, 0 if processor is None else processor.bucket(payload)
    if processor is None:
        raise InvalidRequest(f"model {info.name} takes tensors: send them to POST /v2/models/{info.segment}/infer")
    return processor.estimate(payload)


def informed(served: Served, answer: Answer, options: RequestOptions) -> Answer:
    """Add the description of the answering state to an answer, if the request was made for another."""
    if answer.revision == options.revision or not options.revision or not answer.revision:
        return answer
    info = served.infos.get(answer.revision)
    return answer if info is None else replace(answer, info=info)


def care_of(verdict: Joinable) -> tuple[int, bool, bool, float]:
    """Sort key of a verdict: the larger, the more careful. A verdict still to be found has no effect."""
    joining = 0 if verdict.verdict == PROVEN else 1 if verdict.joins else 2
    return joining, verdict.padding != "fixed" and not verdict.pads, verdict.padding != "fixed", verdict.deviation


def may_join(verdict: Joinable) -> bool:
    """Whether requests share runs, or will once their rows have been tried."""
    return verdict.joins or verdict.verdict == PROVEN


def reported(reports: Sequence[Told | ReplicaReport]) -> Mapping[str, Any]:
    """Reports of replicas about their warm-up, threads and devices, for the status."""
    reason = next((each.not_warmed for each in reports if each.not_warmed is not None), None)
    computes = [each.compute for each in reports if each.compute is not None]
    found: dict[str, Any] = {}
    if reports:
        found["warm_up"] = {"warmed": True} if reason is None else {"warmed": False, "reason": reason}
    if computes:
        found |= {"compute": computes[0]._asdict(), "devices": Counter(each.device for each in computes)}
    return found


def _scheduling(model: RoutedModel) -> Mapping[str, Any]:
    """Settings of a model shown by the status."""
    shown: dict[str, Any] = {"policy": model.scheduling.policy}
    if model.scheduling.fallbacks:
        shown["fallbacks"] = list(model.scheduling.fallbacks)
    if model.pool is not None:
        shown["pool"] = model.pool
    return shown
