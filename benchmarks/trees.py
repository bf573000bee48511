"""This working tree beside another one under the same loads, in turns: ``python -m benchmarks.trees --against TREE``.

Both servers are up, each with the code and the environment of its own tree, and one of them is under load at a time.
Answers are compared with ONNX Runtime's. What counts are ratios within a round, so that a machine that is slower for a
while slows both. Writes ``trees.json`` and ``trees.md``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import wrk
from benchmarks.failure import BenchmarkError
from benchmarks.publishing import folders, table, write_report
from benchmarks.server import DIRECT, OUT, ROOT, Server, is_ready
from benchmarks.session import ending_in_order, measuring
from benchmarks.turns import GRPC, Case, Turn, take_turns
from serve_app.config.file import read_document
from serve_app.config.files import CACHE_VARIABLE

BEFORE, AFTER = "before", "after"

CASES = (
    *(Case("tiny", wire, connections) for wire in ("json", "binary") for connections in (1, 16, 64)),
    Case("pool", "binary", 32),
    Case("minilm", "binary", 32),
    Case("resnet50", "binary", 8),
    Case("wide", "binary", 8),
    Case("tiny", GRPC, 64),
)

_HEADER = ("load (model, wire, at once)", "answers/s", "ratio (of rounds)", "p50", "p99", "processor time")
_BENCH = Path("configs") / "bench.yaml"
_FUNCTIONS = "grpc_servicer_functions"
_POLICY = "autoscaling_policy"
_START_WITHIN_S = 400.0


class _Tree(Server):
    """A tree's server, which names the gRPC functions and the policy of that tree."""

    def _on_free_ports(self) -> dict[str, Any]:
        document, own = super()._on_free_ports(), read_document(self.tree / _BENCH)
        document["grpc_options"] |= {_FUNCTIONS: own["grpc_options"][_FUNCTIONS]}
        document["applications"][0][_POLICY] = own["applications"][0][_POLICY]
        return document


def compare(
    against: Path, cases: Sequence[Case], rounds: int, seconds: float, say: Callable[[str], None]
) -> tuple[list[Turn], dict[str, int]]:
    """Load both trees in turns.

    Returns:
        All turns, and by model how many answers were compared with ONNX Runtime's.

    Raises:
        BenchmarkError: A server did not start or answered wrongly, or a load generator failed.
    """
    document = read_document(ROOT / _BENCH)
    models = {case.model for case in cases}
    args = document["applications"][0]["args"]
    args["models"] = [model for model in args["models"] if model["name"] in models]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-app-"))
        servers = []
        for system, tree in ((BEFORE, against), (AFTER, ROOT)):
            say(f"starting {system}")
            command = (str(tree / ".venv" / "bin" / "python"), "-m", "serve_app.cli", "run", "--no-dashboard")
            cache = str(Path(folder) / system)
            server = stack.enter_context(_Tree(system, document, command, tree, {CACHE_VARIABLE: cache}))
            servers.append(server)
            server.wait_until(partial(is_ready, server.urls[DIRECT]), _START_WITHIN_S)
        return take_turns(servers, cases, rounds, seconds, say)


def report(turns: Sequence[Turn]) -> str:
    """A line for each case: this tree's figures, and their ratio to the other's within a round."""
    cases: dict[str, dict[str, dict[int, Turn]]] = {}
    for turn in turns:
        cases.setdefault(turn.case, {}).setdefault(turn.system, {})[turn.number] = turn
    rows = []
    for case, systems in cases.items():
        before, after = systems[BEFORE], systems[AFTER]

        def ratio(of: Callable[[Turn], float], before: Any = before, after: Any = after) -> list[float]:
            return sorted(of(after[number]) / of(before[number]) for number in after if of(before[number]))

        rates = ratio(lambda turn: turn.per_second)
        rows.append(
            [
                case,
                f"{median(turn.per_second for turn in after.values()):,.0f}",
                f"**{median(rates):.2f}** ({rates[0]:.2f} to {rates[-1]:.2f})",
                f"{median(ratio(lambda turn: turn.p50_ms)):.2f}",
                f"{median(ratio(lambda turn: turn.p99_ms)):.2f}",
                f"{median(ratio(lambda turn: turn.cpu_us)):.2f}",
            ]
        )
    header = [
        "load (model, wire, at once)",
        "answers/s",
        "ratio (lowest to highest round)",
        "p50",
        "p99",
        "processor time",
    ]
    return table(header, rows) + "\n"


def main(
    against: Annotated[Path, typer.Option(help="The other working tree, with its environment and models.")],
    cases: Annotated[str, typer.Option(help="Parts of the names of loads, separated by semicolons; empty: all.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each tree under each load.")] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="Length of a turn.")] = 4.0,
) -> None:
    """Compare this working tree with another one."""
    console = Console()
    parts = [part.strip() for part in cases.split(";") if part.strip()]
    chosen = [case for case in CASES if not parts or any(part in case.name for part in parts)]
    with ending_in_order(console):
        if not chosen:
            raise BenchmarkError(f"no load has {cases} in its name; there are {'; '.join(case.name for case in CASES)}")
        OUT.mkdir(parents=True, exist_ok=True)
        with measuring(console, {"wrk": wrk.version()}) as machine, console.status("preparing") as status:
            turns, checked = compare(against.resolve(), chosen, rounds, seconds, status.update)
        text = report(turns)
        compared = f"Answers compared with ONNX Runtime's: {sum(checked.values()):,}."
        text += f"\n{compared} Load average before: {machine.load_before}.\n"
        for folder in folders(publish=False):
            write_report(folder, "trees", {"machine": asdict(machine), "turns": [asdict(turn) for turn in turns]}, text)
        console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
