"""What a frame brings is what was put in, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import hypothesis.extra.numpy as npst
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import astuple

from serve_app.payloads import (
    DTYPES,
    RETURNED,
    Bundle,
    BundleResult,
    Embeddings,
    Execution,
    Failure,
    Media,
    RequestAttributes,
    StreamLimits,
    Success,
    Tensors,
    Texts,
    WireEntry,
    joined,
)
from serve_app.transport import frames
from serve_app.transport.arena import Arena, ArenaReader
from serve_app.transport.frames import (
    PART,
    PREFIX,
    RECALL,
    SHARE_ABOVE,
    TAKEN,
    Frame,
    Part,
    decode_part,
    decode_result,
    encode_failure,
    encode_part,
    encode_recall,
    encode_result,
    encode_taken,
    recalled,
    taken,
)

# At one moment: budgets arrive as they were sent.
encode_bundle = partial(frames.encode_bundle, clock=lambda: 5.0)
decode_bundle = partial(frames.decode_bundle, clock=lambda: 5.0)

needs_arena = pytest.mark.skipif(not Arena.supported(), reason="needs memory files")

arrays = npst.arrays(
    st.sampled_from(["<f4", "<f8", "<i8", "<i4", "|u1", "|b1", "<f2", "<u2"]),
    npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
    elements={"allow_nan": False},
)
tensors = st.dictionaries(st.sampled_from(["x", "y", "mask"]), arrays, min_size=1)
payloads = st.one_of(
    tensors,
    st.builds(Media, st.binary(max_size=50), st.just("image/png"), st.just({"top_k": 3})),
    st.builds(Texts, st.lists(st.text(max_size=5), max_size=3), st.just({})),
    st.just({"s": np.array(["a", "bc"], dtype=object)}),
)
entries = st.builds(
    WireEntry,
    st.integers(1, 3),
    st.floats(0, 10),
    st.integers(1, 9),
    st.sampled_from(["", "int8"]),
    payloads,
    attributes=st.builds(RequestAttributes, st.text(max_size=5), st.floats(0.1, 10.0)),
)


def received(parts: list[Part]) -> Frame:
    """Received."""
    data = b"".join(parts)
    assert PREFIX.unpack_from(data)[2] == len(data)
    return Frame(memoryview(data))


def same(one: Any, other: Any) -> bool:
    """Same."""
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tolist()) == (other.dtype, other.shape, other.tolist())
    if isinstance(one, Struct):
        return type(one) is type(other) and same(astuple(one), astuple(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(st.lists(entries, max_size=5))
def test_bundles(sent: list[WireEntry]) -> None:
    """Bundles."""
    parts, kept = encode_bundle(7, Bundle(sent, "router"), None)
    frame = received(parts)
    assert frame.header[0] == 7
    assert kept == []
    assert same(decode_bundle(frame, None), Bundle(sent, "router"))


@given(st.integers(1, 4), tensors)
def test_bundles_of_one_kind(count: int, payload: dict[str, Any]) -> None:
    """Bundles of one kind."""
    sent = Bundle(
        [WireEntry(1, 0.5, 1, "", {k: v + v.dtype.type(i) for k, v in payload.items()}) for i in range(count)]
    )
    assert same(decode_bundle(received(encode_bundle(1, sent, None)[0]), None), sent)


@given(
    st.lists(
        st.one_of(
            st.builds(Success, tensors),
            st.just(Success([{"label": "a", "score": 0.5}])),
            st.sampled_from([Success({}), Success({"x": 0.5}), Success({"x": [1, 2]}), Success({"x": {}, "y": "b"})]),
            st.builds(Failure, st.just("invalid_request"), st.text(max_size=9), st.sampled_from([None, 1.5])),
            st.builds(
                Success, st.builds(Embeddings, npst.arrays("<f4", (2, 3), elements={"allow_nan": False}), st.just(4))
            ),
        ),
        max_size=6,
    )
)
def test_results(results: list[Success | Failure]) -> None:
    """Results."""
    sent = BundleResult(results, [Execution(3, 0, 0.1, "int8")], 0.1, 0.2, 0.3, 0.4)
    assert same(decode_result(received(encode_result(3, sent))), sent)


def test_a_backlog_travels() -> None:
    """How much a replica has to do travels with its answers."""
    sent = BundleResult([Success({"y": np.ones((1, 2))})], [], 0.0, 0.0, 0.0, backlog_s=1.5)
    assert decode_result(received(encode_result(3, sent))).backlog_s == 1.5


def test_what_goes_back_to_its_router_travels() -> None:
    """An entry that was not run says so."""
    sent = BundleResult([Success({"y": np.ones((1, 2))}), RETURNED], [], 0.0, 0.0, 0.0)
    assert decode_result(received(encode_result(3, sent))).results[1] == RETURNED


def test_a_failure_of_all() -> None:
    """A failure of all."""
    frame = received(encode_failure(9, Failure("inference_failed", "no")))
    assert frame.header == (9, Failure("inference_failed", "no"))


def test_arrays_of_a_frame_start_at_multiples_of_64() -> None:
    """Arrays of a frame start at multiples of 64."""
    sent = Bundle([WireEntry(1, 1.0, 1, "", {"x": np.ones((1, 3), "<f4"), "y": np.ones((1, 5), "<i8")})])
    data = np.empty(4096, np.uint8)
    raw = b"".join(encode_bundle(1, sent, None)[0])
    start = -data.ctypes.data % 64
    data[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
    bundle = decode_bundle(Frame(data[start : start + len(raw)].data), None)
    payload = bundle.entries[0].payload
    assert isinstance(payload, dict)
    assert all(array.ctypes.data % 64 == 0 for array in payload.values())


@needs_arena
def test_large_arrays_stay_where_they_are() -> None:
    """Large arrays stay where they are."""
    arena = Arena(16 * SHARE_ABOVE)
    block = arena.allocate(2 * SHARE_ABOVE)
    assert block is not None
    placed = block.view("<f4").reshape(2, -1)
    placed[:] = 3.0
    elsewhere = np.arange(SHARE_ABOVE, dtype="<f4").reshape(2, -1)  # four times the limit in bytes
    sent = Bundle([WireEntry(1, 1.0, 2, "", {"x": placed}), WireEntry(1, 1.0, 2, "", {"x": elsewhere})])
    parts, kept = encode_bundle(1, sent, arena)
    assert sum(map(len, parts)) < 1000
    assert len(kept) == 2
    assert kept[0] is placed
    bundle = decode_bundle(received(parts), ArenaReader(arena.fd, arena.nbytes))
    assert same(bundle, sent)


@needs_arena
def test_what_finds_no_room_travels() -> None:
    """What finds no room travels."""
    arena = Arena(4096)
    array = np.arange(SHARE_ABOVE, dtype="<f4").reshape(1, -1)
    sent = Bundle([WireEntry(1, 1.0, 1, "", {"x": array}), WireEntry(1, 1.0, 1, "", {"x": array + 1})])
    parts, kept = encode_bundle(1, sent, arena)
    assert kept == []
    assert same(decode_bundle(received(parts), ArenaReader(arena.fd, arena.nbytes)), sent)


@needs_arena
def test_arrays_that_are_not_contiguous() -> None:
    """Arrays that are not contiguous."""
    arena = Arena(16 * SHARE_ABOVE)
    array = np.arange(2 * SHARE_ABOVE, dtype="<f4").reshape(-1, 2).T
    small = np.arange(12, dtype="<i4").reshape(3, 4)[:, ::2]
    for each in (array, small):
        sent = Bundle([WireEntry(1, 1.0, 1, "", {"x": each})])
        parts, kept = encode_bundle(1, sent, arena)
        assert same(decode_bundle(received(parts), ArenaReader(arena.fd, arena.nbytes)), sent)
        del kept


def test_a_frame_that_needs_an_arena_is_refused_without_one() -> None:
    """A frame that needs an arena is refused without one."""
    if not Arena.supported():
        pytest.skip("needs memory files")
    arena = Arena(16 * SHARE_ABOVE)
    sent = Bundle([WireEntry(1, 1.0, 1, "", {"x": np.zeros((1, SHARE_ABOVE), "<f4")})])
    with pytest.raises(ValueError, match="arena"):
        decode_bundle(received(encode_bundle(1, sent, arena)[0]), None)


@pytest.mark.parametrize(
    "payload", [{"x": np.ones((1, 2), "<f4")}, Media(b"a", "image/png", {})], ids=["tensors", "media"]
)
def test_budgets_run_while_the_frame_waits(payload: Any) -> None:
    """What has expired on the way arrives as expired."""
    sent = Bundle([WireEntry(1, budget_s, 1, "", payload) for budget_s in (1.0, 0.25)], "router")
    frame = received(frames.encode_bundle(1, sent, None, clock=lambda: 100.0)[0])
    for now, expected in ((100.0, [1.0, 0.25]), (100.5, [0.5, 0.0]), (99.0, [1.0, 0.25])):
        arrived = frames.decode_bundle(frame, None, clock=lambda now=now: now)  # type: ignore[misc]
        assert [entry.budget_s for entry in arrived.entries] == expected
        assert arrived.sender == "router"


def test_large_rows_are_not_copied() -> None:
    """Neither those of a bundle without an arena nor those of a result; small ones are one piece."""
    large = [np.full((1, SHARE_ABOVE), value, "<f4") for value in range(3)]
    small = [np.full((1, 3), value, "<f4") for value in range(3)]
    sent = Bundle([WireEntry(1, 1.0, 1, "", {"l": one, "s": two}) for one, two in zip(large, small, strict=True)])
    result = BundleResult([Success(entry.payload) for entry in sent.entries], [], 0.0, 0.0, 0.0)
    bundle_parts = encode_bundle(1, sent, None)[0]
    for parts in (bundle_parts, encode_result(1, result)):
        views = [np.frombuffer(part, np.uint8) for part in parts if len(part) > 1000]
        assert [np.shares_memory(view, array) for view, array in zip(views, large, strict=True)] == [True] * 3
    arrived = decode_bundle(received(bundle_parts), None)
    assert same(arrived, sent)
    # They arrive as one array all the same, so that the replica need not join them.
    assert joined([cast("Tensors", entry.payload)["l"] for entry in arrived.entries]) is not None
    assert same(decode_result(received(encode_result(1, result))), result)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_matrices() -> None:
    """Numpy's other arrays travel as plain ones."""
    sent: list[Tensors] = [{"x": np.asmatrix(np.full((1, 3), value, "<f4"))} for value in range(2)]
    parts, _ = encode_bundle(1, Bundle([WireEntry(1, 1.0, 1, "", payload) for payload in sent]), None)
    arrived = decode_bundle(received(parts), None)
    assert [cast("Tensors", entry.payload)["x"].tolist() for entry in arrived.entries] == [[[0.0] * 3], [[1.0] * 3]]


@pytest.mark.parametrize("rows", [1, 3])
def test_bfloat16_keeps_its_name(rows: int) -> None:
    """Numpy has no letters for it: a frame names it in full."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3).astype(DTYPES["BF16"])
    sent = Bundle([WireEntry(2, 1.0, 2, "", {"x": x}) for _ in range(rows)], "router")

    parts, _ = encode_bundle(1, sent, None)
    got = decode_bundle(received(parts), None)

    assert all(same(entry.payload, {"x": x}) for entry in got.entries)
    assert len(got.entries) == rows


@needs_arena
def test_bfloat16_lies_in_the_arena() -> None:
    """As other numbers do."""
    arena = Arena(1 << 20)
    x = np.ones((SHARE_ABOVE, 1), DTYPES["BF16"])

    parts, kept = encode_bundle(1, Bundle([WireEntry(2, 1.0, len(x), "", {"x": x})], "router"), arena)
    got = decode_bundle(received(parts), ArenaReader(arena.fd, arena.nbytes))

    assert len(kept) == 1
    assert same(got.entries[0].payload, {"x": x})


@given(st.integers(1, 2**62), st.lists(st.integers(0, 2**31), max_size=9))
def test_a_recall_names_a_call_and_positions(call: int, positions: list[int]) -> None:
    """And no other frame does."""
    frame = received(encode_recall(call, positions))
    assert (frame.call, frame.kind, recalled(frame)) == (call, RECALL, tuple(positions))
    sent = Bundle([WireEntry(1, 1.0, 1, "", {"x": np.ones((1, 1))}), WireEntry(1, 1.0, 1, "", Texts(["a"], {}))])
    for others in (sent, Bundle(sent.entries[:1]), Bundle([])):
        assert received(encode_bundle(call, others, None)[0]).kind != RECALL


@given(st.integers(1, 2**40), st.integers(0, 9), st.integers(0, 10**6), tensors)
def test_a_part_travels(call: int, position: int, number: int, outputs: Tensors) -> None:
    """With its place."""
    frame = received(encode_part(call, position, number, 0.25, outputs))
    assert (frame.call, frame.kind) == (call, PART)
    at, counted, waited_s, found = decode_part(frame)
    assert (at, counted, waited_s) == (position, number, 0.25)
    assert found.keys() == outputs.keys()
    for name, array in outputs.items():
        np.testing.assert_array_equal(found[name], array)


def test_texts_travel_in_parts() -> None:
    """Beside numbers, as pickle carries them."""
    outputs = {"s": np.array(["a", "bc"], object), "n": np.arange(3)}
    *_, found = decode_part(received(encode_part(1, 0, 0, 0.0, outputs)))
    assert {name: array.tolist() for name, array in found.items()} == {"s": ["a", "bc"], "n": [0, 1, 2]}


def test_what_was_read_is_told() -> None:
    """By position and number."""
    frame = received(encode_taken(7, 2, 30))
    assert (frame.call, frame.kind, taken(frame)) == (7, TAKEN, (2, 30))


class Sink:
    """Takes parts; it cannot travel."""

    def send(self, position: int, number: int, waited_s: float, outputs: Tensors) -> None:
        raise NotImplementedError

    def on_taken(self, position: int, taken: Callable[[int], None]) -> None:
        raise NotImplementedError

    def __reduce__(self) -> Any:
        raise TypeError("it does not travel")


@pytest.mark.parametrize("payload", [{"x": np.zeros(2)}, {"s": np.array(["a"], object)}])
def test_what_takes_parts_stays_here(payload: Tensors) -> None:
    """And the limits of an answer in parts travel."""
    limits = StreamLimits(30.0, 8, 1000, 0.5)
    bundle = Bundle([WireEntry(1, 1.0, 1, "", payload, stream=limits)], "r", parts=Sink())
    parts, _ = encode_bundle(1, bundle, None)
    found = decode_bundle(received(parts), None)
    assert (found.parts, found.entries[0].stream) == (None, limits)
