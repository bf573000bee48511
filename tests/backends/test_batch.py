"""Batch assembly: who runs together, whose answer is whose, and whose error."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.backends.batch import Outcome, assemble, fit, group, pieces, rows_of, run_assembled, run_entries, split
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.errors import DeadlineExceeded, InferenceFailed, InvalidRequest, ServeAppError
from serve_app.payloads import Execution, ModelSignature, Tensors, joined

MakeModel = Callable[[onnx_models.Kind], Path]
Load = Callable[[onnx_models.Kind], OnnxBackend]


class Recorded:
    """A backend that remembers the rows of every run of the one it wraps."""

    device = "cpu"

    def __init__(self, run: Callable[[Tensors], Tensors]) -> None:
        self._run = run
        self.rows: list[int] = []

    @property
    def signature(self) -> ModelSignature:
        """Of no interest here."""
        return ModelSignature((), ())

    def load(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing to free."""

    def run(self, inputs: Tensors) -> Tensors:
        """Note the rows and run."""
        self.rows.append(rows_of(inputs))
        return self._run(inputs)

    run_whole = run


@pytest.fixture
def load(make_model: MakeModel) -> Iterator[Load]:
    """Load models on the CPU, and close them afterwards."""
    backends = []

    def loaded(kind: onnx_models.Kind) -> OnnxBackend:
        backend = OnnxBackend(OnnxSettings("m", make_model(kind), device="cpu"))
        backend.load()
        backends.append(backend)
        return backend

    yield loaded
    for backend in backends:
        backend.close()


def _x(*values: float, width: int = 1) -> Tensors:
    """One row per value."""
    return {"x": np.repeat(np.array(values, np.float32)[:, None], width, axis=1)}


def _values(outcome: Outcome) -> Any:
    assert not isinstance(outcome, ServeAppError)
    return {name: array.tolist() for name, array in outcome.items()}


def _ticks() -> Callable[[], float]:
    """A clock that moves on by one second whenever it is read."""
    counter = itertools.count()
    return lambda: float(next(counter))


@pytest.mark.parametrize(
    ("rows", "max_rows", "expected"),
    [(1, 4, [(0, 1)]), (4, 4, [(0, 4)]), (9, 4, [(0, 4), (4, 8), (8, 9)]), (0, 4, [])],
)
def test_pieces_cover_the_rows_in_order(rows: int, max_rows: int, expected: list[tuple[int, int]]) -> None:
    """No piece is larger than the maximum."""
    assert expected == [(piece.start, piece.stop) for piece in pieces(rows, max_rows)]


def test_entries_group_by_trailing_shape_and_dtype_in_order() -> None:
    """What cannot be joined runs apart; the first of a group decides its turn."""
    floats, wide = np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32)
    entries: list[Tensors] = [
        {"x": floats},
        {"x": wide},
        {"x": floats},
        {"x": floats.astype(np.float64)},
        {"y": floats},
        {"x": wide},
    ]

    assert group([(1, tensors) for tensors in entries], 8) == [[0, 2], [1, 5], [3], [4]]


def test_the_order_of_inputs_does_not_keep_entries_apart() -> None:
    """Clients may name their inputs in any order."""
    a, b = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.int64)

    assert group([(1, {"a": a, "b": b}), (1, {"b": b, "a": a})], 8) == [[0, 1]]


def test_groups_close_when_the_next_entry_does_not_fit() -> None:
    """Order is kept, and an entry above the maximum is alone."""
    sizes = [2, 2, 1, 9, 1, 3]

    assert group([(size, _x(*[0.0] * size)) for size in sizes], 4) == [[0, 1], [2], [3], [4, 5]]


def test_a_single_entry_is_not_copied() -> None:
    """It runs on the memory it came in."""
    entry = _x(1)

    assert entry is assemble([entry])


def test_large_adjacent_rows_are_not_copied() -> None:
    """What arrived in one piece is run in one piece; small rows are copied in less time than that takes to see."""
    large, small = np.ones((4, 20_000), np.float32), np.ones((4, 2), np.float32)

    batch = assemble([{"a": large[:1], "b": small[:1]}, {"b": small[1:], "a": large[1:]}])

    assert (np.shares_memory(batch["a"], large), np.shares_memory(batch["b"], small)) == (True, False)
    assert [batch[name].shape for name in ("a", "b")] == [(4, 20_000), (4, 2)]


@pytest.mark.parametrize("rows", [1, 70_000])
def test_entries_that_differ_do_not_fit(rows: int) -> None:
    """In dtype, trailing shape, rank or names: numpy would convert some of them."""
    floats = np.ones((rows, 1), np.float32)
    others: list[Tensors] = [
        {"x": floats.astype(np.float64)},
        {"x": np.ones((rows, 2), np.float32)},
        {"x": np.ones(rows, np.float32)},
        {"y": floats},
        {"x": floats, "y": floats},
    ]

    assert [fit([{"x": floats}, other]) for other in others] == [None] * 5
    assert fit([{"x": floats}, {"x": floats}]) is not None


def test_split_gives_views() -> None:
    """The outputs of a batch are not copied per entry."""
    outputs = {"y": np.array([[0, 1], [2, 3], [4, 5]])}

    first, second = split(outputs, [1, 2])

    assert (first["y"].tolist(), second["y"].tolist()) == ([[0, 1]], [[2, 3], [4, 5]])
    assert np.shares_memory(outputs["y"], second["y"])
    assert joined([first["y"], second["y"]]) is not None


@pytest.mark.parametrize("array", [np.zeros((4, 1)), np.zeros((2, 1)), np.array(1.0)])
def test_split_refuses_outputs_of_other_rows(array: np.ndarray[Any, Any]) -> None:
    """Cut at the wrong rows, an answer would go to the wrong client."""
    with pytest.raises(InferenceFailed, match=r"^output 'y' has shape .* for 3 rows of input$"):
        split({"y": array}, [1, 2])


@pytest.mark.parametrize("tensors", [{}, {"a": np.zeros((2, 1)), "b": np.zeros((1, 1))}, {"a": np.array(1.0)}])
def test_entries_without_a_clear_number_of_rows_are_refused(tensors: Tensors) -> None:
    """They must not shift the rows of their neighbours."""
    with pytest.raises(InvalidRequest, match="must have the same number of rows"):
        rows_of(tensors)


def test_entries_share_a_run_and_get_their_own_rows(load: Load) -> None:
    """One execution carries them all, with the largest of their buckets."""
    backend = Recorded(load("add_one").run)

    ran = run_entries(backend, [_x(1), _x(2, 3), _x(4)], 8, [16, 64, 32], clock=_ticks())

    assert [_values(outcome) for outcome in ran.outcomes] == [{"y": [[2]]}, {"y": [[3], [4]]}, {"y": [[5]]}]
    assert backend.rows == [4]
    assert [Execution(4, 64, 1.0)] == ran.executions


def test_entries_of_several_inputs_share_a_run(load: Load) -> None:
    """Inputs are joined by name."""
    entries = [
        {"INPUT0": np.full((1, 16), 5, np.int32), "INPUT1": np.full((1, 16), 2, np.int32)},
        {"INPUT1": np.full((2, 16), 1, np.int32), "INPUT0": np.full((2, 16), 7, np.int32)},
    ]

    ran = run_entries(load("sum_diff"), entries, 8)

    assert [
        (outcome["OUTPUT0"][:, 0].tolist(), outcome["OUTPUT1"][:, 0].tolist())
        for outcome in ran.outcomes
        if not isinstance(outcome, ServeAppError)
    ] == [([7], [3]), ([8, 8], [6, 6])]
    assert len(ran.executions) == 1


def test_text_entries_share_a_run(load: Load) -> None:
    """Arrays of objects are joined like any other."""
    entries: list[Tensors] = [
        {"INPUT0": np.array([["a"]], np.object_)},
        {"INPUT0": np.array([["é".encode()], [b""]], np.object_)},
    ]

    ran = run_entries(load("string_identity"), entries, 8)

    assert [_values(outcome) for outcome in ran.outcomes] == [{"OUTPUT0": [["a"]]}, {"OUTPUT0": [["é"], [""]]}]


def test_entries_of_other_shapes_run_apart(load: Load) -> None:
    """Each shape is a run of its own, and answers keep the entries' order."""
    ran = run_entries(load("add_one"), [_x(1, width=2), _x(2), _x(3, width=2)], 8)

    assert [_values(outcome) for outcome in ran.outcomes] == [{"y": [[2, 2]]}, {"y": [[3]]}, {"y": [[4, 4]]}]
    assert [execution.rows for execution in ran.executions] == [2, 1]


def test_a_large_entry_is_run_in_pieces(load: Load) -> None:
    """It comes back whole, and every piece counts as an execution."""
    backend = Recorded(load("add_one").run)

    ran = run_entries(backend, [_x(1), _x(*range(10)), _x(2)], 4, clock=_ticks())

    assert [{"y": [[2]]}, {"y": [[value + 1] for value in range(10)]}, {"y": [[3]]}] == [
        _values(outcome) for outcome in ran.outcomes
    ]
    assert backend.rows == [1, 4, 4, 2, 1]
    assert [Execution(rows, 0, 1.0) for rows in (1, 4, 4, 2, 1)] == ran.executions


def test_read_only_and_strided_entries_are_joined(load: Load) -> None:
    """Views of network buffers need no copy of their own first."""
    buffer = np.frombuffer(np.arange(8, dtype=np.float32).tobytes(), np.float32).reshape(4, 2)

    ran = run_entries(load("add_one"), [{"x": buffer[::2]}, {"x": buffer[1::2, ::-1]}], 8)

    assert [_values(outcome) for outcome in ran.outcomes] == [{"y": [[1, 2], [5, 6]]}, {"y": [[4, 3], [8, 7]]}]


def test_only_the_guilty_entry_fails(load: Load) -> None:
    """A failed batch is repeated entry by entry, each once, and neighbours are answered."""
    backend = Recorded(load("fail_on_negative").run)

    ran = run_entries(backend, [_x(1), _x(-1, 2), _x(3)], 8, clock=_ticks())

    assert _values(ran.outcomes[0]) == {"y": [[1]]}
    assert isinstance(ran.outcomes[1], InferenceFailed)
    assert _values(ran.outcomes[2]) == {"y": [[3]]}
    assert backend.rows == [4, 1, 2, 1]
    assert [Execution(1, 0, 1.0), Execution(1, 0, 1.0)] == ran.executions


@pytest.mark.parametrize("assembled", [False, True])
def test_what_is_too_late_is_not_run_again(load: Load, assembled: bool) -> None:
    """When a batch has failed, entries that nobody waits for any more do not delay the others."""
    backend = load("fail_on_negative")
    entries = [_x(1), _x(-1), _x(3)]
    if assembled:
        batch = fit(entries)
        assert batch is not None
        ran = run_assembled(backend, batch, entries, [1, 1, 1], 8, in_time=lambda position: position != 0)
    else:
        ran = run_entries(backend, entries, 8, in_time=lambda position: position != 0)
    late, bad, good = ran.outcomes
    assert isinstance(late, DeadlineExceeded)
    assert isinstance(bad, InferenceFailed)
    assert _values(good) == _values(run_entries(backend, [_x(3)], 8).outcomes[0])
    assert len(ran.executions) == 1


def test_a_failing_entry_alone_is_run_once(load: Load) -> None:
    """There is nobody to protect from it."""
    backend = Recorded(load("fail_on_negative").run)

    ran = run_entries(backend, [_x(-1)], 8)

    assert isinstance(ran.outcomes[0], InferenceFailed)
    assert backend.rows == [1]
    assert ran.executions == []


def test_a_large_entry_fails_as_a_whole(load: Load) -> None:
    """A part of an answer is no answer; other entries keep theirs."""
    ran = run_entries(load("fail_on_negative"), [_x(1, 2, -3), _x(4)], 2)

    assert isinstance(ran.outcomes[0], InferenceFailed)
    assert _values(ran.outcomes[1]) == {"y": [[4]]}


def test_an_entry_that_is_not_text_fails_alone(load: Load) -> None:
    """Its neighbour in the batch is answered."""
    entries = [{"INPUT0": np.array([[value]], np.object_)} for value in (3, b"ok")]

    ran = run_entries(load("string_identity"), entries, 8)

    assert isinstance(ran.outcomes[0], InvalidRequest)
    assert _values(ran.outcomes[1]) == {"OUTPUT0": [["ok"]]}


@pytest.mark.usefixtures("collect_never")
def test_what_has_failed_is_not_kept(load: Load) -> None:
    """Nothing of it waits for the collector of cycles, which may be long in coming: inputs can be large."""
    backend = load("string_identity")
    value = np.array([[3]], np.object_)
    kept = weakref.ref(value)

    ran = run_entries(backend, [{"INPUT0": value}, {"INPUT0": np.array([[b"ok"]], np.object_)}], 8)
    del value

    assert isinstance(ran.outcomes[0], InvalidRequest)
    assert kept() is None


def test_an_entry_of_unclear_rows_never_reaches_the_backend(load: Load) -> None:
    """It is answered, and its neighbours get their own rows."""
    backend = Recorded(load("sum_diff").run)
    good = {"INPUT0": np.ones((1, 16), np.int32), "INPUT1": np.ones((1, 16), np.int32)}
    bad = {"INPUT0": np.ones((2, 16), np.int32), "INPUT1": np.ones((1, 16), np.int32)}

    ran = run_entries(backend, [bad, good], 8)

    assert isinstance(ran.outcomes[0], InvalidRequest)
    assert _values(ran.outcomes[1])["OUTPUT0"][0] == [2] * 16
    assert backend.rows == [1]


def test_an_unexpected_error_is_answered_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    """What nobody foresaw may hold anything: it goes to the log, not to the client."""

    def broken(inputs: Tensors) -> Tensors:
        raise ZeroDivisionError("/etc/secret")

    ran = run_entries(Recorded(broken), [_x(1), _x(2)], 8)

    assert [str(outcome) for outcome in ran.outcomes] == ["the model failed on this input"] * 2
    assert [ZeroDivisionError] * 2 == [record.exc_info[0] for record in caplog.records if record.exc_info]


def test_no_entries_are_no_runs(load: Load) -> None:
    """A bundle may have lost all its entries on the way."""
    ran = run_entries(load("add_one"), [], 8)

    assert (ran.outcomes, ran.executions) == ([], [])


@given(
    entries=st.lists(st.tuples(st.lists(st.integers(-1, 50), min_size=1, max_size=6), st.integers(1, 3)), max_size=12),
    max_rows=st.integers(1, 8),
)
def test_every_entry_gets_exactly_its_own_outcome(entries: list[tuple[list[int], int]], max_rows: int) -> None:
    """Whatever is mixed, an entry fails if and only if it is guilty, and no run exceeds the maximum."""

    def run(inputs: Tensors) -> Tensors:
        if (inputs["x"] < 0).any():
            raise InferenceFailed("negative")
        return {"y": inputs["x"] * 2}

    backend = Recorded(run)

    ran = run_entries(backend, [_x(*values, width=width) for values, width in entries], max_rows)

    expected = [None if -1 in values else {"y": [[2 * value] * width for value in values]} for values, width in entries]
    assert expected == [None if isinstance(outcome, InferenceFailed) else _values(outcome) for outcome in ran.outcomes]
    assert all(rows <= max_rows for rows in backend.rows)
