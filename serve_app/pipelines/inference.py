"""Pipelines beside models: a service over the one that runs models, in which pipelines are models of another task."""

from __future__ import annotations

import asyncio
import contextlib
from collections import ChainMap
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from serve_app.domain.pipeline import Pipeline
from serve_app.domain.priority import Priority
from serve_app.domain.service import (
    Answer,
    Inference,
    ModelInfo,
    RequestOptions,
    unknown_model,
    unknown_version,
)
from serve_app.domain.versions import Asker
from serve_app.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    ServeAppError,
)
from serve_app.http.errors import code_of, internal_error
from serve_app.payloads import Payload
from serve_app.pipelines.metrics import PipelineMetrics
from serve_app.pipelines.policy import Course, TimeBudget
from serve_app.pipelines.run import CANCELLED, PipelineRun, gone, model_of_step, served_in
from serve_app.pipelines.values import count_parts, pick, read_inputs
from serve_app.router.in_work import InWork, shutting_down
from serve_app.router.lateness import default_timeout_s, read_too_long
from serve_app.scheduling.queueing.lateness import shown_s
from serve_app.telemetry.statistics import describe
from serve_app.telemetry.trace import RequestTrace, RequestTraces

_PARTS_WEIGHT: Final = 0.1
"""Of the newest request in the smoothed number of parts of a map."""

SoloSeconds = Callable[[str, int, int], float]
"""Predicted execution of so many rows of a cost bucket of a model alone, seconds; 0.0 where it is not known."""

LeastSeconds = Callable[[str, int, RequestOptions], float]
"""Predicted time until so many requests of one row are answered by a model at least, seconds; 0.0 where it is not
known."""


class PipelineInference:
    """Wraps an `Inference`: adds pipelines to its models, and passes everything else on.

    Args:
        inference: Runs models.
        pipelines: What is known of the pipelines; each has a `ModelInfo.pipeline`.
        solo_s: What models cost.
        least_s: What they cost at least, whatever may answer.
        registry: Gets the metrics.
        traces: Follow every request, for the log and for traces.
    """

    def __init__(
        self,
        inference: Inference,
        pipelines: Sequence[ModelInfo],
        solo_s: SoloSeconds,
        least_s: LeastSeconds,
        registry: CollectorRegistry,
        traces: RequestTraces | None,
    ) -> None:
        self._inner = inference
        self._solo_s = solo_s
        self._least_s = least_s
        self._metrics = PipelineMetrics(registry)
        self._traces = traces
        self._pipelines = {info.name: _Served(info) for info in pipelines}
        self._infos = {info.name: info for info in pipelines}
        self._models = ChainMap[str, ModelInfo](self._infos, inference.models)  # type: ignore[arg-type] # it is only read
        self._in_work = InWork()

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """The models, and then the pipelines."""
        return self._models

    @property
    def unloaded(self) -> Mapping[str, Sequence[ModelInfo]]:
        """The unloaded models; pipelines are always there."""
        return self._inner.unloaded

    def find(self, model: str, version: str | None = None) -> ModelInfo:
        """Find a model or a pipeline, which has one version."""
        served = self._pipelines.get(model)
        if served is None:
            try:
                return self._inner.find(model, version)
            except ModelNotFound:
                if model in self._inner.models or model in self._inner.unloaded:
                    raise
                raise unknown_model(model, self._models) from None
        if version is not None and version not in served.info.versions:
            raise unknown_version(served.info, version)
        return served.info

    def choose(self, model: str, asker: Asker) -> ModelInfo:
        """Choose the version of a model that answers."""
        served = self._pipelines.get(model)
        return self._inner.choose(model, asker) if served is None else served.info

    def precheck(
        self, model: str, priority: Priority | None, nbytes: int, tenant: str = "", weight: float = 1.0
    ) -> None:
        """Precheck a model; of a pipeline, the models that it starts with, whatever its switches choose."""
        served = self._pipelines.get(model)
        if served is None:
            self._inner.precheck(model, priority, nbytes, tenant, weight)
            return
        if self._in_work.closed:
            raise shutting_down()
        for step in served.first:
            try:
                info = self._inner.find(step.model, step.version)
                self._inner.precheck(info.key or info.name, priority, nbytes, tenant, weight)
            except ModelNotFound:
                raise gone(step.name) from None
            except ServeAppError as error:
                if error.counted:  # for the step's model alone
                    self._metrics.failed(model, priority or Priority.NORMAL, code_of(error), 0.0)
                raise

    def refused(self, model: str, code: str) -> None:
        """Count a refused request."""
        if model in self._pipelines:
            self._metrics.refused(model, code)
        else:
            self._inner.refused(model, code)

    def submit(self, model: str, payload: Payload, options: RequestOptions) -> Coroutine[Any, Any, Answer]:
        """Run a request. The answer of a pipeline is a tensor for each of its outputs."""
        served = self._pipelines.get(model)
        if served is None:
            return self._inner.submit(model, payload, options)
        return self._submit(served, payload, options)

    async def stream(self, model: str, payload: Payload, options: RequestOptions) -> AsyncGenerator[Answer, None]:
        """Run a request and give its answer in parts; a pipeline's has one."""
        if model in self._pipelines:
            yield await self.submit(model, payload, options)
            return
        async with contextlib.aclosing(self._inner.stream(model, payload, options)) as parts:
            async for part in parts:
                yield part

    async def _submit(self, served: _Served, payload: Payload, options: RequestOptions) -> Answer:
        if self._in_work.closed:
            raise shutting_down()
        self._in_work.count += 1
        served.in_work += 1
        began, priority = monotonic(), served_in(options)
        name, trace, outcome = served.info.name, None, ServeAppError.code
        if self._traces is not None:
            trace = RequestTrace(self._traces, served.info, priority, 1, options)
            if trace.origin is not None:
                options = replace(options, trace_parent=trace.origin.trace_parent)
        try:
            run, timeout_s, value = await self._run(served, payload, options, priority, began)
        except ServeAppError as error:
            outcome = code_of(error)
            _told(error, trace)
            raise
        except Exception as error:
            raise _told(internal_error(error, options.request_id, f"pipeline {name}"), trace) from error
        except asyncio.CancelledError:
            outcome = CANCELLED
            if trace is not None:
                trace.cancelled()
            raise
        else:
            outcome = ""
        finally:
            total_s = monotonic() - began
            if outcome:
                self._metrics.failed(name, priority, outcome, total_s)
            served.in_work -= 1
            self._in_work.count -= 1
            if self._in_work.closed and not self._in_work.count:
                self._in_work.none_left()
        answer = Answer(
            value=value,
            priority=priority,
            total_s=total_s,
            timeout_s=timeout_s,
            variant=run.variant,
            unverified=run.unverified,
            info=self._labelled(served, run),
            **run.times._asdict(),
        )
        self._metrics.answered(name, answer, began)
        if trace is not None:
            trace.answered(answer, steps=run.steps)
        return answer

    async def _run(
        self, served: _Served, payload: Payload, options: RequestOptions, priority: Priority, began: float
    ) -> tuple[PipelineRun, float, Any]:
        """Run a request: what became of it, the seconds that it was allowed, and its outputs."""
        if not isinstance(payload, dict):
            raise InvalidRequest(f"pipeline {served.info.name!r} takes its inputs by name")
        inputs = read_inputs(served.plan, payload)
        own_s, least_s = self._costs(served, options, _parts_in(served.plan, inputs) if served.parts else {})
        budget, timeout_s = self._admitted(served, served.course.budget(own_s, priority, least_s), priority, options)
        run = PipelineRun(
            served.plan,
            self._inner,
            inputs,
            options,
            began + timeout_s,
            budget,
            lambda step, outcome, seconds: self._metrics.step(served.info.name, step, outcome, seconds),
            serial=served.serial,
        )
        value = await run.answer()
        for step, times in run.steps.items():
            served.course.measured(step, priority, own_s.get(step, 0.0), times.total_s)
        for step, parts in run.parts.items():
            served.parts[step] += _PARTS_WEIGHT * (parts - served.parts[step])
        return run, timeout_s, value

    def _labelled(self, served: _Served, run: PipelineRun) -> ModelInfo:
        """What is known of a pipeline, with the labels of the models that answered: other files may have others."""
        labels: dict[str, tuple[str, ...]] = {}
        files: dict[str, str] = {}
        for name, output in served.plan.outputs.items():
            info = None if output.tensor is None else run.infos.get(output.reference.name)
            if info is not None and (given := info.output_at(output.reference.path)):
                labels |= {name: names} if (names := info.labels_of(given)) else {}
                files |= {name: file} if (file := info.label_files.get(given)) else {}
        if (labels, files) != (served.info.output_labels, served.info.label_files):
            served.info = served.info._replace(output_labels=labels, label_files=files)
            self._infos[served.info.name] = served.info
        return served.info

    def _costs(
        self, served: _Served, options: RequestOptions, parts: Mapping[str, int]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """What the steps cost on an idle server, seconds: as it is expected, and at least.

        Args:
            served: The pipeline.
            parts: Of those maps of which it is known, how many parts they have. Of the others as many are expected as
                other requests had, and one is the least.

        Returns:
            Both by step, without those whose model is not served: that is told when the step is reached.
        """
        own_s, least_s = {}, {}
        for step in served.plan.models():
            try:
                info = model_of_step(self._inner, step, options)
            except ServeAppError:
                continue
            key, known = info.key or info.name, parts.get(step.name, 0)
            own_s[step.name] = self._solo_s(key, known or max(1, round(served.parts.get(step.name, 1.0))), 0)
            least_s[step.name] = self._least_s(key, known or 1, options)
        return own_s, least_s

    @staticmethod
    def _admitted(
        served: _Served, budget: TimeBudget, priority: Priority, options: RequestOptions
    ) -> tuple[TimeBudget, float]:
        """What the steps of a request may take, and the seconds that it has left.

        Raises:
            DeadlineExceeded: None, or less than its steps take at least, and it is no probe.
        """
        left, allowed = options.timeout_s, "this request allows"
        if left is None:
            allowed_s = default_timeout_s(served.info.default_timeout_s[priority], budget.most_s)
            left, allowed = allowed_s - options.spent_s, f"class {priority.label} allows"
            if left <= 0.0:
                raise DeadlineExceeded(read_too_long(priority, allowed_s))
        admitted = served.course.admit(budget, left, monotonic())
        if admitted is None:
            raise DeadlineExceeded(
                f"the steps take about {shown_s(budget.least_s)} alone; {allowed} {shown_s(left + options.spent_s)}:"
                " name a longer deadline (X-Timeout-Ms, parameters.timeout)"
            )
        return admitted, left

    def model_ready(self, model: str) -> bool:
        """Whether a model can take work; a pipeline can if all its models can."""
        served = self._pipelines.get(model)
        if served is None:
            return self._inner.model_ready(model)
        try:
            infos = [self._inner.find(step.model, step.version) for step in served.plan.models()]
        except ModelNotFound:
            return False
        return all(self._inner.model_ready(info.key or info.name) for info in infos)

    def status(self) -> Mapping[str, Any]:
        """The pipelines by name, as the server's status shows them.

        Of each: ``ready``, the requests ``in_work``, and of its ``steps`` that are models the ``model``, the ``own_ms``
        that it is predicted to take alone, and by class the smoothed ``wait_ms``.
        """
        return {name: self._status(served) for name, served in self._pipelines.items()}

    def _status(self, served: _Served) -> Mapping[str, Any]:
        own_s, _ = self._costs(served, RequestOptions(), {})
        return {
            "ready": self.model_ready(served.info.name),
            "in_work": served.in_work,
            "inputs": list(served.plan.inputs),
            "outputs": list(served.plan.outputs),
            "steps": {
                step.name: {
                    "model": step.model,
                    "own_ms": round(own_s.get(step.name, 0.0) * 1e3, 3),
                    "wait_ms": {
                        priority.label: round(served.course.wait_s(step.name, priority) * 1e3, 3)
                        for priority in Priority
                    },
                }
                for step in served.plan.models()
            },
        }

    def statistics(self, model: str) -> Mapping[str, Any]:
        """Counters of a pipeline, which counts as one model; its executions are those of its steps' models."""
        served = self._pipelines[model]
        return describe(served.info, self._metrics.statistics(model), monotonic())

    async def finish(self, limit_s: float) -> int:
        """Refuse requests for pipelines from now on, and wait until those that were taken are answered.

        Args:
            limit_s: For how long at most, seconds.

        Returns:
            How many are left then.
        """
        return await self._in_work.finish(limit_s)


def _parts_in(plan: Pipeline, inputs: Mapping[str, Any]) -> dict[str, int]:
    """How many parts the maps over what a request came with have, by step; at least one."""
    return {
        step.name: max(1, count_parts(pick(inputs[step.over.name], step.over), plan))
        for step in plan.models()
        if step.over is not None and step.over.name in inputs
    }


def _told(error: ServeAppError, trace: RequestTrace | None) -> ServeAppError:
    """The error of a request whose trace has ended with it, and that the metrics are about to count."""
    error.counted = True
    if trace is not None:
        trace.failed(error)
    return error


class _Served:
    """A pipeline as it is served.

    Attributes:
        plan: What it does.
        first: The models that every request runs and that need no other step.
        serial: Whether no two steps could run at the same time.
        course: How long its steps wait.
        parts: The smoothed number of parts of each map.
        in_work: Requests that are being answered.
    """

    __slots__ = ("course", "first", "in_work", "info", "parts", "plan", "serial")

    def __init__(self, info: ModelInfo) -> None:
        assert info.pipeline is not None
        plan: Pipeline = info.pipeline
        certain = plan.certain()
        self.info = info
        self.plan = plan
        self.first = tuple(
            step
            for step in plan.models()
            if step.name in certain and not any(each.name in plan.steps for each in step.needs())
        )
        self.serial = plan.is_serial()
        self.course = Course(plan.followers(), certain)
        self.parts = {step.name: 1.0 for step in plan.models() if step.over is not None}
        self.in_work = 0
