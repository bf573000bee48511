"""Where the time of a pipeline's request goes: ``python -m benchmarks.pipelines.timeline``.

Asks the demonstration's pipeline on a real server, one request after the other, and reads in the router's log of
requests when each step began and how long it took. Writes ``pipeline_timeline.json``, ``.md`` and ``.svg``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import httpx
import numpy as np
import orjson
import typer
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, now, picture_style, publish_report, save_svg, table
from benchmarks.server import DIRECT, ROOT, SERVE_APP_RUN, Server, is_ready
from benchmarks.session import ending_in_order, measuring
from serve_app.config.file import read_document

_PIPELINE: Final = "same-digit"
_DATA: Final = ROOT / "tests" / "data"
_PICTURE: Final = _DATA / "digits" / "7_0783_320px_dark_cmyk.jpg"
_SOUND: Final = _DATA / "speech" / "seven_en-029_f1_80wpm_16000_8bit.wav"
_TEXT: Final = "Snow White and the dwarfs"
_WARM_UP: Final = 20


@dataclass(frozen=True, slots=True)
class Span:
    """One step in all requests.

    Attributes:
        name: Of the step.
        start_ms: After the request; the median.
        total_ms: With its queueing and decoding; the median.
        p99_ms: One in 100 takes longer.
    """

    name: str
    start_ms: float
    total_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What was found.

    Attributes:
        date: Of the measurement.
        machine: It was measured on.
        requests: How many.
        total_ms: Of a request in the router; the median.
        p99_ms: One in 100 takes longer.
        steps: Those that are models, as they begin.
    """

    date: str
    machine: Machine
    requests: int
    total_ms: float
    p99_ms: float
    steps: Sequence[Span]


def measure(requests: int) -> Sequence[Mapping[str, Any]]:
    """Ask, and return the lines of the log.

    Raises:
        BenchmarkError: A request was not answered, or is not in the log.
    """
    document = read_document(ROOT / "configs" / "demo.yaml")
    with tempfile.TemporaryDirectory(prefix="serve-app-") as folder:
        args = document["applications"][0]["args"]
        args["logging"] = {"folder": folder, "sample": 1.0, "lines_per_s": 10_000}
        with Server("pipeline-timeline", document, SERVE_APP_RUN) as server:
            server.wait_until(lambda: is_ready(server.urls[DIRECT]))
            with httpx.Client(base_url=server.urls[DIRECT], timeout=60.0) as client:
                for number in range(_WARM_UP + requests):
                    _ask(client, number)
        lines = [orjson.loads(line) for path in Path(folder).glob("*.log") for line in path.read_bytes().splitlines()]
    found = [line for line in lines if line.get("model") == _PIPELINE and _number(line) >= _WARM_UP]
    if len(found) != requests:
        raise BenchmarkError(f"the log has {len(found)} of {requests} requests")
    return found


def _ask(client: httpx.Client, number: int) -> None:
    files: Mapping[str, Any] = {
        "picture": (_PICTURE.name, _PICTURE.read_bytes(), "image/jpeg"),
        "sound": (_SOUND.name, _SOUND.read_bytes(), "audio/wav"),
        "text": (None, _TEXT),
    }
    answer = client.post(f"/v1/models/{_PIPELINE}/predict", files=files, headers={"X-Request-Id": str(number)})
    if answer.status_code != 200 or answer.json()["agree"] is not True:
        raise BenchmarkError(f"{_PIPELINE}: status {answer.status_code}: {answer.text[:200]}")


def _number(line: Mapping[str, Any]) -> int:
    return int(line["request_id"])


def timeline(date: str, machine: Machine, lines: Sequence[Mapping[str, Any]]) -> Timeline:
    """The medians of all requests."""
    totals = [line["total_ms"] for line in lines]
    spans = []
    for name in lines[0]["steps"]:
        taken = [line["steps"][name]["total_ms"] for line in lines]
        began = median(line["steps"][name]["start_ms"] for line in lines)
        spans.append(Span(name, began, median(taken), float(np.quantile(taken, 0.99))))
    spans.sort(key=lambda span: (span.start_ms, span.name))
    return Timeline(date, machine, len(lines), median(totals), float(np.quantile(totals, 0.99)), spans)


def render(found: Timeline) -> str:
    """The report, in Markdown."""
    rows = [
        [f"`{span.name}`", f"{span.start_ms:.2f}", f"{span.total_ms:.2f}", f"{span.p99_ms:.2f}"] for span in found.steps
    ]
    rows.append(["the whole", "0.00", f"{found.total_ms:.2f}", f"{found.p99_ms:.2f}"])
    return "\n".join(
        [
            "# Timeline of a pipeline",
            "",
            "Written by `make bench-pipeline-timeline`.",
            "",
            f"The demo's pipeline `{_PIPELINE}`: a picture, a sound and a text in one request. Milliseconds of",
            f"{found.requests} requests, one after the other, from the router's",
            "[log of requests](../operations.md#the-log-of-requests). A step's time has its queueing and what decodes",
            "its input. The text's step, `written`, is nearly the whole; the others run beside it.",
            "",
            "![When each step begins and ends](pipeline_timeline.svg)",
            "",
            table(("step", "begins, median", "takes, median", "p99"), rows),
            "",
            measured_on(found.date, found.machine),
            "",
        ]
    )


def draw(found: Timeline, path: Path) -> None:
    """Draw a bar for each step, and one for the whole."""
    bars = [(span.name, span.start_ms, span.total_ms) for span in found.steps]
    bars.insert(0, (_PIPELINE, 0.0, found.total_ms))
    with picture_style():
        figure = Figure(figsize=(6.4, 0.6 + 0.35 * len(bars)), layout="constrained")
        axes = figure.subplots()
        for place, (_, start, total) in enumerate(bars):
            axes.barh(place, total, left=start, height=0.6, color="#9ab8d0" if place else "#2f6690")
            axes.text(start + total, place, f" {total:.1f}", va="center", fontsize=8)
        axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0.0, 1.1 * found.total_ms)
        axes.set_xlabel("milliseconds after the request came")
        save_svg(figure, path)


def main(
    requests: Annotated[int, typer.Option(min=10, help="How many are asked.")] = 300,
    publish: Annotated[bool, typer.Option(help="Write what was found into docs/benchmarks too.")] = False,
) -> None:
    """Measure where the time of a pipeline's request goes."""
    console = Console()
    with ending_in_order(console), measuring(console) as machine:
        lines = measure(requests)
    found = timeline(now(), machine, lines)
    publish_report(console, "pipeline_timeline", found, render(found), partial(draw, found), publish=publish)


if __name__ == "__main__":
    typer.run(main)
