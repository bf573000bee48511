"""Proofs against ONNX Runtime: whatever is called independent must be the same alone and in company."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx.printer
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples, thorough
from mutated_graphs import GRAPHS, case, graph, mutated
from random_graphs import ROWS, random_graph
from row_experiments import Case, backend_cases, experiment

from rowproof.onnx_graph.proof import prove_rows_of

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


def _wrong(case: Case, seed: int) -> str:
    """What an experiment has against a proof; empty if there is none or nothing against it."""
    if not prove_rows_of(case.model).independent:
        return ""
    finding = experiment(case, seed=seed)
    if finding is None or not finding.difference:
        return ""
    return f"{case.name}: {finding.difference}\n{onnx.printer.to_text(case.model)}"


def _chain(seed: int) -> Case:
    random = Random(seed)
    model = random_graph(random, random.randrange(1, 7))
    values = np.random.default_rng(seed)
    samples = {"a": values.standard_normal((ROWS, 4, 2)), "b": values.standard_normal((ROWS, 4))}
    return Case(f"chain {seed}", model, {name: array.astype(np.float32) for name, array in samples.items()})


def test_a_sample_of_the_cases_of_onnx_is_right() -> None:
    """Every eightieth of ONNX's own cases with symbolic rows: none that is proven differs."""
    assert [] == [problem for case in backend_cases(every=80) if (problem := _wrong(case, 1))]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1))
def test_random_graphs_are_right(seed: int) -> None:
    """Chains of random operators with random parameters: none that is proven differs."""
    assert _wrong(_chain(seed), seed) == ""


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_as_exporters_write_them_are_proven_and_right(name: str) -> None:
    """Rows that are counted to pick from each its own."""
    assert prove_rows_of(graph(name)).independent
    finding = experiment(case(name, graph(name)))
    assert finding is not None
    assert (True, "") == (finding.comparisons > 0, finding.difference)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1))
def test_changed_graphs_of_exporters_are_right(seed: int) -> None:
    """Numbers, axes, inputs and operators at random: none that is proven differs."""
    assert _wrong(mutated(Random(seed)), seed) == ""


@thorough
@pytest.mark.timeout(3600)
def test_many_changed_graphs_of_exporters_are_right() -> None:
    """Ten thousand: none that is proven differs, and some are proven still."""
    changed = [mutated(Random(seed)) for seed in range(10_000)]
    assert [] == [problem for seed, each in enumerate(changed) if (problem := _wrong(each, seed))]
    assert sum(prove_rows_of(each.model).independent for each in changed) > 300


@thorough
@pytest.mark.timeout(1800)
def test_all_cases_of_onnx_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of ONNX's own cases, three seeds each: none that is proven differs, and most of what could be is proven."""
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")  # of ONNX Runtime: opsets that it does not know in full
    cases = list(backend_cases(KINDS))
    assert [] == [problem for case in cases for seed in range(3) if (problem := _wrong(case, seed))]
    assert sum(prove_rows_of(case.model).independent for case in cases) > 1000


@thorough
@pytest.mark.timeout(3600)
def test_many_random_graphs_are_right() -> None:
    """Ten thousand random chains: none that is proven differs."""
    assert [] == [problem for seed in range(10_000) if (problem := _wrong(_chain(seed), seed))]
