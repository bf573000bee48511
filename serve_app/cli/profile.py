"""``serve-app profile``: measures and records the cost of a model's batches on this machine."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from serve_app import __version__
from serve_app.api.open_inference.sample import decode_sample
from serve_app.backends.backend import Backend
from serve_app.backends.description import Description
from serve_app.backends.device import resolve_device
from serve_app.backends.kind import AnyKind
from serve_app.backends.profiler import (
    Measurement,
    ProfileProgress,
    device_name,
    gpu_bytes,
    resident_bytes,
    sweep,
    sweep_rows,
    waited_s,
)
from serve_app.backends.warm_up import MakeInputs, first_that_runs, spaced_buckets
from serve_app.cli.gpus import has_gpu
from serve_app.cli.profile_report import draw, summary, table
from serve_app.composition import expand_models, read_args
from serve_app.composition.backend import load_builds
from serve_app.composition.compute import choose_compute, with_threads
from serve_app.composition.locate import ModelLocation
from serve_app.composition.model import find_files, make_processor, make_samples, makes_examples, read_builds
from serve_app.composition.profile import sha256
from serve_app.config.file import load_file
from serve_app.config.files import home, is_remote
from serve_app.config.model import ModelConfig
from serve_app.config.problems import hint, short_repr
from serve_app.config.profile import FORMAT, Machine, Memory, Profile, Verdict
from serve_app.config.profile_points import Point, fit_points
from serve_app.errors import ConfigError, InferenceFailed
from serve_app.payloads import Joinable
from serve_app.processors.processor import Processor
from serve_app.replica.proof import ProofContext, prove_replica
from serve_app.replica.warm_up import middle_inputs

PlotFormat = Literal["svg", "png"]

ALWAYS = (0.05, 0.5, 0.95)
"""Quantiles that every profile has: the server's prior and the simulator's noise are made of them."""

_TABLE_WIDTH = 120


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Options of a measurement.

    Attributes:
        seconds: Seconds of runs per shape.
        quantiles: Quantiles to keep besides `ALWAYS`; more than 0 and less than 1.
        rows: Empty for `sweep_rows`.
        threads: Threads per session; ``None``: as configured.
    """

    seconds: float = 2.0
    quantiles: tuple[float, ...] = (0.5, 0.95, 0.99)
    rows: tuple[int, ...] = ()
    threads: int | None = None


def profile_file(
    config: Path,
    names: Sequence[str],
    options: ProfileOptions,
    out: Console,
    *,
    everything: bool = False,
    output: Path | None = None,
    plot: PlotFormat | None = None,
) -> None:
    """Measure models of a Serve file in turn, and write and show a profile of each.

    Args:
        names: Optional for a single model.
        out: For tables.
        everything: Whether to measure every model.
        output: The profile of a single model; default the configuration's, or ``profiles/<name of its
            deployment>.json`` in ``SERVE_APP_HOME``.
        plot: Format of a plot beside the profile, if any.

    Raises:
        ConfigError: The file or the choice is wrong, or a model cannot be loaded.
    """
    models = _chosen(expand_models(load_file(config, read_args).args).models, names, everything=everything)
    if output is not None and len(models) > 1:
        raise ConfigError(("--output names one file, and several models are to be measured",))
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(("--plot needs matplotlib: pip install 'serve-app[simulate]'",))
    for model in models:
        path = output or _default_output(model)
        profile = profile_model(model, options, out)
        profile.write(path)
        # A narrow window may break lines, but figures must not lose their ends.
        out.print(table(profile), width=max(out.width, _TABLE_WIDTH), crop=False)
        for line in summary(profile):
            out.print(line, highlight=False, soft_wrap=True)
        out.print(f"[green]written:[/] {path}", highlight=False, soft_wrap=True)
        if plot is not None:
            picture = path.with_suffix(f".{plot}")
            draw(profile, picture)
            out.print(f"[green]drawn:[/] {picture}", highlight=False, soft_wrap=True)


def profile_model(model: ModelConfig, options: ProfileOptions, out: Console) -> Profile:
    """Load a model like its replicas, and measure it.

    Raises:
        ServeAppError: It failed at a shape.
    """
    if options.threads is not None:
        model = with_threads(model, options.threads)
    locations = find_files(model)
    gpu_available = model.resources.gpus > 0 and has_gpu()
    with_gpu = resolve_device(model.resources.device, gpu_available, model.name) == "cuda"
    before, gpu_before = resident_bytes(), gpu_bytes() if with_gpu else None
    backends: dict[str, Backend] = {}
    start = monotonic()
    try:
        builds = read_builds(model, locations)
        tell = partial(_print_note, out)
        load_builds(model, locations, builds, backends, tell, gpu_available=gpu_available)
        memory = Memory(
            before_load_bytes=before,
            after_load_bytes=resident_bytes(),
            gpu_before_load_bytes=gpu_before,
            gpu_after_load_bytes=gpu_bytes() if with_gpu else None,
        )
        rows = builds[""].joinable.rows
        processor = makes_examples(make_processor(model, backends[""].signature, locations[""]))
        make_inputs = _inputs(model, backends, processor, rows=rows)
        buckets = (0,) if processor is None else spaced_buckets(processor.buckets)
        compute = None
        if options.threads is None:
            middle = middle_inputs(make_inputs, model.batching.configured_rows if rows else 1, buckets)
            loaded_s = monotonic() - start
            model, compute = choose_compute(
                model, locations, builds, backends, middle, loaded_s, tell, gpu_available=gpu_available
            )
        began, waited = monotonic(), waited_s()
        measurements = _sweep(model, backends, make_inputs, buckets, options, out, rows=rows)
        if compute is not None:
            out.print(f"{model.name}: a replica here computes with {compute.told}", highlight=False, soft_wrap=True)
        elapsed, waited_in_all = monotonic() - began, waited_s()
        device = backends[""].device
        verdicts = _verdicts(model, backends, builds, locations)
    finally:
        for loaded in backends.values():
            loaded.close()
    points = tuple(_point(measurement, options) for measurement in measurements)
    return Profile(
        format=FORMAT,
        serve_app=__version__,
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model.name,
        task=model.task,
        version=locations[""].version,
        files={variant: sha256(location.model_file) for variant, location in locations.items()},
        device=device,
        threads=model.resources.session_threads,
        machine=_machine(device, locations[""].kind),
        memory=memory,
        held_up=None if waited is None or waited_in_all is None else max(0.0, waited_in_all - waited) / elapsed,
        points=points,
        fits=fit_points(points),
        joinable={
            variant: Verdict(verdict=found.verdict, reason=found.reason, deviation=found.deviation)
            for variant, found in verdicts.items()
        },
    )


def _verdicts(
    model: ModelConfig,
    backends: Mapping[str, Backend],
    builds: Mapping[str, Description],
    locations: Mapping[str, ModelLocation],
) -> dict[str, Joinable]:
    """The verdicts on sharing runs per build, as found by replicas."""
    exact = builds[""]
    samples = make_samples(model, exact.signature, decode_sample, rows=exact.joinable.rows)
    return prove_replica(
        ProofContext(model.name, model.batching.configured_rows, model.batching.tolerance),
        backends,
        {variant: build.joinable for variant, build in builds.items()},
        make_processor(model, exact.signature, locations[""]),
        samples,
        {},
    )


def _sweep(
    model: ModelConfig,
    backends: Mapping[str, Backend],
    make_inputs: MakeInputs,
    buckets: Sequence[int],
    options: ProfileOptions,
    out: Console,
    *,
    rows: bool,
) -> list[Measurement]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with ProgressBar(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(model.name, total=None)

        def show(progress: ProfileProgress) -> None:
            bar.update(
                task,
                description=f"{model.name}: {progress.shape}",
                completed=progress.measured_s,
                total=progress.expected_s,
            )

        return sweep(
            backends,
            make_inputs,
            rows=(options.rows or sweep_rows(model.batching.configured_rows)) if rows else (1,),
            buckets=buckets,
            seconds=options.seconds,
            on_progress=show,
        )


def _print_note(out: Console, note: str) -> None:
    out.print(f"[yellow]note:[/] {note}", highlight=False, soft_wrap=True)


def _inputs(
    model: ModelConfig, backends: Mapping[str, Backend], processor: Processor | None, *, rows: bool
) -> MakeInputs:
    """The inputs for the measurement.

    Raises:
        ConfigError: The configured inputs do not fit the model.
        InferenceFailed: The model, or a variant, runs none of them.
    """
    if processor is not None:
        return processor.example
    samples = make_samples(model, backends[""].signature, decode_sample, rows=rows)
    try:
        return first_that_runs(backends.values(), samples.candidates())
    except InferenceFailed as error:
        raise InferenceFailed(
            f"model {model.name!r} runs on no known input: {error.message}; {samples.advice}"
        ) from None


def _point(measurement: Measurement, options: ProfileOptions) -> Point:
    shape = measurement.shape
    return Point.of(
        measurement.seconds,
        (*ALWAYS, *options.quantiles),
        rows=shape.rows,
        bucket=shape.bucket,
        variant=shape.variant,
        peak_rss_bytes=measurement.peak_rss_bytes,
        gpu_bytes=measurement.gpu_bytes,
    )


def _chosen(models: Sequence[ModelConfig], names: Sequence[str], *, everything: bool) -> list[ModelConfig]:
    by_name = {model.name: model for model in models}
    problems = [f"has no model {short_repr(name)}; {hint(name, by_name)}" for name in names if name not in by_name]
    if everything and names:
        problems.append("--all and --model exclude each other")
    if not everything and not names and len(models) > 1:
        problems.append(f"holds several models; choose with --model ({', '.join(by_name)}) or --all")
    if problems:
        raise ConfigError(tuple(problems))
    return [by_name[name] for name in dict.fromkeys(names)] or list(models)


def _default_output(model: ModelConfig) -> Path:
    if model.profile is not None and not is_remote(model.profile):
        return home(os.environ) / model.profile
    return home(os.environ) / "profiles" / f"{model.deployment}.json"


def _machine(device: str, kind: AnyKind) -> Machine:
    return Machine(
        cpu=_after_colon(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        gpu=device_name(device) if device == "cuda" else None,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        runtime=", ".join(f"{name} {version}" for name, version in kind.versions().items()) or kind.name,
    )


def _after_colon(path: Path, key: str) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key)
    return next(found, None)
