"""Which requests of a replica share runs, and whom it tells."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from serve_app.errors import InvalidRequest
from serve_app.payloads import Joinable
from serve_app.replica.joining import Joining, told

EXACT = Joinable("exact", "same bits")
DEPENDENT = Joinable("dependent", "they meet", 0.25)


def rows(*shapes: tuple[int, ...]) -> Any:
    """Inputs of these shapes."""
    return {f"x{index}": np.zeros(shape) for index, shape in enumerate(shapes)}


@pytest.mark.parametrize(
    ("verdict", "shapes", "counted"),
    [
        ("exact", [(3, 2), (3,)], (3, False)),
        ("close", [(3, 2), (3,)], (3, False)),
        ("unverified", [(3, 2), (3,)], (3, False)),
        ("dependent", [(3, 2), (3,)], (3, True)),
        ("proven", [(3, 2), (3,)], (3, True)),
        ("exact", [(1, 2), (3,)], (3, True)),
        ("exact", [(0, 2), (0,)], (1, True)),
        ("exact", [(0, 2), (1,)], (1, True)),
        ("exact", [(3, 2), (3,), (2, 2)], (1, True)),
    ],
    ids=["exact", "close", "unverified", "dependent", "proven", "one and many", "empty", "one and none", "optional"],
)
def test_what_a_request_counts_for(verdict: str, shapes: Any, counted: tuple[int, bool]) -> None:
    """Its rows, and whether it is run by itself: as it must be unless a verdict says otherwise."""
    assert counted == Joining("m", {"": Joinable(verdict, "")}, {"": 2}).rows("", rows(*shapes))


@pytest.mark.parametrize(
    ("alike", "shapes", "alone"),
    [
        ((("x0", 1), ("x1", 1)), [(3, 2), (3, 2)], False),
        ((("x0", 1), ("x1", 1)), [(3, 2), (3, 4)], True),
        ((("x0", 1), ("x1", 1)), [(3, 2), (3,)], True),
        ((("x0", 1), ("x0", 2)), [(3, 2, 2)], False),
        ((("x0", 1), ("x0", 2)), [(3, 2, 4)], True),
    ],
    ids=["same", "different", "missing", "same of one input", "different of one input"],
)
def test_sizes_that_a_proof_takes_to_be_the_same_must_be(alike: Any, shapes: Any, alone: bool) -> None:
    """Otherwise a request is run by itself: nothing is known of its rows."""
    assert (3, alone) == Joining("m", {"": EXACT._replace(equal_sizes=(alike,))}).rows("", rows(*shapes))


def test_without_rows_any_shapes_do() -> None:
    """Each request counts for one, whatever it brings."""
    joining = Joining("m", {"": Joinable("whole", "", rows=False)})
    assert [(1, True)] * 3 == [joining.rows("", inputs) for inputs in (rows(()), rows(), rows((2,), (3,)))]


def test_rows_that_disagree_are_run_by_themselves() -> None:
    """Two and three rows: whether the model takes those only it knows. A scalar has no rows at all."""
    joining = Joining("m", {"": EXACT})
    assert (3, True) == joining.rows("", rows((2,), (3,)))
    with pytest.raises(InvalidRequest, match="same number of rows"):
        joining.rows("", rows((2,), ()))


@pytest.mark.parametrize(
    ("shapes", "usable"), [([(2,), (2,)], True), ([(1,), (2,)], False), ([(0,), (0,)], False), ([(2,)] * 3, False)]
)
def test_only_even_rows_can_try_a_build(shapes: Any, usable: bool) -> None:
    """And only where nothing is known of it yet."""
    needed = {"": 2, "known": 2}
    joining = Joining("m", {"": Joinable("proven", ""), "known": EXACT}, needed)
    assert (usable, False) == tuple(joining.may_try(variant, rows(*shapes)) for variant in ("", "known"))


def test_every_router_is_told_a_change_once() -> None:
    """With its next answer; a router that comes later, too. Before any change it knows from the replica's start."""
    joining = Joining("m", {"": EXACT, "light": EXACT})
    assert [None, None] == [joining.news(router) for router in "ab"]
    joining.change("light", DEPENDENT)
    news = {"": EXACT, "light": DEPENDENT}
    assert [news, None, news, None, news] == [joining.news(router) for router in "aabbc"]
    joining.change("", DEPENDENT)
    assert {"": DEPENDENT, "light": DEPENDENT} == joining.news("a")


def test_the_end_of_sharing_is_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the build and the reason; what begins or goes on is information."""
    joining = Joining("m", {"": EXACT, "light": EXACT})
    with caplog.at_level(logging.INFO, logger="serve_app"):
        joining.change("light", DEPENDENT)
        joining.change("light", DEPENDENT._replace(reason="again"))
        joining.change("", Joinable("close", "near", 1e-7))
    assert [
        ("ERROR", "m, variant light: requests are run one by one (dependent, largest deviation 0.25): they meet"),
        ("INFO", "m, variant light: requests are run one by one (dependent, largest deviation 0.25): again"),
        ("INFO", "m: requests share runs (close, largest deviation 1e-07): near"),
    ] == [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_verdict_without_a_deviation_names_none() -> None:
    """In words for logs."""
    assert "requests share runs (exact): same bits" == told(EXACT)
