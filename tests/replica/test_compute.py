"""What a replica computes with: the decision, and what is measured for it."""

from __future__ import annotations

from threading import Barrier, Semaphore

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_harness import tensor

from serve_app.errors import InferenceFailed
from serve_app.payloads import Compute, ModelSignature, Tensors
from serve_app.replica.compute import AtOnce, Measured, decide, run_s, threaded, together

CONFIGURED = st.none() | st.integers(1, 9)
MEASURED = st.builds(Measured, st.floats(1e-6, 10.0), st.floats(0.1, 9.0), st.floats(0.0, 9.0))


def decided(threads: int | None, instances: int | None, cores: int, measured: Measured) -> tuple[Compute, list[str]]:
    """The decision where everything that it asks for is measured, and what it asked for."""
    known, asked = Measured(), []
    while isinstance(step := decide(threads, instances, cores, known), str):
        asked.append(step)
        known = known._replace(**{step: getattr(measured, step)})
    return step, asked


@given(CONFIGURED, CONFIGURED, st.integers(1, 8), MEASURED)
def test_what_is_configured_is_kept(threads: int | None, instances: int | None, cores: int, measured: Measured) -> None:
    """The rest is 1, or as many as there are cores; never both more than 1 by itself."""
    found, _ = decided(threads, instances, cores, measured)
    assert found.threads == threads or (threads is None and found.threads in {1, cores})
    assert found.instances == instances or (instances is None and found.instances in {1, cores})
    assert min(found.threads, found.instances) == 1 or (threads, instances) == found[:2]


@given(CONFIGURED, CONFIGURED, st.integers(1, 8), MEASURED)
def test_nothing_is_measured_in_vain(
    threads: int | None, instances: int | None, cores: int, measured: Measured
) -> None:
    """Nothing twice, nothing on one core, and nothing but a run of a small model."""
    found, asked = decided(threads, instances, cores, measured)
    assert len(set(asked)) == len(asked)
    assert not asked or (cores > 1 and asked[0] == "run_s")
    assert asked[1:] == [] or (measured.run_s or 0.0) >= 0.002
    assert found[:2] == (1, 1) or not asked or asked[-1] == ("together" if found.instances > 1 else "threaded")


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (Measured(0.001, 2.0, 2.0), Compute(1, 1, "a run takes 1 ms: the cores are for the router")),
        (Measured(0.02, 1.9, 1.9), Compute(1, 2, "2 runs at once do 1.90 times the rows of one at a time")),
        (
            Measured(0.02, 1.1, 1.4),
            Compute(2, 1, "a run of 2 threads is 1.40 times as fast"),
        ),
        (
            Measured(0.02, 1.1, 1.1),
            Compute(
                1,
                1,
                "2 runs at once do 1.10 times the rows of one at a time; a run of 2 threads is 1.10 times as fast",
            ),
        ),
        (
            Measured(0.02, 1.1, 0.0),
            Compute(1, 1, "2 runs at once do 1.10 times the rows of one at a time"),
        ),
    ],
    ids=["small", "instances", "threads", "neither", "not tried"],
)
def test_the_choice_of_a_replica_that_may_have_two_cores(measured: Measured, expected: Compute) -> None:
    """Instances first: they cost no second copy of the weights."""
    assert decided(None, None, 2, measured)[0] == expected


class Meeting:
    """A backend whose first runs end when so many are under way at once; more than a few fail."""

    signature = ModelSignature((), ())
    device = "cpu"

    def __init__(self, parties: int, most: int) -> None:
        self._barrier = Barrier(parties)
        self._left = Semaphore(most)

    def load(self) -> None:
        """Nothing to load."""

    def run(self, inputs: Tensors) -> Tensors:
        """Meet the others."""
        if not self._left.acquire(blocking=False):
            raise InferenceFailed("enough")
        self._barrier.wait(timeout=30.0)
        return inputs

    run_whole = run

    def close(self) -> None:
        """Nothing to free."""


def test_runs_are_measured_at_once() -> None:
    """None of them would end by itself. Without time, each thread has one that counts after one that does not."""
    assert together(Meeting(3, 6), tensor(1.0), 1.0, 3, 0.0) > 0.0


def test_a_run_beside_others_has_them_beside_it() -> None:
    """It ends when all are under way, and the next one likewise."""
    beside = AtOnce(Meeting(3, 6), 3)
    assert [beside.run(tensor(value)) for value in (1.0, 2.0)] == [tensor(1.0), tensor(2.0)]


def test_a_run_beside_others_that_fails_raises() -> None:
    """The others fail as well, and nobody is left waiting."""
    with pytest.raises(InferenceFailed, match="enough"):
        AtOnce(Meeting(3, 0), 3).run(tensor(1.0))


def test_what_a_run_raises_is_raised() -> None:
    """Whichever thread it is in."""
    with pytest.raises(InferenceFailed, match="enough"):
        together(Meeting(3, 3), tensor(1.0), 1.0, 3, 0.0)


def test_without_time_a_run_of_each_is_measured() -> None:
    """After one that does not count."""
    assert run_s(Meeting(1, 2), tensor(1.0), 0.0) > 0.0
    assert threaded(Meeting(1, 2), Meeting(1, 2), tensor(1.0), 0.0) > 0.0
