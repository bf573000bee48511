"""What a scenario is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks.chaos.load import Mix
from benchmarks.chaos.questions import Bank, bank_of
from benchmarks.chaos.server import Setup
from benchmarks.chaos.setups import DEMO_MIX
from benchmarks.chaos.stage import Stage
from serve_app.config.model import ModelConfig

Play = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of fault.

    Attributes:
        name: For the command line.
        says: What happens, a phrase.
        setup: What is served. Scenarios that follow each other with one setup share a server.
        play: Does it, and notes aims.
        mix: What is sent.
        ask: Makes the questions for the models.
    """

    name: str
    says: str
    setup: Setup
    play: Play
    mix: Mix = DEMO_MIX
    ask: Callable[[Sequence[ModelConfig]], Bank] = bank_of
