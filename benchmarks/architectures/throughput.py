"""An exported text classifier under load: ``python -m benchmarks.architectures.throughput MODEL --against TREE``.

Both servers are up, each with the code of its own tree, and one at a time is under load, in turns. Texts are short or
long; each letter is a token. Writes ``exported_text.json`` and ``exported_text.md``.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, now, publish_report, table
from benchmarks.server import DIRECT, OUT, ROOT, Server, is_ready
from benchmarks.session import ending_in_order, measuring
from serve_app.config.file import read_document
from serve_app.config.files import CACHE_VARIABLE

_START_WITHIN_S = 400.0
_LETTERS = "abcdefghijklmnopqrstuvwxyz    "
_MODEL = "exported"
_TEXTS = {"5 to 30": (5, 30), "20 to 120": (20, 120)}
"""Fewest and most letters of a text."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one server: answers per second, and how its requests are batched."""

    tree: str
    letters: str
    per_second: float
    verdict: str


def load(url: str, letters: tuple[int, int], connections: int, seconds: float) -> float:
    """Send texts over so many connections, each waiting for its answer, and count the answers per second.

    Raises:
        httpx.HTTPError: One was not answered.
    """
    counts, faults = [0] * connections, list[Exception]()
    until = time.monotonic() + seconds

    def send(number: int) -> None:
        random = Random(number)
        with httpx.Client(base_url=url, timeout=120.0) as client:
            while time.monotonic() < until and not faults:
                text = "".join(random.choices(_LETTERS, k=random.randint(*letters)))
                try:
                    client.post(f"/v1/models/{_MODEL}/predict", json={"inputs": text}).raise_for_status()
                except httpx.HTTPError as error:
                    faults.append(error)
                counts[number] += time.monotonic() < until

    threads = [threading.Thread(target=send, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return sum(counts) / seconds


def measure(model: Path, against: Path, connections: int, rounds: int, seconds: float, say: Any) -> list[Turn]:
    """Load both trees in turns."""
    document = read_document(ROOT / "configs" / "demo.yaml")
    args = document["applications"][0]["args"]
    args.pop("pipelines", None)
    args["models"] = [
        {"name": _MODEL, "task": "text-classification", "path": str(model), "processor": {"max_length": 128}}
    ]
    args["classes"] = {"normal": {"timeout_ms": 60_000}}
    with ExitStack() as stack:
        cache = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-app-")))
        servers = {}
        for name, tree in (("before", against), ("after", ROOT)):
            say(f"starting {name}")
            command = (str(tree / ".venv" / "bin" / "python"), "-m", "serve_app.cli", "run", "--no-dashboard")
            server = Server(name, document, command, tree, {CACHE_VARIABLE: str(cache / name), "PYTHONPATH": str(tree)})
            servers[name] = stack.enter_context(server)
            server.wait_until(partial(is_ready, server.urls[DIRECT]), _START_WITHIN_S)
        turns = []
        for number in range(rounds + 1):
            for letters, name in product(_TEXTS, sorted(servers, reverse=bool(number % 2))):
                say(f"round {number} of {rounds}: {name}, {letters} letters")
                url = servers[name].urls[DIRECT]
                found = load(url, _TEXTS[letters], connections, seconds if number else min(seconds, 4.0))
                verdict = httpx.get(f"{url}/status").json()["models"][_MODEL]["joinable"][""]["verdict"]
                if number:  # the first is for warming up
                    turns.append(Turn(name, letters, found, verdict))
        return turns


def main(
    model: Annotated[Path, typer.Argument(help="Folder of the model; `export_base` makes one.")],
    against: Annotated[Path, typer.Option(help="The other working tree, with its environment.")],
    connections: Annotated[int, typer.Option(min=1)] = 32,
    rounds: Annotated[int, typer.Option(min=1)] = 6,
    seconds: Annotated[float, typer.Option(min=1)] = 10.0,
    *,
    publish: Annotated[bool, typer.Option(help="Write into docs/benchmarks, too.")] = False,
) -> None:
    """Compare the throughput of an exported MODEL here and in another working tree."""
    console = Console()
    OUT.mkdir(parents=True, exist_ok=True)
    with ending_in_order(console), measuring(console) as machine, console.status("preparing") as status:
        turns = measure(model.resolve(), against.resolve(), connections, rounds, seconds, status.update)
    date = now()
    figures = {"date": date, "machine": machine, "turns": [asdict(turn) for turn in turns]}
    text = render(date, machine, turns, connections, seconds)
    publish_report(console, "exported_text", figures, text, publish=publish)


def render(date: str, machine: Machine, turns: Sequence[Turn], connections: int, seconds: float) -> str:
    """The report as Markdown."""
    rows = []
    for letters, tree in product(_TEXTS, ("before", "after")):
        own = [turn for turn in turns if (turn.tree, turn.letters) == (tree, letters)]
        rates = sorted(turn.per_second for turn in own)
        spread = f"{rates[0]:.1f} to {rates[-1]:.1f}"
        rows.append([letters, tree, own[-1].verdict, f"**{median(rates):.1f}**", spread])
    how = (
        "Written by `make bench-exported-text`. A classifier of BERT's base size, exported by"
        f" transformers 5, {connections} connections, one text each, in which each letter is a token; two working trees"
        f" in turns of {seconds:g} s."
    )
    lines = [
        "# An exported text classifier under load",
        "",
        how,
        "",
        table(["letters", "tree", "verdict", "answers/s, median", "of rounds"], rows),
        "",
        "Proven rows pay most where texts are short: more of them share a run.",
        "",
        measured_on(date, machine),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
