"""Shows a profile: a table, a summary, a plot."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from serve_app.config.profile import Profile
from serve_app.errors import ConfigError

_SHOWN = (0.05, 0.5, 0.95)
"""Quantiles in the table."""
_MICROSECONDS_BELOW_S = 0.005
"""Mean time of the dearest batch below which a table is in microseconds."""
_DISTURBED = 0.02
"""Part of the time without a core above which a profile is not that of an idle machine."""


def table(profile: Profile) -> Table:
    """A profile's points, with their deviations from the line."""
    dearest = max(shape.mean_s for shape in profile.shapes)
    unit, per_second = ("µs", 1e6) if dearest < _MICROSECONDS_BELOW_S else ("ms", 1e3)
    threads = "1 thread" if profile.threads == 1 else f"{profile.threads} threads"
    title = f"{profile.model} on {profile.device}, {threads}; times in {unit}"
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    has_variants, has_buckets = bool(profile.variants), any(shape.bucket for shape in profile.shapes)
    on_gpu = any(shape.gpu_bytes is not None for shape in profile.shapes)
    if has_variants:
        drawn.add_column("variant", no_wrap=True)
    headings = [*(["size"] if has_buckets else []), "rows", "runs", "mean", "p5", "p50", "p95", "max"]
    headings += ["rows/s", "off line", "MiB", *(["GPU MiB"] if on_gpu else [])]
    for heading in headings:
        drawn.add_column(heading, justify="right", no_wrap=True)
    residuals = {(fit.variant, fit.bucket): fit.residuals_s for fit in profile.fits}
    last: tuple[str, int] | None = None
    for shape in profile.shapes:
        key = (shape.variant, shape.bucket)
        if last is not None and key != last:
            drawn.add_section()
        last = key
        off = residuals[key][str(shape.rows)] / shape.mean_s
        cells = [shape.variant or "exact"] if has_variants else []
        cells += [str(shape.bucket)] if has_buckets else []
        times = (shape.mean_s, *(shape.quantile(part) for part in _SHOWN), shape.max_s)
        cells += [str(shape.rows), str(shape.runs), *(_three_digits(per_second * seconds) for seconds in times)]
        cells += [f"{shape.rows / shape.mean_s:,.0f}", f"{off:+.0%}", _mib(shape.peak_rss_bytes)]
        cells += [_mib(shape.gpu_bytes)] if on_gpu else []
        drawn.add_row(*cells)
    return drawn


def summary(profile: Profile) -> list[str]:
    """A profile's lines, scatter and memory in words, with rich's markup."""
    lines = []
    for fit in profile.fits:
        name = " ".join(filter(None, (fit.variant or ("exact" if profile.variants else ""), _size(fit.bucket))))
        lines.append(f"{name + ': ' if name else ''}{_time(fit.alpha_s)} + {_time(fit.beta_s)} x rows")
    lines += [
        f"scatter{' of ' + variant if variant else ''}: {profile.spread(variant):.1%} of the mean"
        for variant in ("", *profile.variants)
    ]
    for variant, found in profile.joinable.items():
        known = f"{found.verdict}, {found.deviation:.1g}" if found.deviation else found.verdict
        lines.append(f"sharing runs{' of ' + variant if variant else ''}: {known}: {escape(found.reason)}")
    memory = profile.memory
    if memory.before_load_bytes is not None:
        lines.append(
            f"memory: {_mib(memory.before_load_bytes)} MiB before loading, {_mib(memory.after_load_bytes)} after"
        )
    if memory.gpu_before_load_bytes is not None:
        before, after = _mib(memory.gpu_before_load_bytes), _mib(memory.gpu_after_load_bytes)
        lines.append(f"GPU memory in use: {before} MiB before loading, {after} after")
    if profile.held_up is not None and profile.held_up > _DISTURBED:
        lines.append(
            f"[yellow]note:[/] other work had the cores for {profile.held_up:.0%} of the time;"
            " measure again on an idle machine"
        )
    return lines


def draw(profile: Profile, path: Path) -> None:
    """Plot time and throughput over rows; a line per bucket and variant. Needs matplotlib.

    Raises:
        ConfigError: The plot cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    times, rates = figure.subplots(1, 2)
    for number, fit in enumerate(profile.fits):
        shapes = [shape for shape in profile.shapes if (shape.variant, shape.bucket) == (fit.variant, fit.bucket)]
        rows = [shape.rows for shape in shapes]
        colour = f"C{number % 10}"
        style = "--" if fit.variant else "-"
        name = " ".join(filter(None, (fit.variant, _size(fit.bucket)))) or "mean"
        low, high = ([1000 * shape.quantile(part) for shape in shapes] for part in (0.05, 0.95))
        times.plot(rows, [1000 * shape.mean_s for shape in shapes], style, marker=".", color=colour, label=name)
        times.fill_between(rows, low, high, color=colour, alpha=0.2, linewidth=0)
        line = [1000 * (fit.alpha_s + fit.beta_s * count) for count in rows]
        times.plot(rows, line, ":", color=colour, linewidth=1)
        rates.plot(rows, [shape.rows / shape.mean_s for shape in shapes], style, marker=".", color=colour, label=name)
    times.set(title="time of a batch (band: 5% to 95%; dotted: fitted line)", xlabel="rows", ylabel="ms")
    rates.set(title="throughput", xlabel="rows", ylabel="rows/s")
    for axes in (times, rates):
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    rates.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(f"{profile.model} on {profile.machine.gpu or profile.machine.cpu}, {profile.threads} thread(s)")
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError((f"{path}: cannot be written: {error.strerror}",)) from None


def _time(seconds: float) -> str:
    return f"{_three_digits(1e3 * seconds)} ms" if seconds >= 1e-3 else f"{_three_digits(1e6 * seconds)} µs"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 1024**2:.0f}"


def _size(bucket: int) -> str:
    return f"size {bucket}" if bucket else ""
