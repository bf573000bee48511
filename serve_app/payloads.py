"""What travels: payloads from the protocol adapters to the processors, bundles from the router to the replicas.

Everything here is a plain tuple or a struct of msgspec, cheap to build and to pickle, and without behaviour. What is
made for every request is a struct: that calls no Python function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from serve_app import errors
from serve_app.errors import DeadlineExceeded

Tensors: TypeAlias = dict[str, npt.NDArray[Any]]
"""Tensors by name. Of a model that has rows, axis 0 is rows, and all tensors of one payload have as many."""


def joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    """One read-only view over arrays whose rows lie one behind the other in the memory of one owner, without a copy.

    Neighbours by accident do not count: all of them have to be views of the same array, which the result keeps alive.
    What does not fit together is told by the first pair in well under a microsecond; that it does costs about one
    microsecond per array, for which some 16 KiB can be copied instead.

    Returns:
        Of shape ``(rows of all, ...)``, or ``None`` where there is no such view: other dtypes or trailing shapes, gaps,
        another order, references in place of values, no bytes, or nothing that the arrays are views of.
    """
    if not arrays:
        return None
    first = arrays[0]
    owner, dtype, trailing = first.base, first.dtype, first.shape[1:]
    if not isinstance(owner, np.ndarray) or not owner.flags.c_contiguous or dtype.hasobject or not first.nbytes:
        return None
    for array in arrays:
        if array.base is not owner or array.dtype != dtype or not array.flags.c_contiguous:
            return None
        if not array.ndim or array.shape[1:] != trailing:
            return None
    start = end = _address(first)
    rows = 0
    for array in arrays:
        if _address(array) != end:
            return None
        end += array.nbytes
        rows += len(array)
    # Made on the owner: numpy checks that it ends inside the owner's memory, and keeps that alive.
    view: npt.NDArray[Any] = np.ndarray((rows, *trailing), dtype, owner, start - _address(owner))
    view.flags.writeable = False
    return view


def nbytes_of(tensors: Tensors) -> int:
    """Bytes that tensors hold, about."""
    nbytes = 0
    for array in tensors.values():
        nbytes += array_nbytes(array) if array.dtype.hasobject else array.nbytes
    return nbytes


def array_nbytes(array: npt.NDArray[Any]) -> int:
    """The same of one: of texts, the references and what these lead to."""
    return array.nbytes + text_bytes(array) if array.dtype.hasobject else array.nbytes


def text_bytes(texts: npt.NDArray[Any]) -> int:
    """Bytes of the texts in a tensor of them."""
    return sum(map(len, texts.ravel().tolist()))


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.ctypes.data
    return address


class TensorSpec(NamedTuple):
    """One input or output of a model.

    Attributes:
        name: As in the model file.
        datatype: As in the Open Inference Protocol: BOOL, INT8...UINT64, FP16, BF16, FP32, FP64, BYTES.
        shape: ``-1`` for a dimension that may vary. Of a model that has rows, dimension 0 is rows.
        axis: Where the rows are for clients and in the model's file; everywhere else they are in front.
        ranked: Whether the model's file declares how many dimensions there are. Otherwise ``shape`` says nothing.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    axis: int = 0
    ranked: bool = True

    @property
    def public_shape(self) -> tuple[int, ...]:
        """The shape as clients and the model's file have it."""
        if not self.axis:
            return self.shape
        rows, *inner = self.shape
        return (*inner[: self.axis], rows, *inner[self.axis :])


class GraphEnds(NamedTuple):
    """What a model's file does first and last.

    Attributes:
        applied: The function that makes an output, by its name: ``softmax``, ``sigmoid``, or ``classifier``, whose
            scores are none of logits. Outputs that something else makes are not in it.
        unused: Inputs that nothing reads.
    """

    applied: Mapping[str, str] = {}
    unused: tuple[str, ...] = ()


class ModelSignature(NamedTuple):
    """The tensors that a model takes and gives.

    Attributes:
        inputs: What every request must have.
        outputs: What every answer has.
        optional: Inputs that a request may leave out: the model's file holds a value for each.
        ends: What its file does first and last; known to processors only.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    optional: tuple[TensorSpec, ...] = ()
    ends: GraphEnds = GraphEnds()


EqualSizes: TypeAlias = tuple[tuple[tuple[str, int], ...], ...]
"""Sizes that are the same: groups of tensors and axes."""


class Joinable(NamedTuple):
    """Whether requests to one build of a model may share a run, and how that is known.

    Attributes:
        verdict: ``exact``: answers were the same bit for bit, alone and together. ``close``: they differed by less than
            the tolerance. ``dependent``: they depend on who else is in the run. ``unproven``: nobody knows. ``whole``:
            the tensors have no rows that could be joined. ``off``: the configuration forbids it. ``unverified``: the
            configuration allows it without proof. ``proven``: by the graph, and the experiment is still to come.
        reason: Why, in one line.
        deviation: The largest difference that was measured, relative to the largest value of its output.
        rows: Whether dimension 0 of all tensors is rows. Otherwise a request is run as it came, with its own shapes.
        padding: What padding to the size of others does to an answer. ``fixed``: nothing is padded, or all of it to one
            size. ``exact``, ``close``: it was tried, as ``verdict`` has it. ``changes``: it changes answers.
            ``sizes``: the model takes no others, so each is padded to its own. ``untried``: nobody knows.
        rounding: How far answers are from those of the model as its file has it, in the same measure: the rounding of
            the device and its kernels. Up to twice as much, sharing a run may add.
        disabled_optimizers: What its runtime does not do to the model, since that made answers wrong.
        equal_sizes: Which sizes a request must have in common to share a run: groups of inputs and axes.
    """

    verdict: str
    reason: str
    deviation: float = 0.0
    rows: bool = True
    padding: str = "fixed"
    equal_sizes: EqualSizes = ()
    rounding: float = 0.0
    disabled_optimizers: tuple[str, ...] = ()

    @property
    def joins(self) -> bool:
        """Whether requests share runs, and large ones are cut into pieces."""
        return self.verdict in JOINED

    @property
    def pads(self) -> bool:
        """Whether what a processor made may be filled up to the size of others. If not, it runs at its own."""
        return self.padding in JOINED


PADDING: Final = {
    "fixed": "",
    "exact": ", padded to the size of others",
    "close": ", padded to the size of others",
    "changes": ", each at its own length",
    "sizes": ", each padded to its own size",
    "untried": ", each at its own length",
}
"""What follows from `Joinable.padding`, in words."""


class Compute(NamedTuple):
    """What a replica computes with.

    Attributes:
        threads: That compute one run on the CPU.
        instances: Batches that it runs at once.
        reason: Why, in one line.
        max_rows: Of one batch at most; 0: as is configured.
        device: ``cpu``, or a GPU by its index on the node and its name.
        row_sizes: Numbers of rows that batches are filled up to; empty: any.
    """

    threads: int
    instances: int
    reason: str
    max_rows: int = 0
    device: str = ""
    row_sizes: Sequence[int] = ()

    @property
    def told(self) -> str:
        """In words, for logs."""
        threads, instances = "s" * (self.threads != 1), "s" * (self.instances != 1)
        rows = f"; {self.max_rows} rows in a batch at most" if self.max_rows else ""
        sizes = f"; batches are filled up to {', '.join(map(str, self.row_sizes))} rows" if self.row_sizes else ""
        return f"{self.threads} thread{threads}, {self.instances} instance{instances}: {self.reason}{rows}{sizes}"


TENSORS = "tensors"
"""The task of a model that takes and gives plain tensors: it has no processor."""

PROVEN = "proven"
UNVERIFIED = "unverified"
JOINED = frozenset({"exact", "close", UNVERIFIED})
"""Verdicts under which requests share runs."""


DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BYTES": np.dtype(np.object_),
}
"""Open Inference Protocol datatypes and the numpy dtypes that carry them."""

DATATYPES: dict[str, str] = {dtype.name: name for name, dtype in DTYPES.items() if dtype.hasobject is False}
"""The datatypes of numbers by their names in numpy and PyTorch: ``float32`` is FP32."""


class Media(NamedTuple):
    """One picture or one sound, as the user has it.

    Attributes:
        content: The encoded file.
        content_type: The media type without parameters, lower case; empty when the client named none.
        parameters: Task parameters of the request, e.g. ``{"top_k": 3}``.
    """

    content: bytes
    content_type: str
    parameters: dict[str, Any]


class Texts(NamedTuple):
    """One or more texts; each is a row.

    Attributes:
        texts: The texts, or lists of two of them, which the model compares; or lists of token ids where the client
            tokenized by itself.
        parameters: Task parameters of the request, e.g. ``{"candidate_labels": [...]}``.
    """

    texts: list[str] | list[str | list[str]] | list[list[int]]
    parameters: dict[str, Any]


Payload: TypeAlias = Tensors | Media | Texts


def payload_bytes(payload: Payload) -> int:
    """Bytes that a payload holds."""
    if isinstance(payload, dict):
        return nbytes_of(payload)
    return len(payload.content) if isinstance(payload, Media) else text_length(payload)


def held_bytes(value: Any) -> int:
    """Memory that an answer takes, bytes; of an array, what its elements take."""
    if isinstance(value, np.ndarray):
        elements = sum(map(sys.getsizeof, value.reshape(-1))) if value.dtype.hasobject else 0
        return 128 + value.nbytes + elements
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(held_bytes(key) + held_bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(held_bytes, value))
    return sys.getsizeof(value)


def text_length(payload: Texts) -> int:
    """Characters of all its texts, and token ids."""
    return sum(map(_text_length, payload.texts))


def _text_length(text: object) -> int:
    if isinstance(text, str):
        return len(text)
    # Two texts, or token ids
    return sum(len(part) if isinstance(part, str) else 1 for part in text) if isinstance(text, list) else 1


class Origin(Struct, frozen=True):
    """Where a request comes from, for the log and the trace of the process that runs it.

    Attributes:
        request_id: As its client knows it.
        trace_parent: W3C ``traceparent`` of the router's span; empty where there is no trace.
    """

    request_id: str = ""
    trace_parent: str = ""

    def __str__(self) -> str:
        return f"{self.request_id or 'without id'} (trace {self.trace_parent[3:35] or 'none'})"


class StreamLimits(NamedTuple):
    """How an answer in parts may be given.

    Attributes:
        seconds: For how long the whole may take from now on. The entry's own budget is for the first part.
        parts: Most parts that wait for their reader, with those under way.
        nbytes: Most bytes of them; a larger part waits alone.
        reader_s: For how long the session waits for a reader that has as many, seconds.
    """

    seconds: float
    parts: int
    nbytes: int
    reader_s: float


class Streamed(NamedTuple):
    """The end of an answer in parts.

    Attributes:
        parts: How many there were.
        collected: All of them, where they could not be sent one by one.
    """

    parts: int
    collected: Sequence[Tensors] = ()


class PartSink(Protocol):
    """Takes the parts of a bundle's answers as they come. All in one event loop."""

    def send(self, position: int, number: int, waited_s: float, outputs: Tensors) -> None:
        """Take a part of the answer to the entry at a position.

        Args:
            position: Of the entry.
            number: Of the part, from 0.
            waited_s: How long the entry has waited at the replica before it ran, seconds.
            outputs: The part.
        """

    def on_taken(self, position: int, taken: Callable[[int], None]) -> None:
        """Call ``taken`` with how many more parts of that entry have been read, whenever some have."""


class RequestAttributes(Struct, frozen=True):
    """What scheduling knows of a request besides its cost and its deadline. Passed on unchanged, up to the gate.

    Attributes:
        tenant: Shares the class with others: the API key's name, else the client's address; empty if unknown.
        weight: The tenant's part of its class's server time, relative to other tenants'; over 0.
        background: It runs on the replicas that there are, and asks for no more.
    """

    tenant: str = ""
    weight: float = 1.0
    background: bool = False


NO_ATTRIBUTES: Final = RequestAttributes()


class WireEntry(Struct, frozen=True):
    """One entry of a bundle.

    Attributes:
        priority: The class, as a number.
        budget_s: What is left until its execution must have ended, seconds: when the bundle is sent, and by a link,
            when it arrives.
        rows: Rows it adds to a batch, as estimated by the router.
        variant: Name of the variant to run, empty for the exact model.
        origin: Where it comes from; ``None`` where nothing is known of that.
        exact: Whether no fallback may stand in for the exact model.
        probe: Whether it runs although it is predicted to be late.
        unbatched: Whether it shares no run, since it may be what a replica died of.
        place: Its place in the router's table of ties, where other replicas have it, too; 0: none has.
        stream: How its answer may be given in parts; ``None``: its model does not stream.
    """

    priority: int
    budget_s: float
    rows: int
    variant: str
    payload: Payload
    origin: Origin | None = None
    attributes: RequestAttributes = NO_ATTRIBUTES
    exact: bool = False
    probe: bool = False
    unbatched: bool = False
    place: int = 0
    stream: StreamLimits | None = None


class Ties(Protocol):
    """Who runs an entry that several replicas have; see `serve_app.transport.ties`."""

    def taken(self, place: int) -> bool:
        """Whether another replica runs it."""

    def take(self, place: int) -> bool:
        """Run it here, unless another replica does. Returns whether it may."""


class Bundle(Struct, frozen=True):
    """Entries that a router sends to a replica in one call.

    Attributes:
        entries: The entries.
        sender: Names the router process.
        recalled: Positions of entries that the router does not wait for any more. A link adds to it while the bundle
            is at its replica; of what comes another way, nothing is recalled.
        ties: The router's table of ties, as its replica sees it. It does not travel; ``None``: it runs all of them.
        revision: The state of the model that is to run them; empty: whichever the replica serves.
        model: The member that is to run them, at a host of a pool; empty at the replica of a model.
        parts: Takes what comes of answers in parts. It does not travel; ``None``: they are collected for the result.
    """

    entries: list[WireEntry]
    sender: str = ""
    recalled: AbstractSet[int] = frozenset()
    ties: Ties | None = None
    revision: str = ""
    model: str = ""
    parts: PartSink | None = None


class Embeddings(NamedTuple):
    """The answer of an embedding model to texts.

    Attributes:
        vectors: Float32, (rows, dimensions): one row per text, in order.
        tokens: Tokens that the model read for all texts together, special tokens included, padding not.
    """

    vectors: npt.NDArray[np.float32]
    tokens: int


class Success(Struct, frozen=True):
    """The answer to one entry.

    Attributes:
        value: `Tensors` for a tensor payload; for media and texts, whatever the processor made of the outputs:
            JSON-able data, or `Embeddings`. Of an answer in parts, `Streamed`.
    """

    value: Any


class Failure(NamedTuple):
    """The error of one entry, as `serve_app.errors.error_from_code` takes it."""

    code: str
    message: str
    retry_after_s: float | None = None


EntryResult: TypeAlias = Success | Failure

RETURNED = Failure(errors.RETURNED, "not run here; it goes back to its router")
"""The outcome of an entry that waits on, at its router: the answers of others of its bundle do not wait for it. Also of
one that its router has recalled."""


STALE = Failure("stale_revision", "the replica does not have the state of the model that was asked for")
"""The outcome of every entry of a bundle whose `Bundle.revision` the replica does not have, or whose `Bundle.model` the
host has not loaded. They go back to the router, as if they had never been sent."""

EXPIRED = Failure(DeadlineExceeded.code, "the deadline passed before the model could run this request")
"""The outcome of an entry that was not run in time."""

NOT_IN_TIME = Failure(DeadlineExceeded.code, "the request could not finish before its deadline")
"""The outcome of an entry that is given up, since it would be late, or would make more others late."""


class Execution(NamedTuple):
    """One run of the backend. The only thing that feeds the latency model.

    Attributes:
        rows: Rows of the batch, of all routers.
        bucket: Largest cost bucket in it.
        seconds: Time in the backend.
        variant: Name of the variant that ran, empty for the exact model.
    """

    rows: int
    bucket: int
    seconds: float
    variant: str = ""


class BundleResult(Struct, frozen=True):
    """What a replica answers to a bundle.

    Attributes:
        results: One per entry, in the bundle's order.
        executions: The backend runs that carried it.
        preprocess_s: Time in preprocessing.
        wait_s: Time between preprocessing and the session being free for it.
        postprocess_s: Time from the end of the run to the answer.
        runs_s: Predicted time until what runs at the replica now has ended.
        backlog_s: Predicted time until all that is at the replica is done, other routers' work included.
        model_works: Whether the model still ran a known good input after an entry had failed; ``None``: nothing failed,
            or nobody knows such an input.
        joinable: What may share runs there, by variant, where that has changed since this router was told.
        counts: Whether this bundle is the one that counts the runs: several bundles may share them.
    """

    results: list[EntryResult]
    executions: list[Execution]
    preprocess_s: float
    wait_s: float
    postprocess_s: float
    runs_s: float = 0.0
    backlog_s: float = 0.0
    model_works: bool | None = None
    joinable: Mapping[str, Joinable] | None = None
    counts: bool = True
