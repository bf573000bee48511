"""A service that computes with numpy what it is asked, so that protocol adapters can be tested without a cluster."""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from serve_app.domain.priority import Priority
from serve_app.domain.service import Administration, Answer, Inference, Loaded, ModelInfo, RequestOptions
from serve_app.domain.versions import Asker
from serve_app.errors import InvalidRequest, ModelNotFound, ServeAppError
from serve_app.payloads import Embeddings, Media, ModelSignature, Payload, TensorSpec, Texts

TIMEOUTS = {Priority.HIGH: 1.0, Priority.NORMAL: 5.0, Priority.LOW: 30.0}
EVERY_DATATYPE = (
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64", "BYTES",
)  # fmt: skip


def model(
    name: str,
    task: str = "tensors",
    inputs: tuple[TensorSpec, ...] = (),
    outputs: tuple[TensorSpec, ...] = (),
    *,
    max_request_rows: int = 16,
    variants: tuple[str, ...] = (),
    labels: tuple[str, ...] = (),
) -> ModelInfo:
    """A model of version 1."""
    signature = ModelSignature(inputs, outputs)
    return ModelInfo(name, "1", ("1",), task, signature, 8, max_request_rows, TIMEOUTS, labels, variants)


DOUBLE = model(
    "double",
    inputs=(TensorSpec("x", "FP32", (-1, 4)),),
    outputs=(TensorSpec("y", "FP32", (-1, 4)),),
    variants=("int8",),
)
MIRROR = model(
    "mirror",
    inputs=tuple(TensorSpec(f"in_{datatype}", datatype, (-1, -1, 2)) for datatype in EVERY_DATATYPE),
    outputs=tuple(TensorSpec(f"out_{datatype}", datatype, (-1, -1, 2)) for datatype in EVERY_DATATYPE),
)
SCORES = model(
    "scores",
    inputs=(TensorSpec("x", "FP32", (-1, 3)),),
    outputs=(TensorSpec("y", "FP32", (-1, 3)),),
    labels=("cat", "dog", ""),
)
BRAIN = model("brain", inputs=(TensorSpec("x", "BF16", (-1, -1)),), outputs=(TensorSpec("y", "BF16", (-1, -1)),))
TEXT = model("text", inputs=(TensorSpec("x", "BYTES", (-1, 1)),), outputs=(TensorSpec("y", "BYTES", (-1, 1)),))
WIDE = model("wide", inputs=(TensorSpec("x", "FP32", (-1, -1)),), outputs=(TensorSpec("y", "FP32", (-1, -1)),))
MODELS = {
    info.name: info
    for info in (
        DOUBLE,
        MIRROR,
        WIDE,
        model("pictures", "image-classification", variants=("int8",)),
        model("sounds", "audio-classification"),
        model("sentences", "feature-extraction"),
        model("moods", "text-classification"),
    )
}


def both(service: NumpyService) -> tuple[Inference, Administration]:
    """The service as both things that an API needs of a server."""
    return service, service


class NumpyService:
    """Implements `Inference` and `Administration` of `serve_app.domain.service` in this process.

    Tensor models double their input (``double``, ``wide``) or return it (``mirror``). Media are answered with the
    size and SHA-256 of what arrived, embeddings count characters.

    Attributes:
        calls: Arguments of every `submit`.
        prechecks: Arguments of every `precheck`, without the tenant.
        tenants: The tenant and its weight of every `precheck`.
        refusals: Arguments of every `refused`.
        refuse: Raised by `precheck`, where set.
        fail: Raised by `submit`, where set.
        fallback: What answers requests for the exact model that allow a fallback; empty: the exact model.
        took: What every answer took, besides its class and variant.
        gate: `submit` waits until it is set.
        parts: Of how many parts an answer of `stream` is. `submit` refuses where it is not one.
        fail_after: After how many parts of a stream ``fail`` is raised; ``None``: before the first.
        taken: How many parts streams have given.
        step: A stream waits before each part after the first until it is set.
        cancelled: Set when a waiting `submit` was cancelled, or a stream was closed before its end.
        is_ready: What the health calls answer.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Payload, RequestOptions]] = []
        self.prechecks: list[tuple[str, Priority | None, int]] = []
        self.tenants: list[tuple[str, float]] = []
        self.refusals: list[tuple[str, str]] = []
        self.refuse: Exception | None = None
        self.fail: BaseException | None = None
        self.fallback = ""
        self.parts = 1
        self.fail_after: int | None = None
        self.taken = 0
        self.step = asyncio.Event()
        self.step.set()
        self.took = Answer(None, Priority.NORMAL, 0.0, 0.0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.is_ready = True

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """All of `MODELS`."""
        return MODELS

    def find(self, model: str, version: str | None = None) -> ModelInfo:
        """Look a model up."""
        if model not in MODELS:
            raise ModelNotFound(f"there is no model {model!r} here")
        if version not in {None, "1"}:
            raise ModelNotFound(f"model {model!r} has no version {version!r}")
        return MODELS[model]

    def choose(self, model: str, asker: Asker) -> ModelInfo:
        """There is one version."""
        return self.find(model)

    def precheck(
        self, model: str, priority: Priority | None, nbytes: int, tenant: str = "", weight: float = 1.0
    ) -> None:
        """Note the call, and refuse if told so."""
        self.prechecks.append((model, priority, nbytes))
        self.tenants.append((tenant, weight))
        if self.refuse is not None:
            raise _counted(self.refuse)

    def refused(self, model: str, code: str) -> None:
        """Note the call."""
        self.refusals.append((model, code))

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """Compute."""
        answer = await self._answer(model, payload, options)
        if self.parts != 1:
            raise InvalidRequest(f"model {model!r} answered in {self.parts} parts: ask for a stream")
        return answer

    async def _answer(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        self.calls.append((model, payload, options))
        self.waiting.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.fail is not None and self.fail_after is None:
            raise _counted(self.fail)
        variant = options.variant or (self.fallback if options.fallback else "")
        value, priority = _compute(model, payload), options.priority or Priority.NORMAL
        return replace(self.took, value=value, priority=priority, variant=variant)

    async def stream(self, model: str, payload: Payload, options: RequestOptions) -> AsyncGenerator[Answer, None]:
        """Compute, and give it as often as `parts` says. Notes when it is closed early."""
        answer = await self._answer(model, payload, options)
        try:
            for number in range(self.parts):
                if number:
                    await self.step.wait()
                if self.fail is not None and number == self.fail_after:
                    raise _counted(self.fail)
                self.taken += 1
                yield answer
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled.set()
            raise

    @property
    def unloaded(self) -> Mapping[str, Sequence[ModelInfo]]:
        """None are."""
        return {}

    async def load(self, model: str) -> Loaded:
        """It is loaded already."""
        return Loaded(model, "READY", self.find(model).version, "a", "a", 0)

    async def unload(self, model: str) -> Loaded:
        """Say so."""
        return Loaded(model, "UNAVAILABLE", "", "a", "", 1)

    def live(self) -> bool:
        """As told."""
        return self.is_ready

    def ready(self) -> bool:
        """As told."""
        return self.is_ready

    def model_ready(self, model: str) -> bool:
        """As told."""
        self.find(model)
        return self.is_ready

    def status(self) -> Mapping[str, Any]:
        """What was called."""
        return {"calls": len(self.calls)}

    def statistics(self, model: str) -> Mapping[str, Any]:
        """Counters."""
        return {"name": model, "version": "1", "inference_count": len(self.calls)}

    async def total_statistics(self, models: Iterable[str]) -> Sequence[Mapping[str, Any]]:
        """Counters, not the same as those of one router."""
        return [{**self.statistics(model), "last_inference": 1} for model in models]

    async def metrics(self) -> tuple[bytes, str]:
        """One counter."""
        return b"calls_total %d\n" % len(self.calls), "text/plain; version=0.0.4; charset=utf-8"


def _counted(error: BaseException) -> BaseException:
    """A new one for every request, marked as whoever counts what it raises does."""
    error = copy.copy(error)
    if isinstance(error, ServeAppError):
        error.counted = True
    return error


def _compute(model: str, payload: Payload) -> Any:
    if isinstance(payload, Media):
        digest = hashlib.sha256(payload.content).hexdigest()
        return [{"label": digest, "score": float(len(payload.content))}]
    if isinstance(payload, Texts):
        if model == "moods":
            return [[{"label": "long" if len(text) > 9 else "short", "score": 1.0}] for text in payload.texts]
        vectors = np.array([[len(text), sum(map(_code, text)), 3.0, 4.0] for text in payload.texts], np.float32)
        return Embeddings(vectors, sum(len(text) for text in payload.texts))
    if model == "mirror":
        return {f"out_{name.removeprefix('in_')}": array for name, array in payload.items()}
    return {"y": payload["x"] * np.float32(2.0)}


def _code(item: str | int) -> int:
    return ord(item) if isinstance(item, str) else item
