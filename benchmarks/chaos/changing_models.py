"""A model that changes, one in a process of its own, and their neighbour; questions whose answers tell revisions."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from typing_extensions import override

from benchmarks.chaos.questions import Bank, Known, Question, bank_of, tensor_question
from benchmarks.chaos.server import Setup
from benchmarks.chaos.setups import QUEUES, fixed
from benchmarks.chaos.stage import mix_of
from benchmarks.process import OUT
from serve_app.config.model import ModelConfig

CHANGING, HOSTED, _NEIGHBOUR = "changing", "hosted", "tiny"
LOAD_S = 1.0
"""What a large model takes to load, in which processes are killed."""

_FOLDER = OUT / "changing-models"
_STEP = 4096
"""By which the answers of two revisions differ. Inputs are whole numbers below, so that float32 holds all exactly."""

_QUESTIONS = 600

_MODEL = """
    import time

    class Model:
        inputs = {{"x": ("float32", [-1, 1])}}
        outputs = {{"y": ("float32", [-1, 1])}}
        rows_independent = True

        def setup(self, context):
            time.sleep({load_s})

        def predict(self, batch):
            return {{"y": batch["x"] + {added}}}
"""


@dataclass(slots=True)
class Span:
    """Which revisions may answer.

    Attributes:
        oldest: What is asked from now on is answered by this one or a later one: its load was answered.
        newest: The last one whose files were put in place.
    """

    oldest: int = 1
    newest: int = 1


@dataclass(frozen=True, slots=True)
class Revised(Question):
    """A question whose answer tells the revision that gave it.

    Attributes:
        span: What may answer when the answer comes.
        oldest: What could answer when it was asked.
    """

    span: Span = field(default_factory=Span)
    oldest: int = 1

    @override
    def mistake(self, answer: Known) -> str | None:
        assert not isinstance(self.known, Mapping)
        if isinstance(answer, Mapping) or answer.shape != self.known.shape:
            return f"not one value: {answer}"
        revision = 1 + (float(answer[0]) - float(self.known[0])) / _STEP
        if revision.is_integer() and self.oldest <= revision <= self.span.newest:
            return None
        return f"{answer[0]:g} is of revision {revision:g}, not of {self.oldest} to {self.span.newest}"


class ChangingBank(Bank):
    """Questions for models of which one changes.

    Attributes:
        span: Which of its revisions may answer.
    """

    def __init__(self, questions: Mapping[str, Sequence[Question]], span: Span) -> None:
        super().__init__(questions)
        self.span = span

    @override
    def take(self, model: str) -> Question:
        question = super().take(model)
        return replace(question, oldest=self.span.oldest) if isinstance(question, Revised) else question


def ask(models: Sequence[ModelConfig]) -> Bank:
    """The questions for these models; see `ChangingBank`."""
    span = Span()
    others = bank_of([model for model in models if model.name == _NEIGHBOUR])
    found: dict[str, list[Question]] = {_NEIGHBOUR: [others.take(_NEIGHBOUR) for _ in range(_QUESTIONS)]}
    for model in (CHANGING, HOSTED):
        found[model] = [_question(model, value) for value in range(1, _QUESTIONS + 1)]
    found[CHANGING] = [
        Revised(each.model, each.path, each.request, each.known, each.tensors, span=span) for each in found[CHANGING]
    ]
    return ChangingBank(found, span)


def _question(model: str, value: int) -> Question:
    x = np.array([[value]], np.float32)
    return tensor_question(model, x, x + _STEP, binary=bool(value % 2))


def write_revision(model: str, revision: int) -> None:
    """Put a revision of a model in its place."""
    file = _FOLDER / model / "model.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".tmp")
    beside.write_text(textwrap.dedent(_MODEL.format(load_s=LOAD_S, added=_STEP * revision)), encoding="utf-8")
    beside.rename(file)


def _make_models() -> None:
    for model in (CHANGING, HOSTED):
        write_revision(model, 1)


def _python(name: str, **options: Any) -> dict[str, Any]:
    model = {"name": name, "path": str(_FOLDER / name), "backend": "python", "backend_options": options}
    return fixed({**model, "batching": {"max_rows": 32, "slo_ms": 50}}, 2)


CHANGES = Setup(
    "changes",
    [
        fixed({"name": _NEIGHBOUR, "path": "models/tiny", "batching": {"max_rows": 64, "slo_ms": 50}}, 1),
        _python(CHANGING),
        _python(HOSTED, environment={"python": sys.executable}),
    ],
    router={"replicas": 2, "limits": {"headroom": 128}, "access": {"open_administration": True}},
    classes=QUEUES,
    prepare=_make_models,
)
MIX = mix_of({CHANGING: 0.4, HOSTED: 0.3, _NEIGHBOUR: 0.3})
