"""The result of a proof."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

EqualSizes: TypeAlias = tuple[tuple[tuple[str, int], ...], ...]
"""Groups of places that must have the same size in every request: the input's name and the axis of each."""


class RowProof(NamedTuple):
    """Whether each row of a model's outputs depends only on the same row of its inputs.

    Attributes:
        independent: Proven.
        reason: One line: what prevents independence, or that nothing does.
        dependent: Known to mix rows, or to depend on their number or places; otherwise unknown.
        random: The model draws random numbers, so that equal requests get different answers.
        equal_sizes: The proof holds for requests in which these sizes are equal: groups of inputs and axes.
        advice: A remedy for the author of the model; empty if none is known.
    """

    independent: bool
    reason: str
    dependent: bool = False
    random: bool = False
    equal_sizes: EqualSizes = ()
    advice: str = ""
