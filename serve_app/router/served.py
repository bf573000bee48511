"""A model as a router serves it: its description, the cost of its requests, and how its verdicts compare."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from serve_app.backends.batch import most_rows
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.errors import InvalidRequest
from serve_app.payloads import PROVEN, Joinable, Payload
from serve_app.processors.processor import Processor
from serve_app.router.answer_cache import ModelCache
from serve_app.router.settings import RoutedModel
from serve_app.router.versions import ModelVersions

_INFOS: Final = 64
"""Of how many states of a model it is known what was made for them: requests that are decoded meanwhile need that."""


class Served:
    """A model as it is served now.

    Attributes:
        key: What the server calls it.
        info: What is known of it.
        processor: Prices its requests where it takes media.
        cache: Its cache of answers.
        on_demand: Whether it may have no replica while nobody asks for it.
        pool: The pool that it is a member of.
        scheduling: How it is scheduled, as the status shows it.
        warm_up: Likewise, what the warm-up of its replicas came to.
        versions: All versions of the model, where there are several.
        infos: The same of each state of its files that it was served from, by revision, the latest last: what was made
            for any of them can be run on the others.
        in_work: Requests that are being answered.
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
        """Be served from this state of its files from now on."""
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
    """What a request costs its batch, as of `Processor.estimate`: rows, and a cost bucket.

    Args:
        info: Of the model.
        processor: Of the model, where it takes media.
        payload: What is to be run.

    Raises:
        InvalidRequest: It is not what the model takes.
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
    """An answer that brings what is known of the state of the model that gave it, if the request knew another."""
    if answer.revision == options.revision or not options.revision or not answer.revision:
        return answer
    info = served.infos.get(answer.revision)
    return answer if info is None else replace(answer, info=info)


def care_of(verdict: Joinable) -> tuple[int, bool, bool, float]:
    """How careful a verdict is: the larger, the more so. Of one that is still to be found nothing follows."""
    joining = 0 if verdict.verdict == PROVEN else 1 if verdict.joins else 2
    return joining, verdict.padding != "fixed" and not verdict.pads, verdict.padding != "fixed", verdict.deviation


def may_join(verdict: Joinable) -> bool:
    """Whether requests share runs, or will once their rows have been tried."""
    return verdict.joins or verdict.verdict == PROVEN


def _scheduling(model: RoutedModel) -> Mapping[str, Any]:
    """How a model is scheduled, as the status shows it."""
    shown: dict[str, Any] = {"policy": model.scheduling.policy}
    if model.scheduling.fallbacks:
        shown["fallbacks"] = list(model.scheduling.fallbacks)
    if model.pool is not None:
        shown["pool"] = model.pool
    return shown
