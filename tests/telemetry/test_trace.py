"""Following requests: their lines and spans, through the real service, dispatcher and frames."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from runtime_harness import MODEL, Transport, make_dispatcher, serve, tensor

from serve_app.cache.response_cache import ResponseCache
from serve_app.cache.settings import CacheSettings
from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo, RequestOptions
from serve_app.domain.settings import LogSettings
from serve_app.errors import DeadlineExceeded, InferenceFailed
from serve_app.payloads import (
    Bundle,
    BundleResult,
    Execution,
    Failure,
    ModelSignature,
    Origin,
    Streamed,
    Success,
    TensorSpec,
    WireEntry,
)
from serve_app.router.answer_cache import ModelCacheSettings
from serve_app.telemetry.request_log import RequestLog
from serve_app.telemetry.trace import RequestTraces, configured_tracer, traced
from serve_app.transport.frames import Frame, decode_bundle, encode_bundle

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ASKED = RequestOptions(request_id="r-1", trace_parent=f"00-{TRACE}-{SPAN}-01", listener="http", key="team-a")
SIGNATURE = ModelSignature((TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("x", "FP32", (-1, 1)),))
INFO = ModelInfo(MODEL, "1", ("1",), "tensors", SIGNATURE, 4, 4, dict.fromkeys(Priority, 30.0), ())


class Followed:
    """A service whose requests are followed, with a transport that the test steers."""

    def __init__(
        self, *, tracing: bool = False, sample: float = 0.0, caching: bool = False, streams: bool = False
    ) -> None:
        self.lines: list[dict[str, Any]] = []
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test") if tracing else None
        self.transport = Transport()
        dispatcher, metrics = make_dispatcher(self.transport)
        log = RequestLog(
            LogSettings(sample=sample),
            lambda line: self.lines.append(orjson.loads(line)),
            asyncio.get_running_loop().call_later,
        )

        kept = ModelCacheSettings(300.0, 10**6, {"": "a"})
        caches = ResponseCache(CacheSettings(), dispatcher, metrics) if caching else None
        traces = RequestTraces(log, self.tracer)
        info = INFO._replace(streams=streams, stream_timeout_s=30.0)
        self.service = serve(info, dispatcher, metrics, cache=kept, caches=caches, traces=traces)

    def ask(self, options: RequestOptions = ASKED) -> asyncio.Task[Any]:
        """One row."""
        return asyncio.ensure_future(self.service.inference.submit(MODEL, tensor(1.0), options))


async def test_a_sampled_answer_has_a_line_and_its_replica_knows_where_it_came_from() -> None:
    """In the trace that the client named, as a span of the router's own."""
    followed = Followed(sample=1.0)
    task = followed.ask()
    sent = await followed.transport.next()
    origin = sent.bundle.entries[0].origin
    assert origin is not None
    sent.succeed()
    await task
    (line,) = followed.lines
    assert (line["outcome"], line["request_id"], line["trace_id"], line["key"]) == ("ok", "r-1", TRACE, "team-a")
    assert (line["class"], line["rows"], set(line) >= {"queue_ms", "infer_ms", "total_ms"}) == ("normal", 1, True)
    assert origin == Origin("r-1", f"00-{TRACE}-{line['span_id']}-01")
    assert line["span_id"] != SPAN


async def test_failures_and_those_who_leave_have_a_line_and_others_have_none() -> None:
    """With the outcome that the metrics count."""
    followed = Followed()
    answered = followed.ask()
    sent = await followed.transport.next()
    expires = followed.ask(replace(ASKED, timeout_s=0.001))
    leaves = followed.ask()
    with pytest.raises(DeadlineExceeded) as caught:
        await expires
    assert caught.value.logged
    leaves.cancel()
    await asyncio.wait([leaves])
    sent.succeed()
    await answered
    assert [line["outcome"] in {"deadline_exceeded", "given_up"} for line in followed.lines] == [True, False]
    assert followed.lines[1]["outcome"] == "cancelled"


@pytest.mark.parametrize("ends", ["ok", "cancelled", "inference_failed"])
async def test_an_answer_in_parts_is_told_with_their_number(ends: str) -> None:
    """However it ends, in the line and in the span."""
    followed = Followed(tracing=True, sample=1.0, streams=True)
    answer = followed.service.inference.stream(MODEL, tensor(1.0), ASKED)
    first = asyncio.ensure_future(anext(answer))
    sent = await followed.transport.next()
    sink = sent.bundle.parts
    assert sink is not None
    for number in range(3):
        sink.send(0, number, 0.0, tensor(number))
    assert (await first).value == tensor(0.0)
    failure = Failure("inference_failed", "no")
    if ends == "cancelled":
        await answer.aclose()
    else:
        result = Success(Streamed(3)) if ends == "ok" else failure
        sent.answer.set_result(BundleResult([result], [Execution(1, 0, 0.25)], 0.0, 0.0, 0.0))
        with contextlib.suppress(InferenceFailed):
            assert len([part async for part in answer]) == 2
    (line,) = followed.lines
    assert (line["outcome"], line["parts"], "first_ms" in line) == (ends, 3, ends == "ok")
    (span,) = followed.exporter.get_finished_spans()
    assert span.attributes is not None
    assert (span.attributes["serve_app.outcome"], span.attributes["serve_app.parts"]) == (ends, 3)
    assert span.status.is_ok == (ends != "inference_failed")


async def test_a_request_leaves_spans_in_its_client_s_trace() -> None:
    """The request, its queueing, and at the replica its run, preprocessing and execution."""
    followed = Followed(tracing=True)
    assert followed.tracer is not None

    async def run(bundle: Bundle) -> BundleResult:
        results = [Success(entry.payload) for entry in bundle.entries]
        return BundleResult(list(results), [Execution(1, 0, 0.25)], 0.125, 0.0, 0.0)

    task = followed.ask()
    sent = await followed.transport.next()
    sent.answer.set_result(await traced(run, MODEL, followed.tracer)(sent.bundle))
    await task
    spans = {span.name: span for span in followed.exporter.get_finished_spans()}
    assert set(spans) == {f"infer {MODEL}", "queue", f"run {MODEL}", "preprocess", "execute"}
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
    parents = {name: span.parent and span.parent.span_id for name, span in spans.items()}
    request, ran = spans[f"infer {MODEL}"].context.span_id, spans[f"run {MODEL}"].context.span_id
    assert parents == {
        f"infer {MODEL}": int(SPAN, 16),
        "queue": request,
        f"run {MODEL}": request,
        "preprocess": ran,
        "execute": ran,
    }
    attributes = spans[f"infer {MODEL}"].attributes
    assert attributes is not None
    assert (attributes["serve_app.outcome"], attributes["serve_app.request_id"]) == ("ok", "r-1")


async def test_a_request_without_a_trace_begins_one_and_failures_are_marked() -> None:
    """Where traces are recorded at all."""
    followed = Followed(tracing=True)
    assert followed.tracer is not None

    async def run(_: Bundle) -> BundleResult:
        return BundleResult([Failure("inference_failed", "no")], [], 0.0, 0.0, 0.0)

    task = followed.ask(RequestOptions())
    sent = await followed.transport.next()
    sent.answer.set_result(await traced(run, MODEL, followed.tracer)(sent.bundle))
    await asyncio.wait([task])
    spans = {span.name: span for span in followed.exporter.get_finished_spans()}
    assert spans[f"infer {MODEL}"].parent is None
    assert {span.context.trace_id for span in spans.values()} == {spans[f"infer {MODEL}"].context.trace_id}
    assert [spans[name].status.is_ok for name in (f"infer {MODEL}", f"run {MODEL}")] == [False, False]


def test_without_an_sdk_there_is_no_tracer() -> None:
    """So that nothing of it costs anything."""
    assert configured_tracer() is None


async def test_finishing_refuses_what_comes_and_waits_for_what_was_taken() -> None:
    """Nothing is ready any more from the start."""
    followed = Followed()
    service = followed.service
    task = followed.ask()
    sent = await followed.transport.next()
    assert service.administration.ready()
    service.models.ending = True
    assert (service.administration.ready(), service.inference.model_ready(MODEL), service.administration.live()) == (
        False,
        False,
        True,
    )
    assert await service.inference.finish(0.0) == 1
    refused = followed.ask()
    await asyncio.wait([refused])
    assert "shutting down" in str(refused.exception())
    finishing = asyncio.ensure_future(service.inference.finish(60.0))
    sent.succeed()
    await task
    assert await finishing == 0


@pytest.mark.parametrize("origin", [None, Origin("r-1"), Origin("r-1", f"00-{TRACE}-{SPAN}-01")])
def test_origins_travel_by_a_link(origin: Origin | None) -> None:
    """Beside the facts of each entry."""
    sent = Bundle([WireEntry(2, 1.0, 1, "", tensor(1.0), each) for each in (origin, None)])
    parts, _ = encode_bundle(1, sent, None)
    received = decode_bundle(Frame(memoryview(b"".join(parts))), None)
    assert [entry.origin for entry in received.entries] == [origin, None]


async def test_what_the_cache_answers_has_a_line_and_a_span_too() -> None:
    """A hit, and a request that shared another's execution: in the trace of whoever asked, and without work below."""
    followed = Followed(tracing=True, sample=1.0, caching=True)
    first, sharing = (
        followed.ask(replace(ASKED, request_id="first")),
        followed.ask(replace(ASKED, request_id="sharing")),
    )
    (await followed.transport.next()).succeed()
    await asyncio.gather(first, sharing)
    await followed.ask(replace(ASKED, request_id="hit"))

    told = {line["request_id"]: (line["outcome"], line.get("cache"), line["rows"]) for line in followed.lines}
    assert told == {"first": ("ok", None, 1), "sharing": ("ok", "shared", 0), "hit": ("ok", "hit", 0)}
    assert {line["trace_id"] for line in followed.lines} == {TRACE}
    spans = [
        (span.name, (span.attributes or {}).get("serve_app.cache")) for span in followed.exporter.get_finished_spans()
    ]
    assert sorted(spans, key=repr) == sorted(
        [("queue", None), (f"infer {MODEL}", None), (f"infer {MODEL}", "shared"), (f"infer {MODEL}", "hit")], key=repr
    )
