"""Reports a request's log line and trace spans.

Spans are recorded if an OpenTelemetry SDK is configured in the process (e.g. by Ray Serve's ``tracing_config``);
without one nothing here is called. Queueing is reported afterwards, as a span with its true times: the request path
keeps only the request's own span.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.domain.trace_context import child_of
from serve_app.errors import ServeAppError
from serve_app.http.errors import code_of
from serve_app.payloads import Bundle, BundleResult, Failure, Origin
from serve_app.telemetry.request_log import CANCELLED, OK, RequestLog

_NAME = "serve_app"
_W3C = TraceContextTextMapPropagator()


def configured_tracer() -> Tracer | None:
    """A tracer, if this process has a configured OpenTelemetry SDK."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return provider.get_tracer(_NAME)


def origin_of(options: RequestOptions) -> Origin | None:
    """The origin of a request for its replica, if known."""
    if options.request_id or options.trace_parent:
        return Origin(options.request_id, options.trace_parent)
    return None


class StepTimes(NamedTuple):
    """The result of a model step of a pipeline.

    Attributes:
        start_s: Start, seconds after the request.
        total_s: Duration including queueing, seconds.
        variants: Variants that answered it, except the exact model.
    """

    start_s: float
    total_s: float
    variants: tuple[str, ...] = ()


class RequestTraces:
    """Follows requests.

    Args:
        log: For their lines, if any.
        tracer: For their spans, if any.
    """

    def __init__(self, log: RequestLog | None, tracer: Tracer | None = None) -> None:
        self.log = log
        self.tracer = tracer

    def answered_from_cache(self, info: ModelInfo, options: RequestOptions, answer: Answer) -> None:
        """Report a request that never became an entry, answered from another one's execution."""
        RequestTrace(self, info, answer.priority, 0, options, ago_s=answer.total_s).answered(answer)


class RequestTrace:
    """One followed request, from the construction of this object.

    Args:
        options: As requested.
        ago_s: Seconds since it arrived.

    Attributes:
        origin: For its replica.
    """

    __slots__ = ("_began", "_info", "_options", "_priority", "_rows", "_span", "_traces", "origin")

    def __init__(
        self,
        traces: RequestTraces,
        info: ModelInfo,
        priority: Priority,
        rows: int,
        options: RequestOptions,
        *,
        ago_s: float = 0.0,
    ) -> None:
        self._traces = traces
        self._info = info
        self._priority = priority
        self._rows = rows
        self._began = time.monotonic()
        self._span: Span | None = None
        if traces.tracer is not None:
            began_ns = time.time_ns() - round(ago_s * 1e9)
            self._span = span = traces.tracer.start_span(
                f"infer {info.name}", _context(options), SpanKind.SERVER, start_time=began_ns
            )
            options = replace(options, trace_parent=_parent(span) or options.trace_parent)
        elif options.trace_parent:
            options = replace(options, trace_parent=child_of(options.trace_parent))
        self._options = options
        self.origin = origin_of(options)

    def answered(self, answer: Answer, steps: Mapping[str, StepTimes] | None = None) -> None:
        """Report an answer.

        Args:
            steps: For a pipeline, the results of its steps.
        """
        if self._span is not None:
            self._end_span(self._span, OK, answer)
        log = self._traces.log
        if log is not None and log.wants(answer.total_s):
            log.ended(
                OK,
                self._info.name,
                self._options,
                {
                    "version": self._info.version,
                    "class": answer.priority.label,
                    "variant": answer.variant,
                    "rows": self._rows,
                    "queue_ms": _ms(answer.queue_s),
                    "infer_ms": _ms(answer.infer_s),
                    "total_ms": _ms(answer.total_s),
                    **({"cache": answer.cache} if answer.cache else {}),
                    **({"steps": {name: _step(times) for name, times in steps.items()}} if steps else {}),
                },
            )

    def streamed(self, first: Answer | None, parts: int) -> None:
        """Report a streamed answer with its number of parts; the argument is the first."""
        if self._span is not None:
            self._span.set_attribute("serve_app.parts", parts)
            self._end_span(self._span, OK, None)
        log = self._traces.log
        if log is not None and log.wants(time.monotonic() - self._began):
            times = {} if first is None else {"queue_ms": _ms(first.queue_s), "first_ms": _ms(first.total_s)}
            log.ended(OK, self._info.name, self._options, {**self._facts(parts), **times})

    def failed(self, error: ServeAppError, parts: int | None = None) -> None:
        """Report a refusal or failure after this many parts. The error need not be logged again."""
        error.logged = True
        self._end(error.outcome or code_of(error), parts)

    def cancelled(self, parts: int | None = None) -> None:
        """Report that the client disconnected after this many parts."""
        self._end(CANCELLED, parts)

    def _end(self, outcome: str, parts: int | None) -> None:
        if self._span is not None:
            if parts is not None:
                self._span.set_attribute("serve_app.parts", parts)
            self._end_span(self._span, outcome, None)
        if self._traces.log is not None:
            self._traces.log.ended(outcome, self._info.name, self._options, self._facts(parts))

    def _facts(self, parts: int | None) -> dict[str, Any]:
        """Log fields of a request that has just ended."""
        return {
            "version": self._info.version,
            "class": self._priority.label,
            "variant": self._options.variant,
            "rows": self._rows,
            **({} if parts is None else {"parts": parts}),
            "total_ms": _ms(time.monotonic() - self._began),
        }

    def _end_span(self, span: Span, outcome: str, answer: Answer | None) -> None:
        span.set_attributes(
            {
                "serve_app.model": self._info.name,
                "serve_app.version": self._info.version,
                "serve_app.class": (self._priority if answer is None else answer.priority).label,
                "serve_app.variant": self._options.variant if answer is None else answer.variant,
                "serve_app.rows": self._rows,
                "serve_app.outcome": outcome,
                "serve_app.request_id": self._options.request_id,
            }
        )
        now_ns = time.time_ns()
        if answer is not None and answer.cache:
            span.set_attribute("serve_app.cache", answer.cache)
        elif answer is not None and self._traces.tracer is not None:
            began_ns = now_ns - round(answer.total_s * 1e9)
            queued = self._traces.tracer.start_span("queue", trace.set_span_in_context(span), start_time=began_ns)
            queued.end(began_ns + round(answer.queue_s * 1e9))
        elif outcome not in {OK, CANCELLED}:
            span.set_status(Status(StatusCode.ERROR, outcome))
        span.end(now_ns)


def traced(run: Callable[[Bundle], Awaitable[BundleResult]], model: str, tracer: Tracer) -> Callable[[Bundle], Any]:
    """Wrap a replica's `run` to record spans: one per entry with a trace, with its phases as children."""

    async def traced_run(bundle: Bundle) -> BundleResult:
        began_ns = time.time_ns()
        result = await run(bundle)
        ended_ns = time.time_ns()
        for entry, outcome in zip(bundle.entries, result.results, strict=True):
            if entry.origin is None or not entry.origin.trace_parent:
                continue
            parent = _W3C.extract({"traceparent": entry.origin.trace_parent})
            span = tracer.start_span(f"run {model}", parent, SpanKind.SERVER, start_time=began_ns)
            if span.is_recording():
                _record(tracer, span, result, began_ns)
                if isinstance(outcome, Failure):
                    span.set_status(Status(StatusCode.ERROR, outcome.code))
            span.end(ended_ns)
        return result

    return traced_run


def _record(tracer: Tracer, span: Span, result: BundleResult, began_ns: int) -> None:
    inside = trace.set_span_in_context(span)
    preprocessed_ns = began_ns + round(result.preprocess_s * 1e9)
    at_ns = preprocessed_ns + round(result.wait_s * 1e9)
    tracer.start_span("preprocess", inside, start_time=began_ns).end(preprocessed_ns)
    for execution in result.executions:
        attributes: dict[str, str | int] = {"serve_app.rows": execution.rows, "serve_app.variant": execution.variant}
        executed = tracer.start_span("execute", inside, start_time=at_ns, attributes=attributes)
        at_ns += round(execution.seconds * 1e9)
        executed.end(at_ns)


def _context(options: RequestOptions) -> Any:
    """The context of a request's span: without a parent it starts a trace, in any task."""
    carrier = {"traceparent": options.trace_parent, "tracestate": options.trace_state}
    return _W3C.extract({name: value for name, value in carrier.items() if value}, Context())


def _parent(span: Span) -> str:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")


def _step(times: StepTimes) -> dict[str, Any]:
    told = {"variant": ", ".join(times.variants)} if times.variants else {}
    return {"start_ms": _ms(times.start_s), "total_ms": _ms(times.total_s), **told}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
