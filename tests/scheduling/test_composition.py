"""How one bundle is put together."""

from __future__ import annotations

import pytest
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, make_entry

from serve_app.scheduling.batching import batch_policy
from serve_app.scheduling.composition import Composition, compose, execution_s
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.queue import ModelQueue, Totals
from serve_app.scheduling.settings import ModelScheduling
from serve_app.scheduling.variants import VariantLatency


def _compose(
    *entries: Entry,
    priority: Priority = NORMAL,
    slo_s: float = 10.0,
    profile: list[tuple[int, int, float]] | None = None,
    variants: dict[str, list[tuple[int, int, float]]] | None = None,
) -> tuple[Composition, int]:
    """Compose from these entries with 32 rows at most; gives the bundle and how many entries stay queued."""
    queue = ModelQueue({p: Totals() for p in Priority})
    for entry in entries:
        queue.push(entry)
    latencies = VariantLatency()
    for variant, points in ({"": AFFINE if profile is None else profile} | (variants or {})).items():
        latencies.seed((*point, variant) for point in points)
    settings = ModelScheduling("m", 32, slo_s)
    return compose(queue, priority, settings, batch_policy("eager"), latencies, 0.0), len(queue)


def test_takes_what_is_queued_in_order() -> None:
    """By deadline, up to the most rows of a bundle."""
    entries = [make_entry(deadline=100.0 - i) for i in range(40)]
    bundle, left = _compose(*entries)

    assert bundle == Composition(entries[:7:-1], 32, 0)
    assert left == 8


def test_head_with_little_time_makes_the_bundle_small() -> None:
    """5 ms + 1 ms per row within 20 ms: 15 rows."""
    bundle, _ = _compose(*[make_entry(deadline=0.0200001 + i) for i in range(30)])

    assert bundle.rows == 15


def test_latency_target_bounds_the_bundle() -> None:
    """Though the head has all the time."""
    bundle, _ = _compose(*[make_entry() for _ in range(30)], slo_s=0.0200001)

    assert bundle.rows == 15


def test_impossible_latency_target_is_given_up_before_the_deadline() -> None:
    """One row takes longer than the target: the head's deadline alone counts."""
    bundle, _ = _compose(*[make_entry(deadline=0.0200001 + i) for i in range(30)], slo_s=0.001)

    assert bundle.rows == 15


def test_doomed_head_does_not_make_the_bundle_small() -> None:
    """A head that will be late whatever happens is not allowed to cost throughput."""
    entries = [make_entry(deadline=0.001), *(make_entry(deadline=5.0) for _ in range(40))]

    assert _compose(*entries)[0].rows == 32
    assert _compose(*entries, slo_s=0.0200001)[0].rows == 15
    assert _compose(*entries, slo_s=0.0001)[0].rows == 32


def test_oversized_entry_travels_alone() -> None:
    """Nothing joins an entry of more rows than a bundle has, and it joins nothing."""
    big = make_entry(deadline=1.0, rows=100)
    bundle, left = _compose(big, make_entry(deadline=2.0))
    assert (bundle.entries, bundle.rows, left) == ([big], 100, 1)

    small = make_entry(deadline=0.5)
    bundle, left = _compose(small, make_entry(deadline=1.0, rows=100))
    assert (bundle.entries, left) == ([small], 1)


def test_other_classes_fill_the_bundle_up() -> None:
    """The chosen class first, then the others from the most urgent down."""
    low, normal, high = make_entry(LOW, 1.0), make_entry(NORMAL, 2.0), make_entry(HIGH, 3.0)

    assert _compose(low, normal, high, priority=HIGH)[0].entries == [high, normal, low]
    assert _compose(low, normal, high, priority=LOW)[0].entries == [low, high, normal]


def test_fill_must_not_cost_the_head_its_deadline() -> None:
    """No more rows than the head's slack allows."""
    head = make_entry(HIGH, 0.0100001)
    bundle, _ = _compose(head, *[make_entry(LOW, 50.0) for _ in range(20)], priority=HIGH)

    assert bundle.rows == 5


def test_fill_must_not_be_late_itself_because_of_the_bundle() -> None:
    """An urgent entry stays out of a bundle that is too big for it; others still come in."""
    heads = [make_entry(LOW, 50.0) for _ in range(20)]
    urgent, patient = make_entry(HIGH, 0.010), make_entry(NORMAL, 50.0)
    bundle, left = _compose(*heads, urgent, patient, priority=LOW)

    assert bundle.entries == [*heads, patient]
    assert left == 1


_BUCKETS = [(1, 16, 0.006), (32, 16, 0.037), (1, 128, 0.048), (32, 128, 0.296)]


def test_larger_bucket_joins_when_there_is_time() -> None:
    """The whole bundle is then predicted and sent in the larger bucket."""
    short, long = make_entry(deadline=1.0, bucket=16), make_entry(deadline=2.0, bucket=128)
    bundle, _ = _compose(short, long, profile=_BUCKETS)

    assert bundle == Composition([short, long], 2, 128)


def test_larger_bucket_stays_out_when_padding_costs_the_deadline() -> None:
    """A short text in a hurry is not padded to the length of a patient one."""
    short, long = make_entry(deadline=0.010, bucket=16), make_entry(deadline=2.0, bucket=128)
    bundle, left = _compose(short, long, profile=_BUCKETS)

    assert bundle == Composition([short], 1, 16)
    assert left == 1


def test_fill_never_needs_a_larger_bucket() -> None:
    """Riding along is free only in the same padding."""
    short, long = make_entry(HIGH, 1.0, bucket=16), make_entry(LOW, 2.0, bucket=128)

    assert _compose(short, long, priority=HIGH, profile=_BUCKETS)[0].entries == [short]


def test_a_bundle_is_of_the_head_s_variant() -> None:
    """Entries of others are passed over, in the head's class and in those that ride along."""
    light = [make_entry(deadline=1.0 + at, variant="int8") for at in range(3)]
    exact = [make_entry(deadline=1.5 + at) for at in range(3)]
    rider, other = make_entry(LOW, 5.0, variant="int8"), make_entry(LOW, 4.0)

    assert _compose(*exact, *light, rider, other)[0].entries == [*light, rider]
    assert _compose(*exact, *light[1:], rider, other)[0].entries == [*exact, other]


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


def test_unknown_policy_is_named_with_those_there_are() -> None:
    """The message is for whoever wrote the configuration."""
    with pytest.raises(ValueError, match="unknown batch policy 'greedy'; there are: auto, eager"):
        batch_policy("greedy")
