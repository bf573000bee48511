"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
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
from serve_app_client.jobs import Job, JobOptions, JobResult, not_ended, waiting
from serve_app_client.media import Media, Value
from serve_app_client.results import InferResult, ModelMetadata, ModelSummary, PipelineResult, PredictResult, StreamPart
from serve_app_client.retry import retry_arguments
from serve_app_client.streaming import PartReader

T = TypeVar("T")
R = TypeVar("R")


class Client:
    """A client of serve_app over HTTP. Threads may share one; close it, or use it as a context manager.

    It does not hedge: that requires cancelling the slower attempt, and a thread reading from a socket cannot be
    cancelled. `AsyncClient` hedges.

    Args:
        url: Address of the server, e.g. ``http://127.0.0.1:8000``; default: the environment variable SERVE_APP_URL, or
            this one.
        settings: See `serve_app_client.ClientSettings`.
    """

    def __init__(self, url: str | None = None, **settings: Unpack[ClientSettings]) -> None:
        self._connection = Connection(url, **settings)
        self._calls = self._connection.calls
        self._http = httpx.Client(**self._connection.http)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._connection.url

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    @staticmethod
    def deadline(seconds: float) -> AbstractContextManager[None]:
        """`serve_app_client.deadline`: all calls inside end within this many seconds in total."""
        return deadline(seconds)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        outputs: Sequence[str] | None = None,
        version: str | None = None,
        timings: bool = False,
        **options: Unpack[CallOptions],
    ) -> InferResult:
        """Send tensors to a model (Open Inference Protocol V2, binary both ways).

        Args:
            inputs: By name. Axis 0 is rows; strings and bytes are BYTES.
            outputs: Names of the wanted outputs; ``None`` for all.
            version: A number or an alias; ``None``: the server chooses.
            timings: Whether the answer includes durations.
            options: See `serve_app_client.CallOptions`.

        Raises:
            ServeAppClientError: See `serve_app_client.errors`. All other methods raise it, too.
            TypeError: An input has no form in the protocol, or an option is unknown.
        """
        return self._run(self._calls.infer(model, inputs, outputs, version, options, timings=timings))

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        stream_timeout: float | None = None,
        **options: Unpack[CallOptions],
    ) -> Generator[StreamPart, None, None]:
        """Stream an answer, as an iterator over its parts.

        The request is sent when the first part is requested. An iterator that is not exhausted must be closed
        (`contextlib.closing`), which ends the model's work. Attempts are repeated until the first part.

        Args:
            model: A model without streaming answers in one part.
            inputs: By name: a value, or a list or an array of values, from which the server derives the shape. Texts
                are BYTES.
            version: A number or an alias; ``None``: the server chooses.
            stream_timeout: Seconds for the whole answer, while ``timeout`` bounds its first part; ``None``: the
                server's limit, and the client's patience for each part.
            options: See `serve_app_client.CallOptions`.

        Raises:
            TypeError: An input has no form in JSON.
        """
        return self._parts(self._calls.stream(model, inputs, version, stream_timeout, options))

    def predict(
        self,
        model: str,
        media: Media,
        *,
        parameters: Mapping[str, Any] | None = None,
        sampling_rate: int | None = None,
        version: str | None = None,
        **options: Unpack[CallOptions],
    ) -> PredictResult:
        """Send a model an image, audio or text.

        Args:
            media: One or several texts; a file as path (`pathlib.Path`), bytes or open binary file; a PIL image; an
                array, which is audio with a sampling rate, and otherwise an image.
            parameters: Of the task, e.g. ``{"top_k": 3}`` or ``{"candidate_labels": [...]}``.
            sampling_rate: Of an array of samples, Hz.
            version: A number or an alias; ``None``: the server chooses.
            options: See `serve_app_client.CallOptions`.

        Raises:
            TypeError: ``media`` cannot be sent.
            ValueError: An array is neither an image nor audio.
            OSError: The file is unreadable.
        """
        return self._run(self._calls.predict(model, media, parameters, sampling_rate, options, version=version))

    def run_pipeline(
        self,
        pipeline: str,
        inputs: Mapping[str, Value],
        *,
        version: str | None = None,
        **options: Unpack[CallOptions],
    ) -> PipelineResult:
        """Run a pipeline, i.e. several models for one request.

        `infer`, which treats a pipeline as a model, sends large tensors faster and returns arrays.

        Args:
            inputs: By name: a file as path (`pathlib.Path`), bytes, open binary file or PIL image; a text; JSON data; a
                tensor as array or nested lists; a list for an input with several values.
            version: A number; ``None``: the only one.
            options: See `serve_app_client.CallOptions`.

        Raises:
            TypeError: Inputs have no names, or one is no file and has no JSON form.
            OSError: A file is unreadable.
        """
        return self._run(self._calls.run_pipeline(pipeline, inputs, options, version=version))

    def embed(
        self,
        texts: str | Sequence[str],
        model: str,
        *,
        dimensions: int | None = None,
        version: str | None = None,
        **options: Unpack[CallOptions],
    ) -> npt.NDArray[np.float32]:
        """Embed texts.

        Args:
            dimensions: Shorten the vectors, for models that support it.
            version: A number or an alias; ``None``: the server chooses.
            options: See `serve_app_client.CallOptions`.

        Returns:
            Of shape (texts, dimensions), also for one text.
        """
        return self._run(self._calls.embed(texts, model, dimensions, options, version=version))

    def models(self) -> list[ModelSummary]:
        """The served models."""
        return self._run(self._calls.models())

    def model(self, name: str, version: str | None = None) -> ModelMetadata:
        """A model's inputs and outputs."""
        return self._run(self._calls.model(name, version))

    def status(self) -> dict[str, Any]:
        """Every model's scheduling: queues, replicas, predicted latencies."""
        return self._run(self._calls.status())

    def statistics(self, model: str) -> dict[str, Any]:
        """A model's counts and durations, by the protocol's statistics extension."""
        return self._run(self._calls.statistics(model))

    def submit_job(
        self,
        items: Sequence[Mapping[str, Any]],
        model: str | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Store requests at the server to be answered later. They are stored when this returns.

        Args:
            items: As in ``/v1/jobs``: ``{"body": ...}``, or made by `predict_item` and `infer_item`.
            model: Of items without one.
            timeout: Seconds for this call, not for the job.
            options: See `serve_app_client.JobOptions`.
        """
        return self._run(self._calls.submit_job(items, model, options, timeout))

    def job(self, job: str) -> Job:
        """A job's present state."""
        return self._run(self._calls.job(job, 0.0, None))

    def wait_for_job(self, job: str, timeout: float = 3600.0) -> Job:
        """Wait for the end of a job. Raises `DeadlineExceeded` after this many seconds."""
        end = monotonic() + timeout
        while not (found := self._run(self._calls.job(job, *waiting(end)))).has_ended:
            if monotonic() >= end:
                raise not_ended(found, timeout)
        return found

    def jobs(self, *, after: str = "", limit: int = 20) -> list[Job]:
        """The newest jobs of this client's API key, or those before the id ``after``."""
        return self._run(self._calls.jobs(after, limit))

    def cancel_job(self, job: str) -> Job:
        """End a job, unless it has ended."""
        return self._run(self._calls.cancel_job(job))

    def job_results(self, job: str, *, states: Sequence[str] = (), after: int = -1) -> Iterator[JobResult]:
        """The results of a job's items, in order, page by page.

        Args:
            states: Item states to include; empty for all.
            after: Only items after this index.
        """
        page: int | None = after
        while page is not None:
            results, page = self._run(self._calls.job_results(job, page, states))
            yield from results

    def live(self, *, timeout: float = PROBE_TIMEOUT_S) -> bool:
        """Whether the server answers; one request without retries."""
        return not self._probe(self._calls.live(timeout))

    def ready(self, model: str | None = None, *, timeout: float = PROBE_TIMEOUT_S) -> bool:
        """Whether all models, or this one, are ready; one request without retries."""
        return not self._probe(self._calls.ready(model, timeout))

    def wait_until_ready(self, timeout: float = 60.0, model: str | None = None) -> None:
        """Wait until all models, or this one, are ready.

        Raises:
            DeadlineExceeded: They are not ready after this many seconds; the message says why.
        """
        with deadline(timeout):
            tenacity.Retrying(**wait_arguments(timeout))(lambda: self._probe(self._calls.ready(model, PROBE_TIMEOUT_S)))

    def _probe(self, call: Call[str]) -> str:
        try:
            return self._attempt(call)
        except (ConnectionFailed, DeadlineExceeded) as error:
            return error.message

    def _parts(self, call: Call[None]) -> Generator[StreamPart, None, None]:
        response = self._repeated(call, self._open)
        with closing(response), attempt(call):
            reader = PartReader(call, answer_of(response, b""), self._calls.patience)
            read_for(response, reader.left())
            for piece in response.iter_raw():
                yield from reader.feed(piece)
                reader.left()
            reader.finish()

    def _open(self, call: Call[None]) -> httpx.Response:
        with attempt(call):
            response = self._http.send(request_of(call, self._http, self._connection.connect_timeout), stream=True)
            if response.status_code != 200:
                with closing(response):
                    call.read(answer_of(response, response.read()))
            return response

    def _run(self, call: Call[T]) -> T:
        return self._repeated(call, self._attempt)

    def _repeated(self, call: Call[T], once: Callable[[Call[T]], R]) -> R:
        connection = self._connection
        connection.budget.deposit(monotonic())
        if connection.retry.attempts == 1:
            return once(call)
        arguments = retry_arguments(connection.retry, connection.budget, call.deadline)
        result: R = tenacity.Retrying(**arguments)(once, call)
        return result

    def _attempt(self, call: Call[T]) -> T:
        with attempt(call):
            request = request_of(call, self._http, self._connection.connect_timeout)
            end = call.deadline.at + GRACE_S
            with closing(self._http.send(request, stream=True)) as response:
                pieces = []
                for piece in response.iter_bytes():
                    pieces.append(piece)
                    if monotonic() >= end:
                        raise TimeoutError
            return call.read(answer_of(response, b"".join(pieces)))
