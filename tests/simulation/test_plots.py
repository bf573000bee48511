"""Plots: what they show, that colours mean the same everywhere, and that the same figures give the same bytes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
from hypothesis_profiles import thorough
from matplotlib.colors import to_hex
from matplotlib.image import imread
from simulation_results import result

from serve_app_simulator.plots import (
    bars,
    colours,
    latency_bars,
    over_sweep,
    over_time,
    save,
    write_plots,
)
from serve_app_simulator.report import CaseResults


def case(value: float | None = None, surges: tuple[tuple[float, float], ...] = ()) -> CaseResults:
    """Two systems under two seeds."""
    results = {
        "triton": [result("triton", 1, low=(80, 30)), result("triton", 2, low=(80, 50))],
        "serve-app": [result("serve-app", 1), result("serve-app", 2, low=(80, 70))],
    }
    return CaseResults(results, value, surges)


def test_a_system_has_the_same_colour_everywhere() -> None:
    """Also with options behind its name, as long as no other has it; all are told apart."""
    first = colours(["serve-app", "serve-app (policy eager)", "mine"])
    assert colours(["mine", "serve-app"])["serve-app"] == first["serve-app"]
    assert colours(["serve-app (policy eager)"])["serve-app (policy eager)"] == first["serve-app"]
    assert colours(["mine", "yours"], {"yours": "#123456"})["yours"] == "#123456"
    assert len(set(first.values())) == 3


def test_a_sweep_is_drawn_with_bands() -> None:
    """Lines of means, and a band per system."""
    figure = over_sweep([case(0.5), case(1.0)], "load")
    _, goodput = figure.axes
    lines = {str(line.get_label()): line for line in goodput.get_lines()}
    assert list(np.asarray(lines["triton"].get_xdata())) == [0.5, 1.0]
    assert list(np.asarray(lines["triton"].get_ydata())) == [6.0, 6.0]
    assert to_hex(lines["serve-app"].get_color()) == colours(["serve-app"])["serve-app"]
    assert len(goodput.collections) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["triton", "serve-app"]


def test_over_time_there_is_a_panel_per_class_and_one_for_the_queue() -> None:
    """With the surge shaded."""
    figure = over_time(case(surges=((2.0, 4.0),)))
    high, low, queue = figure.axes
    assert (high.get_title(), low.get_title(), queue.get_title()) == ("Class high", "Class low", "Rows queued")
    assert list(np.asarray(low.get_lines()[0].get_ydata())) == [50.0] * 10
    assert list(np.asarray(queue.get_lines()[0].get_ydata())) == [0, 3, 9, 9, 4, 2, 0, 0, 0, 0, 0]
    assert "surge" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_bars_show_every_system() -> None:
    """Goodput, attainment per class, waste, batch sizes; p50 beside p99."""
    goodput, classes, wasted, batches = bars(case()).axes
    assert [tick.get_text() for tick in goodput.get_xticklabels()] == ["triton", "serve-app"]
    assert [len(axes.patches) for axes in (goodput, classes, wasted, batches)] == [2, 4, 2, 2]
    (latency,) = latency_bars(case()).axes
    assert sorted({text.get_text() for text in latency.texts}) == ["20.0", "60.0"]


def test_systems_without_answers_have_no_latency() -> None:
    """They are left out instead of being drawn at zero."""
    nothing = [result("clipper", 1, high=(20, 0), low=(80, 0), latency_s=None)]
    (latency,) = latency_bars(CaseResults({"clipper": nothing, "serve-app": [result()]})).axes
    assert [tick.get_text() for tick in latency.get_xticklabels()] == ["serve-app"]


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    """SVG and PNG hold no date and no random name."""
    for name in ("a", "b"):
        save(over_sweep([case(0.5), case(1.0)], "load"), tmp_path / name)
    for ending in ("svg", "png"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
    assert ET.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert imread(tmp_path / "a.png").shape[1] == 1080


@thorough
def test_what_is_drawn_depends_on_the_cases(tmp_path: Path) -> None:
    """A sweep gives lines; one case gives bars, and a picture over time if there is a surge."""
    assert list(write_plots([case(0.5), case(1.0)], tmp_path, "load").values()) == ["sweep.svg"]
    assert list(write_plots([case()], tmp_path).values()) == ["systems.svg", "latency.svg"]
    names = list(write_plots([case(surges=((2.0, 4.0),))], tmp_path).values())
    assert names == ["systems.svg", "latency.svg", "time.svg"]
    assert all((tmp_path / name).exists() and (tmp_path / name).with_suffix(".png").exists() for name in names)
