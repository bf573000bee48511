"""The latency model: what it learns, and what it makes of what it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import AFFINE

from serve_app.scheduling.batching.latency import LatencyModel


def _seeded(points: list[tuple[int, int, float]] | None = None) -> LatencyModel:
    latency = LatencyModel()
    latency.seed(AFFINE if points is None else points)
    return latency


def _profiled() -> LatencyModel:
    return _seeded([(rows, at, 0.002 + 1e-5 * rows * at) for rows in (1, 8, 32) for at in (16, 64, 128, 256)])


def test_unknown_model_predicts_nothing() -> None:
    """Without a prior or samples every prediction is 0.0, and any number of rows fits in any time."""
    latency = LatencyModel()

    assert (latency.known, latency.predict(7, 3), latency.best(0, 32, 0.1)) == (False, 0.0, (32, 0.0))
    assert latency.rows_within(0.0, 0, 32) == 32


@pytest.mark.parametrize("rows", [1, 3, 5, 17, 32, 100, 1024, 3000])
def test_affine_profile_is_reproduced(rows: int) -> None:
    """Between, at and beyond the profiled batch sizes."""
    assert 0.005 + 0.001 * rows == pytest.approx(_seeded().predict(rows))


def test_a_profile_that_bends_is_reproduced() -> None:
    """Straight from point to point, wherever these are, and on as the last two go."""
    latency = _seeded([(1, 0, 0.010), (6, 0, 0.020), (24, 0, 0.029), (32, 0, 0.037)])

    assert [latency.predict(rows) for rows in (1, 6, 24, 32)] == [0.010, 0.020, 0.029, 0.037]
    assert pytest.approx([latency.predict(rows) for rows in (3, 12, 28, 42)]) == [0.014, 0.023, 0.033, 0.047]


def test_outside_of_the_points_half_of_the_time_is_fixed_at_least() -> None:
    """Neither a steep start nor a flat end of a profile makes it too cheap where nothing was measured."""
    latency = _seeded([(8, 0, 0.008), (16, 0, 0.032), (32, 0, 0.032)])

    assert pytest.approx((latency.predict(1), latency.predict(64))) == (0.0045, 0.048)


def test_of_points_with_the_same_rows_the_longest_counts() -> None:
    """A profile may have measured a shape twice."""
    assert _seeded([(1, 0, 0.006), (8, 0, 0.013), (8, 0, 0.014), (8, 0, 0.012)]).predict(8) == 0.014


def test_two_points_are_enough_for_a_prior() -> None:
    """The line through them."""
    assert pytest.approx(_seeded([(1, 0, 0.006), (32, 0, 0.037)]).predict(16)) == 0.021


def test_one_point_has_half_of_its_cost_fixed() -> None:
    """Nothing is known of the slope, so the middle is assumed."""
    latency = _seeded([(10, 0, 0.020)])

    assert pytest.approx(latency.predict(1), rel=0.15) == 0.011
    assert latency.predict(1) < latency.predict(10) < latency.predict(20) < 0.040


def test_follows_what_is_measured() -> None:
    """Executions replace the prior where they happened."""
    latency = _seeded()
    for _ in range(40):
        latency.observe(8, 0, 0.050)

    assert pytest.approx(latency.predict(8)) == 0.050


def test_unmeasured_sizes_follow_their_neighbours() -> None:
    """A model that runs twice as slow as profiled at the sizes seen is expected to at the others too."""
    latency = _seeded([(1, 0, 0.006), (32, 0, 0.037)])
    for _ in range(40):
        latency.observe(1, 0, 0.012)
        latency.observe(32, 0, 0.074)

    assert pytest.approx(latency.predict(8)) == 2 * 0.013


@pytest.mark.parametrize("samples", [1, 2, 5, 19, 32])
def test_one_outlier_changes_little(samples: int) -> None:
    """A single stall among any number of samples does not move the prediction to it."""
    latency = _seeded([(1, 0, 0.006), (32, 0, 0.037)])
    for _ in range(samples - 1):
        latency.observe(8, 0, 0.013)
    latency.observe(8, 0, 3.0)

    assert pytest.approx(latency.predict(8), rel=0.05) == 0.013


def test_old_samples_are_forgotten() -> None:
    """A window of recent executions counts, not the whole past."""
    latency = _seeded()
    for _ in range(100):
        latency.observe(8, 0, 0.5)
    for _ in range(32):
        latency.observe(8, 0, 0.013)

    assert pytest.approx(latency.predict(8)) == 0.013


def test_predicts_a_high_quantile_not_the_mean() -> None:
    """Deadlines are kept by planning for the slow executions."""
    latency = LatencyModel()
    for i in range(32):
        latency.observe(4, 0, 0.010 + 0.001 * i)

    assert pytest.approx(latency.predict(4)) == 0.039


def test_typical_is_the_median_of_the_same_samples() -> None:
    """One model tells both what to plan with and what to expect, and each follows what is observed."""
    latency = LatencyModel()
    for i in range(32):
        latency.observe(4, 0, 0.010 + 0.001 * i)
    assert (latency.typical(4), latency.predict(4)) == pytest.approx((0.025, 0.039))
    assert latency.typical(4, 8) == pytest.approx(0.025)

    for _ in range(32):
        latency.observe(4, 0, 0.050)
    assert (latency.typical(4), latency.predict(4)) == pytest.approx((0.050, 0.050))


def test_a_slower_machine_is_slower_at_sizes_that_have_not_run() -> None:
    """Without measurements of their own they go by the bucket's."""
    latency = _seeded()
    for _ in range(3):
        latency.observe(8, 0, 1.5 * 0.013)

    assert pytest.approx([latency.predict(rows) for rows in (1, 8, 32)]) == [0.009, 0.0195, 0.0555]


def test_three_slow_executions_tell_of_a_slower_machine() -> None:
    """However many fast ones there were before. As many as it takes for an outlier not to count."""
    latency = _seeded()
    for _ in range(100):
        latency.observe(8, 0, 0.013)
    for _ in range(3):
        latency.observe(8, 0, 1.5 * 0.013)

    assert pytest.approx(latency.predict(8)) == 0.0195


def test_learns_without_a_prior() -> None:
    """Observed sizes give the shape."""
    latency = LatencyModel()
    for _ in range(5):
        latency.observe(1, 0, 0.006)
        latency.observe(32, 0, 0.037)

    assert pytest.approx(latency.predict(16)) == 0.021


def test_a_batch_size_that_is_slow_stays_visible() -> None:
    """The curve is not forced onto a straight line: a step at one size is kept."""
    latency = _seeded([(1, 0, 0.010), (2, 0, 0.010), (4, 0, 0.010), (8, 0, 0.080), (16, 0, 0.081)])
    for rows, seconds in ((4, 0.010), (8, 0.080)):
        for _ in range(32):
            latency.observe(rows, 0, seconds)

    assert pytest.approx((latency.predict(4), latency.predict(8))) == (0.010, 0.080)


def test_unseen_bucket_between_two_known_ones_is_interpolated() -> None:
    """Half-way between the buckets is half-way between their times."""
    latency = _seeded([(1, 100, 0.010), (32, 100, 0.041), (1, 200, 0.030), (32, 200, 0.061)])

    assert pytest.approx(latency.predict(1, 150)) == 0.020
    assert latency.buckets == (100, 200)


@given(st.integers(64, 128), st.integers(1, 40), st.floats(0.25, 4.0))
def test_between_two_profiled_buckets_neighbours_bound_the_prediction(bucket: int, rows: int, ratio: float) -> None:
    """At first, and after executions there; more rows never take less time."""
    latency = _profiled()
    for _ in range(5):
        low, at, high = (latency.predict(rows, each) for each in (64, bucket, 128))
        assert min(low, high) * (1 - 1e-9) <= at <= max(low, high) * (1 + 1e-9)
        assert at <= latency.predict(rows + 1, bucket) * (1 + 1e-9)
        latency.observe(8, bucket, ratio * at)


@pytest.mark.parametrize(
    ("bucket", "taught"),
    [(96, (1, 2, 2, 1)), (64, (1, 2, 1, 1)), (200, (1, 1, 2, 2)), (32, (2, 2, 1, 1)), (1000, (1, 1, 1, 2))],
)
def test_executions_between_profiled_buckets_teach_both_neighbours(bucket: int, taught: tuple[int, ...]) -> None:
    """By how much longer they took than what lies between predicts; beyond the ends the nearest; no bucket is added."""
    latency = _profiled()
    before = [latency.predict(8, each) for each in (16, 64, 128, 256)]
    seconds = 2 * latency.predict(8, bucket)
    for _ in range(40):
        latency.observe(8, bucket, seconds)

    after = [latency.predict(8, each) for each in (16, 64, 128, 256)]
    assert pytest.approx([times * each for times, each in zip(taught, before, strict=True)]) == after
    assert pytest.approx(latency.predict(8, bucket)) == seconds
    assert latency.buckets == (16, 64, 128, 256)


def test_buckets_that_nobody_profiled_are_learned_each() -> None:
    """A profile of bucket 0 tells of none."""
    latency = _seeded()
    for bucket in (0, 16, 24):
        latency.observe(1, bucket, 0.5)

    assert latency.buckets == (0, 16, 24)


_CURVES: dict[str, Callable[[int], float]] = {
    "affine": lambda rows: 0.05 + 0.01 * rows,
    "in proportion": lambda rows: 0.01 * rows,
    "nearly in proportion": lambda rows: 0.0005 + 0.01 * rows,
    "in steps of four": lambda rows: 0.01 * -(-rows // 4),
    "flat": lambda rows: 0.05,
    "cheaper from 16 on": lambda rows: (0.01 if rows < 16 else 0.0075) * rows,
}


@pytest.mark.parametrize(
    ("curve", "enough"),
    [
        ("affine", [1, 2, 12, 32, 64, 64]),
        ("in proportion", [1, 1, 1, 1, 1, 1]),
        ("nearly in proportion", [1, 1, 1, 1, 1, 1]),
        ("in steps of four", [1, 2, 4, 4, 4, 4]),
        ("flat", [1, 2, 12, 32, 100, 128]),
        ("cheaper from 16 on", [1, 1, 12, 16, 16, 16]),
    ],
)
def test_enough_rows_are_those_beyond_which_twice_as_many_save_little(curve: str, enough: list[int]) -> None:
    """Less than a twentieth per row; never more than a batch has."""
    latency = _seeded([(1 << power, 0, _CURVES[curve](1 << power)) for power in range(8)])

    assert [latency.enough(0, most) for most in (1, 2, 12, 32, 100, 128)] == enough


def test_what_was_measured_while_others_ran_is_found_out() -> None:
    """By a larger batch now and then: else nothing would show that they save time."""
    latency = _seeded([(1, 0, 0.006), (2, 0, 0.0125), (4, 0, 0.025)])
    began = latency.enough(0, 32)
    for _ in range(3000):
        rows = latency.enough(0, 32)
        latency.observe(rows, 0, 0.005 + 0.001 * rows)

    assert (began, latency.enough(0, 32)) == (1, 32)


def test_of_an_unknown_model_a_full_batch_is_enough_and_all_may_join() -> None:
    """Nothing says that it would not pay."""
    latency = LatencyModel()

    assert (latency.enough(64, 32), latency.enough(0, 12), latency.pays(31, 512, 1, 8)) == (32, 12, True)


@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.sampled_from([0, 16, 64]), st.floats(1e-4, 1.0)), min_size=1, max_size=20
    ),
    st.integers(0, 100),
    st.integers(0, 9),
    st.integers(1, 512),
)
def test_enough_is_a_power_of_two_with_which_more_rows_never_save(
    seeds: list[tuple[int, int, float]], bucket: int, power: int, max_rows: int
) -> None:
    """Or the most rows of a batch. A smaller batch never needs more."""
    latency = _seeded(seeds)
    enough = latency.enough(bucket, max_rows)

    assert 1 <= enough <= max_rows
    assert enough == max_rows or not enough & (enough - 1)
    size = 1 << power
    if enough <= size < max_rows:
        assert latency.predict(2 * size, bucket) >= 0.95 * 2 * latency.predict(size, bucket)
    assert latency.enough(bucket, (max_rows + 1) // 2) <= enough


@given(
    st.floats(0.0, 0.1),
    st.floats(1e-6, 1e-3),
    st.integers(1, 16),
    st.integers(1, 16),
    st.integers(8, 256),
    st.integers(8, 256),
)
def test_rows_join_where_padding_costs_less_than_a_run_of_their_own(
    fixed: float, token_s: float, rows: int, more: int, bucket: int, of: int
) -> None:
    """Of an affine model: that of the shorter ones; with less padding it still pays."""
    latency = _seeded([(each, at, fixed + token_s * each * at) for each in (1, 32) for at in (8, 256)])
    longest = max(bucket, of)
    added = token_s * (longest * (rows + more) - rows * bucket)
    alone = fixed + token_s * more * of + 0.0002  # and what each run costs besides

    if abs(added - 0.95 * alone) > 1e-9:
        assert latency.pays(rows, bucket, more, of) == (added < 0.95 * alone)
    if latency.pays(rows, bucket, more, of):
        assert latency.pays(rows, (bucket + of) // 2, more, of) or abs(added - 0.95 * alone) <= 1e-9


@pytest.mark.parametrize(
    ("curve", "paying"),
    [
        ("affine", [1, 2, 3, 4, 7, 8]),
        ("in proportion", []),
        ("in steps of four", [1, 2, 3, 7]),
        ("flat", [1, 2, 3, 4, 7, 8]),
    ],
)
def test_what_pays_follows_the_curve(curve: str, paying: list[int]) -> None:
    """One more row of the same length: always, never, or up to the next step."""
    latency = _seeded([(rows, 64, _CURVES[curve](rows)) for rows in range(1, 33)])

    assert [rows for rows in (1, 2, 3, 4, 7, 8) if latency.pays(rows, 64, 1, 64)] == paying


def test_unseen_bucket_outside_is_scaled() -> None:
    """Above the largest: in proportion. Below the smallest: half of the cost is taken to be fixed."""
    latency = _seeded([(1, 100, 0.010), (32, 100, 0.041)])

    assert pytest.approx(latency.predict(1, 200)) == 0.020
    assert pytest.approx(latency.predict(1, 50)) == 0.0075


def test_seeding_again_keeps_what_was_observed() -> None:
    """A replica that comes up with the same profile does not wash out the measurements."""
    latency = _seeded()
    for _ in range(40):
        latency.observe(8, 0, 0.050)
    for _ in range(100):
        latency.seed(AFFINE)

    assert pytest.approx(latency.predict(8)) == 0.050


def test_nonsense_is_ignored() -> None:
    """Broken measurements teach nothing."""
    latency = LatencyModel()
    latency.seed([(0, 0, 1.0), (1, 0, 0.0), (1, 0, float("nan"))])
    latency.observe(0, 0, 1.0)
    latency.observe(1, 0, -1.0)
    latency.observe(1, 0, float("inf"))

    assert not latency.known


def test_buckets_are_bounded() -> None:
    """The bucket observed least recently makes room."""
    latency = LatencyModel()
    latency.observe(1, 10**6, 0.5)
    for bucket in range(200):
        latency.observe(1, bucket, 0.1)
        latency.observe(1, 10**6, 0.5)

    assert len(latency.buckets) == 64
    assert pytest.approx(latency.predict(1, 10**6)) == 0.5


def test_rows_within_is_the_largest_that_fits() -> None:
    """By the affine profile: 20 ms hold 15 rows."""
    latency = _seeded()

    assert latency.rows_within(0.0200001, 0, 32) == 15
    assert latency.rows_within(1.0, 0, 32) == 32
    assert latency.rows_within(0.005, 0, 32) == 0
    assert latency.rows_within(-1.0, 0, 32) == 0


def test_the_best_batch_is_the_largest_within_the_target() -> None:
    """One row when none is."""
    latency = _seeded()

    assert pytest.approx(latency.best(0, 32, 0.1)) == (32, 0.037 / 32)
    assert pytest.approx(latency.best(0, 32, 0.0200001)) == (15, 0.020 / 15)
    assert pytest.approx(latency.best(0, 32, 0.001)) == (1, 0.006)


def test_a_bad_first_sample_is_forgotten() -> None:
    """A cold first execution does not lift the sizes above it for long."""
    latency = LatencyModel()
    latency.observe(1, 0, 3.0)
    for _ in range(3):
        latency.observe(8, 0, 0.012)

    assert pytest.approx(latency.predict(8)) == 0.012


_SAMPLE = st.tuples(st.integers(1, 2000), st.sampled_from([0, 32, 128]), st.floats(1e-6, 100.0))


@given(seeds=st.lists(_SAMPLE, max_size=8), samples=st.lists(_SAMPLE, max_size=60), bucket=st.integers(0, 300))
def test_predictions_are_positive_and_monotone_in_rows(
    seeds: list[tuple[int, int, float]], samples: list[tuple[int, int, float]], bucket: int
) -> None:
    """Whatever was measured, more rows never take less time, and `rows_within` agrees with `predict`."""
    latency = LatencyModel()
    latency.seed(seeds)
    for sample in samples:
        latency.observe(*sample)
    curve = [latency.predict(rows, bucket) for rows in (*range(1, 70), 100, 512, 513, 1024, 1025, 5000)]

    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(curve))
    assert (not seeds and not samples) == (curve[0] == 0.0)
    limit = curve[20]
    rows = latency.rows_within(limit, bucket, 64)
    assert rows == 64 or latency.predict(rows + 1, bucket) > limit
    assert rows == 0 or latency.predict(rows, bucket) <= limit


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([1, 3, 8, 32]), st.sampled_from([0, 16]), st.floats(1e-4, 0.5)),
        min_size=1,
        max_size=40,
    )
)
def test_what_was_asked_before_changes_no_answer(events: list[tuple[bool, int, int, float]]) -> None:
    """Answers are kept while they hold, and no longer: one that was asked all along says what a new one says."""
    asked, fresh = LatencyModel(), LatencyModel()
    for seeds, rows, bucket, seconds in events:
        for latency in (asked, fresh):
            if seeds:
                latency.seed([(rows, bucket, seconds)])
            else:
                latency.observe(rows, bucket, seconds)
        _answers(asked)

    assert _answers(asked) == _answers(fresh)


def _answers(latency: LatencyModel) -> list[object]:
    buckets, sizes = (0, 8, 16, 32), (1, 2, 8, 20, 64)
    return [
        *(latency.predict(rows, bucket) for bucket in buckets for rows in sizes),
        *(latency.best(bucket, 32, 0.1) for bucket in buckets),
        *(latency.rows_within(0.05, bucket, 32) for bucket in buckets),
        *(latency.enough(bucket, 32) for bucket in buckets),
        *(latency.pays(3, bucket, 1, of) for bucket in buckets for of in buckets),
    ]


@given(
    st.lists(st.tuples(st.integers(1, 1500), st.floats(1e-4, 1.0)), min_size=1, max_size=60),
    st.floats(0.0, 2.0),
    st.integers(1, 1400),
)
def test_rows_within_is_the_most_that_is_predicted_to_fit(
    executions: list[tuple[int, float]], seconds: float, max_rows: int
) -> None:
    """As if every number of rows were tried."""
    latency = LatencyModel()
    for rows, took in executions:
        latency.observe(rows, 0, took)
    expected = max((rows for rows in range(1, max_rows + 1) if latency.predict(rows) <= seconds), default=0)
    assert expected == latency.rows_within(seconds, 0, max_rows)


_ROWS = (1, 2, 3, 8, 11, 32, 100, 1024, 1500)
_PROFILE = st.dictionaries(st.sampled_from(_ROWS), st.floats(1e-3, 1.0), min_size=1).map(
    lambda points: [(rows, 0, seconds) for rows, seconds in points.items()]
)
_RATIOS = st.lists(st.tuples(st.integers(1, 2000), st.floats(0.25, 4.0)), max_size=80)


@given(_PROFILE, _RATIOS, st.integers(1, 3000))
def test_predictions_lie_between_the_smallest_and_the_largest_ratio(
    profile: list[tuple[int, int, float]], ratios: list[tuple[int, float]], rows: int
) -> None:
    """No execution was as fast or as slow as what is outside of them; the profile's own ratio is 1."""
    shape, latency = _seeded(profile), _seeded(profile)
    for ran, ratio in ratios:
        latency.observe(ran, 0, ratio * shape.predict(ran))
    low, high = min((1.0, *(r for _, r in ratios))), max((1.0, *(r for _, r in ratios)))

    for predicted in (latency.predict(rows), latency.typical(rows)):
        assert low * (1 - 1e-9) <= predicted / shape.predict(rows) <= high * (1 + 1e-9)


@given(_PROFILE, st.lists(st.integers(1, 2000), max_size=80))
def test_what_was_profiled_holds_while_executions_confirm_it(
    profile: list[tuple[int, int, float]], executions: list[int]
) -> None:
    """At the points it is the profile itself, a point being no more than a larger one."""
    shape, latency = _seeded(profile), _seeded(profile)
    for rows in executions:
        latency.observe(rows, 0, shape.predict(rows))

    for rows, _, _ in profile:
        shortest = min(seconds for other, _, seconds in profile if other >= rows)
        assert latency.predict(rows) == latency.typical(rows) == shape.predict(rows) == pytest.approx(shortest)


@given(
    st.floats(0.5, 2.0),
    st.lists(st.tuples(st.sampled_from([6, 7, 8]), st.floats(0.1, 4.0)), max_size=15),
    st.integers(1, 64),
)
def test_few_samples_never_make_a_prediction_optimistic(scale: float, few: list[tuple[int, float]], rows: int) -> None:
    """Less than half a window of one size cannot undercut what the other sizes say."""
    shape, latency = _seeded(), _seeded()
    for ran in (1, 2, 4, 16, 32) * 13:
        latency.observe(ran, 0, scale * shape.predict(ran))
    for ran, ratio in few:
        latency.observe(ran, 0, ratio * shape.predict(ran))

    assert latency.predict(rows) >= scale * shape.predict(rows) * (1 - 1e-9)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.5, 2.0)), max_size=15), st.integers(1, 64))
def test_few_samples_never_undercut_the_profile_unless_all_do(few: list[tuple[int, float]], rows: int) -> None:
    """Four or more that were all faster tell that the profile is wrong, by no more than the slowest of them says."""
    shape, latency = _seeded(), _seeded()
    for ran, ratio in few:
        latency.observe(ran, 0, ratio * shape.predict(ran))
    least = 1.0 if len(few) < 4 else min(1.0, max(ratio for _, ratio in few))

    assert latency.predict(rows) >= least * shape.predict(rows) * (1 - 1e-9)


def test_sizes_that_do_not_run_any_more_do_not_stay_slow() -> None:
    """Two stalls made batches of 8 look so long that none was tried again: after two windows they are judged anew."""
    latency = LatencyModel()
    latency.seed([(1, 0, 0.03), (8, 0, 0.065), (32, 0, 0.185)])
    for _ in range(3):
        latency.observe(8, 0, 0.26)
    for _ in range(40):
        latency.observe(4, 0, 0.045)
    assert latency.predict(8) > 0.2
    for _ in range(30):
        latency.observe(4, 0, 0.045)
    assert latency.predict(8) == pytest.approx(0.065, rel=0.1)
    latency.observe(8, 0, 0.26)
    assert latency.predict(8) == pytest.approx(0.065, rel=0.1)
