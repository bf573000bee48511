"""Any pipeline gives what a naive evaluator gives, and runs what is needed, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from itertools import pairwise
from time import monotonic
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from serve_app.domain.pipeline import (
    PIPELINE,
    ConcatStep,
    Constant,
    EqualStep,
    JoinStep,
    ModelStep,
    Output,
    Pipeline,
    PipelineInput,
    Reference,
    Step,
    SwitchStep,
)
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions, unknown_model
from serve_app.domain.settings import LogSettings
from serve_app.domain.versions import Asker
from serve_app.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidRequest,
    ModelUnavailable,
    QueueFull,
    ServeAppError,
)
from serve_app.payloads import Joinable, ModelSignature, Payload, RequestAttributes, Tensors, TensorSpec
from serve_app.pipelines.inference import PipelineInference
from serve_app.pipelines.policy import Course
from serve_app.pipelines.run import PipelineRun
from serve_app.telemetry.request_log import RequestLog
from serve_app.telemetry.trace import RequestTraces

FLOATS = (-1, 2)


def model(name: str, *inputs: str) -> ModelInfo:
    """A model of rows of two numbers."""
    return ModelInfo(
        name=name,
        version="1",
        versions=("1",),
        task="tensors",
        signature=ModelSignature(
            tuple(TensorSpec(each, "FP32", FLOATS) for each in inputs), (TensorSpec("y", "FP32", FLOATS),)
        ),
        max_rows=8,
        max_request_rows=64,
        default_timeout_s=dict.fromkeys(Priority, 10.0),
        labels=(),
        joinable={"": Joinable("exact", "")},
    )


def compute(name: str, tensors: Mapping[str, Any]) -> Any:
    """What the models do."""
    return tensors["a"] + tensors["b"] if name == "add" else -tensors["x"]


class Arithmetic:
    """An `Inference` of two models, ``add`` and ``negative``, whose answers may wait and fail.

    Attributes:
        asked: How often each model ran, with its options.
        running: Requests in work.
        begun: Is told of each request.
        hold: Answers wait for this.
        errors: By model, what it raises.
        variants: By model, which variants answer, one after the other, before the exact model does.
    """

    def __init__(self) -> None:
        self.models: Mapping[str, ModelInfo] = {"add": model("add", "a", "b"), "negative": model("negative", "x")}
        self.unloaded: Mapping[str, Sequence[ModelInfo]] = {}
        self.asked: list[tuple[str, RequestOptions]] = []
        self.running = 0
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.cancelled = 0
        self.hold: dict[str, asyncio.Event] = {}
        self.errors: dict[str, tuple[type[ServeAppError], str, float | None]] = {}
        self.variants: dict[str, list[str]] = {}

    def find(self, model: str, version: str | None = None) -> ModelInfo:
        """See `Inference`."""
        if model not in self.models:
            raise unknown_model(model, self.models)
        return self.models[model]

    def choose(self, model: str, asker: Asker) -> ModelInfo:
        """See `Inference`."""
        return self.find(model)

    def precheck(
        self, model: str, priority: Priority | None, nbytes: int, tenant: str = "", weight: float = 1.0
    ) -> None:
        """See `Inference`."""

    def refused(self, model: str, code: str) -> None:
        """See `Inference`."""

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """See `Inference`."""
        assert isinstance(payload, dict)
        self.asked.append((model, options))
        self.running += 1
        self.begun.put_nowait(model)
        try:
            if model in self.hold:
                await self.hold[model].wait()
            else:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if model in self.errors:
            kind, message, retry_after_s = self.errors[model]
            raise kind(message, retry_after_s)
        variants = self.variants.get(model)
        return Answer({"y": compute(model, payload)}, Priority.NORMAL, 0.25, 1.0, variants.pop(0) if variants else "")

    async def stream(self, model: str, payload: Payload, options: RequestOptions) -> AsyncGenerator[Answer, None]:
        """See `Inference`."""
        yield await self.submit(model, payload, options)

    def model_ready(self, model: str) -> bool:
        """See `Inference`."""
        return model in self.models


X = PipelineInput("x", "tensor", datatype="FP32", shape=FLOATS)
SUM = ModelStep("sum", "add", inputs={"a": Reference("x"), "b": Reference("x")})
NEGATIVE = ModelStep("less", "negative", input=Reference("sum", ("y",)))


def plan(*steps: Step, inputs: Sequence[PipelineInput] = (X,), **outputs: str) -> Pipeline:
    """A pipeline of these steps; its outputs are tensors where the reference leads to one."""
    return Pipeline(
        "chain",
        {each.name: each for each in inputs},
        {step.name: step for step in steps},
        {name: Output(Reference.parse(text)) for name, text in outputs.items()},
        max_parts=4,
        max_result_bytes=4096,
    )


def info(pipeline: Pipeline) -> ModelInfo:
    """As the service knows it."""
    return model("chain")._replace(task=PIPELINE, pipeline=pipeline)


def served(service: Arithmetic, pipeline: Pipeline, own_s: float = 0.0) -> PipelineInference:
    """The pipeline over the models, each step of which is predicted to take so long."""
    return PipelineInference(service, [info(pipeline)], lambda *_: own_s, lambda *_: own_s, CollectorRegistry(), None)


def priced(service: Arithmetic, pipeline: Pipeline, seconds: Callable[[str, int], float]) -> PipelineInference:
    """The same, where so many parts of a model are predicted to take that many seconds, and no less."""
    return PipelineInference(
        service,
        [info(pipeline)],
        lambda model, rows, _: seconds(model, rows),
        lambda model, parts, _: seconds(model, parts),
        CollectorRegistry(),
        None,
    )


def _nothing(*_: Any) -> float:
    """Nothing is known of what models cost."""
    return 0.0


async def asked(
    pipeline: Pipeline, service: Arithmetic | None = None, own_s: float = 0.0, rows: int = 1, **options: Any
) -> Tensors:
    """The answer to a request."""
    over = served(service or Arithmetic(), pipeline, own_s)
    answer = await over.submit("chain", {"x": np.array([[1.0, 2.0]] * rows, np.float32)}, RequestOptions(**options))
    value: Tensors = answer.value
    return value


def row(*values: float) -> Any:
    """One row."""
    return np.array([values], np.float32)


async def test_steps_in_sequence() -> None:
    """The second gets what the first gave."""
    value = await asked(plan(SUM, NEGATIVE, out="less.y"))
    assert value["out"].tolist() == [b"[[-2.0,-4.0]]"]


async def test_what_a_step_inherits() -> None:
    """Class, key and trace; and its part of the deadline, as what is left after the steps behind."""
    service = Arithmetic()
    attributes = RequestAttributes("t", 2.0)
    options: dict[str, Any] = {"priority": Priority.HIGH, "key": "k", "attributes": attributes, "cacheable": False}
    await asked(plan(SUM, NEGATIVE, out="less.y"), service, 1.0, timeout_s=10.0, variant="light", **options)
    (first, given), (second, later) = service.asked
    assert (first, second) == ("add", "negative")
    for each in (given, later):
        assert {name: getattr(each, name) for name in options} == options
        assert (each.variant, each.spent_s) == ("", 0.0)
    assert given.timeout_s is not None
    assert later.timeout_s is not None
    assert 5.0 < given.timeout_s <= 6.2 < later.timeout_s <= 10.0  # half is its share, and 9 s are the most


async def test_a_request_whose_steps_cannot_be_in_time_is_refused_at_once() -> None:
    """No step has begun; the first one passes, to measure again, and its steps may take all that is left."""
    service = Arithmetic()
    over = served(service, plan(SUM, NEGATIVE, out="less.y"), 1000.0)
    row_of_two, options = {"x": row(1.0, 2.0)}, RequestOptions(timeout_s=1500.0)
    await over.submit("chain", row_of_two, options)
    assert [given.timeout_s for _, given in service.asked] == [pytest.approx(1500.0, abs=60.0)] * 2
    with pytest.raises(DeadlineExceeded, match=r"the steps take about 2000 s alone; this request allows 1500 s"):
        await over.submit("chain", row_of_two, options)
    assert len(service.asked) == 2


async def test_a_deadline_that_is_not_named_is_that_of_the_class_or_more() -> None:
    """Four times what the steps take, where that is more."""
    service = Arithmetic()
    await asked(plan(SUM, NEGATIVE, out="less.y"), service, 5.0)
    assert service.asked[0][1].timeout_s == pytest.approx(24.5, rel=0.1)  # of 40 s


async def test_a_deadline_that_is_not_named_allows_whatever_a_switch_chooses() -> None:
    """Four times what the case takes that is chosen, though not every request runs it."""
    service = Arithmetic()
    same = EqualStep("same", (Reference("sum", ("y",)), Reference("sum", ("y",))))
    pick = SwitchStep("pick", Reference("same"), {"true": Reference("less")}, Reference("x"))
    pipeline = plan(SUM, same, NEGATIVE, pick, out="pick")
    over = priced(service, pipeline, lambda name, _: {"add": 0.0, "negative": 15.0}[name])
    await over.submit("chain", {"x": row(1.0, 2.0)}, RequestOptions())
    (_, given) = service.asked[-1]
    assert given.timeout_s == pytest.approx(60.0, rel=0.1)


async def test_a_deadline_that_is_not_named_allows_as_many_parts_as_steps_make() -> None:
    """What other requests had is expected of this one."""
    service = Arithmetic()
    again = ModelStep("again", "negative", over=Reference("sum"))
    over = priced(service, plan(SUM, again, out="again"), lambda name, parts: parts * {"add": 0, "negative": 5}[name])
    four = {"x": np.ones((4, 2), np.float32)}
    for _ in range(60):
        await over.submit("chain", four, RequestOptions(timeout_s=600.0))
    await over.submit("chain", four, RequestOptions())
    assert service.asked[-1][1].timeout_s == pytest.approx(80.0, rel=0.1)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ((InferenceFailed, "broken", None), InferenceFailed),
        ((QueueFull, "full", 3.0), QueueFull),
    ],
)
async def test_an_error_names_its_step_and_keeps_its_kind(
    raised: tuple[type[ServeAppError], str, float | None], expected: type[ServeAppError]
) -> None:
    """With the time after which to retry."""
    service = Arithmetic()
    service.errors["negative"] = raised
    with pytest.raises(expected) as caught:
        await asked(plan(SUM, NEGATIVE, out="less.y"), service)
    assert caught.value.message == f"step 'less': {raised[1]}"
    assert caught.value.retry_after_s == raised[2]


async def test_a_model_that_is_unloaded_makes_its_pipeline_unavailable() -> None:
    """What the client asked for is there."""
    service = Arithmetic()
    service.models = {"add": service.models["add"]}
    assert not served(service, plan(SUM, NEGATIVE, out="less.y")).model_ready("chain")
    with pytest.raises(ModelUnavailable, match="step 'less': its model, or the version"):
        await asked(plan(SUM, NEGATIVE, out="less.y"), service)


async def test_the_first_failure_cancels_what_runs_beside_it() -> None:
    """It is not waited for."""
    service = Arithmetic()
    service.hold["add"] = asyncio.Event()
    service.errors["negative"] = (InferenceFailed, "broken", None)
    beside = ModelStep("beside", "negative", input=Reference("x"))
    with pytest.raises(InferenceFailed, match="step 'beside'"):
        await asked(plan(SUM, beside, one="sum", two="beside"), service)
    assert (service.running, service.cancelled) == (0, 1)


async def test_a_client_that_leaves_cancels_every_step() -> None:
    """And is counted."""
    service = Arithmetic()
    service.hold["add"] = asyncio.Event()
    over = served(service, plan(SUM, out="sum"))
    task = asyncio.ensure_future(over.submit("chain", {"x": row(1.0, 2.0)}, RequestOptions()))
    await service.begun.get()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (service.running, service.cancelled) == (0, 1)
    assert over.statistics("chain")["inference_stats"]["fail"]["count"] == 1


async def test_branches_run_at_the_same_time() -> None:
    """Both have begun before either has ended."""
    service = Arithmetic()
    service.hold = {"add": asyncio.Event(), "negative": asyncio.Event()}
    other = ModelStep("other", "negative", input=Reference("x"))
    task = asyncio.ensure_future(asked(plan(SUM, other, one="sum", two="other"), service))
    assert {await service.begun.get(), await service.begun.get()} == {"add", "negative"}
    for event in service.hold.values():
        event.set()
    await task


async def test_what_is_needed_in_any_case_does_not_wait_for_what_a_switch_may_choose_it_for() -> None:
    """It begins beside the step that chooses."""
    service = Arithmetic()
    service.hold = {"add": asyncio.Event(), "negative": asyncio.Event()}
    gate, exact = (ModelStep(name, "negative", input=Reference("x")) for name in ("gate", "exact"))
    same = EqualStep("same", (Reference("gate", ("y",)), Reference("x")))
    pick = SwitchStep("pick", Reference("same"), {"true": Reference("exact")}, Reference("sum"))
    async with asyncio.timeout(60.0):
        task = asyncio.ensure_future(asked(plan(gate, same, SUM, exact, pick, cheap="sum", answer="pick"), service))
        assert {await service.begun.get(), await service.begun.get()} == {"add", "negative"}
        for event in service.hold.values():
            event.set()
        assert (await task)["answer"].tolist() == [b"[[2.0,4.0]]"]


async def test_an_answer_names_the_variants_that_answered_its_steps() -> None:
    """Each with its step, in the order of the steps; of a map all of them."""
    service = Arithmetic()
    service.variants = {"add": ["light"], "negative": ["small", "light"]}
    every = ModelStep("every", "negative", over=Reference("sum"))
    over = served(service, plan(SUM, every, out="every"))
    three = {"x": np.ones((3, 2), np.float32)}
    answers = [await over.submit("chain", three, RequestOptions()) for _ in range(2)]
    assert [answer.variant for answer in answers] == ["sum=light, every=light, every=small", ""]


async def test_an_object_of_one_tensor_is_an_object() -> None:
    """Only what a model gives has a tensor that stands for it."""
    doc = JoinStep("doc", {"vector": Reference("sum")})
    again = SwitchStep("again", Reference("x", ("none",)), {"null": Reference("doc")}, Constant(None))
    answer = await asked(plan(SUM, doc, again, out="doc", again="again", within="doc.vector", tensor="sum"))
    assert {name: orjson.loads(value[0]) for name, value in answer.items()} == {
        "out": {"vector": [[2.0, 4.0]]},
        "again": {"vector": [[2.0, 4.0]]},
        "within": [[2.0, 4.0]],
        "tensor": [[2.0, 4.0]],
    }


async def test_a_switch_does_not_choose_for_several_rows_at_once() -> None:
    """Each would go to its own case alone, and together none does."""
    step = SwitchStep("way", Reference("x"), {"1": Constant("one")}, Constant("other"))
    over = served(Arithmetic(), plan(step, out="way"))
    answer = await over.submit("chain", {"x": np.ones((1, 1), np.float32)}, RequestOptions())
    assert answer.value["out"].tolist() == [b'"one"']
    with pytest.raises(InvalidRequest, match=r"^step 'way': a switch takes one value, and the tensor has 2$"):
        await over.submit("chain", {"x": np.ones((2, 1), np.float32)}, RequestOptions())


async def test_a_map_runs_for_each_part() -> None:
    """Of a tensor, its rows; more than there may be are refused."""
    every = ModelStep("every", "negative", over=Reference("x"))
    whole = ConcatStep("whole", (Reference("every"),))
    pipeline = plan(every, whole, out="whole")

    value = await asked(pipeline, rows=3)
    assert value["out"].tolist() == [b"[[-1.0,-2.0],[-1.0,-2.0],[-1.0,-2.0]]"]
    with pytest.raises(ServeAppError, match="step 'every': x: 5 parts; pipeline 'chain' takes at most 4"):
        await asked(pipeline, rows=5)


async def test_what_other_requests_map_over_does_not_make_this_one_late() -> None:
    """What it costs at least is told by its own parts; and by one, where a step makes them."""
    every = ModelStep("every", "negative", over=Reference("x"))
    again = ModelStep("again", "negative", over=Reference("sum"))
    for pipeline, least_s in ((plan(SUM, again, out="again"), 2), (plan(every, out="every"), 1)):
        over = priced(Arithmetic(), pipeline, lambda _, parts: parts)
        many, one = ({"x": np.ones((rows, 2), np.float32)} for rows in (4, 1))
        for _ in range(30):
            await over.submit("chain", many, RequestOptions())
        await over.submit("chain", one, RequestOptions(timeout_s=least_s + 0.5))
        await over.submit("chain", one, RequestOptions(timeout_s=least_s - 0.5))  # as a probe
        with pytest.raises(DeadlineExceeded, match="the steps take about"):
            await over.submit("chain", one, RequestOptions(timeout_s=least_s - 0.5))
    with pytest.raises(DeadlineExceeded, match="the steps take about 4 s alone"):  # those of the last, the map of x
        await over.submit("chain", many, RequestOptions(timeout_s=3.5))


class _LargeThenNever(Arithmetic):
    """Its first answer is large, and the others never come."""

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """See `Inference`."""
        if self.asked:
            self.hold[model] = asyncio.Event()
        await super().submit(model, payload, options)
        return Answer({"y": np.zeros((1024, 2), np.float32)}, Priority.NORMAL, 0.25, 1.0)


async def test_the_parts_of_a_map_are_counted_as_they_come() -> None:
    """The others are not waited for."""
    service = _LargeThenNever()
    every = ModelStep("every", "negative", over=Reference("x"))
    async with asyncio.timeout(60.0):
        with pytest.raises(InferenceFailed, match="the results of its steps hold more than 4096 bytes"):
            await asked(plan(every, out="every"), service, rows=4)
    assert (service.running, service.cancelled) == (0, 3)


class _Refusing(Arithmetic):
    """Refuses requests early, for a model that is full or for a server that ends."""

    def __init__(self, *, counted: bool) -> None:
        super().__init__()
        self._counted = counted

    def precheck(
        self, model: str, priority: Priority | None, nbytes: int, tenant: str = "", weight: float = 1.0
    ) -> None:
        """See `Inference`."""
        error = QueueFull(f"{model} is full", 1.0)
        error.counted = self._counted
        raise error


@pytest.mark.parametrize("counted", [True, False])
def test_a_request_that_is_refused_early_counts_for_the_pipeline(*, counted: bool) -> None:
    """As for the model; what is not counted yet is left to whoever answers."""
    over = served(_Refusing(counted=counted), plan(SUM, NEGATIVE, out="less.y"))
    with pytest.raises(QueueFull) as caught:
        over.precheck("chain", None, 100)
    assert caught.value.counted is counted
    assert over.statistics("chain")["inference_stats"]["fail"]["count"] == int(counted)


class _Broken(Arithmetic):
    """Has a bug."""

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """See `Inference`."""
        raise ZeroDivisionError(model, payload, options)


async def test_a_bug_is_counted_and_traced_once_and_told_by_its_number(caplog: pytest.LogCaptureFixture) -> None:
    """As that of any route, its traceback is for the log alone."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = RequestTraces(None, provider.get_tracer("test"))
    infos = [info(plan(SUM, out="sum"))]
    over = PipelineInference(_Broken(), infos, _nothing, _nothing, CollectorRegistry(), traces)
    with pytest.raises(ServeAppError) as caught:
        await over.submit("chain", {"x": row(1.0, 2.0)}, RequestOptions(request_id="r"))
    assert (caught.value.message, caught.value.code) == ("internal error (request id r)", "internal")
    assert (caught.value.counted, caught.value.logged) == (True, True)
    assert [span.name for span in exporter.get_finished_spans()] == ["infer chain"]
    assert over.statistics("chain")["inference_stats"]["fail"]["count"] == 1
    assert "ZeroDivisionError" in caplog.text


async def test_results_that_are_too_large_are_refused() -> None:
    """By the memory that they hold together."""
    await asked(plan(SUM, NEGATIVE, out="less.y"), rows=64)
    with pytest.raises(InferenceFailed, match="the results of its steps hold more than 4096 bytes"):
        await asked(plan(SUM, NEGATIVE, *_chain(8), out="n7.y"), rows=64)


def _chain(length: int) -> list[ModelStep]:
    names = ["less", *(f"n{at}" for at in range(length))]
    return [ModelStep(name, "negative", input=Reference(before, ("y",))) for before, name in pairwise(names)]


async def test_a_pipeline_is_drained_before_its_models_are() -> None:
    """What was taken is answered, and what comes then is refused."""
    service = Arithmetic()
    service.hold["add"] = asyncio.Event()
    over = served(service, plan(SUM, NEGATIVE, out="less.y"))
    task = asyncio.ensure_future(over.submit("chain", {"x": row(1.0, 2.0)}, RequestOptions()))
    await service.begun.get()
    drained = asyncio.ensure_future(over.finish(30.0))
    await asyncio.sleep(0)
    with pytest.raises(ModelUnavailable, match="shutting down"):
        await over.submit("chain", {"x": row(1.0, 2.0)}, RequestOptions())
    service.hold["add"].set()
    await task
    assert await drained == 0


async def test_its_line_in_the_log_has_the_times_of_its_steps() -> None:
    """And its steps are in its trace, below it."""
    lines: list[dict[str, Any]] = []
    log = RequestLog(
        LogSettings(sample=1.0),
        lambda line: lines.append(orjson.loads(line)),
        asyncio.get_running_loop().call_later,
    )
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = RequestTraces(log, provider.get_tracer("test"))
    service = Arithmetic()
    service.variants["negative"] = ["light"]
    pipeline = plan(SUM, NEGATIVE, out="less.y")
    over = PipelineInference(service, [info(pipeline)], _nothing, _nothing, CollectorRegistry(), traces)
    await over.submit("chain", {"x": row(1.0, 2.0)}, RequestOptions(request_id="r"))
    (line,) = lines
    assert [line[key] for key in ("model", "outcome", "request_id")] == ["chain", "ok", "r"]
    assert [(step, times.get("variant")) for step, times in line["steps"].items()] == [("sum", None), ("less", "light")]
    assert line["variant"] == "less=light"
    first, second = line["steps"].values()
    assert second["start_ms"] >= first["start_ms"] + first["total_ms"]
    assert line["total_ms"] >= second["start_ms"] + second["total_ms"]
    span = next(each for each in exporter.get_finished_spans() if each.name == "infer chain")
    assert span.context is not None
    parents = {options.trace_parent.split("-")[2] for _, options in service.asked}
    assert parents == {f"{span.context.span_id:016x}"}


# --- Any pipeline ---------------------------------------------------------------------------------------------------


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Random steps over two inputs; the last one is the output, so that some steps may not be needed."""
    x, y = X, X._replace(name="y")
    tensors: list[Reference] = [Reference("x"), Reference("y")]
    truths: list[Reference] = []
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 8))):
        name = f"s{number}"
        one, other = draw(st.sampled_from(tensors)), draw(st.sampled_from(tensors))
        kind = draw(st.sampled_from(["add", "negative", "equal", *(["switch", "switch"] if truths else [])]))
        if kind == "add":
            steps.append(ModelStep(name, "add", inputs={"a": one, "b": other}))
            tensors.append(Reference(name, ("y",)))
        elif kind == "negative":
            steps.append(ModelStep(name, "negative", input=one))
            tensors.append(Reference(name))  # its one tensor stands for it
        elif kind == "equal":
            steps.append(EqualStep(name, (one, other)))
            truths.append(Reference(name))
        else:
            steps.append(SwitchStep(name, draw(st.sampled_from(truths)), {"true": one}, other))
            tensors.append(Reference(name))
    last = draw(st.sampled_from([reference for reference in tensors if reference.name.startswith("s")] or truths))
    joined: Step = JoinStep("joined", {"a": last, "b": draw(st.sampled_from(tensors))})
    return Pipeline(
        "chain",
        {each.name: each for each in (x, y)},
        {step.name: step for step in (*steps, joined)},
        {"out": Output(Reference("joined"))},
    )


def naive(pipeline: Pipeline, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Counter[str]]:
    """Every result that the output needs, and how often each model ran, by plain recursion."""
    found: dict[str, Any] = dict(inputs)
    ran: Counter[str] = Counter()

    def value(reference: Reference | Constant) -> Any:
        assert isinstance(reference, Reference)
        if reference.name not in found:
            found[reference.name] = result(pipeline.steps[reference.name])
        whole = found[reference.name]
        return whole["y"] if isinstance(whole, dict) and "y" in whole else whole

    def result(step: Step) -> Any:
        match step:
            case ModelStep():
                ran[step.model] += 1
                if step.input is not None:
                    return {"y": compute(step.model, {"x": value(step.input)})}
                return {"y": compute(step.model, {name: value(each) for name, each in step.inputs.items()})}
            case SwitchStep():
                return value(step.cases["true"] if value(step.on) else step.default)
            case EqualStep():
                one, other = map(value, step.values)
                return bool(np.array_equal(one, other))
            case JoinStep():
                return {name: value(each) for name, each in step.members.items()}
        raise AssertionError(step)

    return value(Reference("joined")), ran


@given(pipelines(), st.lists(st.integers(-2, 2), min_size=4, max_size=4))
def test_any_pipeline_gives_what_a_naive_evaluator_gives(pipeline: Pipeline, numbers: list[int]) -> None:
    """And its models run as often."""
    inputs = {"x": row(*numbers[:2]), "y": row(*numbers[2:])}
    service = Arithmetic()
    course = Course(pipeline.followers(), pipeline.certain())

    async def run() -> Tensors:
        budget = course.budget({}, Priority.NORMAL)
        deadline, serial = monotonic() + 60.0, pipeline.is_serial()
        return await PipelineRun(
            pipeline, service, inputs, RequestOptions(), deadline, budget, lambda *_: None, serial=serial
        ).answer()

    expected, ran = naive(pipeline, inputs)
    answer = asyncio.run(run())["out"]
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in expected.items()}
    assert orjson.loads(answer[0]) == plain
    assert Counter(name for name, _ in service.asked) == ran
