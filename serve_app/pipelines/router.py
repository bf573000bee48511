"""Pipelines as a part of a router."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from serve_app.domain.service import Inference, ModelInfo
from serve_app.pipelines.inference import PipelineInference
from serve_app.router.part import PartContext, RouterPart


class PipelinesPart(RouterPart):
    """Adds pipelines to the models.

    Args:
        infos: What is known of the pipelines; each has a `ModelInfo.pipeline`.
    """

    name: ClassVar = "pipelines"

    def __init__(self, infos: Sequence[ModelInfo], context: PartContext) -> None:
        self._names = [info.name for info in infos]
        self._pipelines = PipelineInference(
            context.inference,
            infos,
            context.solo_s,
            context.least_s,
            context.registry,
            context.traces,
        )

    def inference(self) -> Inference:
        """The models and the pipelines."""
        return self._pipelines

    def status(self) -> Mapping[str, Any]:
        """`PipelineInference.status`."""
        return self._pipelines.status()

    def statistics(self) -> Mapping[str, Callable[[], Mapping[str, Any]]]:
        """Each pipeline counts as one model."""
        return {name: partial(self._pipelines.statistics, name) for name in self._names}

    async def finish(self, limit_s: float) -> int:
        """Answer what was taken, while the models still take what its steps ask."""
        return await self._pipelines.finish(limit_s)
