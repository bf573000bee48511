"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar, Unpack

import httpx
import numpy as np
import numpy.typing as npt
import tenacity

from serve_app_client.calls import Call, CallOptions
from serve_app_client.connection import (
    GRACE_S,
    PROBE_TIMEOUT_S,
    ClientSettings,
    Connection,
    answer_of,
    attempt,
    read_for,
    request_of,
    wait_arguments,
)
from serve_app_client.deadline import deadline
from serve_app_client.errors import ConnectionFailed, DeadlineExceeded
from serve_app_client.hedging import Latencies, Percentile, checked_hedge
from serve_app_client.jobs import Job, JobOptions, JobResult, not_ended, waiting
from serve_app_client.media import Media, Value, are_in_memory, is_in_memory
from serve_app_client.results import (
    InferResult,
    ModelMetadata,
    ModelSummary,
    PipelineResult,
    PredictResult,
    StreamPart,
)
from serve_app_client.retry import RETRYABLE, retry_arguments
from serve_app_client.streaming import PartReader

T = TypeVar("T")
R = TypeVar("R")


class AsyncClient:
    """A client of serve_app over HTTP, for one event loop. Close it, or use it as an asynchronous context manager.

    Methods are those of `serve_app_client.Client`. Cancelling a call closes its connection, which cancels the request
    at the server.

    Args:
        url: Address of the server, e.g. ``http://127.0.0.1:8000``; default: the environment variable SERVE_APP_URL, or
            this one.
        hedge_after: Seconds without an answer after which an inference call is sent a second time; the first answer
            counts, and the other attempt is cancelled. A `Percentile` waits as long as that share of the latest calls
            of the same kind took. Default: never. Hedges count against the retry budget.
        settings: See `serve_app_client.ClientSettings`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        hedge_after: float | Percentile | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self._connection = Connection(url, **settings)
        self._calls = self._connection.calls
        self._hedge_after = checked_hedge(hedge_after)
        self._latencies = Latencies()
        self._http = httpx.AsyncClient(**self._connection.http)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._connection.url

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    @staticmethod
    def deadline(seconds: float) -> AbstractContextManager[None]:
        """`serve_app_client.deadline`: all calls inside end within this many seconds in total."""
        return deadline(seconds)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        outputs: Sequence[str] | None = None,
        version: str | None = None,
        timings: bool = False,
        **options: Unpack[CallOptions],
    ) -> InferResult:
        """Send tensors to a model. See `serve_app_client.Client.infer`."""
        call = self._calls.infer(model, inputs, outputs, version, options, timings=timings)
        return await self._run(call, self._hedging)

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        stream_timeout: float | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[StreamPart, None]:
        """Stream an answer. See `serve_app_client.Client.stream`; `contextlib.aclosing` closes it.

        It is never hedged.
        """
        return self._parts(self._calls.stream(model, inputs, version, stream_timeout, options))

    async def predict(
        self,
        model: str,
        media: Media,
        *,
        parameters: Mapping[str, Any] | None = None,
        sampling_rate: int | None = None,
        version: str | None = None,
        **options: Unpack[CallOptions],
    ) -> PredictResult:
        """Send a model an image, audio or text. See `serve_app_client.Client.predict`."""
        arguments = (model, media, parameters, sampling_rate, options)
        if is_in_memory(media):
            call = self._calls.predict(*arguments, version=version)
        else:  # reads or encodes a file: not in the event loop
            call = await asyncio.to_thread(self._calls.predict, *arguments, version=version)
        return await self._run(call, self._hedging)

    async def run_pipeline(
        self,
        pipeline: str,
        inputs: Mapping[str, Value],
        *,
        version: str | None = None,
        **options: Unpack[CallOptions],
    ) -> PipelineResult:
        """Run a pipeline. See `serve_app_client.Client.run_pipeline`."""
        if are_in_memory(inputs):
            call = self._calls.run_pipeline(pipeline, inputs, options, version=version)
        else:
            call = await asyncio.to_thread(self._calls.run_pipeline, pipeline, inputs, options, version=version)
        return await self._run(call, self._hedging)

    async def embed(
        self,
        texts: str | Sequence[str],
        model: str,
        *,
        dimensions: int | None = None,
        version: str | None = None,
        **options: Unpack[CallOptions],
    ) -> npt.NDArray[np.float32]:
        """Embed texts. See `serve_app_client.Client.embed`."""
        return await self._run(self._calls.embed(texts, model, dimensions, options, version=version), self._hedging)

    async def models(self) -> list[ModelSummary]:
        """The served models."""
        return await self._run(self._calls.models(), self._send)

    async def model(self, name: str, version: str | None = None) -> ModelMetadata:
        """A model's inputs and outputs."""
        return await self._run(self._calls.model(name, version), self._send)

    async def status(self) -> dict[str, Any]:
        """Every model's scheduling: queues, replicas, predicted latencies."""
        return await self._run(self._calls.status(), self._send)

    async def statistics(self, model: str) -> dict[str, Any]:
        """A model's counts and durations, by the protocol's statistics extension."""
        return await self._run(self._calls.statistics(model), self._send)

    async def submit_job(
        self,
        items: Sequence[Mapping[str, Any]],
        model: str | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - that of the client
        **options: Unpack[JobOptions],
    ) -> Job:
        """Store requests at the server to be answered later. See `serve_app_client.Client.submit_job`."""
        return await self._run(self._calls.submit_job(items, model, options, timeout), self._send)

    async def job(self, job: str) -> Job:
        """A job's present state."""
        return await self._run(self._calls.job(job, 0.0, None), self._send)

    async def wait_for_job(self, job: str, timeout: float = 3600.0) -> Job:  # noqa: ASYNC109
        """Wait for the end of a job. See `serve_app_client.Client.wait_for_job`."""
        end = monotonic() + timeout
        while not (found := await self._run(self._calls.job(job, *waiting(end)), self._send)).has_ended:
            if monotonic() >= end:
                raise not_ended(found, timeout)
        return found

    async def jobs(self, *, after: str = "", limit: int = 20) -> list[Job]:
        """The newest jobs. See `serve_app_client.Client.jobs`."""
        return await self._run(self._calls.jobs(after, limit), self._send)

    async def cancel_job(self, job: str) -> Job:
        """End a job, unless it has ended."""
        return await self._run(self._calls.cancel_job(job), self._send)

    async def job_results(self, job: str, *, states: Sequence[str] = (), after: int = -1) -> AsyncIterator[JobResult]:
        """The results of a job's items. See `serve_app_client.Client.job_results`."""
        page: int | None = after
        while page is not None:
            results, page = await self._run(self._calls.job_results(job, page, states), self._send)
            for result in results:
                yield result

    async def live(self, *, timeout: float = PROBE_TIMEOUT_S) -> bool:  # noqa: ASYNC109 - of the server's answer
        """Whether the server answers; one request without retries."""
        return not await self._probe(self._calls.live(timeout))

    async def ready(self, model: str | None = None, *, timeout: float = PROBE_TIMEOUT_S) -> bool:  # noqa: ASYNC109
        """Whether all models, or this one, are ready; one request without retries."""
        return not await self._probe(self._calls.ready(model, timeout))

    async def wait_until_ready(self, timeout: float = 60.0, model: str | None = None) -> None:  # noqa: ASYNC109
        """Wait until all models, or this one, are ready. See `serve_app_client.Client.wait_until_ready`."""

        async def ask() -> str:
            return await self._probe(self._calls.ready(model, PROBE_TIMEOUT_S))

        with deadline(timeout):
            await _repeated(tenacity.AsyncRetrying(sleep=asyncio.sleep, **wait_arguments(timeout)), ask)

    async def _probe(self, call: Call[str]) -> str:
        try:
            return await self._send(call)
        except (ConnectionFailed, DeadlineExceeded) as error:
            return error.message

    async def _parts(self, call: Call[None]) -> AsyncGenerator[StreamPart, None]:
        response = await self._run(call, self._open)
        async with aclosing(response):
            with attempt(call):
                reader = PartReader(call, answer_of(response, b""), self._calls.patience)
                read_for(response, reader.left())
                pieces = aiter(response.aiter_raw())
                while True:
                    async with asyncio.timeout(reader.left()):
                        piece = await anext(pieces, None)
                    if piece is None:
                        break
                    for part in reader.feed(piece):
                        yield part
                reader.finish()

    async def _open(self, call: Call[None]) -> httpx.Response:
        with attempt(call):
            request = request_of(call, self._http, self._connection.connect_timeout)
            async with asyncio.timeout(call.deadline.at + GRACE_S - monotonic()):
                response = await self._http.send(request, stream=True)
                if response.status_code != 200:
                    async with aclosing(response):
                        call.read(answer_of(response, await response.aread()))
            return response

    async def _run(self, call: Call[T], attempted: Callable[[Call[T]], Awaitable[R]]) -> R:
        connection = self._connection
        connection.budget.deposit(monotonic())
        if connection.retry.attempts == 1:
            return await attempted(call)
        arguments = retry_arguments(connection.retry, connection.budget, call.deadline)

        async def once() -> R:
            return await attempted(call)

        return await _repeated(tenacity.AsyncRetrying(sleep=asyncio.sleep, **arguments), once)

    async def _hedging(self, call: Call[T]) -> T:
        """Make one attempt, or a second if the first takes long."""
        after = self._latencies.hedge_after(call.path, self._hedge_after)
        started = monotonic()
        result = await (self._send(call) if after is None else self._hedged(call, after))
        if isinstance(self._hedge_after, Percentile):
            self._latencies.add(call.path, monotonic() - started)
        return result

    async def _hedged(self, call: Call[T], after: float) -> T:
        tasks = {asyncio.create_task(self._send(call))}
        try:
            done, _ = await asyncio.wait(tasks, timeout=after)
            if not done and self._connection.budget.withdraw(monotonic()):
                tasks.add(asyncio.create_task(self._send(call)))
            return await _first_answer(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, call: Call[T]) -> T:
        with attempt(call):
            request = request_of(call, self._http, self._connection.connect_timeout)
            async with asyncio.timeout(call.deadline.at + GRACE_S - monotonic()):
                response = await self._http.send(request)
            return call.read(answer_of(response, response.content))


async def _repeated(retrying: tenacity.AsyncRetrying, function: Callable[[], Awaitable[T]]) -> T:
    result: T = await retrying(function)
    return result


async def _first_answer(tasks: set[asyncio.Task[T]]) -> T:
    """The first conclusive result; if both fail, the more informative failure."""
    pending = tasks
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        answered = [task for task in done if not isinstance(task.exception(), RETRYABLE)]
        if answered or not pending:
            return min(answered or done, key=lambda task: task.exception() is not None).result()
