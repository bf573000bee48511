"""Fixtures of the replica: backends and workers over the tiny test models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_models
import pytest
from runtime_harness import batch_same_turn

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling


@pytest.fixture
def make_backend(make_model: Callable[[onnx_models.Kind], Path]) -> Callable[[onnx_models.Kind], OnnxBackend]:
    """Loads one of the tiny test models."""

    def backend(kind: onnx_models.Kind) -> OnnxBackend:
        loaded = OnnxBackend(OnnxSettings(model=kind, model_file=make_model(kind), device="cpu"))
        loaded.load()
        return loaded

    return backend


@pytest.fixture
def make_worker(make_backend: Callable[[onnx_models.Kind], OnnxBackend]) -> Iterator[Any]:
    """Makes workers of one of the tiny test models and closes them."""
    workers: list[Worker] = []

    def worker(kind: onnx_models.Kind, *, max_rows: int = 8, variants: tuple[str, ...] = ()) -> Worker:
        made = Worker(
            scheduling=ModelScheduling(kind, max_rows, slo_s=60.0),
            backends={name: make_backend(kind) for name in ("", *variants)},
            processor=None,
            preprocess_threads=2,
            batch=batch_same_turn,
        )
        workers.append(made)
        return made

    yield worker
    for made in workers:
        made.close()
