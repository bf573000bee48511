"""The curve that the simulator makes of a profile."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest

from serve_app.config.profile import FORMAT, Machine, Memory, Profile
from serve_app.config.profile_points import Point, fit_points
from serve_app_simulator.measured_curve import MeasuredCurve


def point(rows: int, *seconds: float, bucket: int = 0, variant: str = "") -> Point:
    """A point of these runs."""
    return Point.of(seconds, (0.05, 0.5, 0.95), rows=rows, bucket=bucket, variant=variant)


def profile_of(points: Sequence[Point]) -> Profile:
    """A profile of these points."""
    return Profile(
        format=FORMAT,
        serve_app="0.1.0",
        measured="2026-01-31T12:00:00+00:00",
        model="m",
        task="tensors",
        version="1",
        files=dict.fromkeys(["", *(one.variant for one in points)], "ab" * 32),
        device="cpu",
        threads=1,
        machine=Machine(cpu="a", cores=2, system="Linux", python="3.12", runtime="1.23"),
        memory=Memory(),
        points=tuple(points),
        fits=fit_points(points),
    )


STRAIGHT = profile_of([point(1, 0.5), point(2, 0.75), point(4, 1.25)])
"""0.25 s + 0.25 s x rows, exactly."""


def test_the_curve_passes_through_the_means() -> None:
    """In between, straight lines; beyond, the fit as it meets the last point."""
    curve = MeasuredCurve.of(profile_of([point(2, 0.5, 0.7), point(4, 1.0), point(8, 1.2)]))
    assert [curve(rows, 0) for rows in (2, 3, 4, 6, 8)] == pytest.approx([0.6, 0.8, 1.0, 1.1, 1.2])
    (fit,) = fit_points([point(2, 0.6), point(4, 1.0), point(8, 1.2)])
    line = [fit.alpha_s + fit.beta_s * rows for rows in (1, 2, 8, 16)]
    assert curve(1, 0) == pytest.approx(0.6 * line[0] / line[1])
    assert curve(16, 0) == pytest.approx(1.2 * line[3] / line[2])


def test_a_straight_line_goes_on_straight() -> None:
    """Where the points lie on their line, so does everything else."""
    curve = MeasuredCurve.of(STRAIGHT)
    assert [curve(rows, 0) for rows in (1, 3, 8, 100)] == pytest.approx([0.5, 1.0, 2.25, 25.25])


def test_unknown_buckets_follow_the_known_ones() -> None:
    """As the latency model does it: a line in between, in proportion above, half fixed below."""
    curve = MeasuredCurve.of(profile_of([point(1, 1.0, bucket=16), point(1, 3.0, bucket=32)]))
    assert [curve(1, bucket) for bucket in (8, 16, 24, 32, 64)] == pytest.approx([0.75, 1.0, 2.0, 3.0, 6.0])


def test_variants_have_curves_of_their_own() -> None:
    """And one that was not measured is a KeyError."""
    profile = profile_of([point(1, 1.0), point(1, 0.5, variant="int8")])
    assert (profile.variants, MeasuredCurve.of(profile, "int8")(1, 0)) == (("int8",), 0.5)
    with pytest.raises(KeyError, match="int4"):
        MeasuredCurve.of(profile, "int4")


def test_a_curve_can_go_to_another_process() -> None:
    """Simulations of several seeds run side by side."""
    curve = MeasuredCurve.of(STRAIGHT)
    assert pickle.loads(pickle.dumps(curve)) == curve


def test_a_curve_of_medians_leaves_out_what_held_a_run_up() -> None:
    """The mean does not."""
    profile = profile_of([point(1, 1.0, 1.0, 4.0)])
    assert MeasuredCurve.of(profile)(1) == pytest.approx(2.0)
    assert MeasuredCurve.of(profile, quantile=0.5)(1) == pytest.approx(1.0)
