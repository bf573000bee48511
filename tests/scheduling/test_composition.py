"""How one bundle is put together."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, make_entry

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.composition import Composition, compose, execution_s
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.limits import BatchLimits
from serve_app.scheduling.batching.variants import VariantLatency
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.health.breaker import BundleOutcome, CircuitBreaker
from serve_app.scheduling.queueing.queue import ModelQueue
from serve_app.scheduling.queueing.tenant_queue import Totals
from serve_app.scheduling.settings import BreakerSettings, ModelScheduling


def _compose(
    *entries: Entry,
    priority: Priority = NORMAL,
    slo_s: float = 10.0,
    profile: list[tuple[int, int, float]] | None = None,
    variants: dict[str, list[tuple[int, int, float]]] | None = None,
    fallbacks: tuple[str, ...] = (),
    max_rows: int = 32,
    longest_s: float = inf,
    extra_s: float = inf,
    fill_first: Priority | None = None,
    served: str = "",
    observed: Sequence[float] = (),
) -> tuple[Composition, int]:
    """Compose from these entries at time 0; gives the bundle and how many entries stay queued.

    ``served``: a tenant that had ten batches of late.
    """
    queue = ModelQueue({p: Totals() for p in Priority})
    for entry in entries:
        queue.push(entry)
    for _ in range(10 if served else 0):
        queue.fresh[priority - 1].served([make_entry(priority, tenant=served)], 1.0, 1.0, priority)
    latencies = VariantLatency()
    for variant, points in ({"": AFFINE if profile is None else profile} | (variants or {})).items():
        latencies.seed((*point, variant) for point in points)
    for seconds in observed:
        latencies.observe(1, 0, seconds, "")
    settings = ModelScheduling("m", 32, slo_s, fallbacks=fallbacks)
    room = BatchLimits(0.0, max_rows, longest_s, fill_first, extra_s)
    return compose(queue, priority, settings, latencies, room), len(queue)


def test_takes_what_is_queued_in_order() -> None:
    """By deadline, up to the most rows of a bundle."""
    entries = [make_entry(deadline=100.0 - i) for i in range(40)]
    bundle, left = _compose(*entries)

    assert bundle == Composition(entries[:7:-1], 32, 0, "", [])
    assert left == 8


def test_head_with_little_time_makes_the_bundle_small() -> None:
    """5 ms + 1 ms per row within 20 ms: 15 rows."""
    bundle, left = _compose(*[make_entry(deadline=0.0200001) for _ in range(30)])

    assert (bundle.rows, bundle.given_up, left) == (15, [], 15)


def test_latency_target_bounds_the_bundle() -> None:
    """Though the head has all the time."""
    bundle, _ = _compose(*[make_entry() for _ in range(30)], slo_s=0.0200001)

    assert bundle.rows == 15


def test_impossible_latency_target_is_given_up_before_the_deadline() -> None:
    """One row takes longer than the target: the head's deadline alone counts."""
    bundle, _ = _compose(*[make_entry(deadline=0.0200001) for _ in range(30)], slo_s=0.001)

    assert bundle.rows == 15


def test_doomed_head_does_not_make_the_bundle_small() -> None:
    """A head that will be late whatever happens is not allowed to cost throughput."""
    doomed = make_entry(deadline=0.001)
    patient = [make_entry(deadline=5.0) for _ in range(40)]

    for slo_s, rows in ((10.0, 32), (0.0200001, 15), (0.0001, 32)):
        bundle, _ = _compose(doomed, *patient, slo_s=slo_s)
        assert (bundle.entries, bundle.given_up) == (patient[:rows], [doomed])


def test_all_that_is_too_late_is_given_up() -> None:
    """Then there is no bundle."""
    entries = [make_entry(deadline=0.001 * i) for i in range(1, 6)]

    assert _compose(*entries) == (Composition([], 0, 0, "", entries), 0)


SCATTERED = [0.006] * 20 + [0.010] * 12
"""What a row took lately: the prediction is 10 ms, the median 6."""


def test_a_head_that_half_of_the_runs_would_serve_in_time_goes() -> None:
    """As it is: more rows would make it later."""
    head, later = make_entry(deadline=0.007), make_entry(deadline=0.0070001)
    bundle, left = _compose(head, later, observed=SCATTERED)

    assert (bundle.entries, bundle.given_up, left) == ([head], [], 1)


def test_a_head_that_few_runs_would_serve_in_time_is_given_up() -> None:
    """Its execution would most likely be in vain."""
    head = make_entry(deadline=0.005)

    assert _compose(head, observed=SCATTERED)[0].given_up == [head]


def test_a_doubtful_head_is_given_up_for_more_answers_per_second() -> None:
    """Where those behind it are served together instead."""
    head, patient = make_entry(deadline=0.007), [make_entry(deadline=5.0) for _ in range(30)]
    bundle, _ = _compose(head, *patient, observed=SCATTERED)

    assert (bundle.entries, bundle.given_up) == (patient, [head])


def test_a_fallback_takes_what_is_doubtful_for_the_exact_model() -> None:
    """It is in time for certain."""
    head = make_entry(deadline=0.007)
    bundle, _ = _compose(head, observed=SCATTERED, variants={"half": [(1, 0, 0.003)]}, fallbacks=("half",))

    assert (bundle.entries, bundle.variant) == ([head], "half")


def test_heads_are_given_up_for_more_answers_per_second() -> None:
    """Two tight heads allow 2 rows in 7 ms; without them 30 go in 35 ms."""
    tight = [make_entry(deadline=0.0070001) for _ in range(2)]
    patient = [make_entry(deadline=0.0350001 + 1e-6 * i) for i in range(30)]
    bundle, left = _compose(*tight, *patient)

    assert (bundle.entries, bundle.given_up, left) == (patient, tight, 0)


def test_heads_are_kept_when_giving_them_up_gains_nothing() -> None:
    """Twelve in 17 ms are more per second than one more that could then be 2 ms longer."""
    tight = [make_entry(deadline=0.0170001) for _ in range(12)]
    later = make_entry(deadline=0.019)
    bundle, left = _compose(*tight, later)

    assert (bundle.entries, bundle.given_up, left) == (tight, [], 1)


def test_without_fixed_cost_nobody_is_given_up_for_others() -> None:
    """One after the other is as quick as together, so each goes by itself, and only what is late is given up."""
    proportional = [(rows, 0, 0.01 * rows) for rows in (1, 2, 4, 8, 16, 32)]
    tight = [make_entry(deadline=0.020001) for _ in range(2)]
    bundle, left = _compose(*tight, *[make_entry(deadline=1.0) for _ in range(30)], profile=proportional)

    assert (bundle.entries, bundle.given_up, left) == (tight[:1], [], 31)


def test_entries_count_and_not_rows() -> None:
    """Two requests of 4 rows are worth less than six of one row."""
    large = [make_entry(deadline=0.0130001, rows=4) for _ in range(2)]
    small = [make_entry(deadline=0.0140001) for _ in range(6)]
    bundle, _ = _compose(*large, *small)

    assert bundle.entries == small
    assert bundle.given_up == large


def test_a_probe_is_not_given_up_for_a_better_run() -> None:
    """It forces a small bundle; the many that could go without it have to wait."""
    probe = make_entry(deadline=0.0061)
    probe.probe = True
    bundle, left = _compose(probe, *[make_entry(deadline=1.0) for _ in range(32)])

    assert (bundle.entries[0], bundle.given_up, left) == (probe, [], 33 - bundle.rows)


def test_a_probe_that_will_be_late_makes_nobody_else_late() -> None:
    """It goes alone: its own deadline bounds nothing any more, and others have deadlines of theirs."""
    probe = make_entry(deadline=0.001)
    probe.probe = True
    bundle, left = _compose(probe, *[make_entry(deadline=0.020) for _ in range(8)])

    assert (bundle, left) == (Composition([probe], 1, 0, "", []), 8)


def test_probes_are_never_given_up() -> None:
    """They are to be executed although they will be late: alone, or at the head of others."""
    probe = make_entry(deadline=0.001)
    probe.probe = True

    assert _compose(probe)[0] == Composition([probe], 1, 0, "", [])
    late = [make_entry(deadline=0.0005), make_entry(deadline=0.002)]
    bundle, _ = _compose(late[0], probe, late[1])
    assert probe in bundle.entries
    assert late[0] in bundle.given_up
    large = make_entry(deadline=0.001, rows=40)
    large.probe = True
    assert _compose(large)[0] == Composition([large], 40, 0, "", [])


def test_oversized_entry_travels_alone() -> None:
    """Nothing joins an entry of more rows than a bundle has, and it joins nothing."""
    big = make_entry(deadline=1.0, rows=100)
    bundle, left = _compose(big, make_entry(deadline=2.0))
    assert (bundle.entries, bundle.rows, left) == ([big], 100, 1)

    small = make_entry(deadline=0.5)
    bundle, left = _compose(small, make_entry(deadline=1.0, rows=100))
    assert (bundle.entries, left) == ([small], 1)


def test_oversized_entry_that_is_too_late_is_given_up() -> None:
    """100 rows take 3 x 37 ms and 9 ms."""
    for deadline, sent in ((0.121, True), (0.119, False)):
        big = make_entry(deadline=deadline, rows=100)
        bundle, _ = _compose(big)
        assert bundle == (Composition([big], 100, 0, "", []) if sent else Composition([], 0, 0, "", [big]))


def test_oversized_entry_falls_back() -> None:
    """Where the exact model would be late and the variant is not."""
    fast = [(rows, bucket, seconds / 5) for rows, bucket, seconds in AFFINE]
    big = make_entry(deadline=0.05, rows=100)
    bundle, _ = _compose(big, variants={"int8": fast}, fallbacks=("int8",))

    assert bundle == Composition([big], 100, 0, "int8", [])


def test_oversized_entry_behind_doomed_ones_has_its_turn() -> None:
    """They are given up, and it goes the next time."""
    doomed, big = make_entry(deadline=0.001), make_entry(deadline=1.0, rows=100)

    assert _compose(doomed, big) == (Composition([], 0, 0, "", [doomed]), 1)


def test_fewer_rows_where_memory_is_short() -> None:
    """The room may be smaller than the model's maximum."""
    bundle, left = _compose(*[make_entry() for _ in range(20)], max_rows=8)

    assert (bundle.rows, left) == (8, 12)


def test_other_classes_fill_the_bundle_up() -> None:
    """The chosen class first, then the others from the most urgent down."""
    low, normal, high = make_entry(LOW, 1.0), make_entry(NORMAL, 2.0), make_entry(HIGH, 3.0)

    assert _compose(low, normal, high, priority=HIGH)[0].entries == [high, normal, low]
    assert _compose(low, normal, high, priority=LOW)[0].entries == [low, high, normal]


def test_fill_must_not_cost_the_head_its_deadline() -> None:
    """No more rows than the head's deadline allows."""
    head = make_entry(HIGH, 0.0100001)
    bundle, _ = _compose(head, *[make_entry(LOW, 50.0) for _ in range(20)], priority=HIGH)

    assert bundle.rows == 5


def test_fill_must_not_be_late_itself_because_of_the_bundle() -> None:
    """An urgent entry stays out of a bundle that is too big for it; others still come in."""
    heads = [make_entry(LOW, 50.0) for _ in range(20)]
    urgent, patient = make_entry(HIGH, 0.030), make_entry(NORMAL, 50.0)
    bundle, left = _compose(*heads, urgent, patient, priority=LOW, max_rows=21)

    assert bundle.entries == [*heads, urgent]
    urgent.deadline = 0.0259
    bundle, left = _compose(*heads, urgent, patient, priority=LOW, max_rows=21)
    assert (bundle.entries, bundle.given_up, left) == ([*heads, patient], [urgent], 0)
    urgent.deadline = 0.0330
    longer = [make_entry(LOW, 50.0) for _ in range(22)]
    assert _compose(*longer, urgent, priority=LOW)[0].entries == [*longer, urgent]


def test_fill_gives_up_what_could_go_nowhere_else() -> None:
    """An entry that is too late for this bundle and for the next one; a probe waits."""
    heads = [make_entry(LOW, 50.0) for _ in range(20)]
    urgent = make_entry(HIGH, 0.010)

    bundle, left = _compose(*heads, urgent, priority=LOW)
    assert (bundle.entries, bundle.given_up, left) == (heads, [urgent], 0)
    urgent.probe = True
    bundle, left = _compose(*heads, urgent, priority=LOW)
    assert (bundle.entries, bundle.given_up, left) == (heads, [], 1)


def test_fill_must_not_block_a_more_urgent_class() -> None:
    """Rows of a class are added only up to the longest execution that they may be part of."""
    high = [make_entry(HIGH, 1.0) for _ in range(4)]
    normal = [make_entry(NORMAL, 5.0) for _ in range(10)]
    low = [make_entry(LOW, 9.0) for _ in range(10)]

    bundle, _ = _compose(*high, *normal, *low, priority=HIGH, longest_s=0.0150001)
    assert bundle.entries == [*high, *normal[:6]]
    bundle, _ = _compose(*high, *low, priority=HIGH, longest_s=0.0120001)
    assert bundle.entries == [*high, *low[:3]]


def test_a_lower_class_s_own_bundle_is_cut_short() -> None:
    """So that it blocks nobody for too long; its head alone may take longer."""
    low = [make_entry(LOW, 9.0) for _ in range(10)]

    assert _compose(*low, priority=LOW, longest_s=0.0120001)[0].entries == low[:7]
    assert _compose(*low, priority=LOW, longest_s=0.001)[0].entries == low[:1]


_BUCKETS = [(1, 16, 0.006), (32, 16, 0.037), (1, 128, 0.048), (32, 128, 0.296)]


def test_larger_bucket_joins_where_that_is_cheaper_than_apart() -> None:
    """Padded to the long one, a short text costs 8 ms more, and 6 ms alone; with a greater fixed cost it pays."""
    short, long = make_entry(deadline=1.0, bucket=16), make_entry(deadline=2.0, bucket=128)

    assert _compose(short, long, profile=_BUCKETS)[0] == Composition([short], 1, 16, "", [])
    costly = [(rows, bucket, seconds + 0.02) for rows, bucket, seconds in _BUCKETS]
    assert _compose(short, long, profile=costly)[0] == Composition([short, long], 2, 128, "", [])


def test_larger_bucket_stays_out_when_padding_costs_the_deadline() -> None:
    """A short text in a hurry is not padded to the length of a patient one."""
    short, long = make_entry(deadline=0.030, bucket=16), make_entry(deadline=2.0, bucket=128)
    costly = [(rows, bucket, seconds + 0.02) for rows, bucket, seconds in _BUCKETS]
    bundle, left = _compose(short, long, profile=costly)

    assert bundle == Composition([short], 1, 16, "", [])
    assert left == 1


def test_what_needs_a_larger_bucket_is_passed_over() -> None:
    """What comes after it can still join; it stays queued."""
    costly = [(rows, bucket, seconds + 0.02) for rows, bucket, seconds in _BUCKETS]
    first, long, last = (
        make_entry(deadline=deadline, bucket=bucket) for deadline, bucket in ((0.030, 16), (2.0, 128), (2.1, 16))
    )
    bundle, left = _compose(first, long, last, profile=costly)

    assert ([first, last], [], 1) == (bundle.entries, bundle.given_up, left)


_LONG_FIRST = ((1.0, 128), (2.0, 16), (3.0, 128), (4.0, 16), (5.0, 128))
_COSTLY = [(rows, bucket, seconds + 0.02) for rows, bucket, seconds in _BUCKETS]


def test_a_smaller_bucket_joins_where_its_padding_is_cheaper_than_apart() -> None:
    """A short text takes 8 ms more beside a long one, and 6 or 26 ms alone. Those that are passed over stay queued."""
    for profile, joining in ((_BUCKETS, [0, 2, 4]), (_COSTLY, [0, 1, 2, 3, 4])):
        entries = [make_entry(deadline=deadline, bucket=bucket) for deadline, bucket in _LONG_FIRST]
        bundle, left = _compose(*entries, profile=profile)

        assert bundle == Composition([entries[at] for at in joining], len(joining), 128, "", [])
        assert left == len(entries) - len(joining)


def test_fill_passes_over_what_is_cheaper_apart() -> None:
    """What comes after it still rides along."""
    for profile, joining in ((_BUCKETS, [0, 2, 4]), (_COSTLY, [0, 1, 2, 3, 4])):
        head, *others = _LONG_FIRST
        entries = [make_entry(HIGH, head[0], bucket=head[1])]
        entries += [make_entry(LOW, deadline, bucket=bucket) for deadline, bucket in others]
        bundle, left = _compose(*entries, priority=HIGH, profile=profile)

        assert bundle == Composition([entries[at] for at in joining], len(joining), 128, "", [])
        assert left == len(entries) - len(joining)


def test_no_batch_has_more_rows_than_save_time() -> None:
    """One where the time grows in proportion to rows, of whatever class; four where it grows in steps of four."""
    step = [(rows, 0, 0.04 * -(-rows // 4)) for rows in (1, 2, 4, 8, 16, 32)]
    for profile, rows in (([(1, 0, 0.01), (32, 0, 0.32)], 1), (step, 4)):
        entries = [make_entry(priority, deadline=5.0) for priority in (NORMAL, HIGH, LOW) for _ in range(7)]
        bundle, left = _compose(*entries, profile=profile)

        assert (bundle.entries, bundle.given_up, left) == (entries[:rows], [], len(entries) - rows)


_ANY_ENTRY = st.tuples(
    st.sampled_from(Priority),
    st.floats(0.001, 1.0),
    st.sampled_from([8, 64, 72, 256]),
    st.sampled_from([1, 1, 1, 2, 5]),
)


@given(
    st.lists(_ANY_ENTRY, min_size=1, max_size=40),
    st.floats(0.0, 0.1),
    st.floats(1e-6, 1e-3),
    st.integers(5, 32),
)
def test_of_entries_of_many_lengths_none_is_lost(
    entries: list[tuple[Priority, float, int, int]], fixed: float, token_s: float, max_rows: int
) -> None:
    """Each goes, is given up or stays queued; the head is not passed over; no more rows run than save time."""
    latency = LatencyModel()
    profile = [(rows, bucket, fixed + token_s * rows * bucket) for rows in (1, 4, 32) for bucket in (8, 64, 256)]
    latency.seed(profile)
    made = [
        make_entry(priority, deadline=deadline, bucket=bucket, rows=rows)
        for priority, deadline, bucket, rows in entries
    ]
    chosen = min(entry.priority for entry in made)
    head = min((entry for entry in made if entry.priority is chosen), key=lambda entry: (entry.deadline, entry.id))

    bundle, left = _compose(*made, priority=chosen, profile=profile, max_rows=max_rows)

    gone = [entry.id for entry in (*bundle.entries, *bundle.given_up)]
    assert (len(made) - left, len(gone)) == (len(gone), len(set(gone)))
    assert head.id in gone
    assert sum(entry.rows for entry in bundle.entries) == bundle.rows
    assert max((entry.bucket for entry in bundle.entries), default=0) == bundle.bucket
    if len(bundle.entries) > 1:
        assert bundle.rows <= latency.enough(bundle.bucket, max_rows)


def test_fill_never_needs_a_larger_bucket() -> None:
    """Riding along is free only in the same padding."""
    short, long = make_entry(HIGH, 1.0, bucket=16), make_entry(LOW, 2.0, bucket=128)

    assert _compose(short, long, priority=HIGH, profile=_BUCKETS)[0].entries == [short]


def test_a_bundle_is_of_the_head_s_variant() -> None:
    """Entries of others are passed over, in the head's class and in those that ride along."""
    light = [make_entry(deadline=1.0 + at, variant="int8") for at in range(3)]
    exact = [make_entry(deadline=1.5 + at) for at in range(3)]
    filler, other = make_entry(LOW, 5.0, variant="int8"), make_entry(LOW, 4.0)

    assert _compose(*exact, *light, filler, other)[0].entries == [*light, filler]
    assert _compose(*exact, *light[1:], filler, other)[0].entries == [*exact, other]


def test_a_bundle_grows_by_its_variant_s_latency() -> None:
    """What takes a fifth of the time fits more rows in the target; what was never seen counts as exact."""
    light = [(rows, bucket, seconds / 5) for rows, bucket, seconds in AFFINE]

    def rows_of(variant: str) -> int:
        entries = [make_entry(variant=variant) for _ in range(32)]
        return _compose(*entries, slo_s=0.0070001, variants={"int8": light})[0].rows

    assert [2, 30, 2] == [rows_of(""), rows_of("int8"), rows_of("new")]


def test_without_predictions_rows_alone_bound_it() -> None:
    """An unknown model gets full bundles."""
    assert _compose(*[make_entry(deadline=0.001) for _ in range(40)], profile=[])[0].rows == 32


def test_oversized_execution_is_predicted_in_pieces() -> None:
    """70 rows in pieces of 32: two full ones and one of 6."""
    latency = LatencyModel()
    latency.seed(AFFINE)

    assert execution_s(latency, 70, 0, 32) == pytest.approx(2 * 0.037 + 0.011)
    assert execution_s(latency, 64, 0, 32) == pytest.approx(2 * 0.037)


def _scaled(factor: float) -> list[tuple[int, int, float]]:
    return [(rows, bucket, seconds * factor) for rows, bucket, seconds in AFFINE]


_FALLBACKS = {"light": _scaled(0.5), "tiny": _scaled(0.1)}


@pytest.mark.parametrize(("deadline", "variant"), [(0.0061, ""), (0.0031, "light"), (0.0007, "tiny")])
def test_the_most_exact_that_fits_is_taken(deadline: float, variant: str) -> None:
    """6 ms at the exact model, 3 ms at the light variant, 0.6 ms at the tiny one."""
    entry = make_entry(deadline=deadline)
    bundle, _ = _compose(entry, variants=_FALLBACKS, fallbacks=("light", "tiny"))

    assert bundle == Composition([entry], 1, 0, variant, [])


def test_what_no_fallback_can_do_in_time_is_given_up() -> None:
    """Not even the last one."""
    entry = make_entry(deadline=0.0005)

    assert _compose(entry, variants=_FALLBACKS, fallbacks=("light", "tiny"))[0].given_up == [entry]


def test_a_fallback_is_taken_instead_of_giving_heads_up() -> None:
    """All of a queue that the exact model cannot do in time."""
    tight = [make_entry(deadline=0.0180001) for _ in range(2)]
    patient = [make_entry(deadline=0.0350001) for _ in range(30)]

    bundle, _ = _compose(*tight, *patient)
    assert bundle.given_up == tight
    bundle, left = _compose(*tight, *patient, variants=_FALLBACKS, fallbacks=("light", "tiny"))
    assert (bundle.variant, bundle.entries[:2], bundle.given_up) == ("light", tight, [])
    assert len(bundle.entries) + left == 32


def test_a_fallback_that_was_never_seen_is_not_taken() -> None:
    """Nothing says that it is quicker."""
    entry = make_entry(deadline=0.0031)

    assert _compose(entry, fallbacks=("light",))[0].given_up == [entry]


def test_a_fallback_that_is_probed_gets_as_many_entries_as_there_are_places() -> None:
    """Nobody fills the bundle up."""
    breaker = CircuitBreaker(BreakerSettings(consecutive_failures=1, reset_s=1.0, probes=2), 0.0)
    breaker.observe(BundleOutcome.FAILURE, 0.0)
    breaker.poll(1.0)
    settings = ModelScheduling("m", 32, 10.0, fallbacks=("light",))
    queue, latencies = ModelQueue({p: Totals() for p in Priority}), VariantLatency()
    entries = [make_entry(deadline=0.0035) for _ in range(5)]
    for entry in (*entries, make_entry(LOW)):
        queue.push(entry)
    latencies.seed((*point, "") for point in AFFINE)
    latencies.seed((*point, "light") for point in _scaled(0.5))
    latencies.limited["light"] = breaker
    bundle = compose(queue, NORMAL, settings, latencies, BatchLimits(0.0, 32))
    assert (bundle.variant, bundle.entries, len(queue)) == ("light", entries[:2], 4)


def test_who_asks_for_a_build_gets_that_one() -> None:
    """Neither an entry for the exact model only nor one for a variant falls back."""
    for entry in (make_entry(deadline=0.0031, exact=True), make_entry(deadline=0.0015, variant="light")):
        bundle, _ = _compose(entry, variants=_FALLBACKS, fallbacks=("light", "tiny"))
        assert bundle.given_up == [entry]


@given(
    offered=st.lists(
        st.tuples(
            st.sampled_from(Priority),
            st.floats(0.0005, 0.2),
            st.integers(1, 40),
            st.sampled_from([0, 0, 0, 16]),
            st.booleans(),
        ),
        min_size=1,
        max_size=60,
    ),
    max_rows=st.integers(1, 32),
    fallbacks=st.sampled_from([(), ("light",), ("light", "tiny")]),
    longest=st.floats(0.0, 0.1),
)
def test_every_entry_is_somewhere(
    offered: list[tuple[Priority, float, int, int, bool]],
    max_rows: int,
    fallbacks: tuple[str, ...],
    longest: float,
) -> None:
    """In the bundle, given up or still queued; and the bundle keeps the deadlines of all that is in it."""
    entries = [
        make_entry(priority, deadline, rows=rows, bucket=bucket, exact=exact)
        for priority, deadline, rows, bucket, exact in offered
    ]
    priority = min(entry.priority for entry in entries)
    profile = AFFINE + [(rows, 16, 2 * seconds) for rows, _, seconds in AFFINE]
    bundle, left = _compose(
        *entries,
        priority=priority,
        profile=profile,
        variants=_FALLBACKS,
        fallbacks=fallbacks,
        max_rows=max_rows,
        longest_s=longest,
    )

    assert len(bundle.entries) + len(bundle.given_up) + left == len(entries)
    assert not set(bundle.entries) & set(bundle.given_up)
    assert bundle.rows == sum(entry.rows for entry in bundle.entries)
    assert bundle.rows <= max_rows or len(bundle.entries) == 1
    latencies = VariantLatency()
    for variant, points in ({"": profile} | _FALLBACKS).items():
        latencies.seed((*point, variant) for point in points)
    if bundle.entries:
        seconds = execution_s(latencies.of(bundle.variant), bundle.rows, bundle.bucket, 32)
        assert all(seconds <= entry.deadline + 1e-9 for entry in bundle.entries), "all are in time"


@pytest.mark.parametrize(("deadline_s", "extra_s", "rows"), [(61.0, 0.0100001, 5), (61.0, 0.001, 1), (60.0, 0.001, 32)])
def test_rows_that_can_wait_make_a_short_batch(deadline_s: float, extra_s: float, rows: int) -> None:
    """Of the class ``low``, more than a minute before their deadlines; the head goes however long it takes."""
    bundle, left = _compose(*[make_entry(LOW, deadline_s) for _ in range(40)], priority=LOW, extra_s=extra_s)

    assert (bundle.rows, left) == (rows, 40 - rows)


@pytest.mark.parametrize(("priority", "deadline_s", "rows"), [(LOW, 61.0, 5), (LOW, 60.0, 32), (NORMAL, 61.0, 32)])
def test_rows_that_can_wait_add_little_to_a_batch(priority: Priority, deadline_s: float, rows: int) -> None:
    """Two of ``high`` take 3 ms longer with three of them."""
    entries = [make_entry(HIGH, 5.0), make_entry(HIGH, 5.0), *(make_entry(priority, deadline_s) for _ in range(40))]
    bundle, left = _compose(*entries, priority=HIGH, extra_s=0.0030001)

    assert (bundle.rows, left) == (rows, 42 - rows)


@pytest.mark.parametrize(("tenant", "served", "rows"), [("", "", 5), ("b", "", 5), ("b", "b", 2)])
def test_rows_that_can_wait_add_little_to_a_batch_of_their_class(tenant: str, served: str, rows: int) -> None:
    """Behind two with half a minute: three more, 3 ms; none of a tenant whose turn it is not."""
    entries = [make_entry(LOW, 30.0, tenant="a" if tenant else "") for _ in range(2)]
    entries += [make_entry(LOW, 61.0, tenant=tenant) for _ in range(40)]
    bundle, left = _compose(*entries, priority=LOW, extra_s=0.0030001, served=served)

    assert (bundle.rows, left) == (rows, 42 - rows)


def test_rows_that_can_wait_add_little_beside_others_of_their_class() -> None:
    """A row of ``high`` is filled up with ten that cannot wait; then they add 3 ms in all, of whichever tenant."""
    entries = [make_entry(HIGH, 5.0)]
    entries += [
        make_entry(LOW, deadline_s, tenant=tenant) for tenant in "ab" for deadline_s in (*[30.0] * 5, *[61.0] * 20)
    ]
    bundle, _ = _compose(*entries, priority=HIGH, extra_s=0.0030001)

    assert [entry.deadline for entry in bundle.entries] == [5.0, *[30.0] * 10, *[61.0] * 3]


@pytest.mark.parametrize("fill_first", [None, LOW])
def test_rows_that_can_wait_leave_others_their_room(fill_first: Priority | None) -> None:
    """Those of ``normal`` ride along in a batch of ``high``, also where ``low`` has credit and may add nothing."""
    entries = [make_entry(HIGH, 5.0), *[make_entry(NORMAL, 6.0) for _ in range(10)]]
    entries += [make_entry(LOW, 61.0) for _ in range(40)]
    bundle, _ = _compose(*entries, priority=HIGH, extra_s=0.0005, fill_first=fill_first)

    assert [entry.deadline for entry in bundle.entries] == [5.0, *[6.0] * 10]


@pytest.mark.parametrize("deadline_s", [0.0065, 0.0075])
def test_no_head_is_given_up_for_rows_that_can_wait(deadline_s: float) -> None:
    """One of ``low`` that has time for its own rows, and for not one more."""
    head = make_entry(LOW, deadline_s)
    bundle, left = _compose(head, *[make_entry(LOW, 61.0) for _ in range(40)], priority=LOW, extra_s=0.0100001)

    assert (bundle.entries[0], bundle.given_up, bundle.rows + left) == (head, [], 41)


def test_nothing_is_given_up_for_rows_that_can_wait() -> None:
    """Of ``normal``, with 20 ms left: two rows and two more take 9 ms, though 40 wait that could take 37."""
    entries = [make_entry(HIGH, 5.0), make_entry(NORMAL, 0.02), *[make_entry(LOW, 61.0) for _ in range(40)]]
    bundle, _ = _compose(*entries, priority=HIGH, extra_s=0.0020001)

    assert (bundle.entries[1], bundle.rows, bundle.given_up) == (entries[1], 4, [])


@given(
    offered=st.lists(
        st.tuples(
            st.sampled_from(Priority),
            st.sampled_from([0.02, 0.05, 30.0, 61.0, 1000.0]),
            st.integers(1, 4),
            st.sampled_from(["", "a", "b"]),
        ),
        min_size=1,
        max_size=60,
    ),
    heads=st.sampled_from(Priority),
    fill_first=st.sampled_from([None, LOW, NORMAL]),
    added=st.sampled_from([0.001, 0.0030001, 0.01]),
)
def test_rows_that_can_wait_never_add_more(
    offered: list[tuple[Priority, float, int, str]], heads: Priority, fill_first: Priority | None, added: float
) -> None:
    """To a batch of others no more than so long; one of their own takes so long, or as long as its head alone."""
    entries = [make_entry(priority, s, rows=rows, tenant=tenant) for priority, s, rows, tenant in offered]
    priority = heads if any(entry.priority is heads for entry in entries) else entries[0].priority
    bundle, left = _compose(*entries, priority=priority, slo_s=0.1, extra_s=added, fill_first=fill_first)

    assert len(bundle.entries) + len(bundle.given_up) + left == len(entries)
    if bundle.entries and bundle.entries[0].priority is LOW and bundle.entries[0].deadline > 60.0:
        assert not [entry for entry in bundle.given_up if 0.005 + 0.001 * entry.rows <= entry.deadline]
    patient = [entry for entry in bundle.entries if entry.priority is LOW and entry.deadline > 60.0]
    others = bundle.rows - sum(entry.rows for entry in patient)
    if patient:
        seconds = 0.005 + 0.001 * bundle.rows
        of_others = 0.005 + 0.001 * others if others else 0.0
        assert seconds <= max(of_others + added, 0.005 + 0.001 * bundle.entries[0].rows) + 1e-9
