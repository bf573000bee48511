"""Profiles: what is written, what is read, what is refused, and what server and simulator make of it."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.backends.onnx.kind import ONNX
from serve_app.composition.locate import ModelLocation
from serve_app.composition.profile import check_profile, profile_notes, read_model_profile, sha256
from serve_app.config.model import ModelConfig
from serve_app.config.profile import FORMAT, Machine, Memory, Profile, read_profile
from serve_app.config.profile_points import Point, fit_affine, fit_points
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits

QUANTILES = (0.05, 0.5, 0.95, 0.99)
HASH = "ab" * 32


def point(rows: int, *seconds: float, bucket: int = 0, variant: str = "") -> Point:
    """A point of these runs."""
    return Point.of(seconds, QUANTILES, rows=rows, bucket=bucket, variant=variant)


def make(points: Sequence[Point], **changes: Any) -> Profile:
    """A profile of these points."""
    given: dict[str, Any] = {
        "format": FORMAT,
        "serve_app": "0.1.0",
        "measured": "2026-01-31T12:00:00+00:00",
        "model": "m",
        "task": "tensors",
        "version": "1",
        "files": dict.fromkeys(["", *(one.variant for one in points)], HASH),
        "device": "cpu",
        "threads": 1,
        "machine": Machine(cpu="a", cores=2, system="Linux", python="3.12", runtime="1.23"),
        "memory": Memory(),
        "fits": fit_points(points),
    }
    return Profile(points=tuple(points), **(given | changes))


STRAIGHT = make([point(1, 0.5), point(2, 0.75), point(4, 1.25)])
"""0.25 s + 0.25 s x rows, exactly."""


def document(profile: Profile = STRAIGHT) -> dict[str, Any]:
    """A profile as plain data."""
    data: dict[str, Any] = profile.model_dump(mode="json", by_alias=True)
    return copy.deepcopy(data)


def problems(path: Path, data: object) -> list[str]:
    """What is wrong with a file that holds this, without the file's name, which every line must begin with."""
    path.write_text(data if isinstance(data, str) else json.dumps(data), "utf-8")
    with pytest.raises(ConfigError) as caught:
        read_profile(path)
    assert all(line.startswith(f"{path}: ") for line in caught.value.problems)
    return [line.removeprefix(f"{path}: ") for line in caught.value.problems]


# --- the file -------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Nothing is lost on the way, and folders are made."""
    written = make([point(1, 0.5, 0.6), point(1, 0.1, bucket=16, variant="int8")])
    written.write(tmp_path / "new" / "m.json")
    assert read_profile(tmp_path / "new" / "m.json") == written


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It names what ran the model by a key of that backend's."""
    data = document()
    data["machine"]["onnxruntime"] = data["machine"].pop("runtime")
    (tmp_path / "m.json").write_text(json.dumps(data), "utf-8")
    assert read_profile(tmp_path / "m.json") == STRAIGHT


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    """Other tools find the points under the names that the documentation gives."""
    STRAIGHT.write(tmp_path / "m.json")
    data = json.loads((tmp_path / "m.json").read_text("utf-8"))
    assert (data["format"], data["model"], data["files"]) == (FORMAT, "m", {"": HASH})
    assert data["points"][1] == {
        "rows": 2, "bucket": 0, "variant": "", "runs": 1, "mean_s": 0.75, "min_s": 0.75, "max_s": 0.75,
        "quantiles_s": {"p5": 0.75, "p50": 0.75, "p95": 0.75, "p99": 0.75},
    }  # fmt: skip
    assert data["fits"] == [
        {"bucket": 0, "variant": "", "alpha_s": 0.25, "beta_s": 0.25, "residuals_s": {"1": 0, "2": 0, "4": 0}}
    ]


def test_a_relative_path_starts_at_home(tmp_path: Path) -> None:
    """Profiles are found as models are."""
    STRAIGHT.write(tmp_path / "profiles" / "m.json")
    assert read_profile("profiles/m.json", {"SERVE_APP_HOME": str(tmp_path)}) == STRAIGHT


def test_a_profile_may_be_remote(tmp_path: Path) -> None:
    """Any fsspec URI will do."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/profiles/m.json", json.dumps(document()).encode())
    try:
        assert read_profile("memory://profiles/m.json") == STRAIGHT
    finally:
        memory.store.clear()
    with pytest.raises(ConfigError, match=r"memory://profiles/m.json: no such file"):
        read_profile("memory://profiles/m.json")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """The message says where it was looked for."""
    with pytest.raises(ConfigError) as caught:
        read_profile("none.json", {"SERVE_APP_HOME": str(tmp_path)})
    assert caught.value.problems == (f"none.json: no such file (looked for {tmp_path}/none.json)",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1, column 1: is not JSON: Expecting value"),
        ('{"format": 1,\n "model" 3}', "line 2, column 10: is not JSON: Expecting ':' delimiter"),
        ("[]", "is not a profile: it has no key format; serve-app profile writes one"),
        ('{"points": []}', "is not a profile: it has no key format; serve-app profile writes one"),
        ('{"format": 7}', "format: is 7, this version reads 1; measure again with serve-app profile"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    """The first line of trouble, with its place."""
    assert problems(tmp_path / "m.json", text) == [expected]


@pytest.mark.parametrize(
    ("where", "value", "expected"),
    [
        (("points",), [], ["points: holds no point of the model itself (variant '')"]),
        (("points",), None, ["points: must be a list, got None"]),
        (("points", 1, "mean_s"), 0, ["points[1].mean_s: must be more than 0, got 0"]),
        (("points", 1, "mean_s"), -1.5, ["points[1].mean_s: must be more than 0, got -1.5"]),
        (("points", 1, "mean_s"), float("nan"), ["points[1].mean_s: must be a finite number, got nan"]),
        (("points", 1, "mean_s"), "quick", ["points[1].mean_s: must be a number, got 'quick'"]),
        (("points", 1, "mean_s"), 9, ["points[1].mean_s: 9 is not between min_s and max_s"]),
        (("points", 1, "min_s"), 9, ["points[1].min_s: 9 is more than max_s 0.75"]),
        (("points", 1, "quantiles_s", "p50"), 9,
         ["points[1].quantiles_s.p50: 9 is outside of what lies beside it, 0.75 to 0.75"]),
        (("points", 1, "quantiles_s"), {"median": 0.75},
         ["points[1].quantiles_s: names must be such as p50 or p99.9, got 'median'"]),
        (("points", 1, "rows"), 0, ["points[1].rows: must be at least 1, got 0"]),
        (("points", 1, "rows"), 1.5, ["points[1].rows: must be a whole number, got 1.5"]),
        (("points", 1, "rows"), 1, ["points[1]: is about the same shape as points[0]"]),
        (("points", 1, "row"), 2, ["points[1].row: unknown key; did you mean rows?"]),
        (("points", 1, "variant"), "int8", ["points[1].variant: files has no 'int8'",
                                            "fits: needs one for variant 'int8', bucket 0; found 0"]),
        (("fits",), [], ["fits: needs one for variant '', bucket 0; found 0"]),
        (("fits", 0, "beta_s"), -1, ["fits[0].beta_s: must be at least 0, got -1"]),
        (("files",), {"": "abc"}, ["files: '' must have 64 hexadecimal digits, got 'abc'"]),
        (("files",), {}, ["files: does not have the model itself, under the empty name"]),
        (("threads",), 0, ["threads: must be at least 1, got 0"]),
        (("machine",), "fast", ["machine: must be a mapping, got 'fast'"]),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_with_its_field(
    tmp_path: Path, where: tuple[str | int, ...], value: object, expected: list[str]
) -> None:
    """A profile that somebody has edited says what is wrong where."""
    data = document()
    node: Any = data
    for step in where[:-1]:
        node = node[step]
    node[where[-1]] = value
    assert problems(tmp_path / "m", data) == expected


# --- points ---------------------------------------------------------------------------------------------------------

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=50)


@given(seconds=TIMES, quantiles=st.lists(st.floats(0.001, 0.999).map(lambda value: round(value, 3)), max_size=5))
def test_any_times_make_a_point_that_can_be_read_again(seconds: list[float], quantiles: list[float]) -> None:
    """Rounding never makes a point that its own check refuses."""
    made = Point.of(seconds, quantiles, rows=1)
    assert Point.model_validate_json(made.model_dump_json()) == made
    assert (made.runs, made.min_s, made.max_s) == (len(seconds), min(seconds), max(seconds))


@given(seconds=TIMES, parts=st.lists(st.floats(0, 1), min_size=2).map(sorted))
def test_quantiles_rise_from_the_shortest_to_the_longest_run(seconds: list[float], parts: list[float]) -> None:
    """Also between those that were kept."""
    made = Point.of(seconds, QUANTILES, rows=1)
    values = [made.quantile(part) for part in [0.0, *parts, 1.0]]
    assert values == pytest.approx(sorted(values), rel=1e-12)
    assert (values[0], values[-1]) == (min(seconds), max(seconds))


def test_quantiles_are_interpolated() -> None:
    """Of 1 to 101 seconds, the 25% quantile is asked for, and 5% (6 s) and 50% (51 s) are known."""
    made = Point.of([float(value) for value in range(1, 102)], (0.05, 0.5), rows=1)
    assert made.quantiles_s == {"p5": 6.0, "p50": 51.0}
    assert made.quantile(0.5) == 51.0
    assert made.quantile(0.25) == pytest.approx(26.0)
    assert made.quantile(0.75) == pytest.approx(76.0)


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.4])
def test_the_noise_is_that_of_the_runs(sigma: float) -> None:
    """Lognormal times give their sigma back, though one run in fifty is held up for long."""
    chance = random.Random(7)
    points = []
    for rows in (1, 2, 4, 8):
        seconds = [rows * chance.lognormvariate(0.0, sigma) for _ in range(2000)]
        points.append(point(rows, *seconds, *([100.0 * rows] * 40)))
    assert make(points).spread() == pytest.approx(sigma, rel=0.1)


def test_a_steady_machine_has_no_noise() -> None:
    """Equal times do not scatter."""
    assert make([point(1, 0.5, 0.5, 0.5)]).spread() == 0.0


def test_a_variant_that_was_not_measured_has_no_noise() -> None:
    """It is a KeyError."""
    with pytest.raises(KeyError, match="int4"):
        STRAIGHT.spread("int4")


def test_affine_fit_never_has_a_negative_part() -> None:
    """A falling profile becomes its mean; a negative offset becomes a line through the origin."""
    assert fit_affine([(1, 0.2), (2, 0.1)]) == pytest.approx((0.15, 0.0))
    assert fit_affine([(1, 0.1), (10, 9.0)])[0] == 0.0


# --- for the server -------------------------------------------------------------------------------------------------


def test_the_prior_is_the_quantile_that_the_latency_model_predicts() -> None:
    """A scheduler that was seeded with a profile predicts its 95% quantile, per variant, before anything has run."""
    points = [
        point(rows, *(scale * (0.01 + 0.001 * rows) * (1 + step / 100) for step in range(101)), variant=variant)
        for variant, scale in (("", 1.0), ("int8", 0.5))
        for rows in (1, 2, 4, 8, 16)
    ]
    limits = dict.fromkeys(Priority, ClassSettings(10, 10**6, 1.0))
    scheduler = Scheduler([ModelScheduling("m", 16, 0.1)], limits, ProcessLimits(10**6))

    scheduler.seed("m", make(points).points())

    for variant, scale in (("", 1.0), ("int8", 0.5)):
        for rows in (1, 2, 4, 8, 16):
            expected = scale * (0.01 + 0.001 * rows) * 1.95
            assert scheduler.latency("m", variant).predict(rows, 0) == pytest.approx(expected, rel=0.01)


def test_a_warm_up_replaces_the_prior() -> None:
    """A machine that is twice as slow as the one measured is soon known for it, at other sizes too."""
    model = LatencyModel()
    model.seed([(one.rows, one.bucket, one.seconds) for one in STRAIGHT.points()])
    model.seed([(rows, 0, 2 * (0.25 + 0.25 * rows)) for rows in (1, 2, 4)])
    for _ in range(40):
        model.observe(4, 0, 2.5)
    assert model.predict(4) == pytest.approx(2.5)
    assert model.predict(64) == pytest.approx(2 * (0.25 + 0.25 * 64), rel=0.01)


def location(tmp_path: Path, content: bytes) -> ModelLocation:
    """A model's files."""
    (tmp_path / "1").mkdir(exist_ok=True)
    (tmp_path / "1" / "model.onnx").write_bytes(content)
    return ModelLocation(tmp_path / "1", "1", ("1",), "model.onnx", ONNX)


def test_the_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    """The name and the content of every file must be those that were measured."""
    here = location(tmp_path, b"exact")
    files = {"": sha256(here.model_file), "int8": HASH}
    profile = make([point(1, 0.5), point(1, 0.2, variant="int8")], files=files)
    assert check_profile(profile, "m", {"": here}) == ()
    assert check_profile(profile, "n", {"": here}) == ("model: it is the profile of 'm', not of 'n'",)
    (line,) = check_profile(profile, "m", {"": here, "int8": here})
    assert line == (
        f"files['int8']: it was measured with another model.onnx (SHA-256 {HASH[:12]}..., the one in {tmp_path}/1 has"
        f" {files[''][:12]}...); measure again with serve-app profile"
    )


def test_a_model_reads_its_profile(tmp_path: Path) -> None:
    """Without one there is none; faults name the model, the key and the file."""
    here = location(tmp_path, b"exact")
    make([point(1, 0.5)], files={"": sha256(here.model_file)}).write(tmp_path / "m.json")
    variables = {"SERVE_APP_HOME": str(tmp_path)}
    assert read_model_profile(ModelConfig(name="m", path="m"), {"": here}, variables) is None
    read = read_model_profile(ModelConfig(name="m", path="m", profile="m.json"), {"": here}, variables)
    assert read is not None
    with pytest.raises(ConfigError) as caught:
        read_model_profile(ModelConfig(name="n", path="m", profile="m.json"), {"": here}, variables)
    assert caught.value.problems == (
        "model 'n': profile: m.json: model: it is the profile of 'm', not of 'n'",
    )  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        read_model_profile(ModelConfig(name="m", path="m", profile="no.json"), {"": here}, variables)
    assert caught.value.problems == (
        f"model 'm': profile: no.json: no such file (looked for {tmp_path}/no.json)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"batching": {"max_rows": 4}}, []),
        ({"batching": {"max_rows": 8}}, ["was measured up to 4 rows, batches have up to 8"]),
        ({"resources": {"threads": 2}}, ["was measured with threads: 1, replicas have 2"]),
        ({"resources": {"device": "cuda", "gpus": 0.5}}, ["was measured on cpu, replicas run on cuda"]),
        ({"resources": {"device": "auto", "gpus": 0.5}}, []),
        ({"variants": [{"name": "int8", "path": "i"}]}, ["does not have the variant 'int8'"]),
    ],
)
def test_differences_are_noted(settings: dict[str, Any], expected: list[str]) -> None:
    """What makes a profile less exact is no fault; where the cluster chooses the device, nobody can tell."""
    given = {"batching": {"max_rows": 4}} | settings
    model = ModelConfig.model_validate({"name": "m", "path": "m", "profile": "m.json"} | given)
    assert profile_notes(model, STRAIGHT) == tuple(f"model 'm': profile: m.json {note}" for note in expected)
