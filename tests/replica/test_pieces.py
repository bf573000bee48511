"""Requests of rows of different lengths are cut into pieces of one length each, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from serve_app.backends.warm_up import spaced_buckets
from serve_app.errors import InferenceFailed
from serve_app.payloads import Execution, Tensors
from serve_app.processors.buckets import bucket_for, size_classes
from serve_app.processors.embedding import EmbeddingProcessor, EmbeddingSettings
from serve_app.processors.sentence_modules import Chain
from serve_app.processors.tokenization import TextSettings, TextTokenizer
from serve_app.replica.pieces import Piece, cut, padded_lengths, put_together
from serve_app.scheduling.batching.latency import LatencyModel

LONGEST = 64


def processor(grid: Sequence[int], inputs: Sequence[str] = ("input_ids", "attention_mask")) -> EmbeddingProcessor:
    """One that pads with 0 to these lengths."""
    text = TextSettings({name: np.dtype(np.int64) for name in inputs}, LONGEST, tuple(grid), 10_000, 0)
    embedding = EmbeddingSettings("y", 8, (), Chain(), False, {}, "", "{}", 20.0, 0.5)
    return EmbeddingProcessor("feature-extraction", TextTokenizer(Tokenizer(WordLevel()), text), embedding)


def request(made: EmbeddingProcessor, lengths: Sequence[int]) -> Tensors:
    """Texts of these lengths, no token like another."""
    return made.tokenizer.tokenize([[100 * row + at + 1 for at in range(tokens)] for row, tokens in enumerate(lengths)])


def latency_of(seconds: Callable[[int, int], float] | None) -> LatencyModel:
    """What was profiled at 8 and 64 tokens; ``None``: nothing."""
    latency = LatencyModel()
    if seconds is not None:
        latency.seed((rows, bucket, seconds(rows, bucket)) for rows in (1, 2, 4, 8, 16) for bucket in (8, 64))
    return latency


LATENCIES = {
    "unknown": latency_of(None),
    "in proportion": latency_of(lambda rows, bucket: 1e-4 * rows * bucket),
    "affine": latency_of(lambda rows, bucket: 0.01 + 1e-4 * rows * bucket),
    "little fixed": latency_of(lambda rows, bucket: 1e-3 + 1e-4 * rows * bucket),
}


@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=40),
    grid=st.sets(st.integers(1, LONGEST - 1), max_size=8),
    max_rows=st.integers(1, 16),
    latency=st.sampled_from(sorted(LATENCIES)).map(LATENCIES.__getitem__),
    pads=st.booleans(),
)
def test_pieces_put_together_are_the_request(
    lengths: list[int], grid: set[int], max_rows: int, latency: LatencyModel, pads: bool
) -> None:
    """Each has rows of one length, as many as save time together; the longest come first, and every row is in one."""
    buckets = (*sorted(grid), LONGEST)
    made = processor(buckets)
    tensors = request(made, lengths)
    sizes = [bucket_for(tokens, buckets) if pads else tokens for tokens in lengths]

    pieces = cut(made, tensors, buckets, latency, max_rows, pads=pads, one_row_each=False, lock=Lock())

    if not pieces:
        assert {max(sizes)} == set(sizes)
        assert len(lengths) <= latency.enough(bucket_for(sizes[0], buckets), max_rows)
        return
    assert list(range(len(lengths))) == sorted(row for piece in pieces for row in piece.rows)
    widths = [piece.tensors["input_ids"].shape[1] for piece in pieces]
    assert sorted(widths, reverse=True) == widths
    for piece, width in zip(pieces, widths, strict=True):
        rows = len(piece.rows)
        assert {width} == {sizes[row] for row in piece.rows}
        assert (rows, width) == piece.tensors["attention_mask"].shape
        assert bucket_for(width, buckets) == piece.bucket
        assert 1 <= rows <= latency.enough(piece.bucket, max_rows)
    whole = put_together(pieces, [piece.tensors for piece in pieces])
    padded = made.pad(tensors, max(widths))
    assert {name: array.tolist() for name, array in padded.items()} == {
        name: array.tolist() for name, array in whole.items()
    }


def test_what_has_one_length_is_not_cut() -> None:
    """One row, rows as long as each other, and rows that are padded alike."""
    made = processor((8, LONGEST))
    for lengths in ([9], [5, 5, 5], [1, 8, 3]):
        tensors = request(made, lengths)
        assert cut(made, tensors, (8, LONGEST), LatencyModel(), 16, pads=True, one_row_each=False, lock=Lock()) == []


@pytest.mark.parametrize("inputs", [["input_ids"], ["input_ids", "attention_mask"]])
@pytest.mark.parametrize("lengths", [[5, 5, 5], [1, 60, 3]])
def test_rows_that_change_each_other_are_cut_one_by_one(inputs: list[str], lengths: list[int]) -> None:
    """Each as long as it is, whether or not the model takes a mask."""
    made = processor((8, LONGEST), inputs)
    tensors = request(made, lengths)
    pieces = cut(made, tensors, (8, LONGEST), LatencyModel(), 16, pads=False, one_row_each=True, lock=Lock())
    assert sorted(range(3)) == sorted(row for piece in pieces for row in piece.rows)
    for piece in pieces:
        assert dict.fromkeys(inputs, (1, lengths[piece.rows[0]])) == {
            name: array.shape for name, array in piece.tensors.items()
        }


def test_rows_of_one_length_are_cut_where_more_save_nothing() -> None:
    """In proportion to rows each goes by itself, so that what is more urgent has its turn between any two."""
    made = processor((8, LONGEST))
    latency = latency_of(lambda rows, bucket: 1e-2 * rows * bucket)
    pieces = cut(made, request(made, [5] * 4), (8, LONGEST), latency, 16, pads=True, one_row_each=False, lock=Lock())
    assert [[0], [1], [2], [3]] == [piece.rows for piece in pieces]


@pytest.mark.parametrize(
    ("latency", "pads", "after_s"),
    [
        ("unknown", True, [0.0, 0.0, 0.0]),
        ("in proportion", True, [0.0024, 0.0008, 0.0]),
        ("affine", True, [0.0132, 0.0108, 0.0]),
        ("affine", False, [0.0224, 0.0108, 0.0]),
    ],
)
def test_a_piece_leaves_time_for_those_behind_it(latency: str, pads: bool, after_s: list[float]) -> None:
    """One by one, or together where they may share a run and that takes less."""
    made = processor((8, 16, LONGEST))
    latency_model = LATENCIES[latency]
    pieces = cut(
        made,
        request(made, [16, 64, 8]),
        (8, 16, LONGEST),
        latency_model,
        16,
        pads=pads,
        one_row_each=False,
        lock=Lock(),
    )
    assert pytest.approx(after_s) == [piece.after_s for piece in pieces]


def test_outputs_without_rows_are_left_out() -> None:
    """A scale beside the answers is no part of any; what its rows are is put together."""
    pieces, parts = outputs([1], [0, 2], shapes=[(1, 2), (2, 2)])
    whole = put_together(pieces, [{**part, "scale": np.array(3.0)} for part in parts])
    assert (["y"], (3, 2)) == ([*whole], whole["y"].shape)


def outputs(*rows: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> tuple[list[Piece], list[Tensors]]:
    """Pieces of these rows, and an output of each filled with the number of its piece, from 1."""
    pieces = [Piece(each, {}, 8) for each in rows]
    return pieces, [{"y": np.full(shape, number, np.float32)} for number, shape in enumerate(shapes, start=1)]


@pytest.mark.parametrize(
    ("shapes", "whole"),
    [
        ([(1,), (2,)], [2, 1, 2]),
        ([(1, 1), (2, 1)], [[2], [1], [2]]),
        ([(1, 3), (2, 2)], [[2, 2, 0], [1, 1, 1], [2, 2, 0]]),
        ([(1, 1, 2), (2, 2, 1)], [[[2, 0], [2, 0]], [[1, 1], [0, 0]], [[2, 0], [2, 0]]]),
        ([(1, 0), (2, 0)], [[], [], []]),
    ],
    ids=["numbers", "vectors", "a vector per token", "two axes of tokens", "nothing"],
)
def test_outputs_are_put_together_in_the_order_of_rows(shapes: Sequence[tuple[int, ...]], whole: Any) -> None:
    """What is shorter is filled up with zeros behind."""
    pieces, parts = outputs([1], [2, 0], shapes=shapes)
    joined = put_together(pieces, parts)["y"]
    assert (whole, np.dtype(np.float32)) == (joined.tolist(), joined.dtype)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(1, 2), (2,)], "output 'y' has different numbers of dimensions for different rows"),
        ([(1, 2), (1, 2)], "output 'y' has shape [1, 2] for 2 rows of input"),
        ([(1, 2), (3, 2)], "output 'y' has shape [3, 2] for 2 rows of input"),
        ([(), ()], "output 'y' has shape [] for 1 rows of input"),
    ],
    ids=["dimensions", "too few rows", "too many rows", "no rows"],
)
def test_outputs_that_are_not_of_the_rows_are_no_answer(shapes: Sequence[tuple[int, ...]], message: str) -> None:
    """Nobody gets another row's."""
    pieces, parts = outputs([1], [2, 0], shapes=shapes)
    with pytest.raises(InferenceFailed) as raised:
        put_together(pieces, parts)
    assert message == raised.value.message


ANY = tuple(range(1, LONGEST + 1))
SPACED = spaced_buckets(GRID := size_classes(2, LONGEST))


@pytest.mark.parametrize(
    ("executions", "device", "inputs", "lengths"),
    [
        (SPACED, "cpu", ("input_ids", "attention_mask"), ANY),
        ((), "cpu", ("input_ids", "attention_mask"), ANY),
        (SPACED, "cpu", ("input_ids",), ANY),
        (SPACED, "cuda", ("input_ids", "attention_mask"), SPACED),
        (SPACED[:2], "cuda", ("input_ids", "attention_mask"), (*SPACED[:2], LONGEST)),
        ((), "cuda", ("input_ids", "attention_mask"), SPACED),
    ],
    ids=["CPU", "CPU, not measured", "CPU, no mask", "GPU", "GPU, partly measured", "GPU, not measured"],
)
def test_rows_are_padded_to_lengths_that_cost_nothing_new(
    executions: Sequence[int], device: str, inputs: Sequence[str], lengths: Sequence[int]
) -> None:
    """On a CPU to any, where rows can be cut apart; on a GPU to those that the warm-up ran, and to the longest."""
    made = processor(GRID, inputs)
    assert lengths == padded_lengths(made, [Execution(1, bucket, 0.01) for bucket in executions], device)
