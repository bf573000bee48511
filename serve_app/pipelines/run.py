"""One request of a pipeline on its way: each step starts when what it needs is there, and runs once.

A step that a switch may choose starts when it is chosen. The first failure cancels what runs beside it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from serve_app.domain.pipeline import (
    ConcatStep,
    Constant,
    EqualStep,
    JoinStep,
    ModelStep,
    Pipeline,
    Reference,
    Step,
    SwitchStep,
)
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, Inference, ModelInfo, RequestOptions
from serve_app.domain.versions import Asker
from serve_app.errors import DeadlineExceeded, ModelNotFound, ModelUnavailable, ServeAppError, error_from_code
from serve_app.payloads import Payload, Tensors, payload_bytes
from serve_app.pipelines import values
from serve_app.pipelines.branches import Branches
from serve_app.pipelines.policy import TimeBudget
from serve_app.telemetry.trace import StepTimes

_IN_A_THREAD: Final = 2**20
"""Bytes above which tensors are put together in a thread."""

OK: Final = "ok"
CANCELLED: Final = "cancelled"

StepEnded = Callable[[str, str, float], None]
"""Is told of a step that is a model how it ended, and after how many seconds."""


class Times(NamedTuple):
    """Where the time of a request went, summed over its steps, seconds."""

    queue_s: float = 0.0
    preprocess_s: float = 0.0
    infer_s: float = 0.0
    postprocess_s: float = 0.0


class PipelineRun:
    """One request.

    Args:
        plan: What is to be done.
        service: Runs models.
        inputs: The values that it came with.
        options: How it wants to be treated. Every step inherits them, with its part of the deadline.
        deadline: Of the whole, on the monotonic clock.
        budget: What of that each step may take.
        ended: Is told of steps.
        serial: Whether no two steps could run at the same time: then no task is made for any.

    Attributes:
        steps: Of each step that has been answered, when it began, what it took, and which variants answered.
        parts: How many parts each map had.
        infos: What is known of the model that answered each step.
        times: Over all steps.
        unverified: Whether a step may have shared a run without proof.
    """

    def __init__(
        self,
        plan: Pipeline,
        service: Inference,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        deadline: float,
        budget: TimeBudget,
        ended: StepEnded,
        *,
        serial: bool = False,
    ) -> None:
        self._plan = plan
        self._service = service
        self._inputs = inputs
        self._options = options
        self._deadline = deadline
        self._budget = budget
        self._began = monotonic()
        self._ended = ended
        self._serial = serial
        self._branches: Branches
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._results: dict[str, Any] = {}
        self._nbytes = 0
        self._variants: dict[str, set[str]] = {}
        self.steps: dict[str, StepTimes] = {}
        self.parts: Counter[str] = Counter()
        self.infos: dict[str, ModelInfo] = {}
        self.times = Times()
        self.unverified = False

    @property
    def variant(self) -> str:
        """The variants that answered steps, as ``step=variant, step=variant``; empty: the exact models did."""
        found = ((name, variant) for name in self._plan.steps for variant in sorted(self._variants.get(name, ())))
        return ", ".join(f"{name}={variant}" for name, variant in found)

    async def answer(self) -> Tensors:
        """Do all that the outputs need.

        Raises:
            ServeAppError: A step's, which it names.
        """
        outputs = [output.reference for output in self._plan.outputs.values()]
        if self._serial:
            found = dict(zip(outputs, await self._all(outputs), strict=True))
        else:
            self._branches = Branches()
            try:
                found = dict(zip(outputs, await self._branches.join(self._all(outputs)), strict=True))
            finally:  # a task that failed has an error whose traceback has frames that have this
                self._tasks.clear()
        if self._nbytes > _IN_A_THREAD:
            return await asyncio.to_thread(values.write_outputs, self._plan, found.__getitem__)
        return values.write_outputs(self._plan, found.__getitem__)

    def _start(self, name: str) -> asyncio.Task[Any]:
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = self._branches.start(self._step(self._plan.steps[name]))
        return task

    async def _all(self, references: Sequence[Reference]) -> list[Any]:
        steps = self._plan.steps
        if not self._serial:
            for reference in references:  # all of them, before one is waited for
                if reference.name in steps:
                    self._start(reference.name)
        elif len(references) > 1:  # the one that needs the others
            needed = {reference.name for reference in references}
            await self._whole(next((name for name in reversed([*steps]) if name in needed), references[0].name))
        return [await self._value(reference) for reference in references]

    async def _value(self, reference: Reference) -> Any:
        return values.single(values.pick(await self._whole(reference.name), reference))

    async def _whole(self, name: str) -> Any:
        """An input, or all that a step has given."""
        if name in self._inputs:
            return self._inputs[name]
        if not self._serial:
            return await self._start(name)
        if name not in self._results:
            self._results[name] = await self._step(self._plan.steps[name])
        return self._results[name]

    async def _step(self, step: Step) -> Any:
        if isinstance(step, SwitchStep):
            on = await self._value(step.on)
            try:
                case = values.case_of(on)
            except ServeAppError as error:
                raise _of_step(step.name, error) from error
            chosen = step.default if case is None else step.cases.get(case, step.default)
            return chosen.value if isinstance(chosen, Constant) else await self._value(chosen)
        given = await self._all([*step.needs()])
        try:
            result = await self._result(step, given)
            if isinstance(step, ConcatStep):
                self._hold(result)
        except ServeAppError as error:
            raise _of_step(step.name, error) from error
        return result

    async def _result(self, step: ModelStep | EqualStep | JoinStep | ConcatStep, given: Sequence[Any]) -> Any:
        match step:
            case ModelStep():
                return await self._model(step, given)
            case EqualStep():
                return values.equal(given)
            case JoinStep():
                return dict(zip(step.members, given, strict=True))
            case ConcatStep():
                if values.nbytes_of(given) > _IN_A_THREAD:
                    return await asyncio.to_thread(values.concatenated, given, step.axis)
                return values.concatenated(given, step.axis)

    async def _model(self, step: ModelStep, given: Sequence[Any]) -> Any:
        began, outcome = monotonic(), ServeAppError.code
        try:
            info = model_of_step(self._service, step, self._options)
            if step.inputs:
                tensors = values.tensors_for(info, dict(zip(step.inputs, given, strict=True)))
                result = await self._submit(step, info, tensors, None)
            elif step.over is None:
                result = await self._submit(step, info, values.payload_of(step, info, given[0]), given[0])
            else:
                result = await self._map(step, info, values.parts_of(given[0], self._plan, step.over))
            outcome = OK
        except ServeAppError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = CANCELLED
            raise
        finally:
            seconds = monotonic() - began
            if outcome == OK:
                variants = tuple(sorted(self._variants.get(step.name, ())))
                self.steps[step.name] = StepTimes(began - self._began, seconds, variants)
            self._ended(step.name, outcome, seconds)
        return result

    async def _map(self, step: ModelStep, info: ModelInfo, parts: Sequence[Any]) -> list[Any]:
        """Run over all parts at once: they share batches, with each other and with other requests."""
        self.parts[step.name] = len(parts)
        payloads = [values.payload_of(step, info, part) for part in parts]
        branches = Branches()
        pairs = zip(payloads, parts, strict=True)
        tasks = deque(branches.start(self._submit(step, info, payload, part)) for payload, part in pairs)
        return await branches.join(_results(tasks))

    async def _submit(self, step: ModelStep, info: ModelInfo, payload: Payload, asked: Any) -> Any:
        left_s = self._deadline - monotonic()
        timeout_s = self._budget.timeout_s(step.name, left_s)
        if timeout_s <= 0.0:
            raise DeadlineExceeded("too little of the deadline is left for it and what follows; allow more time")
        options = replace(
            self._options,
            timeout_s=timeout_s,
            nbytes=payload_bytes(payload),
            variant="",
            spent_s=0.0,
            revision=info.revision,
            stream_timeout_s=None,
        )
        answer = await self._service.submit(info.key or info.name, payload, options)
        self._note(step.name, answer)
        info = answer.info or info
        self.infos[step.name] = info
        result = values.result_of(info, asked, answer.value)
        self._hold(result)
        return result

    def _hold(self, result: Any) -> None:
        """Count what a step, or one part of a map, has given."""
        self._nbytes += values.nbytes_of(result)
        if self._nbytes > self._plan.max_result_bytes:
            raise values.too_large(self._plan)

    def _note(self, step: str, answer: Answer) -> None:
        before = self.times
        self.times = Times(
            before.queue_s + answer.queue_s,
            before.preprocess_s + answer.preprocess_s,
            before.infer_s + answer.infer_s,
            before.postprocess_s + answer.postprocess_s,
        )
        self.unverified = self.unverified or answer.unverified
        if answer.variant:
            self._variants.setdefault(step, set()).add(answer.variant)


def model_of_step(service: Inference, step: ModelStep, options: RequestOptions) -> ModelInfo:
    """The model, or the version of it, that runs a step. Raises as `Inference.find`."""
    info = service.find(step.model, step.version)
    if info.key and step.version is None:
        return service.choose(step.model, Asker(options.attributes.tenant, options.request_id))
    return info


def _of_step(name: str, error: ServeAppError) -> ServeAppError:
    """A step's error as that of the request. What the client asked for is there, whatever its models are."""
    if isinstance(error, ModelNotFound):  # whose message lists models that the client may not use
        return gone(name)
    part = ", with its part of the deadline" if isinstance(error, DeadlineExceeded) else ""
    return error_from_code(error.code, f"step {name!r}{part}: {error.message}", error.retry_after_s)


def gone(step: str) -> ModelUnavailable:
    """The error of a step whose model is not served now."""
    return ModelUnavailable(f"step {step!r}: its model, or the version that it names, is not served now")


async def _results(tasks: deque[asyncio.Task[Any]]) -> list[Any]:
    found = []
    try:
        while tasks:
            found.append(await tasks.popleft())
    finally:  # as of the whole request; no name is left for a task, either
        tasks.clear()
    return found


def served_in(options: RequestOptions) -> Priority:
    """The class of a request."""
    return options.priority or Priority.NORMAL
