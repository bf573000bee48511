"""Profiles: the measured cost of a model's batches on a machine, by ``serve-app profile``.

The server uses one as its prior (``models[].profile``), until warm-up and requests. The simulator uses one as the
truth: mean execution times with scatter.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import AliasChoices, Field, ValidationError, model_validator

from serve_app.config.files import read_file
from serve_app.config.problems import Location, problems_of, short_repr, validation_error
from serve_app.config.profile_points import Bytes, Fit, Point
from serve_app.config.values import Positive, Section
from serve_app.errors import ConfigError
from serve_app.payloads import Execution

FORMAT = 1
"""Version of the file's format. It is raised when an older reader would misunderstand the file."""

PRIOR_QUANTILE = 0.95
"""The quantile that the server's prior consists of: the one that `scheduling.batching.latency.LatencyModel` predicts.

Fed with medians it would promise what half of the executions do not keep, until it has seen enough of them.
"""

_SHA256 = re.compile("[0-9a-f]{64}")
_CENTRAL = (0.05, 0.95)
_CENTRAL_SIGMAS = 3.2897
"""Standard deviations between the 5% and 95% quantile of a normal distribution."""
_ENOUGH_RUNS = 20


class Machine(Section):
    """What the model was measured on."""

    cpu: str
    """Name of the processor."""

    cores: Positive
    """Cores that the process could use."""

    gpu: str | None = None
    """Name of the GPU, where the model ran on one."""

    system: str
    """Operating system and architecture."""

    python: str
    """Version of Python."""

    runtime: str = Field(validation_alias=AliasChoices("runtime", "onnxruntime"))
    """What ran the model, with its version. Earlier profiles name the version of ONNX Runtime alone."""


class Memory(Section):
    """Memory around loading the model and its variants. Each point has its own peak."""

    before_load_bytes: Bytes | None = None
    """Resident set of the process before anything was loaded."""

    after_load_bytes: Bytes | None = None
    """Resident set with all sessions made."""

    gpu_before_load_bytes: Bytes | None = None
    """Memory in use on the GPU, by whomever, before anything was loaded."""

    gpu_after_load_bytes: Bytes | None = None
    """The same with all sessions made."""


class Verdict(Section):
    """Whether requests to a build may share runs, as `serve_app.payloads.Joinable` has it."""

    verdict: str
    """`exact`, `close`, `dependent` ..."""

    reason: str
    """Why, in one line."""

    deviation: float = Field(ge=0, allow_inf_nan=False)
    """Largest difference that was measured, relative to the largest value of its output."""


class Profile(Section):
    """What ``serve-app profile`` has measured of one model. Times are seconds in the session, batches run warm."""

    format: int
    """Version of this format."""

    serve_app: str
    """Version of the product that wrote it."""

    measured: str
    """When, in UTC."""

    model: str
    """Name of the model in its configuration."""

    task: str
    """Its task."""

    version: str
    """Its version."""

    files: dict[str, str]
    """SHA-256 of every model's file that ran, by variant; the model's own is under the empty name."""

    device: str
    """Where it ran: `cpu` or `cuda`."""

    threads: Positive
    """Threads that a session computed with on the CPU."""

    machine: Machine
    """What it ran on."""

    memory: Memory
    """What it needed."""

    held_up: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Part of the time that the measurement was ready to run and had no core, because other work had it."""

    shapes: tuple[Point, ...] = Field(strict=False, alias="points")
    """Every shape measured."""

    fits: tuple[Fit, ...] = Field(strict=False)
    """A line through every bucket of every variant."""

    joinable: dict[str, Verdict] = Field(default_factory=dict)
    """Whether requests may share runs, by variant; nothing is decided by it."""

    @model_validator(mode="after")
    def _check(self) -> Profile:
        faults: list[tuple[Location, str]] = []
        if not any(point.variant == "" for point in self.shapes):
            faults.append((("points",), "holds no point of the model itself (variant '')"))
        if "" not in self.files:
            faults.append((("files",), "does not have the model itself, under the empty name"))
        faults.extend(
            (("files",), f"{short_repr(variant)} must have 64 hexadecimal digits, got {short_repr(digest)}")
            for variant, digest in self.files.items()
            if not _SHA256.fullmatch(digest)
        )
        places: dict[tuple[str, int, int], int] = {}
        for number, point in enumerate(self.shapes):
            key = (point.variant, point.bucket, point.rows)
            if key in places:
                faults.append((("points", number), f"is about the same shape as points[{places[key]}]"))
            places.setdefault(key, number)
            if point.variant and point.variant not in self.files:
                faults.append((("points", number, "variant"), f"files has no {short_repr(point.variant)}"))
        fitted = [(fit.variant, fit.bucket) for fit in self.fits]
        lines = dict.fromkeys((point.variant, point.bucket) for point in self.shapes)
        faults.extend(
            (("fits",), f"needs one for variant {short_repr(variant)}, bucket {bucket}; found {fitted.count(line)}")
            for line in lines
            for variant, bucket in (line,)
            if fitted.count(line) != 1
        )
        if faults:
            raise validation_error(faults)
        return self

    def points(self, quantile: float = PRIOR_QUANTILE) -> list[Execution]:
        """Every shape for the scheduler: ``(rows, bucket, seconds, variant)``.

        Args:
            quantile: Of a shape's times, 0 to 1.
        """
        return [Execution(shape.rows, shape.bucket, shape.quantile(quantile), shape.variant) for shape in self.shapes]

    @property
    def variants(self) -> tuple[str, ...]:
        """The measured variants, without the exact model."""
        return tuple(dict.fromkeys(point.variant for point in self.shapes if point.variant))

    def spread(self, variant: str = "") -> float:
        """A variant's scatter around the mean: sigma of a lognormal distribution.

        A point's sigma is the logarithmic distance of its 5% and 95% quantiles over 3.29: rare disturbed runs are
        stalls, not scatter. The result is the median over points with enough runs, or over all without such. Raises
        KeyError if the variant was not measured.
        """
        points = [point for point in self.shapes if point.variant == variant]
        if not points:
            raise KeyError(variant)
        often = [point for point in points if point.runs >= _ENOUGH_RUNS] or points
        low, high = _CENTRAL
        return median(math.log(point.quantile(high) / point.quantile(low)) / _CENTRAL_SIGMAS for point in often)

    def write(self, path: Path) -> None:
        """Write the file, creating folders.

        Raises:
            ConfigError: It cannot be written.
        """
        text = json.dumps(self.model_dump(mode="json", exclude_none=True, by_alias=True), indent=1) + "\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError((f"{path}: cannot be written: {error.strerror}",)) from None


def read_profile(path: str | Path, environ: Mapping[str, str] | None = None) -> Profile:
    """Read a profile.

    Args:
        path: Relative to ``SERVE_APP_HOME`` (default: the working directory), absolute, or an fsspec URI.
        environ: Default: this process's.

    Raises:
        ConfigError: One line per fault, with the file and, if known, the field.
    """
    try:
        return _parse(_read(str(path), environ))
    except ConfigError as error:
        raise ConfigError(tuple(f"{path}: {problem}" for problem in error.problems)) from None


def _read(path: str, environ: Mapping[str, str] | None) -> str:
    try:
        return read_file(path, environ).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError((f"is not UTF-8 text: byte {error.start}",)) from None


def _parse(text: str) -> Profile:
    try:
        data: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError((f"line {error.lineno}, column {error.colno}: is not JSON: {error.msg}",)) from None
    if not isinstance(data, dict) or "format" not in data:
        raise ConfigError(("is not a profile: it has no key format; serve-app profile writes one",))
    if data["format"] != FORMAT:
        found = short_repr(data["format"])
        raise ConfigError((f"format: is {found}, this version reads {FORMAT}; measure again with serve-app profile",))
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(problems_of(error, data, Profile.model_json_schema())) from None
