"""Draws the figures of ``gpu.json``: ``python -m benchmarks.gpu.report docs/benchmarks``.

The text of ``gpu.md`` is written by hand around them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.publishing import picture_style, save_svg

_MODELS = ("digits", "wide", "minilm", "resnet50")
_COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#7b5ea7")
_LATENCY = "ms"


def main(folder: Annotated[Path, typer.Argument(help="Where gpu.json is and gpu.svg goes.")]) -> None:
    """Draw gpu.svg beside gpu.json."""
    parts = json.loads((folder / "gpu.json").read_text(encoding="utf-8"))["parts"]
    with picture_style():
        figure = Figure(figsize=(11, 7.4), layout="constrained")
        axes = figure.subplots(2, 2)
        _curves(axes[0][0], parts["curve"])
        _shapes(axes[0][1], parts["shapes"])
        _alike(axes[1][0], parts["sharing"]["alike"])
        _beside(axes[1][1], parts["sharing"]["beside"])
        save_svg(figure, folder / "gpu.svg")


def _curves(axes: Axes, curves: dict[str, Any]) -> None:
    for name, colour in zip(_MODELS, _COLOURS, strict=True):
        for device, style in (("cuda", "-"), ("cpu-8", ":")):
            points = curves[name]["curves"][device]["points"]
            label = f"{name}, {'GPU' if device == 'cuda' else '8 CPU threads'}"
            axes.plot([p["rows"] for p in points], [p["p50_ms"] for p in points], style, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("rows of a batch, always the same")
    axes.set_ylabel(_LATENCY)
    axes.set_title("What a batch costs, median")
    axes.set_ylim(top=2e4)
    axes.legend(fontsize=7, ncols=2, loc="upper left")


def _shapes(axes: Axes, shapes: dict[str, Any]) -> None:
    names = list(shapes)
    kinds = (
        ("always 8 rows", [shapes[name]["single"]["always 8"]["p50_ms"] for name in names]),
        ("1 to 32 rows, one session", [shapes[name]["single"]["any up to 32"]["p50_ms"] for name in names]),
        ("1 to 32 rows, sessions for 1, 8, 32", [shapes[name]["per_size"]["any up to 32"]["p50_ms"] for name in names]),
    )
    _bars(axes, names, kinds)
    axes.set_title("Batches whose size changes, median")


def _alike(axes: Axes, alike: list[dict[str, Any]]) -> None:
    names = [f"{model}\n{rows} rows" for model in ("wide", "minilm", "resnet50") for rows in (1, 8, 32)]
    rates: dict[tuple[str, int, bool], list[float]] = {}
    for model in ("wide", "minilm", "resnet50"):
        for rows in (1, 8, 32):
            found = [each for each in alike if each["model"] == model and each["rows"] == rows]
            alone = next(each["rows_per_second"] for each in found if each["processes"] == 1)
            for each in found:
                key = ("", each["processes"], each["turns"])
                rates.setdefault(key, []).append(each["rows_per_second"] / alone)
    kinds = (
        ("2 contend", rates["", 2, False]),
        ("4 contend", rates["", 4, False]),
        ("2 take turns", rates["", 2, True]),
        ("4 take turns", rates["", 4, True]),
    )
    _bars(axes, names, kinds, log=False)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_ylabel("rows/s of all, over one process alone")
    axes.set_title("Processes that share the GPU")


def _beside(axes: Axes, beside: list[dict[str, Any]]) -> None:
    scenes = list(beside[0]["scenes"])
    kinds = [
        (
            f"{each['light']['model']} beside {each['heavy']['model']} x {each['heavy']['rows']}",
            [each["scenes"][scene]["light"]["p99_ms"] for scene in scenes],
        )
        for each in beside
    ]
    _bars(axes, [scene.replace(", ", ",\n") for scene in scenes], kinds)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title("99th percentile of a light model beside a heavy one, from arrival")


def _bars(axes: Axes, names: list[str], kinds: Any, *, log: bool = True) -> None:
    width = 0.8 / len(kinds)
    for index, ((label, values), colour) in enumerate(zip(kinds, _COLOURS, strict=False)):
        places = [place + (index - (len(kinds) - 1) / 2) * width for place in range(len(names))]
        axes.bar(places, values, width, label=label, color=colour)
    axes.set_xticks(range(len(names)), names)
    if log:
        axes.set_yscale("log")
        axes.set_ylabel(_LATENCY)
    axes.legend(fontsize=7)


if __name__ == "__main__":
    typer.run(main)
