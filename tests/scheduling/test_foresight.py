"""What a replica leaves out of a run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_app.scheduling.foresight import Due, Foresight


def make_foresight(profile_s: float = 0.005) -> Foresight:
    """One that knows the exact model: 1 ms per row and something fixed, seconds."""
    foresight = Foresight(32)
    foresight.seed([(rows, 0, profile_s + 0.001 * rows, "") for rows in (1, 2, 4, 8, 16, 32)])
    return foresight


_DUE = st.builds(Due, st.floats(0.0, 0.2), st.integers(1, 40), st.sampled_from([0, 64]))


def test_what_is_unknown_is_never_late() -> None:
    """Nothing is left out while no execution was seen."""
    assert Foresight(8).late([Due(5.1, 1), Due(6.0, 1)], "", 5.0) == []


def test_the_tightest_go_until_the_rest_is_in_time() -> None:
    """One that is hopeless alone, and one without which the others end in time."""
    entries = [Due(0.005, 1), Due(0.012, 4), Due(0.1, 4), Due(0.1, 4)]

    assert make_foresight().late(entries, "", 0.0) == [0, 1]
    assert make_foresight().late(entries[2:], "", 0.0) == []


def test_a_run_of_which_nothing_is_in_time_is_tried_once_a_second() -> None:
    """So that a prediction that is far too long is corrected by an execution."""
    foresight = make_foresight(profile_s=5.0)
    tried = [foresight.late([Due(0.1 * step + 0.5, 1)], "", 0.1 * step) == [] for step in range(25)]

    assert [step for step, whole in enumerate(tried) if whole] == [10, 20]


def test_a_part_that_is_always_left_out_is_tried_too() -> None:
    """Seldom: its rows would otherwise never be measured again."""
    foresight = make_foresight()
    tried = [foresight.late([Due(step + 0.006, 1), Due(step + 1.0, 8)], "", float(step)) for step in range(12)]

    assert [step for step, left_out in enumerate(tried) if not left_out] == [10]


@given(st.lists(_DUE, max_size=12))
def test_what_stays_ends_in_time(entries: list[Due]) -> None:
    """And nothing is left out where all would."""
    foresight = make_foresight()
    left_out = foresight.late(entries, "", 0.0)
    staying = [entry for position, entry in enumerate(entries) if position not in left_out]

    def end(run: list[Due]) -> float:
        by_bucket = {due.bucket: sum(other.rows for other in run if other.bucket == due.bucket) for due in run}
        return sum(foresight.seconds(rows, bucket, "") for bucket, rows in by_bucket.items())

    assert all(end(staying) <= entry.deadline for entry in staying)
    assert (not left_out) == all(end(entries) <= entry.deadline for entry in entries)
