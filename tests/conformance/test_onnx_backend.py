"""The cases that the `onnx` package tests runtimes with, served to eight clients at once: every answer is the model's.

All cases take about a minute for each form on two cores, the sample a few seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis_profiles import thorough

from conformance.onnx_cases import FORMS, Case, Cases, Form, alone, in_form, load_cases
from conformance.row_requests import requests_of
from conformance.serving import Candidate, judge
from conformance.tally import Tally
from conformance.thorough import TIMEOUT_S, report

_AT_ONCE = 60
"""Models of one server."""
_SAMPLE = 60
"""Cases of each form in the normal suite."""
_DIFFERENT = 10
"""Requests to one model that differ."""
_ROUNDS = 3
_SEED = 20_260


@pytest.fixture(scope="module")
def cases() -> Cases:
    """All of them."""
    return load_cases()


@pytest.mark.parametrize("form", FORMS)
def test_a_sample_is_answered_as_onnx_runtime_alone_answers(form: Form, cases: Cases, tmp_path: Path) -> None:
    """No answer is wrong, no valid request is refused, and 95% of the models are served."""
    chosen = np.random.default_rng(_SEED).permutation(len(cases.usable))[:_SAMPLE]
    tally = _serve(form, [cases.usable[at] for at in chosen], tmp_path)
    print(tally.table())
    assert 0 == len(tally.faults()), tally.table()
    assert tally.right >= 0.95, tally.table()


@thorough
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("form", FORMS)
def test_all_are_answered_as_onnx_runtime_alone_answers(form: Form, cases: Cases, tmp_path: Path) -> None:
    """As the sample, with every case that the package has."""
    tally = _serve(form, cases.usable, tmp_path)
    tally.not_counted += cases.left_out
    report(f"onnx-{form}", tally.table())
    assert 0 == len(tally.faults()), tally.table()
    assert tally.right >= 0.95, tally.table()


def _serve(form: Form, cases: Sequence[Case], folder: Path) -> Tally:
    tally = Tally(f"onnx's own cases, {form}")
    for start in range(0, len(cases), _AT_ONCE):
        rng = np.random.default_rng([_SEED, start])
        candidates = list(
            filter(None, (_candidate(case, form, tally, rng) for case in cases[start : start + _AT_ONCE]))
        )
        judge(candidates, folder / str(start), tally, rng, rounds=_ROUNDS)
    return tally


def _candidate(case: Case, form: Form, tally: Tally, rng: np.random.Generator) -> Candidate | None:
    formed = in_form(case, form)
    if formed is None:
        tally.not_counted["this form is the same as another one"] += 1
        return None
    found = alone(formed)
    if isinstance(found, str):
        tally.not_counted[found] += 1
        return None
    made = requests_of(found, formed.data, rng, number=_DIFFERENT, refused=2)
    if not any(request.expected is not None for request in made):
        tally.not_counted["its requests or answers are too large"] += 1
        return None
    return Candidate(case.name, formed.model.SerializeToString(), made)
