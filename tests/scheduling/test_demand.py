"""What is asked of a model, in server-seconds."""

from __future__ import annotations

from random import Random

import pytest
from scheduling_builders import make_class, make_entry, make_scheduler

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.variants import VariantLatency
from serve_app.scheduling.demand import DemandMeter, ModelDemand
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.settings import ModelScheduling

NORMAL = Priority.NORMAL
SETTINGS = ModelScheduling("m", 32, slo_s=10.0)


def entry(arrival: float, budget_s: float = 1.0, rows: int = 1, priority: Priority = NORMAL) -> Entry:
    """A request."""
    return make_entry(priority, arrival + budget_s, rows=rows, arrival=arrival)


def affine(alpha_s: float = 0.02, beta_s: float = 0.001, most: int = 32) -> VariantLatency:
    """A model whose batches cost a fixed time and one for each row."""
    latencies = VariantLatency()
    latencies.seed((rows, 0, alpha_s + beta_s * rows, "") for rows in (1, 2, 4, 8, 16, most))
    return latencies


def test_a_row_costs_its_part_of_the_largest_batch_in_time() -> None:
    """With time enough a full batch; a deadline of two batches of one row allows those only."""
    for budget_s, rows in ((1.0, 32), (0.042, 1)):
        meter = DemandMeter()
        meter.read(0.0, affine(), SETTINGS, 0.0)
        for number in range(100):
            meter.add(entry(number / 100, budget_s), number / 100)
        demand = meter.read(1.0, affine(), SETTINGS, 0.0)[0][NORMAL]
        batch_s = 0.02 + 0.001 * rows
        assert demand.work == pytest.approx(100 * batch_s / rows)
        assert demand.slack / demand.work == pytest.approx(budget_s - batch_s)


def test_a_batch_grows_no_longer_than_the_target_of_the_model() -> None:
    """However much time the deadline leaves: 30 ms hold ten rows, and a target that one row misses counts not."""
    for slo_s, rows in ((0.0301, 10), (0.02, 32)):
        meter = DemandMeter()
        settings = ModelScheduling("m", 32, slo_s)
        meter.read(0.0, affine(), settings, 0.0)
        meter.add(entry(0.5), 0.5)
        work = meter.read(1.0, affine(), settings, 0.0)[0][NORMAL].work
        assert work == pytest.approx((0.02 + 0.001 * rows) / rows)


def test_the_variance_is_that_of_the_arrivals() -> None:
    """Equal bins have none; Poisson arrivals have the rate times the square of a row's price."""
    latencies, random = affine(), Random(1)
    even, poisson = DemandMeter(), DemandMeter()
    for meter in (even, poisson):
        meter.read(0.0, latencies, SETTINGS, 0.0)
    variances, at = [], 0.0
    for second in range(200):
        for number in range(100):
            even.add(entry(second + (number + 0.5) / 100), second + (number + 0.5) / 100)
        while at < second + 1:
            poisson.add(entry(at), at)
            at += random.expovariate(100.0)
        assert even.read(second + 1.0, latencies, SETTINGS, 0.0)[0][NORMAL].variance == pytest.approx(0.0, abs=1e-12)
        variances.append(poisson.read(second + 1.0, latencies, SETTINGS, 0.0)[0][NORMAL].variance)
    row_s = 0.052 / 32
    assert sum(variances) / len(variances) == pytest.approx(100 * row_s * row_s, rel=0.15)


def test_unread_requests_count_as_usual_ones() -> None:
    """Those of a class of which nothing is known count nothing."""
    meter = DemandMeter()
    meter.read(0.0, affine(), SETTINGS, 0.0)
    meter.add(entry(0.5), 0.5)
    for _ in range(9):
        meter.add_unread(NORMAL)
    meter.add_unread(Priority.HIGH)
    demands, _ = meter.read(1.0, affine(), SETTINGS, 0.0)
    assert demands.keys() == {NORMAL}
    assert demands[NORMAL].work == pytest.approx(10 * 0.052 / 32)


def test_the_background_is_counted_apart() -> None:
    """It asks for no replicas."""
    meter = DemandMeter()
    meter.read(0.0, affine(), SETTINGS, 0.0)
    meter.add(entry(0.5), 0.5)
    for _ in range(3):
        meter.add(make_entry(arrival=0.5, background=True), 0.5)
    demands, background = meter.read(1.0, affine(), SETTINGS, 0.0)
    assert demands[NORMAL].work == pytest.approx(0.052 / 32)
    assert background == pytest.approx(3 * 0.052 / 32)


def test_a_meter_that_is_not_read_keeps_little() -> None:
    """What came before the first time does not count, and nothing is lost after a second without a request."""
    meter = DemandMeter()
    for second in range(1000):
        meter.add(entry(second), second)
    assert meter.read(1000.0, affine(), SETTINGS, 0.0) == ({}, 0.0)
    assert meter.read(1001.0, affine(), SETTINGS, 0.0) == ({}, 0.0)
    meter.add(entry(1001.5), 1001.5)
    assert meter.read(1002.0, affine(), SETTINGS, 0.0)[0][NORMAL].work == pytest.approx(0.052 / 32)


def test_what_is_refused_dropped_and_expires_is_demand() -> None:
    """What could not be in time on an idle replica is not, but for a probe now and then."""
    scheduler = make_scheduler(
        max_rows=8, replicas=(), normal=make_class(entries=4), profile=[(1, 0, 0.1), (8, 0, 0.1)]
    )
    scheduler.read_demand("m", 0.0)
    for _ in range(2):
        scheduler.on_arrival(entry(0.5, 0.05, priority=Priority.HIGH), 0.5)
    for _ in range(10):
        scheduler.on_arrival(entry(0.5), 0.5)
    scheduler.decide(2.0)
    demand = scheduler.read_demand("m", 2.0)
    assert demand.of_class[NORMAL].work * 2.0 == pytest.approx(10 * 0.1 / 8)
    assert demand.of_class[Priority.HIGH].work * 2.0 == pytest.approx(0.1)
    assert demand.turned_away_rows == 11
    assert demand.backlog_s == 0.0
    assert scheduler.read_demand("m", 3.0) == ModelDemand()


def test_routers_add_up() -> None:
    """Each class by itself."""
    meters = [DemandMeter(), DemandMeter()]
    for meter in meters:
        meter.read(0.0, affine(), SETTINGS, 0.0)
        meter.add(entry(0.5), 0.5)
    meters[1].add(entry(0.5, priority=Priority.LOW), 0.5)
    both = [ModelDemand(meter.read(1.0, affine(), SETTINGS, 0.0)[0], 3, 0.5) for meter in meters]
    total = ModelDemand.total(both)
    assert total.of_class[NORMAL].work == pytest.approx(2 * 0.052 / 32)
    assert total.of_class[Priority.LOW].work == pytest.approx(0.052 / 32)
    assert (total.turned_away_rows, total.backlog_s) == (6, 1.0)
