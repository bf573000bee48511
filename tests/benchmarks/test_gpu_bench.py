"""The measurement of the server on a GPU, tried out without one, and without Ray."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from local_server import LocalServer
from rich.console import Console

from benchmarks.gpu.__main__ import Steps, page
from benchmarks.gpu.served import CONNECTIONS, Served, bare, compare, configured, load, load_together, look
from benchmarks.gpu.subjects import Bench
from benchmarks.overload.generator import Generator
from training.paths import MODELS, ROOT


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt-get install build-essential")
def test_a_server_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has models, answers, rates beside a bare session's, and overload."""
    monkeypatch.setenv("SERVE_APP_HOME", str(ROOT))
    generator = Generator(tmp_path)
    with LocalServer({"models": configured(["digits"], "cpu")}) as server:
        found = look(server.url, ["digits"])["digits"]
        compare(server.url, found)
        load(server.url, found, generator, 0.5)
        load_together(server.url, [found], generator, 0.5)
    found.bare = {int(rows): rate for rows, rate in bare(Bench(MODELS, "cpu", 0.5), "digits").items()}

    assert found.devices == {"cpu": 1}
    assert found.distance < 1e-4
    assert set(found.closed) == set(found.bare) == set(CONNECTIONS)
    assert min(*found.closed.values(), *found.bare.values(), found.together) > 0
    assert found.share > 0
    assert set(found.in_time) == {"high", "normal", "low"}
    text = page([found], "", ["3 passed"], ["a fault"], "how")
    assert "| digits | cpu | any |" in text
    assert "- a fault" in text


def test_models_have_equal_shares_of_a_device() -> None:
    """And fit on it with what CUDA takes."""
    models = configured(["a", "b", "c"], "cuda")
    assert [each["resources"] for each in models] == [{"device": "cuda", "gpus": 0.3, "gpu_memory": "6GiB"}] * 3


def test_a_step_that_fails_or_has_no_time_ends_no_other() -> None:
    """The report has a line for it."""
    steps, done = Steps(Console(quiet=True), time.monotonic() + 3600), []

    def fail() -> None:
        raise ValueError("no")

    steps.run("first", fail)
    steps.run("second", lambda: done.append("second"))
    steps.run("third", lambda: "wrong")
    late = Steps(Console(quiet=True), time.monotonic() - 1)
    late.run("fourth", lambda: done.append("fourth"))

    assert (done, steps.faults) == (["second"], ["first: ValueError: no", "third: wrong"])
    assert late.faults == ["fourth: no time was left"]


def test_a_model_without_figures_is_in_the_report() -> None:
    """As one that could not be measured."""
    assert "| m | unknown | any | proven | 0.0e+00 | 0 / 0 |" in page([Served("m", {}, [], "proven")], "", [], [], "")
