"""The warm-up of a replica over all builds of its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import edge_case_models
import onnx_models
import pytest
from onnx import TensorProto, helper

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.samples import make_samples
from serve_app.domain.settings import InputRule, SampleSettings
from serve_app.processors import create_processor
from serve_app.replica.self_test import SelfTest
from serve_app.replica.warm_up import warm_up_replica

MakeBackend = Callable[[onnx_models.Kind], OnnxBackend]


def loaded(path: Path) -> OnnxBackend:
    """A model on the CPU."""
    backend = OnnxBackend(OnnxSettings("m", path, device="cpu"))
    backend.load()
    return backend


def test_every_build_is_warmed_up_with_what_it_runs(make_backend: MakeBackend) -> None:
    """The executions name the variant, and each has its example."""
    backends = {"": make_backend("string_identity"), "light": make_backend("string_identity")}
    samples = make_samples(backends[""].signature, model="m")

    warm = warm_up_replica("m", backends, None, samples, max_rows=2, budget_s=5.0)

    assert [(each.variant, each.rows) for each in warm.executions] == [("", 1), ("", 2), ("light", 1), ("light", 2)]
    assert {name: example["INPUT0"].tolist() for name, example in warm.examples.items()} == {
        "": [[""]],
        "light": [[""]],
    }
    assert warm.reason is None


def test_of_builds_whose_costs_are_known_nothing_is_measured(make_backend: MakeBackend) -> None:
    """They run once, to see whether they do."""
    backends = {"": make_backend("string_identity")}
    samples = make_samples(backends[""].signature, model="m")

    warm = warm_up_replica("m", backends, None, samples, max_rows=2, budget_s=None)

    assert warm.executions == []
    assert warm.examples[""]["INPUT0"].tolist() == [[""]]
    assert warm.reason is None


def test_a_build_that_runs_nothing_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not silently: the log has the line that routers are told."""
    particular = loaded(edge_case_models.ids(tmp_path / "ids.onnx"))
    plain = loaded(
        onnx_models.write(
            tmp_path / "plain.onnx",
            [helper.make_node("Cast", ["ids"], ["y"], to=TensorProto.FLOAT)],
            [("ids", TensorProto.INT64, ["rows", "length"])],
            [("y", TensorProto.FLOAT, ["rows", "length"])],
        )
    )
    samples = make_samples(particular.signature, model="m")

    warm = warm_up_replica("m", {"": particular}, None, samples, max_rows=1, budget_s=5.0)

    assert (warm.executions, warm.examples) == ([], {})
    assert warm.reason is not None
    assert warm.reason.startswith("model 'm' runs on no known input: the model failed on this input: ")
    assert [record.getMessage().startswith(warm.reason) for record in caplog.records] == [True]

    both = warm_up_replica(
        "m",
        {"": plain, "light": particular},
        None,
        make_samples(plain.signature, model="m"),
        max_rows=1,
        budget_s=5.0,
    )
    assert list(both.examples) == [""]
    assert str(both.reason).startswith("model 'm', variant 'light' runs on no known input: ")
    for backend in (particular, plain):
        backend.close()


def test_the_self_test_runs_what_the_warm_up_found(tmp_path: Path) -> None:
    """Of a model that no empty text suits it can tell whether it works."""
    backend = loaded(edge_case_models.numbers(tmp_path / "numbers.onnx"))
    samples = make_samples(backend.signature, model="m")
    warm = warm_up_replica("m", {"": backend}, None, samples, max_rows=1, budget_s=5.0)

    self_test = SelfTest("m", {"": backend}, warm.examples)
    self_test.start()

    assert self_test.works("") is True
    backend.close()


def test_a_larger_batch_that_fails_is_told(tmp_path: Path) -> None:
    """What runs alone is known, and the self-test has its example."""
    path = onnx_models.write(
        tmp_path / "alone.onnx",
        [helper.make_node("MatMul", ["x", "x"], ["y"])],
        [("x", TensorProto.FLOAT, ["rows", 1])],
        [("y", TensorProto.FLOAT, ["rows", 1])],
    )
    backend = loaded(path)
    samples = make_samples(backend.signature, SampleSettings(rules={"x": InputRule(values=(3,))}), model="m")

    warm = warm_up_replica("m", {"": backend}, None, samples, max_rows=4, budget_s=5.0)

    assert ([each.rows for each in warm.executions], warm.examples[""]["x"].tolist()) == ([1], [[3.0]])
    assert str(warm.reason).startswith("model 'm': warm-up with 2 rows: the model failed on this input: ")
    backend.close()


def test_a_processor_makes_the_inputs(make_backend: MakeBackend) -> None:
    """In each of its buckets, and the smallest is the example."""
    backend = make_backend("waveform_logits")
    options = {"labels": ["a", "b", "c"], "sampling_rate": 8000, "buckets": [0.5, 1.0]}
    processor = create_processor("audio-classification", backend.signature, Path("nowhere"), options)
    samples = make_samples(backend.signature, model="m")

    warm = warm_up_replica("m", {"": backend}, processor, samples, max_rows=1, budget_s=5.0)

    assert {each.bucket for each in warm.executions} == set(processor.buckets)
    assert warm.examples[""]["waveform"].shape == (1, min(processor.buckets))
    backend.close()
