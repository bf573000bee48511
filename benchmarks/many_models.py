"""What a thousand models in one pool cost: the start of a server, the router's memory, and its pages.

``python -m benchmarks.many_models --models 1000`` writes as many small models of distinct content, starts a server of a
pool of one of them and one of all of them in turns, each first without and then with what the start before has kept in
the cache folder, and asks every member once.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import httpx
import numpy as np
import onnx
import typer
from matplotlib.figure import Figure
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, now, picture_style, publish_report, save_svg, table
from benchmarks.server import DIRECT, ROOT, SERVE_APP_RUN, Server, demo_document, is_ready
from benchmarks.session import ending_in_order, measuring
from serve_app.config.files import CACHE_VARIABLE

_START_WITHIN_S: Final = 600.0
_AIM_S: Final = 10.0
_ASKING: Final = 8
_LOOKS: Final = 5
PAGES: Final = ("/metrics", "/status", "/v2/repository/index", "/v2/models/stats", "/openapi.json", "/docs")
"""Pages whose size may depend on how many models there are."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the router.

    Attributes:
        seconds: How long it took, the median of several.
        nbytes: Its size.
    """

    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a server.

    Attributes:
        models: How many members its pool has.
        kept: Whether an earlier start has left its cache folder.
        ready_s: From the command until the router says that it is ready, seconds.
        router_bytes: The router's memory when every member has answered once.
        pages: Its pages then, by their path.
    """

    models: int
    kept: bool
    ready_s: float
    router_bytes: int
    pages: dict[str, Page]


def make_models(folder: Path, count: int, mib: float) -> int:
    """Write models of this size that differ in one number. Returns the length of their rows."""
    size = int((mib * 2**20 / 4) ** 0.5)
    weights = numpy_helper.from_array(np.random.default_rng(7).normal(size=(size, size)).astype(np.float32), "weights")
    for number in range(count):
        graph = helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "weights"], ["product"]),
                helper.make_node("Add", ["product", "c"], ["y"]),
            ],
            "many",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", size])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", size])],
            [weights, numpy_helper.from_array(np.full(1, number, np.float32), "c")],
        )
        file = folder / _name(number) / "model.onnx"
        file.parent.mkdir(parents=True)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    return size


def document_of(folder: Path, models: int) -> dict[str, Any]:
    """A Serve file with one pool: of all models in a folder, or of the first one."""
    # Those of several folders have one pattern, too: [!.] leaves nothing out.
    pattern = folder / ("[!.]*" if models > 1 else f"[{_name(0)[0]}]{_name(0)[1:]}")
    return demo_document(pools=[{"name": "many", "path": str(pattern), "memory": "1GiB"}])


def measure(folder: Path, cache: Path, models: int, size: int, *, kept: bool) -> Start:
    """Start a server of a pool once.

    Args:
        folder: Of the models.
        cache: The server's cache folder.
        models: How many members the pool has.
        size: Length of a row.
        kept: Whether the cache folder is that of an earlier start.

    Raises:
        BenchmarkError: It did not start, or a member does not answer.
    """
    with Server(
        "many-models", document_of(folder, models), SERVE_APP_RUN, ROOT, {CACHE_VARIABLE: str(cache)}
    ) as server:
        server.wait_until(partial(is_ready, server.urls[DIRECT]), _START_WITHIN_S)
        ready_s = time.monotonic() - server.started_at
        asyncio.run(_ask_all(server.urls[DIRECT], models, size))
        pages = {path: _page(server.urls[DIRECT], path) for path in PAGES}
        return Start(models, kept, ready_s, server.memory()["replica of router"], pages)


async def _ask_all(url: str, models: int, size: int) -> None:
    body = {"inputs": [{"name": "x", "shape": [1, size], "datatype": "FP32", "data": [0.5] * size}]}
    at_once = asyncio.Semaphore(_ASKING)
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:

        async def ask(name: str) -> None:
            async with at_once:
                answer = await client.post(f"/v2/models/{name}/infer", json=body, headers={"X-Timeout-Ms": "60000"})
            if answer.status_code != 200:
                raise BenchmarkError(f"{name}: {answer.text}")

        await asyncio.gather(*(ask(_name(number)) for number in range(models)))


def _page(url: str, path: str) -> Page:
    seconds = []
    nbytes = 0
    for _ in range(_LOOKS):
        began = time.monotonic()
        answer = (
            httpx.post(url + path, timeout=60.0) if path.endswith("/index") else httpx.get(url + path, timeout=60.0)
        )
        seconds.append(time.monotonic() - began)
        if answer.status_code != 200:
            raise BenchmarkError(f"{path}: {answer.status_code} {answer.text[:200]}")
        nbytes = len(answer.content)
    return Page(median(seconds), nbytes)


def _name(number: int) -> str:
    return f"member-{number:04}"


def report(starts: Sequence[Start], mib: float, machine: Machine, date: str) -> str:
    """The report as Markdown."""
    counts = sorted({start.models for start in starts})
    rows = []
    for kept in (False, True):
        medians = []
        for count in counts:
            seconds = [start.ready_s for start in starts if start.models == count and start.kept == kept]
            medians.append(median(seconds))
            each = ", ".join(f"{second:.1f}" for second in seconds)
            rows.append([_start_name(kept=kept), f"{count:,}", each, f"**{medians[-1]:.1f}**", ""])
        rows[-1][-1] = f"{medians[-1] - medians[0]:+.1f} (aim: below {_AIM_S:.0f})"
    of_router = [
        ["memory of the router", *(f"{_median(starts, n, lambda s: s.router_bytes) / 2**20:.0f} MiB" for n in counts)]
    ]
    for path in PAGES:
        cells = [
            f"{_median(starts, n, lambda s: s.pages[path].seconds) * 1000:.0f} ms,"  # noqa: B023 - called at once
            f" {_median(starts, n, lambda s: s.pages[path].nbytes) / 1000:,.0f} kB"  # noqa: B023
            for n in counts
        ]
        of_router.append([f"`{path}`", *cells])
    start_header = ["start", "members", "each, s", "median, s", "more than with one, s"]
    return f"""# A thousand models in one pool

Seconds from `serve-app run` until the router is ready, with a pool of one model and with one of {counts[-1]:,}, each of
{mib:g} MiB. The first start reads all of their files; later ones find in the cache folder
[what it has kept](../pools.md#many-members). `make bench-many-models` makes this page.

{table(start_header, rows)}

![Seconds from the command until the router is ready](many_models.svg)

The router when every member has answered, by its own port; medians of {_LOOKS} requests.

{table(["", *(f"{count:,} members" if count > 1 else "1 member" for count in counts)], of_router)}

{measured_on(date, machine)}
"""


def draw(starts: Sequence[Start], path: Path) -> None:
    """Draw how long each kind of start took, and all its repetitions."""
    counts = sorted({start.models for start in starts})
    with picture_style():
        figure = Figure(figsize=(6.4, 2.4), layout="constrained")
        axes = figure.subplots()
        for place, kept in enumerate((True, False)):
            for count, color, shift in zip(counts, ("#9ab8d0", "#2f6690"), (0.19, -0.19), strict=True):
                seconds = [start.ready_s for start in starts if start.models == count and start.kept == kept]
                label = f"{count:,} member" + ("s" if count > 1 else "") if kept else None
                axes.barh(place + shift, median(seconds), height=0.36, color=color, label=label)
                axes.plot(seconds, [place + shift] * len(seconds), "k.", markersize=4)
        axes.set_yticks([0, 1], [_start_name(kept=True), _start_name(kept=False)])
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("seconds until the router is ready")
        axes.legend(frameon=False)
        save_svg(figure, path)


def _start_name(*, kept: bool) -> str:
    return "later start" if kept else "first start"


def _median(starts: Sequence[Start], models: int, of: Any) -> float:
    return float(median(of(start) for start in starts if start.models == models))


def main(
    models: Annotated[int, typer.Option(min=2, max=9999, help="Members of the large pool.")] = 1000,
    mib: Annotated[float, typer.Option(min=0.01, help="Size of each, MiB.")] = 8.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Starts of each kind, in turns.")] = 3,
    publish: Annotated[bool, typer.Option(help="Write docs/benchmarks/many_models.md too.")] = False,
) -> None:
    """Measure the start of a server with many models, and print it."""
    console = Console()
    date = now()
    starts: list[Start] = []
    with (
        ending_in_order(console),
        measuring(console) as machine,
        tempfile.TemporaryDirectory(prefix="serve-app-") as folder,
    ):
        size = make_models(Path(folder) / "models", models, mib)
        for repetition in range(repetitions):
            for kept in (False, True):
                for count in (1, models):
                    cache = Path(folder) / f"cache-{repetition}-{count}"
                    starts.append(measure(Path(folder) / "models", cache, count, size, kept=kept))
                    console.print(starts[-1], highlight=False)
    figures = {"date": date, "mib": mib, "machine": machine, "starts": starts}
    text = report(starts, mib, machine, date)
    publish_report(console, "many_models", figures, text, partial(draw, starts), publish=publish)


if __name__ == "__main__":
    typer.run(main)
