"""Blocks of shared memory: never two at one place, free again when nothing refers to them, readable elsewhere."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.transport.arena import Arena, ArenaReader, Block

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs memory files")

SIZE = 64 * 1024


@given(st.lists(st.tuples(st.booleans(), st.integers(0, SIZE // 4)), max_size=60))
def test_blocks_never_overlap_and_all_come_back(steps: list[tuple[bool, int]]) -> None:
    """Blocks never overlap and all come back."""
    arena = Arena(SIZE)
    blocks: list[tuple[Block, int]] = []
    block: Block | None = None
    for stamp, (drop, size) in enumerate(steps):
        if drop and blocks:
            blocks.pop(size % len(blocks))
            continue
        block = arena.allocate(size)
        if block is not None:
            assert block.nbytes == size
            assert arena.offset_of(block) is not None or size == 0
            block[:] = stamp % 251
            blocks.append((block, stamp % 251))
        assert arena.held <= SIZE
    assert all((block == stamp).all() for block, stamp in blocks)
    blocks.clear()
    block = None
    assert arena.held == 0
    assert arena.allocate(SIZE) is not None
    arena.close()


def test_starts_at_multiples_of_64() -> None:
    """Starts at multiples of 64."""
    arena = Arena(SIZE)
    blocks = [arena.allocate(size) for size in (1, 63, 64, 65, 1000)]
    assert all(block is not None and block.ctypes.data % 64 == 0 for block in blocks)


def test_no_room() -> None:
    """No room."""
    arena = Arena(SIZE)
    kept = arena.allocate(SIZE - 64)
    assert kept is not None
    assert arena.allocate(65) is None
    assert arena.allocate(64) is not None


def test_free_blocks_join_only_with_their_neighbours() -> None:
    """Room for a block is room in one piece: what lies between two free blocks is still held."""
    arena = Arena(SIZE)
    blocks = [arena.allocate(SIZE // 4) for _ in range(4)]
    blocks[0] = blocks[2] = None
    assert arena.allocate(SIZE // 2) is None
    blocks[1] = None
    assert arena.allocate(3 * SIZE // 4) is not None


DERIVED: dict[str, Callable[[Block], object]] = {
    "slice": lambda block: block[512:],
    "cast": lambda block: block.view(np.float32),
    "reshape": lambda block: block.view(np.float32).reshape(16, 16)[3:5],
    "memoryview": lambda block: block.data[8:],
    "frombuffer": lambda block: np.frombuffer(block.data, np.float32, 8, 64).reshape(2, 4)[1:],
}


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
def test_a_block_is_held_by_what_is_made_of_it(derive: Callable[[Block], object]) -> None:
    """A block is held by what is made of it."""
    arena = Arena(SIZE)
    block = arena.allocate(1024)
    assert block is not None
    made: object = derive(block)
    block = None
    assert arena.held == 1024
    made = None
    assert arena.held == 0, made


def test_knows_its_own() -> None:
    """Knows its own."""
    arena, other = Arena(SIZE), Arena(SIZE)
    block = arena.allocate(256)
    assert block is not None
    offset = arena.offset_of(block)
    assert offset is not None
    assert arena.offset_of(block[64:]) == offset + 64
    assert other.offset_of(block) is None
    assert arena.offset_of(np.zeros(8)) is None


def _read(connection: multiprocessing.connection.Connection, nbytes: int) -> None:
    from multiprocessing.reduction import recv_handle

    reader = ArenaReader(recv_handle(connection), nbytes)
    offset = connection.recv()
    array = reader.array(np.dtype("<f4"), (2, 3), offset)
    connection.send((array.tolist(), array.flags.writeable))
    connection.close()


def test_another_process_reads_it() -> None:
    """Another process reads it."""
    from multiprocessing.reduction import send_handle

    arena = Arena(SIZE)
    block = arena.allocate(24)
    assert block is not None
    block.view("<f4")[:] = range(6)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read, args=(theirs, SIZE))
    process.start()
    send_handle(ours, arena.fd, process.pid)
    ours.send(arena.offset_of(block))
    assert ours.recv() == ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], False)
    process.join()
    assert process.exitcode == 0


def test_reading_beyond_the_end_is_refused() -> None:
    """Reading beyond the end is refused."""
    arena = Arena(SIZE)
    reader = ArenaReader(arena.fd, SIZE)
    with pytest.raises(ValueError, match="buffer"):
        reader.array(np.dtype("<f4"), (17,), SIZE - 64)
    assert reader.array(np.dtype("<f4"), (0, 3), 0).shape == (0, 3)
