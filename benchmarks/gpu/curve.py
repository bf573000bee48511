"""L(b): what a batch of b rows costs, on the GPU and on the CPU, and how well a straight line says it."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.subjects import Bench, Device, Subject, make_inputs, measure
from serve_app.config.profile_points import fit_affine

_CPU_THREADS = (1, 8)
_SLOWEST_S = 1.0
"""A CPU curve ends where a batch takes longer than this."""


def check(bench: Bench) -> dict[str, Any]:
    """Every model on every device."""
    found: dict[str, Any] = {}
    for subject in bench.subjects():
        curves = {}
        if bench.device == "cuda":
            curves["cuda"] = _curve(bench, subject, "cuda", 1)
        for threads in _CPU_THREADS:
            curves[f"cpu-{threads}"] = _curve(bench, subject, "cpu", threads)
        found[subject.name] = {"length": subject.length, "curves": curves}
    return found


def _curve(bench: Bench, subject: Subject, device: Device, threads: int) -> dict[str, Any]:
    backend = bench.load(subject.name, device=device, threads=threads)
    points = []
    rows = 1
    while rows <= subject.most_rows:
        inputs = make_inputs(backend.signature, rows, subject.length)
        seconds = bench.seconds / (5 if device == "cuda" else 20)
        timing = measure(lambda: backend.run(inputs), seconds)  # noqa: B023 - called right here
        points.append({"rows": rows, **timing.as_json()})
        if timing.p50_ms > 1e3 * _SLOWEST_S:
            break
        rows *= 2
    backend.close()
    alpha, beta = fit_affine((point["rows"], point["p50_ms"]) for point in points)
    misfits = [abs(alpha + beta * point["rows"] - point["p50_ms"]) / point["p50_ms"] for point in points]
    return {"points": points, "alpha_ms": alpha, "beta_ms": beta, "worst_misfit": max(misfits)}
