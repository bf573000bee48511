"""The example of a Python model keeps what backends promise, and knows flowers."""

from __future__ import annotations

import numpy as np
import pytest
from serve_process import ROOT

from serve_app.backends.kind import BuildSettings
from serve_app.backends.python.kind import PYTHON
from serve_app.testing.backends import CHECKS, Check, Subject, name_of

MODEL = ROOT / "examples" / "iris" / "model.py"


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_it_keeps_what_backends_promise(check: Check) -> None:
    """With inputs of the server's own."""
    check(Subject(PYTHON, MODEL))


def test_it_knows_flowers() -> None:
    """One of each species, and one that it is not sure of."""
    options = PYTHON.options.model_validate({"parameters": {"least_score": 0.6}})
    backend = PYTHON.create(BuildSettings("iris", MODEL), options)
    backend.load()
    flowers = [[5.1, 3.5, 1.4, 0.2], [6.0, 2.7, 4.1, 1.3], [6.5, 3.0, 5.8, 2.2], [5.9, 3.2, 4.8, 1.8]]
    answer = backend.run({"flower": np.array(flowers, np.float32)})
    backend.close()
    assert answer["species"].tolist() == ["setosa", "versicolor", "virginica", "unsure"]
    assert answer["scores"].sum(axis=1) == pytest.approx(np.ones(4))
