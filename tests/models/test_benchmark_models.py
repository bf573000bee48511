"""The benchmark models: shapes, finite and varied answers, rows that do not depend on each other, seeded weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from training.benchmark_models import MODELS_BY_NAME, graph

ROOT = Path(__file__).resolve().parents[2]

SHAPES = {
    "tiny": ([64], [10]),
    "wide": ([2048], [2048]),
    "resnet50": ([3, 224, 224], [1000]),
    "pool": ([3, 224, 224], [3]),
}


@pytest.fixture(scope="module", params=sorted(MODELS_BY_NAME))
def name(request: pytest.FixtureRequest) -> str:
    """Each benchmark model in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def session(name: str) -> ort.InferenceSession:
    """Its session, on one CPU thread."""
    path = ROOT / "models" / name / "1" / "model.onnx"
    if not path.exists():
        pytest.fail(f"{path.relative_to(ROOT)} is not built: run `make models` first")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def test_signature(name: str, session: ort.InferenceSession) -> None:
    """Every model takes FP32 ``x`` and gives FP32 ``y`` with any number of rows."""
    x, y = SHAPES[name]
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert ("x", "tensor(float)", ["rows", *x]) == (taken.name, taken.type, taken.shape)
    assert ("y", "tensor(float)", ["rows", *y]) == (given.name, given.type, given.shape)


def test_rows_are_finite_varied_and_independent(name: str, session: ort.InferenceSession) -> None:
    """Four random rows give four different answers, and each is the same alone as in the batch."""
    x, y = SHAPES[name]
    rows = np.random.default_rng(7).standard_normal((4, *x), dtype=np.float32)
    (batch,) = session.run(["y"], {"x": rows})
    assert ((4, *y), np.float32) == (batch.shape, batch.dtype)
    assert np.isfinite(batch).all()
    scale = float(batch.std())
    for row in range(4):
        (alone,) = session.run(["y"], {"x": rows[row : row + 1]})
        np.testing.assert_allclose(alone[0], batch[row], atol=1e-4 * scale)
        for other in range(row):
            assert np.abs(batch[row] - batch[other]).max() > 0.1 * scale


def weights_hash(model: onnx.ModelProto) -> str:
    """SHA-256 over all constants, in the order of the file."""
    digest = hashlib.sha256()
    for tensor in model.graph.initializer:
        digest.update(onnx.numpy_helper.to_array(tensor).tobytes())
    return digest.hexdigest()


def test_tiny_is_deterministic() -> None:
    """The seed gives the same file twice, and the weights that it has always given."""
    assert graph("tiny").SerializeToString(deterministic=True) == graph("tiny").SerializeToString(deterministic=True)
    assert weights_hash(graph("tiny")) == "2cea8eec750dfd6d16072d0f54b2c5bfe5fa1dbef9e72c412ec41aa4dd22c6d6"


def test_built_tiny_has_the_scripts_weights() -> None:
    """What lies under ``models/`` is what the script makes."""
    path = ROOT / "models" / "tiny" / "1" / "model.onnx"
    if not path.exists():
        pytest.fail(f"{path.relative_to(ROOT)} is not built: run `make models` first")
    assert weights_hash(graph("tiny")) == weights_hash(onnx.load(path))


def test_resnet50_has_the_real_size() -> None:
    """25,557,032 weights as published, less the 26,560 gains that batch normalisation has and a folded one has not."""
    model = graph("resnet50")
    size = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert size == 25_557_032 - 26_560
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 53
