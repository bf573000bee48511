"""The model deployment: one class for every model and modality, one deployment per model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ray
from ray.serve.metrics import Gauge

from serve_app.config import ModelConfig
from serve_app.deployments.batching import batch_with_serve
from serve_app.deployments.log import join_serve_log
from serve_app.inference.backend import Backend
from serve_app.inference.onnx import OnnxBackend
from serve_app.inference.warmup import MakeInputs, tensor_inputs, warm_up
from serve_app.payloads import Bundle, BundleResult, Execution, Tensors
from serve_app.runtime.device_load import find_gauge
from serve_app.runtime.link_server import LinkServer
from serve_app.runtime.process_memory import ProcessMemory
from serve_app.runtime.trail import configured_tracer, traced
from serve_app.runtime.worker import Worker

logger = logging.getLogger(__name__)

WARM_UP = "warm_up"
LINK = "link"
IDENTITIES = "identities"
"""Keys of what a replica tells routers of itself: what its warm-up measured; its node and where its links begin; what
tells the models that it runs from others."""


class ModelDeployment:
    """One replica of one model: loads it, warms every batch bucket, and runs bundles.

    Serve reports the replica ready only after ``__init__``, so no request ever meets a cold session.

    Args:
        config: The model as configured; validated.
        identities: Of the model and its variants, where routers keep its answers.
    """

    def __init__(self, config: ModelConfig, identities: Mapping[str, str] = MappingProxyType({})) -> None:
        join_serve_log()
        self._config = config
        self._identities = dict(identities)
        gpus = ray.get_gpu_ids()
        self._backends: dict[str, Backend] = {}
        locations = config.locations()
        for variant, location in locations.items():
            backend = OnnxBackend(config.onnx_settings(location.model_file, gpu_available=bool(gpus)))
            backend.load()
            if backend.note is not None:
                logger.warning(backend.note)
            self._backends[variant] = backend
        exact = self._backends[""]
        self._processor = config.make_processor(exact.signature, locations[""])
        self._warm_up = [
            execution._replace(variant=variant)
            for variant, backend in self._backends.items()
            for execution in self._warm(backend)
        ]
        self._worker = Worker(
            name=config.name,
            backends=self._backends,
            processor=self._processor,
            max_rows=config.batching.max_rows,
            preprocess_threads=config.resources.preprocess_threads,
            batch=batch_with_serve(config.batching.max_rows),
            warm_up=self._warm_up,
            examples={variant: self._example(backend) for variant, backend in self._backends.items()},
            refuse_non_finite=config.health.refuse_non_finite,
            gauge=find_gauge(exact.device, config.resources.threads),
        )
        self._memory = ProcessMemory(config.name, config.resources.memory_limit)
        self._memory.check_start()
        self._held = Gauge(
            "serve_app_replica_memory_bytes", "Memory of the host that a replica holds alone.", tag_keys=("model",)
        )
        # Ray's metrics take ASCII only.
        self._held.set_default_tags({"model": config.name if config.name.isascii() else config.deployment})
        tracer = configured_tracer()
        self._run = self._worker.run if tracer is None else traced(self._worker.run, config.name, tracer)
        self._links = LinkServer(config.name, self._run) if LinkServer.supported() else None
        # Serve awaits this before it ends the replica. On the instance, and not on the class: Python must not call it.
        self.__del__ = self._stop

    async def run(self, bundle: Bundle, replica: str | None = None) -> BundleResult:  # noqa: ARG002 - read by SlotRouter
        """Run one bundle; see `serve_app.runtime.worker.Worker.run`."""
        return await self._run(bundle)

    def record_replica_metadata(self) -> dict[str, Any]:
        """What routers learn of this replica the moment it is ready."""
        told: dict[str, Any] = {WARM_UP: [list(execution) for execution in self._warm_up]}
        if self._identities:
            told[IDENTITIES] = self._identities
        if self._links is not None:
            told[LINK] = [ray.get_runtime_context().get_node_id(), self._links.address]
        return told

    def check_health(self) -> None:
        """Fail when this replica should be replaced.

        Its session is broken, fails even on what it could run at first, or has been inside one run for too long (it is
        wedged, not busy); or the process holds too much memory.
        """
        if self._worker.broken:
            raise RuntimeError(f"{self._config.name}: the session has failed, and the log says how")
        if self._worker.failing:
            raise RuntimeError(f"{self._config.name}: the model fails on an input that it could run at first")
        stalled = self._worker.stalled_s()
        limit = self._config.health.stall_timeout_s
        if stalled > limit:
            raise RuntimeError(f"{self._config.name}: one run has lasted {stalled:.0f} s, the limit is {limit:.0f} s")
        self._held.set(self._memory.check())

    async def _stop(self) -> None:
        """Answer what came by links, of which Serve knows nothing, and free everything."""
        if self._links is not None:
            await self._links.drain(self._config.health.drain_timeout_s)
        self._worker.close()

    def _make_inputs(self, backend: Backend) -> MakeInputs:
        return tensor_inputs(backend.signature) if self._processor is None else self._processor.example

    def _example(self, backend: Backend) -> Tensors:
        """The smallest input that warm-up has run."""
        return self._make_inputs(backend)(1, 0 if self._processor is None else min(self._processor.buckets, default=0))

    def _warm(self, backend: Backend) -> list[Execution]:
        return warm_up(
            backend,
            self._make_inputs(backend),
            max_rows=self._config.batching.max_rows,
            buckets=(0,) if self._processor is None else self._processor.buckets,
            budget_s=self._config.health.warm_up_s / len(self._backends),
        )
