"""Faults of scenario files: every kind with its line, its place and its exact words."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from scenario_documents import INT8, VALID, document, model, problems, stream, write

from serve_app.config.lines import Lines
from serve_app.errors import ConfigError
from serve_app_simulator.scenarios import load_scenario, parse_scenario

CONFIGS = Path(__file__).parents[2] / "configs"
SCENARIOS = sorted((CONFIGS / "scenarios").glob("*.yaml"))

FAULTS = [
    pytest.param({}, "name: required, but missing", id="empty"),
    pytest.param(document(duratoin_s=1), "duratoin_s: unknown key; did you mean duration_s?", id="misspelt key"),
    pytest.param(document(workload=[]), "workload: needs at least one", id="no workload"),
    pytest.param(document(models=[]), "models: needs at least one", id="no model"),
    pytest.param(document(workload=[4]), "workload[0]: must be a mapping, got 4", id="stream is a number"),
    pytest.param(
        stream(kind="poison"), "workload[0].kind: unknown kind 'poison'; did you mean poisson?", id="misspelt kind"
    ),
    pytest.param(
        stream(kind="x"),
        "workload[0].kind: unknown kind 'x'; known: poisson, gamma, mmpp, periodic, flash_crowd, video, long_tail,"
        " trace",
        id="kind like no other",
    ),
    pytest.param(
        document(workload=[{"model": "images"}]),
        "workload[0].kind: required, one of poisson, gamma, mmpp, periodic, flash_crowd, video, long_tail, trace",
        id="no kind",
    ),
    pytest.param(
        stream(model="imges"), "workload[0].model: unknown model 'imges'; did you mean images?", id="unknown model"
    ),
    pytest.param(
        stream(model="zzz"), "workload[0].model: unknown model 'zzz'; there are: images, speech", id="no such model"
    ),
    pytest.param(stream(rate=-1), "workload[0].rate: must be more than 0, got -1", id="negative rate"),
    pytest.param(
        stream(rate=float("nan")), "workload[0].rate: must be a finite number, got nan", id="rate is no number"
    ),
    pytest.param(stream(rate=None), "workload[0].rate: required, or load", id="neither rate nor load"),
    pytest.param(stream(load=1), "workload[0].load: cannot stand beside rate; leave one of them out", id="both"),
    pytest.param(
        stream(start_s=5, end_s=5), "workload[0].end_s: must be after start_s 5, got 5", id="ends before it starts"
    ),
    pytest.param(stream(start_s=10), "workload[0].start_s: must be less than duration_s 10", id="starts too late"),
    pytest.param(
        stream(timeout_ms=5.9),
        "workload[0].timeout_ms: 5.9 ms for class normal is less than one request of 'images' takes alone,"
        " 6 ms with overheads",
        id="deadline too short",
    ),
    pytest.param(
        stream(rows=46),
        "workload[0].timeout_ms: 50 ms for class normal is less than one request of 'images' takes alone,"
        " 51 ms with overheads",
        id="deadline too short for its rows",
    ),
    pytest.param(
        stream(share={"high": 0.5, "low": 0.4}), "workload[0].share: must sum to 1, got 0.9", id="shares below 1"
    ),
    pytest.param(
        stream(share={"hgih": 1}), "workload[0].share.hgih: must be 'high', 'normal' or 'low', got 'hgih'", id="class"
    ),
    pytest.param(
        stream(share={"high": 1}) | {"workload": [stream(share={"high": 1})["workload"][0] | {"class": "low"}]},
        "workload[0].class: cannot stand beside share; leave one of them out",
        id="class beside share",
    ),
    pytest.param(
        stream(timeout_ms={"high": 50}), "workload[0].timeout_ms: names no deadline for normal", id="no deadline"
    ),
    pytest.param(
        document(noise={"drift": 2, "drift_s": 1}),
        "noise.drift_s: drift_every_s and drift_s go together: set both or neither",
        id="half of an episode",
    ),
    pytest.param(
        document(noise={"router_stall_s": 1}),
        "noise.router_stall_s: router_stall_every_s and router_stall_s go together: set both or neither",
        id="half of a router's stall",
    ),
    pytest.param(stream(kind="gamma", cv=0), "workload[0].cv: must be more than 0, got 0", id="cv 0"),
    pytest.param(
        stream(cv=2),
        "workload[0].cv: unknown key; known here: bucket, class, end_s, exponent, kind, load, model, rate, rows, share,"
        " start_s, tenant, timeout_ms",
        id="key of another kind",
    ),
    pytest.param(
        stream(kind="flash_crowd", surge_at_s=12, surge_s=5),
        "workload[0].surge_at_s: must be less than duration_s 10",
        id="surge after the end",
    ),
    pytest.param(
        stream(kind="flash_crowd", start_s=3, surge_at_s=2, surge_s=5),
        "workload[0].surge_at_s: must not be before start_s 3, got 2",
        id="surge before the stream",
    ),
    pytest.param(
        model(latency=None), "models[0].latency: required, or profile: what a batch costs", id="model without costs"
    ),
    pytest.param(
        model(latency={"alpha_ms": 1}), "models[0].latency: needs alpha_ms and beta_ms, or points", id="half a line"
    ),
    pytest.param(
        model(latency={"alpha_ms": 0, "beta_ms": 0}),
        "models[0].latency.beta_ms: alpha_ms and beta_ms cannot both be 0: executions would take no time",
        id="no cost",
    ),
    pytest.param(
        model(latency={"points": [[1, 5], [1, 6]]}),
        "models[0].latency.points[1]: rows must rise, got 1 after 1",
        id="points that do not rise",
    ),
    pytest.param(
        model(latency={"points": [[1, 5], [2, 4]]}),
        "models[0].latency.points[1]: more rows cannot take less time: 4 ms after 5 ms",
        id="points that fall",
    ),
    pytest.param(
        model(latency={"points": [[2, 5], [4, 6]]}),
        "models[0].latency.points: needs two or more points, the first for 1 row, e.g. [[1, 5], [8, 12]]",
        id="points from 2",
    ),
    pytest.param(
        model(batching={"slo_ms": 5}),
        "models[0].batching.slo_ms: 5 is less than one row takes, 6 ms",
        id="target below one row",
    ),
    pytest.param(
        model(batching={"max_rows": 10**12}),
        "models[0].batching.max_rows: at most 65,536 rows in a batch are simulated, got 1,000,000,000,000",
        id="batch beyond measure",
    ),
    pytest.param(
        model(replicas=3, autoscaling={"max_replicas": 2}),
        "models[0].replicas: must be from 1 to 2 (autoscaling's min and max), got 3",
        id="replicas outside of autoscaling",
    ),
    pytest.param(
        model(device="gpu"), "models[0].device: unknown device 'gpu'; there are none", id="device that is not there"
    ),
    pytest.param(
        model(variants=[{"name": "int8"}]),
        "models[0].variants[0].latency: required: the model has no profile to take it from",
        id="variant without costs",
    ),
    pytest.param(
        model(variants=[INT8], fallbacks=["int9"]),
        "models[0].fallbacks[0]: there is no variant 'int9'; did you mean int8?",
        id="fallback that is no variant",
    ),
    pytest.param(
        document(failures=[{"model": "images", "replica": 1, "at_s": 1, "down_s": 1}]),
        "failures[0].replica: must be less than the model's replicas 1",
        id="failure of no replica",
    ),
    pytest.param(
        document(failures=[{"model": "images", "at_s": 11, "down_s": 1}]),
        "failures[0].at_s: must be less than duration_s 10, got 11",
        id="failure after the end",
    ),
    pytest.param(
        document(failures=[{"kind": "hang", "model": "images", "at_s": 1}]),
        "failures[0].down_s: required with kind: hang",
        id="hang without a successor",
    ),
    pytest.param(
        document(failures=[{"kind": "fail", "model": "images", "at_s": 1, "down_s": 1}]),
        "failures[0].down_s: does nothing with kind: fail; leave it out",
        id="fault with a successor",
    ),
    pytest.param(
        document(failures=[{"model": "images", "at_s": 1, "down_s": 1, "lasts_s": 1}]),
        "failures[0].lasts_s: does nothing with kind: die; name hang or fail",
        id="death that passes",
    ),
    pytest.param(
        document(failures=[{"kind": "hang", "model": "images", "at_s": 1, "down_s": 1, "share": 0.5}]),
        "failures[0].share: does nothing with kind: hang; name fail",
        id="part of a hang",
    ),
    pytest.param(
        document(noise={"spread": 0.2}),
        "noise.spread: does nothing with kind: none; name uniform or lognormal",
        id="noise without a kind",
    ),
    pytest.param(
        document(noise={"kind": "measured"}),
        "noise.kind: measured takes the scatter from models' profiles, and no model has one",
        id="nothing measured",
    ),
    pytest.param(
        document(requests=5), "requests: cannot stand beside duration_s; leave one of them out", id="two lengths"
    ),
    pytest.param(document(duration_s=None), "duration_s: required, or requests", id="no length"),
    pytest.param(document(warm_up_s=10), "warm_up_s: must be less than duration_s 10, got 10", id="only warm-up"),
    pytest.param(document(seeds=[1, 2, 1]), "seeds[2]: 1 stands at seeds[0] too", id="seed twice"),
    pytest.param(
        stream(rate=1e7),
        "duration_s: about 100,000,000 requests would arrive, more than the 20,000,000 that are simulated:"
        " shorten it or lower the rates",
        id="too much",
    ),
    pytest.param(
        document(systems=["serveapp"]), "systems[0]: unknown system 'serveapp'; did you mean serve-app?", id="system"
    ),
    pytest.param(
        document(systems=[{"name": "serve-app", "spreads": 1}]),
        "systems[0].spreads: unknown key; did you mean spread?",
        id="option of a system",
    ),
    pytest.param(
        document(systems=[{"name": "serve-app", "spread": "even"}]),
        "systems[0].spread: must be 'round_robin' or 'random', got 'even'",
        id="value of an option",
    ),
    pytest.param(
        document(systems=[{"network_s": -1.0}]),
        "systems[0].network_s: must be at least 0, got -1.0",
        id="value below its least",
    ),
    pytest.param(
        document(systems=["serve-app", "serve-app"]),
        "systems[1]: 'serve-app' stands at systems[0] too",
        id="system twice",
    ),
    pytest.param(
        document(systems=[{"name": "serve-app", "tuned": True}]),
        "systems[0].tuned: serve-app has nothing to tune; leave it out",
        id="tuned",
    ),
    pytest.param(
        document(systems=["serve-app", {"name": "triton", "timeout": "half", "label": "triton"}]),
        "systems[1].name: triton is simulated in benchmarks/scheduling now (make bench-scheduling); here there is"
        " serve-app only",
        id="another server's policy",
    ),
    pytest.param(
        document(systems=["clockwork"]),
        "systems[0]: clockwork is simulated in benchmarks/scheduling now (make bench-scheduling); here there is"
        " serve-app only",
        id="another server's policy by its name",
    ),
    pytest.param(
        document(bound="none"), "bound: bounds are calculated in benchmarks/scheduling now; leave it out", id="bound"
    ),
    pytest.param(
        document(sweep={"load": [1], "noise": [1]}),
        "sweep: needs values for exactly one of load, streams, slo_scale, noise, memory, rate",
        id="two sweeps",
    ),
    pytest.param(document(sweep={"load": [1, 1]}), "sweep.load: values must rise", id="sweep that stands still"),
    pytest.param(
        document(sweep={"streams": [1]}), "sweep.streams: there is no stream of kind video", id="sweep of no streams"
    ),
    pytest.param(
        document(sweep={"slo_scale": [0.5]}),
        "sweep.slo_scale: 3 ms for class normal is less than one request of 'images' takes alone, 6 ms with overheads",
        id="sweep below what is possible",
    ),
    pytest.param(
        document(workload=[{"kind": "video", "model": "images", "streams": 2}], sweep={"load": [1]}),
        "sweep.load: cannot change workload[0], which is of kind video",
        id="sweep of a rate that is not there",
    ),
]


@pytest.mark.parametrize(("data", "expected"), FAULTS)
def test_faults_name_the_place_and_what_to_do(data: Any, expected: str) -> None:
    """One line per fault."""
    assert expected in problems(data)


def test_policies_are_named_in_the_fault_of_an_unknown_one() -> None:
    """The batching section is the server's own."""
    (problem,) = problems(model(batching={"policy": "eagr"}))
    assert re.fullmatch(r"models\[0\]\.batching\.policy: must be .*'eager'.*, got 'eagr'", problem)


def test_files_name_the_line(tmp_path: Path) -> None:
    """A fault that has a place in the file begins with the number of its line."""
    path = write(tmp_path, VALID.replace("rate: 100", "rate: -3").replace("name: speech", "nme: speech"))
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert caught.value.problems == (
        "line 7: models[1].name: required, but missing",
        "line 7: models[1].nme: unknown key; did you mean name?",
        "line 12: workload[0].rate: must be more than 0, got -3",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a: [1", "line 1, column 6: expected ',' or ']', but got '<stream end>'", id="no YAML"),
        pytest.param("- a", "must hold a mapping with the keys name, models and workload", id="a list"),
        pytest.param("", "must hold a mapping with the keys name, models and workload", id="nothing"),
        pytest.param("name: a\nname: b", "line 2, column 1: key 'name' stands here twice", id="a key twice"),
    ],
)
def test_what_is_no_scenario_at_all(text: str, expected: str, tmp_path: Path) -> None:
    """Faults of the file as a whole."""
    with pytest.raises(ConfigError) as caught:
        load_scenario(write(tmp_path, text))
    assert caught.value.problems == (expected,)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """It cannot be read, and that is all."""
    with pytest.raises(ConfigError) as caught:
        load_scenario(tmp_path / "nothing.yaml")
    assert caught.value.problems == ("cannot be read: No such file or directory",)


def test_aliases_do_not_make_the_search_for_lines_endless() -> None:
    """A node that holds itself is looked at once; what is below an alias counts where the alias stands."""
    lines = Lines("a: &a\n  b: [*a]\nc: *a\n")
    assert (lines.of("a.b[0]"), lines.of("c.b"), lines.of("d")) == (1, 3, None)


@given(st.text(alphabet="ab:-[]{}&*#'\" \n0", max_size=60))
def test_any_text_has_lines_or_none(text: str) -> None:
    """Looking for lines never fails."""
    assert Lines(text).of("a[0].b") in {None, *range(1, text.count("\n") + 2)}


def test_a_trace_whose_time_runs_backwards(tmp_path: Path) -> None:
    """The trace's own line and column follow those of the scenario."""
    (tmp_path / "t.csv").write_text("arrival,model,class,rows,deadline\n2,images,high,1,1\n1,images,high,1,1\n")
    path = write(tmp_path, VALID[: VALID.index("workload")] + "workload:\n  - {kind: trace, path: t.csv}\n")
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert caught.value.problems == (
        f"line 10: workload[0].path: trace {tmp_path}/t.csv, line 3, column arrival: time runs backwards: 1 after 2",
    )


def test_a_trace_that_begins_too_late(tmp_path: Path) -> None:
    """A trace of which nothing would be simulated."""
    (tmp_path / "t.csv").write_text("arrival,model,class,rows,deadline\n20,images,high,1,1\n")
    data = document(workload=[{"kind": "trace", "path": "t.csv"}])
    assert problems(data, tmp_path) == ("workload[0].path: its first request arrives at 20 s, after duration_s 10",)


def places(data: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, from the top."""
    steps = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for step, below in steps for found in ((*above, step), *places(below, (*above, step)))]


RICH = {
    path.name: yaml.safe_load(path.read_text("utf-8")) | {"noise": {"kind": "uniform", "spread": 0.1}}
    for path in SCENARIOS
}


NONSENSE = [None, True, -1, 0, 1, 0.5, 10**12, float("nan"), "", "x", "high", [], [1], {}, {"a": 1}]


@settings(max_examples=examples(60))
@given(st.data())
def test_whatever_stands_in_a_file_there_are_readable_faults_or_none(data: st.DataObject) -> None:
    """One value of a shipped scenario is replaced by nonsense: it is refused in single lines, or simulated."""
    document = copy.deepcopy(data.draw(st.sampled_from(list(RICH.values()))))
    *above, last = data.draw(st.sampled_from(places(document)))
    parent = document
    for step in above:
        parent = parent[step]
    parent[last] = data.draw(st.sampled_from(NONSENSE))
    found: tuple[str, ...] = ()
    try:
        parse_scenario(document, CONFIGS / "scenarios")
    except ConfigError as error:
        found = error.problems or ("no problem",)
    assert [problem for problem in found if "\n" in problem or ": " not in problem] == []
