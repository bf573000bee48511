"""Results as simulations give them, made by hand for the tests of reports and plots."""

from __future__ import annotations

from serve_app_simulator.results import Result, Series, Tally


def tally(offered: int, in_time: int, latency_s: float | None = 0.02) -> Tally:
    """A group of requests whose misses were all dropped."""
    return Tally(
        offered=offered,
        in_time=in_time,
        late=0,
        dropped=offered - in_time,
        replaced=0,
        unfinished=0,
        p50_s=latency_s,
        p90_s=latency_s,
        p99_s=None if latency_s is None else 3 * latency_s,
        server_s=offered / 100,
        wasted_s=(offered - in_time) / 100,
    )


def result(
    system: str = "serve-app",
    seed: int = 1,
    *,
    high: tuple[int, int] = (20, 20),
    low: tuple[int, int] = (80, 60),
    queued_rows: tuple[int, ...] = (0, 3, 9, 9, 4, 2, 0, 0, 0, 0, 0),
    latency_s: float | None = 0.02,
) -> Result:
    """Ten seconds with requests of two classes, each given as how many were offered and how many were in time."""
    offered, in_time = high[0] + low[0], high[1] + low[1]
    total = tally(offered, in_time, latency_s)
    return Result(
        scenario="test",
        system=system,
        seed=seed,
        duration_s=10.0,
        total=total,
        classes={"high": tally(*high, latency_s), "low": tally(*low, latency_s)},
        models={"model": total},
        tenants={},
        sizes={},
        goodput=in_time / 10,
        weighted_goodput=(100 * high[1] + low[1]) / 10,
        offered_weight=(100 * high[0] + low[0]) / 10,
        server_s=total.server_s,
        wasted_s=total.wasted_s,
        server_share={"high": high[0] / offered, "low": low[0] / offered},
        batch_rows=4.0,
        utilisation=0.5,
        busy_part=0.9,
        series=Series(
            step_s=1.0,
            offered={"high": [high[0] // 10] * 10, "low": [low[0] // 10] * 10},
            in_time={"high": [high[1] // 10] * 10, "low": [low[1] // 10] * 10},
            queued_rows=list(queued_rows),
            replicas=[1] * 11,
        ),
        wall_s=0.1,
        events_per_s=1000.0,
    )
