"""Deadlines of requests that name none, of models that are slower than their classes, and what is said of them."""

from __future__ import annotations

import asyncio
import logging

import pytest
from runtime_harness import MODEL, Sent, Transport, classes, make_dispatcher, serve, tensor

from serve_app.cache.response_cache import ResponseCache
from serve_app.cache.settings import CacheSettings
from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo, RequestOptions
from serve_app.errors import DeadlineExceeded, ServeAppError
from serve_app.payloads import BundleResult, Failure, ModelSignature
from serve_app.router.answer_cache import ModelCacheSettings

HIGH, NORMAL, LOW = Priority
TIMEOUTS_S = {HIGH: 1.0, NORMAL: 5.0, LOW: 30.0}
ALONE_S = 6.1
ADVICE = "name a longer deadline (X-Timeout-Ms, parameters.timeout)"


class Line:
    """A service of a model that takes 6.1 s for each row, with a response cache where wanted."""

    def __init__(self, *, cached: bool = False, measured: bool = True) -> None:
        self.transport = Transport()
        self.dispatcher, metrics = make_dispatcher(self.transport, max_rows=1)
        if measured:
            self.dispatcher.learn(MODEL, [(1, 0, ALONE_S, "")])
        info = ModelInfo(MODEL, "1", ("1",), "tensors", ModelSignature((), ()), 1, 8, TIMEOUTS_S, ())
        caches = ResponseCache(CacheSettings(10), self.dispatcher, metrics) if cached else None
        kept = ModelCacheSettings(300.0, 10**6, {"": "a"})
        self.service = serve(info, self.dispatcher, metrics, cache=kept, caches=caches)

    async def sent(self, options: RequestOptions) -> tuple[Sent, asyncio.Task[object]]:
        """Ask for one row: the bundle that it becomes, and the request."""
        asking: asyncio.Task[object] = asyncio.ensure_future(self.service.inference.submit(MODEL, tensor(1), options))
        return await self.transport.next(), asking

    async def refusal(self, options: RequestOptions) -> ServeAppError:
        """Ask for one row, which is refused at once: the error."""
        with pytest.raises(ServeAppError) as caught:
            await self.service.inference.submit(MODEL, tensor(1), options)
        return caught.value


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        (RequestOptions(), 4 * ALONE_S),
        (RequestOptions(HIGH), 4 * ALONE_S),
        (RequestOptions(LOW), 30.0),
        (RequestOptions(spent_s=10.0), 4 * ALONE_S - 10.0),
        (RequestOptions(timeout_s=7.0, spent_s=10.0), 7.0),
    ],
)
async def test_a_request_without_a_deadline_gets_a_multiple_of_what_it_takes(
    cached: bool, options: RequestOptions, seconds: float
) -> None:
    """Unless its class allows more; the time that reading it took is charged. A deadline that is named stays."""
    line = Line(cached=cached)
    sent, asking = await line.sent(options)
    assert sent.bundle.entries[0].budget_s == pytest.approx(seconds, abs=0.5)
    sent.succeed()
    await asking


@pytest.mark.parametrize("cached", [False, True])
async def test_without_a_prediction_the_class_counts(cached: bool) -> None:
    """Nobody can know better."""
    line = Line(cached=cached, measured=False)
    sent, asking = await line.sent(RequestOptions(spent_s=2.0))
    assert sent.bundle.entries[0].budget_s == pytest.approx(3.0, abs=0.5)
    sent.succeed()
    await asking


@pytest.mark.parametrize("cached", [False, True])
async def test_reading_can_take_all_of_the_default(cached: bool) -> None:
    """The message says which class, and what to set."""
    error = await Line(cached=cached, measured=False).refusal(RequestOptions(HIGH, spent_s=1.5))
    assert (error.code, error.message) == (
        "deadline_exceeded",
        (
            "the deadline passed while the request was read; it names none, and class high gives it 1 s:"
            f" {ADVICE} or raise classes.high.timeout_ms"
        ),
    )


async def test_a_deadline_that_is_named_too_short_says_what_the_model_takes() -> None:
    """At once, but for the first, which is let through to measure again and says so at the replica."""
    line = Line()
    sent, asking = await line.sent(RequestOptions(timeout_s=5.0))
    refused = await line.refusal(RequestOptions(timeout_s=5.0))
    failure = Failure("deadline_exceeded", "the request could not finish before its deadline")
    sent.answer.set_result(BundleResult([failure], [], 0.0, 0.0, 0.0))
    with pytest.raises(DeadlineExceeded) as late:
        await asking
    advice = f"the model takes about 6.1 s alone; this request allows 5 s: {ADVICE}"
    assert (type(refused), refused.message, refused.retry_after_s) == (DeadlineExceeded, advice, None)
    assert late.value.message == f"the request could not finish before its deadline: {advice}"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings in the log."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_model_that_is_slower_than_its_classes_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """As soon as its warm-up is known, with the keys to change."""
    limits = {priority: classes(timeout_s=seconds)[priority] for priority, seconds in TIMEOUTS_S.items()}
    dispatcher, _ = make_dispatcher(Transport(), limits=limits)
    dispatcher.on_replicas(MODEL, ["a"])
    assert told(caplog) == []
    dispatcher.learn(MODEL, [(1, 0, ALONE_S, ""), (4, 0, 20.0, "")])
    for replicas in (["a"], ["a", "b"]):
        dispatcher.on_replicas(MODEL, replicas)
    assert told(caplog) == [
        (
            "model model takes about 6.1 s for one row alone, longer than classes allow by default (high 1 s,"
            " normal 5 s): requests that name no deadline get 4 times what they are predicted to take instead; raise"
            " classes.high.timeout_ms, classes.normal.timeout_ms to say how long they may take"
        )
    ]


async def test_a_model_that_is_quick_enough_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """However long a full batch takes."""
    dispatcher, _ = make_dispatcher(Transport(), limits=classes(timeout_s=5.0))
    dispatcher.learn(MODEL, [(1, 0, 4.9, ""), (4, 0, 20.0, "")])
    dispatcher.on_replicas(MODEL, ["a"])
    assert told(caplog) == []
