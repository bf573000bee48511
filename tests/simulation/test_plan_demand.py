"""The demand of a plan: rates, a file in a scenario's words, a trace, the log of requests; and wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plan_builders import load, profile, write_config

from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app_simulator.plan.demand import Demanded, Sources, read_demand
from serve_app_simulator.plan.devices import read_cpus, read_gpus
from serve_app_simulator.trace import read_trace

TRACE = "arrival,model,class,rows,deadline\n0,images,high,2,0.5\n1.5,images,normal,1,1\n"


def demanded(folder: Path, sources: Sources, **args: Any) -> Demanded:
    """What the sources mean for a server with the models ``images`` and ``speech``."""
    config = write_config(folder, {"images": profile(), "speech": profile("speech")}, **args)
    return read_demand(sources, load(config), folder)


def problem(folder: Path, sources: Sources, **args: Any) -> str:
    """The one line about sources that are wrong."""
    with pytest.raises(ConfigError) as caught:
        demanded(folder, sources, **args)
    (line,) = caught.value.problems
    assert "\n" not in line
    return line


def written(folder: Path, name: str, text: str) -> Path:
    """A file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def logged(**fields: Any) -> str:
    """A line of the log."""
    common = {"time": "2026-11-22T06:05:52.500+00:00", "outcome": "ok", "model": "images", "class": "normal"}
    return json.dumps({**common, "rows": 3, "total_ms": 500.0, **fields}) + "\n"


def test_a_rate_is_poisson_of_class_normal_with_its_deadline(tmp_path: Path) -> None:
    """The quick way."""
    found = demanded(tmp_path, Sources(rates=["images=50"]))
    (stream,) = found.streams
    assert (stream.kind, stream.rate, stream.priority, stream.timeout_s) == ("poisson", 50.0, Priority.NORMAL, 5.0)
    assert found.models == ("images",)


def test_a_file_has_a_scenarios_streams(tmp_path: Path) -> None:
    """With its keys, and the classes' deadlines where it names none."""
    text = "workload:\n  - {kind: gamma, model: speech, rate: 5, rows: 2, cv: 3, share: {high: 0.5, low: 0.5}}\n"
    found = demanded(tmp_path, Sources(demand=written(tmp_path, "demand.yaml", text), rates=["images=1"]))
    _, stream = found.streams
    assert (stream.kind, stream.rows, stream.cv) == ("gamma", 2, 3.0)
    assert stream.timeouts_s == {Priority.HIGH: 1.0, Priority.LOW: 30.0}
    assert found.models == ("images", "speech")


def test_a_trace_names_its_models_and_its_length(tmp_path: Path) -> None:
    """A CSV file as scenarios have it."""
    found = demanded(tmp_path, Sources(trace=written(tmp_path, "trace.csv", TRACE)))
    assert (found.models, found.trace_s) == (("images",), 1.5)


def test_a_log_becomes_a_trace_of_when_requests_were_sent(tmp_path: Path) -> None:
    """Cached answers and copies ran nothing; what was refused before it was read has the usual rows."""
    later = {"time": "2026-11-22T06:05:54.500+00:00"}
    lines = [
        logged(**later),
        logged(),
        logged(**later, **{"class": "high"}, total_ms=1000.0),
        logged(cache="hit", rows=0),
        logged(listener="shadow"),
        logged(model="unknown"),
        json.dumps({**later, "outcome": "queue_full", "model": "images"}) + "\n",
    ]
    demanded(tmp_path, Sources(logs=[written(tmp_path, "log", "".join(lines))]), logging={"sample": 1.0})
    found = read_trace(tmp_path / "log.csv", ["images", "speech"])
    assert found.arrival.tolist() == pytest.approx([0.0, 1.5, 2.0, 2.5])
    assert found.rows.tolist() == [3, 3, 3, 3]
    assert found.timeout_s.tolist() == [5.0, 1.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({}, "no demand is given: add --demand FILE, --rate MODEL=RATE, --log FILE or --trace FILE"),
        ({"rates": ["images"]}, "--rate images: must be MODEL=RATE with requests per second above 0, e.g. digits=50"),
        ({"rates": ["images=-1"]}, "must be MODEL=RATE with requests per second above 0"),
        ({"rates": ["images=1e308"]}, "must be MODEL=RATE with requests per second above 0"),
        ({"rates": ["imges=1"]}, "has no model 'imges' with replicas of its own; did you mean images?"),
        ({"demand": "workload: []"}, "workload: needs at least one"),
        ({"demand": "workload:\n- {kind: poisson, model: x, rate: 1}"}, "line 2: workload[0].model: the configuration"),
        ({"demand": "workload:\n- {kind: poisson, model: images, load: 1}"}, "their number is not known yet; say rate"),
        ({"demand": "workload:\n- {kind: poisson, model: images, rate: 1, rte: 2}"}, "did you mean rate?"),
        ({"trace": "model,class,rows,deadline\nimages,high,1,1\n"}, "column arrival: this column is missing"),
        ({"trace": "model,class,rows,deadline\nimages,high,1,1\n"}, "a trace needs arrival, model, class, rows"),
        ({"trace": "arrival,model,class,rows,deadline\nsoon,images,high,1,1\n"}, "'soon' is not a number of seconds"),
        ({"trace": TRACE.replace("high,2", f"high,{10**30}")}, "line 2, column rows: must be at most 2147483647"),
        ({"logs": logged()}, "logging.sample is 0, so answered requests are missing; set it to 1 and record again"),
    ],
)
def test_bad_demand_is_one_line_with_cause_and_remedy(tmp_path: Path, sources: dict[str, Any], expected: str) -> None:
    """Whatever the source."""
    given = dict(sources)
    for key in ("demand", "trace"):
        if key in given:
            given[key] = written(tmp_path, key, given[key])
    if "logs" in given:
        given["logs"] = [written(tmp_path, "log", given["logs"])]
    assert expected in problem(tmp_path, Sources(**given))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no log\n", "line 1: is no line of a request log"),
        ('{"time": "2026-11-22T06:05:53.485+00:00", "suppressed": {"ok": 7}}\n', "7 requests are missing here; raise"),
        (logged(rows="4"), "line 1: is no line of a request log"),
        (logged(rows=0), "line 1: is no line of a request log"),
        (logged(total_ms=float("nan")), "line 1: is no line of a request log"),
        (logged(model="other"), "no request to a model with replicas of its own; there are: images, speech"),
    ],
)
def test_a_log_that_tells_too_little_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    """A plan for a part of the requests would be too small."""
    sources = Sources(logs=[written(tmp_path, "log", text)])
    assert expected in problem(tmp_path, sources, logging={"sample": 1.0})


def test_a_log_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """Its requests would count twice."""
    log = written(tmp_path, "log", logged())
    sources = Sources(logs=[log, tmp_path / "." / "log"])
    assert "given twice" in problem(tmp_path, sources, logging={"sample": 1.0})


def test_devices_are_counts_and_sizes() -> None:
    """As the options have them."""
    assert (read_cpus("8"), read_cpus("3x4")) == ((1, 8), (3, 4))
    assert read_gpus("2x80GiB") == (80 << 30, 80 << 30)


@pytest.mark.parametrize("text", ["", "0", "x4", "2x", "four"])
def test_other_cores_are_refused(text: str) -> None:
    """One line, with an example."""
    with pytest.raises(ConfigError, match=r"e\.g\. 8 or 3x8"):
        read_cpus(text)


@pytest.mark.parametrize("text", ["80GiB", "0x80GiB", "2x", "2xmuch"])
def test_other_gpus_are_refused(text: str) -> None:
    """One line, with an example."""
    with pytest.raises(ConfigError, match=r"e\.g\. 2x80GiB"):
        read_gpus(text)
