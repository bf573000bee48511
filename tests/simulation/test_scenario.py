"""Scenario files: what they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scenario_documents import INT8, document, model, parsed, problems, stream

from serve_app.config.args import parse_args
from serve_app.config.batching import BatchingConfig
from serve_app.config.profile import Machine, Memory, Profile
from serve_app.config.profile_points import Fit, Point
from serve_app.domain.priority import Priority
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.scenario import Affine, Failure, Noise, Overheads, Stream
from serve_app_simulator.scenarios import load_scenario, scenario_schema
from serve_app_simulator.scenarios.costs import capacity, loads
from serve_app_simulator.scenarios.models import Piecewise

CONFIGS = Path(__file__).parents[2] / "configs"
SCENARIOS = sorted((CONFIGS / "scenarios").glob("*.yaml"))


def profile(name: str) -> Profile:
    """A measured profile of a model and its variant."""
    points = tuple(
        Point.of([0.001 * (4 + rows), 0.001 * (5 + rows), 0.001 * (6 + rows)], (0.05, 0.5, 0.95), rows=rows, variant=v)
        for v in ("", "int8")
        for rows in (1, 4)
    )
    return Profile(
        format=1,
        serve_app="0",
        measured="2026-01-01T00:00:00+00:00",
        model=name,
        task="tensors",
        version="1",
        files={"": "0" * 64, "int8": "1" * 64},
        device="cpu",
        threads=1,
        machine=Machine(cpu="a", cores=1, system="b", python="3", runtime="1"),
        memory=Memory(),
        points=points,
        fits=tuple(Fit(variant=v, alpha_s=0.005, beta_s=0.001, residuals_s={}) for v in ("", "int8")),
    )


def test_a_profile_gives_costs_variants_and_scatter(tmp_path: Path) -> None:
    """It is found beside the scenario."""
    profile("images").write(tmp_path / "p.json")
    data = model(latency=None, profile="p.json", variants=[{"name": "int8"}]) | {"noise": {"kind": "measured"}}
    scenario = parsed(data, tmp_path).cases[0].scenario
    (found,) = scenario.models
    assert found.curve(4, 0) == pytest.approx(0.009)
    assert found.variants["int8"](1, 0) == pytest.approx(0.006)
    assert scenario.noise.kind == "lognormal"
    assert scenario.noise.spread > 0


def test_profiles_that_do_not_fit(tmp_path: Path) -> None:
    """Of another model, without the variant, or not there."""
    profile("speech").write(tmp_path / "p.json")
    assert problems(model(latency=None, profile="p.json"), tmp_path) == (
        "models[0].profile: p.json is of the model 'speech', not of 'images'",
    )
    profile("images").write(tmp_path / "p.json")
    assert problems(model(latency=None, profile="p.json", variants=[{"name": "fp16"}]), tmp_path) == (
        "models[0].variants[0].name: p.json has no variant 'fp16'; there are: int8",
    )
    assert problems(model(latency=None, profile="q.json"), tmp_path) == (
        f"models[0].profile: {tmp_path}/q.json: no such file (looked for {tmp_path}/q.json)",
    )


def test_values_reach_the_simulator_in_seconds() -> None:
    """Milliseconds become seconds, names become priorities, defaults come from the classes."""
    data = document(
        warm_up_s=1,
        routers=2,
        classes={"low": {"timeout_ms": 9000}},
        overheads={
            "request_ms": 1,
            "send_ms": 2,
            "answer_ms": 3,
            "between_ms": 4,
            "scatter": 0.5,
            "router_ms": 0.1,
            "router_read_ms": 0.01,
            "router_refusal_ms": 0.02,
            "router_answer_ms": 0.04,
            "timer_ms": 0.2,
        },
        noise={
            "kind": "uniform",
            "spread": 0.2,
            "stall_every_s": 5,
            "stall_s": 1,
            "drift": 1.5,
            "drift_every_s": 8,
            "drift_s": 3,
            "router_stall_every_s": 6,
            "router_stall_s": 0.5,
        },
        failures=[
            {"model": "images", "at_s": 3, "down_s": 2},
            {"kind": "hang", "model": "images", "at_s": 4, "down_s": 2, "lasts_s": 1},
            {"kind": "fail", "model": "images", "at_s": 5, "share": 0.3},
        ],
        weights={"high": 5},
        workload=[
            {
                "kind": "gamma",
                "model": "images",
                "class": "low",
                "rate": 3,
                "cv": 2,
                "rows": 2,
                "start_s": 1,
                "end_s": 9,
                "tenant": "night shift",
            },
            {"kind": "mmpp", "model": "images", "rate": 5, "surge": 10, "surge_s": 0.5, "quiet_s": 4},
            {"kind": "video", "model": "images", "streams": 4, "share": {"high": 0.25, "low": 0.75}},
        ],
    )
    (case,) = parsed(data).cases
    scenario = case.scenario
    assert (scenario.duration_s, scenario.warm_up_s, scenario.routers) == (10, 1, 2)
    assert scenario.overheads == Overheads(0.001, 0.002, 0.003, 0.004, 0.5, 0.0001, 0.00001, 0.00002, 0.00004, 0.0002)
    assert scenario.noise == Noise("uniform", 0.2, 5, 1, 1.5, 8, 3, 6, 0.5)
    assert scenario.failures == (
        Failure("images", 0, 3, 2),
        Failure("images", 0, 4, 2, kind="hang", lasts_s=1),
        Failure("images", 0, 5, kind="fail", share=0.3),
    )
    assert scenario.weights == {Priority.HIGH: 5, Priority.NORMAL: 10, Priority.LOW: 1}
    assert scenario.models[0].curve == Affine(0.005, 0.001)
    assert scenario.workload == (
        Stream(
            "gamma",
            "images",
            Priority.LOW,
            rate=3,
            timeout_s=9,
            rows=2,
            start_s=1,
            end_s=9,
            cv=2,
            tenant="night shift",
        ),
        Stream("mmpp", "images", rate=5, timeout_s=5, surge=10, surge_s=0.5, quiet_s=4),
        Stream(
            "video",
            "images",
            Priority.HIGH,
            timeout_s=1,
            streams=4,
            share={Priority.HIGH: 0.25, Priority.LOW: 0.75},
            timeouts_s={Priority.HIGH: 1, Priority.LOW: 9},
        ),
    )


def _another(key: str) -> Any:
    """A value of a setting of batching that is not its default."""
    default = getattr(BatchingConfig(), key)
    choices = BatchingConfig.model_json_schema()["properties"][key].get("enum")
    if choices is None and default == "auto":
        choices = [7]
    elif choices is None:
        # Of whole numbers the next, which is as valid; of parts, times and ratios what is half-way to 1.
        other = not default if isinstance(default, bool) else default + 1 if isinstance(default, int) else None
        choices = [1] if default is None else [(default + 1) / 2 if other is None else other]
    return next(choice for choice in choices if choice != default)


BATCHING = {key: _another(key) for key in BatchingConfig.model_fields}


def scheduled(**keys: Any) -> ModelScheduling:
    """What the simulator's scheduler is told of a model."""
    (found,) = parsed(model(**keys) | {"workload": stream()["workload"]}).cases[0].scenario.models
    return found.scheduling


def test_batching_means_in_a_scenario_what_it_means_in_the_server() -> None:
    """Fallbacks too."""
    variants = [{"name": name, "path": "p"} for name in ("int8", "tiny")]
    served = parse_args(
        {"models": [{"name": "images", "path": "p", "batching": BATCHING, "variants": variants, "fallbacks": ["tiny"]}]}
    ).model_scheduling()
    simulated = scheduled(batching=BATCHING, variants=[INT8, INT8 | {"name": "tiny"}], fallbacks=["tiny"])
    assert simulated == served["images"]


@pytest.mark.parametrize("key", sorted(BatchingConfig.model_fields))
def test_every_setting_of_batching_reaches_the_simulator(key: str) -> None:
    """Each makes a difference."""
    assert scheduled(batching={key: BATCHING[key]}) != scheduled()


def test_a_load_is_a_part_of_what_the_replicas_can_do_within_the_target() -> None:
    """L(16) is 21 ms: 2 replicas answer 2 * 16 / 0.021 rows per second."""
    data = stream(rate=None, load=0.5, rows=2)
    data["models"][0]["replicas"] = 2
    (case,) = parsed(data).cases
    assert capacity(case.scenario.models[0]) == pytest.approx(2 * 16 / 0.021)
    assert case.scenario.workload[0].rate == pytest.approx(0.5 * 16 / 0.021)
    assert case.loads == {"images": pytest.approx(0.5), "speech": 0.0}


def test_the_target_limits_the_capacity() -> None:
    """Batches that take longer than the target do not count."""
    (case,) = parsed(model(batching={"max_rows": 64, "slo_ms": 15})).cases
    assert capacity(case.scenario.models[0]) == pytest.approx(10 / 0.015)


def test_a_long_tails_load_is_that_of_its_most_loaded_model() -> None:
    """Speech is slower but gets only a third of the requests."""
    (case,) = parsed(document(workload=[{"kind": "long_tail", "load": 0.7}])).cases
    assert max(case.loads.values()) == pytest.approx(0.7)


def test_a_number_of_requests_gives_the_duration() -> None:
    """100 per second, and 300 per second in a surge from 2 s to 3 s: 1,000 have arrived after 8 s."""
    data = stream(kind="flash_crowd", surge=3, surge_at_s=2, surge_s=1) | {"duration_s": None, "requests": 1000}
    assert parsed(data).cases[0].scenario.duration_s == pytest.approx(8.0)


def test_sweeps_make_one_case_per_value() -> None:
    """Each changes one number, everywhere."""
    loaded = parsed(document(sweep={"load": [0.5, 2]})).cases
    assert [case.value for case in loaded] == [0.5, 2]
    assert [case.loads["images"] for case in loaded] == [pytest.approx(0.5), pytest.approx(2)]
    rated = parsed(document(sweep={"rate": [50, 20_000]})).cases
    assert [sum(stream.rate for stream in case.scenario.workload) for case in rated] == [pytest.approx(50), 20_000]
    scaled = parsed(document(sweep={"slo_scale": [2, 10]})).cases
    assert [case.scenario.workload[0].timeout_s for case in scaled] == [pytest.approx(0.012), pytest.approx(0.06)]
    assert [case.scenario.models[1].scheduling.slo_s for case in scaled] == [pytest.approx(0.04), pytest.approx(0.2)]
    noisy = parsed(document(noise={"kind": "lognormal"}, sweep={"noise": [0, 0.5]})).cases
    assert [case.scenario.noise.spread for case in noisy] == [0, 0.5]
    video = document(workload=[{"kind": "video", "model": "images", "streams": 1}], sweep={"streams": [3, 5]})
    assert [case.scenario.workload[0].streams for case in parsed(video).cases] == [3, 5]


def test_systems_are_named_by_what_they_are_given() -> None:
    """A label wins; options stand behind the name."""
    slow = {"name": "serve-app", "network_s": 0.02, "label": "slow"}
    found = parsed(document(systems=["serve-app", slow, {"policy": "eager", "bundle_timeout_s": 5.0}])).file.systems
    assert [system.title for system in found] == ["serve-app", "slow", "serve-app (bundle_timeout_s 5, policy eager)"]
    assert found[1].options() == {"network_s": 0.02}
    assert isinstance(found[2].make()(), ServeApp)


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 20)), min_size=1, max_size=5),
    st.floats(0.5, 100),
    st.integers(1, 400),
)
def test_straight_lines_meet_their_points_and_never_fall(
    steps: list[tuple[int, float]], first_ms: float, rows: int
) -> None:
    """The curve goes through every point, and more rows never take less time."""
    points = [(1, first_ms)]
    for more, ms in steps:
        points.append((points[-1][0] + more, points[-1][1] + ms))
    curve = Piecewise(tuple(x for x, _ in points), tuple(y / 1000 for _, y in points))
    assert all(curve(x) == pytest.approx(y / 1000) for x, y in points)
    assert curve(rows + 1) >= curve(rows) - 1e-12


@given(st.floats(0.05, 3), st.integers(1, 8), st.floats(0, 3))
def test_loads_and_rates_agree(load: float, rows: int, exponent: float) -> None:
    """What is given as a load is found as a load."""
    for data in (
        stream(rate=None, load=load, rows=rows),
        document(workload=[{"kind": "long_tail", "load": load, "exponent": exponent, "timeout_ms": 1000}]),
    ):
        (case,) = parsed(data).cases
        assert max(loads(case.scenario.models, case.scenario.workload).values()) == pytest.approx(load)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name)
def test_shipped_scenarios_are_valid_and_fit_the_schema(path: Path) -> None:
    """Editors find the schema by the first line and see no faults."""
    text = path.read_text("utf-8")
    assert text.splitlines()[0] == "# yaml-language-server: $schema=../scenario.schema.json"
    schema = json.loads((CONFIGS / "scenario.schema.json").read_text("utf-8"))
    assert [
        error.json_path for error in jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(text))
    ] == []
    assert len(load_scenario(path).cases) >= 1


def test_the_committed_schema_is_up_to_date() -> None:
    """It has been written since scenarios last changed."""
    assert json.loads((CONFIGS / "scenario.schema.json").read_text("utf-8")) == scenario_schema()


def test_the_schema_knows_the_keys_of_each_kind_and_system() -> None:
    """Which keys a stream or a system has depends on what it is."""
    validator = jsonschema.Draft202012Validator(scenario_schema())
    jsonschema.Draft202012Validator.check_schema(scenario_schema())
    assert list(validator.iter_errors(stream(kind="gamma", cv=2))) == []
    assert [error.json_path for error in validator.iter_errors(stream(cv=2))] == ["$.workload[0]"]
    assert [error.json_path for error in validator.iter_errors(document(systems=["tritn"]))] == ["$.systems[0]"]
