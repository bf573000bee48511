"""What every API may ask of the server: `Inference` for requests, `Administration` for operators.

APIs translate; they hold no queue, no model and no state. `serve_app.router` implements both.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from msgspec import Struct

from serve_app.domain.facts import Fact
from serve_app.domain.pipeline import Pipeline
from serve_app.domain.priorities import DEFAULT_LEVELS, PriorityLevels
from serve_app.domain.priority import Priority
from serve_app.domain.versions import Asker
from serve_app.errors import ModelNotFound, ModelUnavailable, some_of
from serve_app.payloads import NO_ATTRIBUTES, PROVEN, TENSORS, Joinable, ModelSignature, Payload, RequestAttributes

_PROVEN = Joinable(PROVEN, "")


class ModelServing(NamedTuple):
    """How a model is served, for those who ask: nothing is decided by it.

    Attributes:
        policy: Name of the batch policy.
        row_sizes: Rows that batches are filled up to; empty where they have any number.
        device: ``auto``, ``cpu`` or ``cuda``.
        min_replicas: Replicas that there are at least.
        max_replicas: And at most.
        queue_entries: Requests that each class may have queued, over all models.
    """

    policy: str = "auto"
    row_sizes: tuple[int, ...] = ()
    device: str = "auto"
    min_replicas: int = 1
    max_replicas: int = 1
    queue_entries: Mapping[Priority, int] = {}


class ModelInfo(NamedTuple):
    """The description of a model before any replica of it runs.

    Attributes:
        name: As in the configuration.
        version: The served version, a decimal string.
        versions: All versions that a path may name.
        task: ``tensors`` or a Hugging Face task name (``image-classification``, ``audio-classification``,
            ``feature-extraction``).
        signature: The tensors of the exact variant.
        max_rows: Most rows of one batch.
        max_request_rows: Most rows of one request.
        default_timeout_s: Default deadline per class, seconds after arrival; longer for a slow model.
        labels: Class names, empty if the model has none.
        variants: Names of its lighter builds, which a request may ask for by ``parameters.variant``.
        serving: How it is served.
        layout: Order of the axes of the one input of a model of pictures, ``NCHW`` or ``NHWC``; empty for others.
        joinable: By variant, whether its requests may share runs, as far as known now.
        fixed_rows: Whether the model's file fixes the number of rows of a run.
        levels: Meaning of priority numbers; the same for all models.
        formats: As ``layout``, by input, if the configuration of a model of plain tensors has it.
        output_labels: Names for the values of a row by output, if they are not the model's ``labels``.
        label_files: The files that those are from.
        file: Name of the model's file.
        numbered: Whether it is one of several versions, each in a folder of its own.
        platform: Its runtime, in V2's metadata.
        backend: Its runtime, in Triton's model configuration.
        key: The internal name of one of several versions served at once; empty: its name. Calls to the service name the
            version by it.
        revision: The state of the model's files: a digest; empty if unknown.
        streams: Whether an answer comes in parts, of any number.
        stream_timeout_s: If so, the longest time of a whole answer; a request may name less.
        pipeline: Its plan, if it is a pipeline and no model.
        own_processor: Whether its own file, or a class of the operator's, converts requests to tensors.
        facts: About its folder and the options of its processor.
        fault: Why this router cannot serve the agreed state: one line for clients. Empty: it can.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    task: str
    signature: ModelSignature
    max_rows: int
    max_request_rows: int
    default_timeout_s: Mapping[Priority, float]
    labels: tuple[str, ...]
    variants: tuple[str, ...] = ()
    serving: ModelServing = ModelServing()
    layout: str = ""
    joinable: Mapping[str, Joinable] = {"": _PROVEN}
    fixed_rows: bool = False
    levels: PriorityLevels = DEFAULT_LEVELS
    formats: Mapping[str, str] = {}
    output_labels: Mapping[str, tuple[str, ...]] = {}
    label_files: Mapping[str, str] = {}
    file: str = ""
    numbered: bool = True
    platform: str = ""
    backend: str = ""
    key: str = ""
    revision: str = ""
    streams: bool = False
    stream_timeout_s: float = 0.0
    pipeline: Pipeline | None = None
    own_processor: bool = False
    facts: tuple[Fact, ...] = ()
    fault: str = ""

    def takes_as(self, other: ModelInfo) -> bool:
        """Whether payloads made for this state of a model run on that one, with the same meaning of answers."""
        return self._as_taken() == other._as_taken()

    def _as_taken(self) -> ModelInfo:
        """Without attributes that have no effect on requests and answers."""
        rows = {variant: _PROVEN._replace(rows=joinable.rows) for variant, joinable in self.joinable.items()}
        return self._replace(
            version="", versions=(), joinable=rows, file="", label_files={}, revision="", facts=(), fault=""
        )

    @property
    def rows(self) -> bool:
        """Whether dimension 0 of all tensors is rows. Otherwise a request has the shapes of the model's file."""
        return self.joinable[""].rows

    @property
    def least_rows(self) -> int:
        """The fewest rows of a request. Processors and runs of a fixed number of rows need one."""
        return 1 if self.fixed_rows or self.task != TENSORS else 0

    def labels_of(self, output: str) -> tuple[str, ...]:
        """Names for the values of a row of an output, or none. They count where there is one for each value."""
        return self.output_labels.get(output, self.labels)

    def output_at(self, path: Sequence[str]) -> str:
        """The output that a pipeline's path names; empty: none."""
        names = [spec.name for spec in self.signature.outputs]
        name = ".".join(path) or (names[0] if len(names) == 1 else "")
        return name if name in names else ""

    @property
    def segment(self) -> str:
        """Its name as one segment of a URL, percent-encoded."""
        return quote(self.name, safe="")


class RequestOptions(Struct, frozen=True):
    """Options of a request.

    Attributes:
        priority: ``None`` for the default.
        timeout_s: The tightest deadline in the request, seconds from now; ``None`` for the default: that of its class,
            or more for a slow model.
        nbytes: Bytes of the body, as held in memory.
        variant: Empty for the exact model.
        fallback: Whether one of the model's fallbacks may answer if the exact model would be too late.
        cacheable: Whether an answer may come from, and go to, the response cache.
        request_id: As in the answer's ``X-Request-Id``; empty if there is none.
        trace_parent: W3C ``traceparent`` of the request's span here; empty if there is none.
        key: Name of its API key; empty if none is needed.
        fresh: Whether the answer must be made for this request, and not reused.
        trace_state: W3C ``tracestate`` that came with ``trace_parent``.
        listener: Its port, e.g. ``http`` or ``direct-grpc``; empty for requests of other applications.
        spent_s: Time since its arrival, which counts against the default of its class. ``timeout_s`` is without it.
        revision: The state of the model that the payload was made for; empty: any.
        stream_timeout_s: For an answer in parts, the longest time of the whole, seconds from now, while ``timeout_s``
            is for the first part; ``None`` for the model's own, which is also the most.
    """

    priority: Priority | None = None
    timeout_s: float | None = None
    nbytes: int = 0
    variant: str = ""
    fallback: bool = True
    cacheable: bool = True
    request_id: str = ""
    trace_parent: str = ""
    key: str = ""
    fresh: bool = False
    trace_state: str = ""
    listener: str = ""
    attributes: RequestAttributes = NO_ATTRIBUTES
    spent_s: float = 0.0
    revision: str = ""
    stream_timeout_s: float | None = None


class Answer(Struct, frozen=True):
    """The answer to one request, with its times.

    Attributes:
        priority: The class it was served in.
        queue_s: Queueing time in the router and at the replica's gate.
        total_s: Time from submission to the answer.
        variant: The variant that answered; empty for the exact model. Of a pipeline ``step=variant`` of steps not
            answered by the exact model, with commas between them.
        timeout_s: Time allowed from submission to the deadline.
        preprocess_s: Preprocessing of its bundle; 0.0 if unknown.
        infer_s: The model's runs for that bundle; 0.0 if unknown.
        postprocess_s: From the end of those runs to the replica's answer; 0.0 if unknown.
        cache: ``hit`` or ``miss`` if the model has a response cache, ``shared`` if it is the answer of an equal request
            in flight; else empty.
        unverified: Whether it may have shared a run without proof that this changes no answer.
        version: The version that answered, if the model is served in several; else empty.
        revision: The state of the model that answered; empty if unknown.
        info: Description of that state, if it is another than `RequestOptions.revision`.
        headers: Further headers of the answer, lower-case, for every API.
    """

    value: Any
    priority: Priority
    queue_s: float
    total_s: float
    variant: str = ""
    timeout_s: float = 0.0
    preprocess_s: float = 0.0
    infer_s: float = 0.0
    postprocess_s: float = 0.0
    cache: str = ""
    unverified: bool = False
    version: str = ""
    revision: str = ""
    info: ModelInfo | None = None
    headers: Mapping[str, str] = {}


class Loaded(Struct, frozen=True):
    """The result of a load or an unload.

    Attributes:
        state: ``READY`` or ``UNAVAILABLE``, as in the repository index.
        version: The served version; empty if none is. Of several versions all, the newest last, with commas between
            them; likewise ``before`` and ``after``.
        before: The previous revision; empty if none was served.
        after: The present revision; empty if none is served.
        replicas: Number of changed replicas.
    """

    model: str
    state: str
    version: str
    before: str
    after: str
    replicas: int


class Inference(Protocol):
    """Models that answer requests. Keys, pipelines and caches wrap it.

    A model is named by its name, and one of several versions by its `ModelInfo.key`.
    """

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """Every model by name, in the configuration's order; of several versions the stable one."""

    @property
    def unloaded(self) -> Mapping[str, Sequence[ModelInfo]]:
        """Unloaded models by name, as they were last served; of several versions all."""

    def find(self, model: str, version: str | None = None) -> ModelInfo:
        """Look a model up by its name, and by the number or alias of a version; by default the stable one.

        Raises:
            ModelNotFound: There is none; the message lists the known ones.
        """

    def choose(self, model: str, asker: Asker) -> ModelInfo:
        """Choose the version for a request that names none. Raises as `find`."""

    def model_ready(self, model: str) -> bool:
        """Whether a model can take work. Raises `ModelNotFound`."""

    def precheck(
        self, model: str, priority: Priority | None, nbytes: int, tenant: str = "", weight: float = 1.0
    ) -> None:
        """Refuse early, before the payload is decoded: raises `QueueFull` or `ModelUnavailable`."""

    def refused(self, model: str, code: str) -> None:
        """Count a request that an API refused, unless its error is ``counted`` already.

        Args:
            model: As the request named it, known or not; empty if it named none.
            code: Of the error.
        """

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """Schedule, run and answer a request. Raises `serve_app.errors.ServeAppError`; cancelling it cancels the work.

        An answer in parts must be one part: otherwise `InvalidRequest`.
        """

    def stream(self, model: str, payload: Payload, options: RequestOptions) -> AsyncGenerator[Answer, None]:
        """Schedule, run and answer a request in parts, one if the model does not stream.

        Closing the generator cancels the work, as does cancelling its ``anext``. It must be closed in the end.

        Yields:
            Each part, whose ``total_s`` is the time from submission to this part.

        Raises:
            ServeAppError: Before the first part as `submit`; after it, that the rest cannot come, or not in time.
        """


class Administration(Protocol):
    """Operators' view and control of a server. Models are named as for `Inference`."""

    def live(self) -> bool:
        """Whether this process works at all."""

    def ready(self) -> bool:
        """Whether every model that should be running can take work (scaled-to-zero models count as ready)."""

    def status(self) -> Mapping[str, Any]:
        """A JSON-able snapshot of queues, replicas and latency, for people and dashboards."""

    def statistics(self, model: str) -> Mapping[str, Any]:
        """Cumulative counters of one model in this process. Raises `ModelNotFound`."""

    async def total_statistics(self, models: Iterable[str]) -> Sequence[Mapping[str, Any]]:
        """The `statistics` of several models, over all processes that serve them. Raises `ModelNotFound`."""

    async def metrics(self) -> tuple[bytes, str]:
        """The metrics page in Prometheus' text format and its content type."""

    async def load(self, model: str) -> Loaded:
        """Load a model's present files in all replicas, or change nothing.

        Versions of a model are loaded one after the other; those before one that fails are served anew.

        Raises:
            ModelNotFound: No such model.
            InvalidRequest: Its files cannot be served; the message says why.
            ModelUnavailable: Not all replicas have loaded it in time, or it is being loaded already.
            Unsupported: This server cannot.
        """

    async def unload(self, model: str) -> Loaded:
        """Stop serving a model, and free its memory, until it is loaded again. Raises as `load`."""


def unknown_model(model: str, models: Iterable[str]) -> ModelNotFound:
    """The error for an unknown model.

    Args:
        model: As requested.
        models: The known names.
    """
    # Programs written for Triton look for its words, with which the message begins.
    listed = some_of(models) or "none"  # gRPC's clients read 8 KiB of it
    return ModelNotFound(f"Request for unknown model: there is no {model[:64]!r} here; models: {listed}")


def unknown_version(info: ModelInfo, version: str, aliases: Sequence[str] = ()) -> ModelNotFound:
    """The error for a version that a model does not have; ``aliases`` are further names of versions."""
    more = f"; aliases: {', '.join(aliases)}" if aliases else ""
    return ModelNotFound(
        f"Request for unknown model: {info.name!r} has no version {version[:64]!r} here;"
        f" versions: {', '.join(info.versions)}{more}"
    )


def unloaded_model(model: str) -> ModelNotFound:
    """The error for a model that was unloaded."""
    path = f"/v2/repository/models/{quote(model, safe='')}/load"
    return ModelNotFound(f"Request for unknown model: {model[:64]!r} is unloaded; POST {path} loads it again")


def reloaded_model(model: str) -> ModelUnavailable:
    """The error for a request made for a state of the model that takes other tensors than the present one."""
    return ModelUnavailable(f"model {model} was loaded anew, and takes or gives other tensors now: ask again", 1.0)
