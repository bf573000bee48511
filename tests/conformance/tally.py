"""What became of every model that was to be served, as a table."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

_SHOWN = 60
"""Faults in a table, the worst first."""


class Outcome(StrEnum):
    """What became of one model. The worst that one of its requests met counts."""

    RIGHT = "right"
    WRONG = "wrong with 200"
    REFUSED_REQUEST = "valid request refused"
    REFUSED_MODEL = "refused before serving"
    FAILED_LATER = "fails later though validated"


_WORST = (Outcome.FAILED_LATER, Outcome.WRONG, Outcome.REFUSED_REQUEST)


@dataclass
class Tally:
    """Counts.

    Attributes:
        title: What was served.
        models: By outcome.
        reasons: Why models were refused before serving.
        not_counted: Models that ONNX Runtime alone cannot run or the protocol cannot carry, by reason.
        details: What went wrong: the model, the outcome and a line.
        requests: Answers that were compared.
        beyond: Requests that were answered though ONNX Runtime alone cannot run them.
        runs: Runs of the models that answered them; what shares a batch shares a run.
    """

    title: str
    models: Counter[Outcome] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    not_counted: Counter[str] = field(default_factory=Counter)
    details: list[tuple[str, Outcome, str]] = field(default_factory=list)
    requests: int = 0
    runs: int = 0
    beyond: int = 0

    @property
    def counted(self) -> int:
        """Models that count."""
        return self.models.total()

    @property
    def right(self) -> float:
        """The part of them that answers everything right, 0 to 1."""
        return self.models[Outcome.RIGHT] / max(self.counted, 1)

    def add(self, model: str, outcome: Outcome, detail: str = "") -> None:
        """Note what became of a model."""
        self.models[outcome] += 1
        if outcome is Outcome.REFUSED_MODEL:
            self.reasons[_general(detail)] += 1
        elif outcome is not Outcome.RIGHT:
            self.details.append((model, outcome, detail))

    def merge(self, other: Tally) -> None:
        """Add all of another one's."""
        for name in ("models", "reasons", "not_counted"):
            getattr(self, name).update(getattr(other, name))
        self.details += other.details
        self.requests += other.requests
        self.runs += other.runs
        self.beyond += other.beyond

    def faults(self) -> list[str]:
        """What may not be: everything but right answers and models that were refused with a reason."""
        found = [f"{model}: {outcome}: {detail}" for model, outcome, detail in self.details]
        return found + ["a model was refused without a reason"] * self.reasons[""]

    def table(self) -> str:
        """All of it in Markdown."""
        lines = [f"## {self.title}", "", "| what became of it | models |", "|---|---|"]
        lines += [f"| {outcome} | {self.models[outcome]} |" for outcome in Outcome]
        lines += [f"| counted | {self.counted} |", f"| answers compared | {self.requests} |"]
        lines += [f"| runs that they took | {self.runs} |"]
        lines += [f"| answered, though ONNX Runtime alone cannot run it | {self.beyond} |"]
        for head, counts in (("refused before serving", self.reasons), ("not counted", self.not_counted)):
            if counts:
                lines += ["", f"| {head}, because | models |", "|---|---|"]
                lines += [f"| {reason} | {number} |" for reason, number in counts.most_common()]
        if self.details:
            worst = sorted(self.details, key=lambda detail: _WORST.index(detail[1]))
            lines += ["", *(f"- {model}: {outcome}: {detail}" for model, outcome, detail in worst[:_SHOWN])]
            lines += [f"- and {len(worst) - _SHOWN} more"] if len(worst) > _SHOWN else []
        return "\n".join([*lines, ""])


def _general(reason: str) -> str:
    """A reason without the names and numbers of one model, so that equal ones can be counted."""
    told = re.sub(r"^model '[^']*': ", "", reason)
    told = re.sub(r"'[^']*'( (any|\d+))?(, '[^']*'( (any|\d+))?)*", "…", told)
    return re.sub(r"-?\b\d+\b", "n", re.sub(r"(/[\w.-]+){2,}", "…", told))[:160]
