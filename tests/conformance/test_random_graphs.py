"""Random graphs, asked by eight clients at once: whatever a graph computes, a neighbour in the batch changes nothing.

What is found wrong is made small by Hypothesis, and its graph is printed. The counter-checks show that these tests can
fail, and that requests really share batches: a test whose clients only take turns would find nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis_profiles import thorough

from conformance.alone import Alone
from conformance.asking import CLIENTS
from conformance.graph_steps import ROW_WISE, STEPS
from conformance.random_graphs import INPUTS, ROWS_ONLY, Graph, Inputs, Pick, Step, random_graph, random_inputs
from conformance.row_requests import Request, answer, is_deterministic
from conformance.serving import Candidate, judge
from conformance.tally import Outcome, Tally
from conformance.thorough import TIMEOUT_S, report

_T = TypeVar("_T")
_ROUNDS = 4
_PER_GRAPH = CLIENTS * _ROUNDS
_DIFFERENT = 16
_SAMPLE = 600
"""Requests in the normal suite."""
_ALL = 100_000
_AT_ONCE = 25
"""Graphs that Hypothesis generates with one seed."""
_SEED = 20_260
_CALM = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
)


class WrongAnswer(Exception):
    """A client has got another answer than ONNX Runtime alone gives."""


class RefusedRequest(Exception):
    """A client has got no answer to what ONNX Runtime alone can run."""


def test_no_answer_depends_on_neighbours(tmp_path: Path) -> None:
    """In hundreds of requests to graphs of all kinds; `make test-thorough` sends a hundred thousand."""
    tally = _search(STEPS, tmp_path, requests=_SAMPLE)
    print(tally.table())
    assert (0, True) == (tally.models[Outcome.WRONG], tally.requests >= _SAMPLE)


@thorough
@pytest.mark.timeout(TIMEOUT_S)
def test_no_answer_of_a_hundred_thousand_depends_on_neighbours(tmp_path: Path) -> None:
    """As above, for as long as it takes."""
    tally = _search(STEPS, tmp_path, requests=_ALL)
    report("random-graphs", tally.table())
    assert (0, True) == (tally.models[Outcome.WRONG], tally.requests >= _ALL)


def test_without_the_proof_wrong_answers_are_found_at_once(tmp_path: Path) -> None:
    """The same search, over a server that joins requests to whatever model: it must not take long to find one."""
    with pytest.raises(WrongAnswer):
        _search(STEPS, tmp_path, requests=_SAMPLE, unverified=True, shrink=False)


def test_what_is_computed_row_by_row_is_joined_and_right(tmp_path: Path) -> None:
    """The judge finds nothing where nothing is wrong, and it is not for want of neighbours: few runs carry them all."""
    tally = _search(ROW_WISE, tmp_path, requests=_SAMPLE // 2, inputs=ROWS_ONLY)
    assert (tally.counted, True) == (tally.models[Outcome.RIGHT], tally.runs < tally.requests / 2), tally.table()


def _search(
    steps: Sequence[Step],
    folder: Path,
    *,
    requests: int,
    inputs: Sequence[Inputs] = INPUTS,
    unverified: bool = False,
    shrink: bool = True,
) -> Tally:
    """Serve graph after graph until so many answers have been compared.

    Args:
        steps: What the graphs are made of.
        folder: Where their files go.
        requests: How many answers.
        inputs: What the graphs may take.
        unverified: Whether the server joins requests without proof; what it then refuses does not count.
        shrink: Whether to look for a smaller graph when one has shown something.

    Raises:
        WrongAnswer: An answer is wrong; says all about the smallest graph that shows it.
        RefusedRequest: Likewise, a valid request was not answered.
    """
    tally = Tally("random graphs")
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    number = count()

    @settings(
        max_examples=_AT_ONCE,
        database=None,
        phases=phases,
        suppress_health_check=_CALM,
        report_multiple_bugs=False,
    )
    @given(st.data())
    def serve(data: st.DataObject) -> None:
        pick = _picker(data)
        graph = random_graph(pick, steps, inputs)
        _serve(graph, pick(range(1000)), folder / str(next(number)), tally, unverified=unverified)

    # Where nearly every graph was refused this would have no end: four times what is needed is enough.
    for turn in range(1 + 4 * requests // (_PER_GRAPH * _AT_ONCE)):
        if tally.requests < requests:
            seed(_SEED + turn)(serve)()
    return tally


def _picker(data: st.DataObject) -> Pick:
    def pick(items: Sequence[_T], /) -> _T:
        return items[data.draw(st.integers(0, len(items) - 1))]

    return pick


def _serve(graph: Graph, number: int, folder: Path, tally: Tally, *, unverified: bool) -> None:
    model = graph.model()
    rng = np.random.default_rng(number)
    requests = _requests(graph, model, rng)
    assume(bool(requests))
    one = Tally("one graph")
    candidate = Candidate("graph", model.SerializeToString(), requests)
    judge([candidate], folder, one, rng, rounds=_ROUNDS, unverified=unverified)
    tally.merge(one)
    told = "\n".join([*one.faults(), onnx.printer.to_text(model)])
    if one.models[Outcome.WRONG]:
        raise WrongAnswer(told)
    if one.details and not unverified:
        raise RefusedRequest(told)


def _requests(graph: Graph, model: onnx.ModelProto, rng: np.random.Generator) -> list[Request]:
    """What ONNX Runtime alone can run, twice the same; nothing where it cannot load the model."""
    try:
        alone = Alone(model.SerializeToString())
    except Exception:  # of ONNX Runtime, whose exceptions share no base but Exception
        return []
    t = int(rng.choice([1, 4]))  # shared by most, so that they can share batches
    made = []
    for number in range(_DIFFERENT):
        inputs = random_inputs(graph, rng, None if number % 4 == 3 else t)
        expected = answer(alone, inputs)
        if expected is not None:
            made.append(Request(inputs, expected))
    return made if made and is_deterministic(alone, made[0].inputs) else []
