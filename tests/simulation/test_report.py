"""The report: means with their intervals, what they are of, and how they are written."""

from __future__ import annotations

import json
from math import sqrt
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation_results import result

from serve_app.domain.priority import Priority
from serve_app.scheduling.settings import ClassSettings, ModelScheduling
from serve_app_simulator.report import (
    CaseResults,
    Estimate,
    estimate,
    legend,
    markdown,
    number,
    percent,
    summarise,
    surges,
    table,
    to_json,
)
from serve_app_simulator.scenario import Affine, Scenario, SimulatedModel, Stream


def test_an_estimate_is_the_mean_with_students_interval() -> None:
    """Of 1, 2 and 3: standard error 1 / sqrt(3), t of two degrees of freedom 4.303."""
    found = estimate([1, 2, 3])
    assert (found.mean, found.seeds) == (2.0, 3)
    assert [found.half_width, found.low, found.high] == pytest.approx([2.48434, -0.48434, 4.48434], abs=1e-4)
    assert estimate([7]) == Estimate(7.0, 0.0, 1)


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (30, 2.042), (31, 2.0395), (60, 2.0003), (1000, 1.9623)])
def test_intervals_follow_students_t_also_beyond_its_table(freedom: int, t: float) -> None:
    """The half width over the standard error of the mean."""
    values = [float(number) for number in range(freedom + 1)]
    assert estimate(values).half_width / (stdev(values) / sqrt(freedom + 1)) == pytest.approx(t, abs=2e-4)


def test_nothing_has_no_mean() -> None:
    """An estimate needs values."""
    with pytest.raises(ValueError, match="at least one"):
        estimate([])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_the_mean_lies_in_its_interval(values: list[float]) -> None:
    """And within the values."""
    found = estimate(values)
    assert found.low <= found.mean <= found.high
    assert min(values) - 1e-6 <= found.mean <= max(values) + 1e-6


def test_a_row_sums_up_a_system() -> None:
    """Everything is a mean over the seeds."""
    results = [result(seed=1), result(seed=2, low=(80, 40))]
    (row,) = summarise(CaseResults({"serve-app": results}, surges=[(2.0, 4.0)]))
    assert row.goodput.mean == pytest.approx(7.0)
    assert row.attainment.mean == pytest.approx(0.7)
    assert {label: each.mean for label, each in row.classes.items()} == {"high": 1.0, "low": pytest.approx(0.625)}
    assert row.p50_ms is not None
    assert row.p50_ms.mean == pytest.approx(20.0)
    assert row.p99_ms is not None
    assert row.p99_ms.mean == pytest.approx(60.0)
    assert row.wasted.mean == pytest.approx(0.3)
    assert row.smallest_share.mean == pytest.approx(0.2)
    assert (row.recovery_s, row.unrecovered) == (Estimate(1.0, 0.0, 2), 0)
    assert row.surge_goodput is not None
    assert row.surge_goodput.mean == pytest.approx(7.0)


def test_seeds_that_never_recover_are_counted() -> None:
    """The mean is over the others."""
    stuck = result(seed=2, queued_rows=(0, 3, 9, 9, 9, 9, 9, 9, 9, 9, 9))
    case = CaseResults({"serve-app": [result(seed=1), stuck]}, surges=[(2.0, 4.0)])
    (row,) = summarise(case)
    assert (row.recovery_s, row.unrecovered) == (Estimate(1.0, 0.0, 1), 1)
    header, ((*cells,),) = table(case)
    assert dict(zip(header, cells, strict=True))["recovery s"] == "1.00, never in 1"


def test_without_answers_there_is_no_figure() -> None:
    """Nothing is made up, and columns without any value are left out."""
    case = CaseResults({"serve-app": [result(latency_s=None)]})
    (row,) = summarise(case)
    assert (row.p50_ms, row.p99_ms) == (None, None)
    header, _ = table(case)
    assert header == [
        "system",
        "goodput /s",
        "in time",
        "weighted /s",
        "high in time",
        "low in time",
        "wasted",
        "smallest class's share",
        "rows per batch",
    ]


@pytest.mark.parametrize(
    ("value", "as_number", "as_percent"),
    [
        pytest.param(None, "", "", id="nothing"),
        pytest.param(Estimate(0.5, 0.0, 1), "0.50", "50.00%", id="one seed"),
        pytest.param(Estimate(0.999, 0.0004, 5), "1.00 ±0.00", "99.90% ±0.04", id="small"),
        pytest.param(Estimate(1234.5, 56.7, 5), "1,234 ±57", "123450.00% ±5670.00", id="large"),
    ],
)
def test_figures_are_short(value: Estimate | None, as_number: str, as_percent: str) -> None:
    """As many digits as say something."""
    assert (number(value), percent(value)) == (as_number, as_percent)


def test_surges_end_with_the_scenario() -> None:
    """A surge that is cut off ends there."""
    scheduling = ModelScheduling("model", 8, 0.1)
    scenario = Scenario(
        "test",
        (SimulatedModel(scheduling, Affine(0.005, 0.001)),),
        (
            Stream("flash_crowd", "model", rate=1, surge_at_s=5, surge_s=60),
            Stream("flash_crowd", "model", rate=1, surge_at_s=1, surge_s=2),
            Stream("poisson", "model", rate=1),
        ),
        10.0,
        {priority: ClassSettings(10, 10, 1.0) for priority in Priority},
    )
    assert surges(scenario) == [(1, 3), (5, 10.0)]


def test_the_report_as_markdown() -> None:
    """One table per case, what the columns mean, how it came about, and the pictures."""
    cases = [CaseResults({"ours": [result()], "theirs": [result(low=(80, 20))]}, value) for value in (0.5, 1.0)]
    text = markdown("Title", "What it shows.", cases, sweep="load", notes=["a note"], plots={"Over load": "sweep.svg"})
    assert text.startswith("# Title\n\nWhat it shows.\n\n- a note\n\n## load: 0.5\n\n| system | goodput /s |")
    assert "| theirs | 4.00 | 40.00% |" in text
    assert text.count("| ours |") == 2
    assert text.endswith("![Over load](sweep.svg)\n")


def test_the_legend_says_how_sure_the_figures_are() -> None:
    """One seed has no interval."""
    assert legend([CaseResults({"a": [result()]})]).startswith("One seed, so no intervals.")
    two = CaseResults({"a": [result(), result(seed=2)]}, surges=[(1, 2)])
    assert legend([two]).startswith("Means over 2 seeds ± 95% confidence intervals.")
    assert "Recovery:" in legend([two])


def test_the_report_as_json() -> None:
    """Plain values: rows over seeds, and every single result."""
    case = CaseResults({"a": [result(), result(seed=2)]}, 0.5)
    found = json.loads(json.dumps(to_json("Title", [case], sweep="load"), allow_nan=False))
    assert (found["name"], found["sweep"], found["cases"][0]["value"]) == ("Title", "load", 0.5)
    assert found["cases"][0]["rows"][0]["goodput"] == {"mean": 8.0, "half_width": 0.0, "seeds": 2}
    assert [each["seed"] for each in found["cases"][0]["results"]["a"]] == [1, 2]
