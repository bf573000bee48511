"""Two working trees under the same load, in turns, and their cold starts: it measures for ``benchmarks.joining``."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import cold_start
from benchmarks.failure import BenchmarkError
from benchmarks.probes import probes_for
from benchmarks.server import DIRECT, ROOT, SERVE_APP_RUN, Server, is_ready
from benchmarks.turns import Case, Turn, take_turns
from serve_app.config.file import read_document
from serve_app.config.files import CACHE_VARIABLE

BEFORE, AFTER, UNVERIFIED = "before", "after", "after, verify: 0"
"""The systems: another working tree; this one; this one without running answered requests again."""

_DEMO, _BENCH = Path("configs") / "demo.yaml", Path("configs") / "bench.yaml"
_START_WITHIN_S = 400.0


CASES = (
    Case("tiny", "json", 64),
    Case("wide", "binary", 64),
    Case("minilm", "binary", 32),
    Case("resnet50", "binary", 8),
)


@dataclass(frozen=True, slots=True)
class Started:
    """One cold start of the demo.

    Attributes:
        system: `BEFORE` or `AFTER`.
        kept: Whether the verdicts of an earlier start were kept.
        seconds: From the command to the first correct answer of every model.
    """

    system: str
    kept: bool
    seconds: Mapping[str, float]


def loads(
    before: Path, cases: Sequence[Case], rounds: int, seconds: float, say: Callable[[str], None]
) -> tuple[list[Turn], dict[str, int]]:
    """Load the three servers in turns; all of them are up, and one at a time is under load.

    Args:
        before: The other working tree.
        cases: Loads; the servers have their models only.
        rounds: Turns per server and case.
        seconds: Length of a turn.
        say: Told what is going on.

    Returns:
        All turns, and by model how many answers were compared with ONNX Runtime's.

    Raises:
        BenchmarkError: A server did not start, or answered wrongly.
    """
    document = _with_models(read_document(ROOT / _BENCH), [case.model for case in cases])
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-app-"))
        servers = []
        for number, (system, tree) in enumerate(((BEFORE, before), (AFTER, ROOT), (UNVERIFIED, ROOT))):
            say(f"starting {system}")
            cache = Path(folder) / str(number)
            its = _unverified(document) if system == UNVERIFIED else document
            server = Server(system, its, SERVE_APP_RUN, tree, {CACHE_VARIABLE: str(cache)})
            servers.append(stack.enter_context(server))
            server.wait_until(partial(is_ready, server.urls[DIRECT]), _START_WITHIN_S)
            _check_code(server, cache, proves=tree is ROOT)
        return take_turns(servers, cases, rounds, seconds, say)


def starts(before: Path, rounds: int, say: Callable[[str], None]) -> list[Started]:
    """Start the demo of both trees in turns: the other one, this one without records, this one with them.

    Raises:
        BenchmarkError: A server did not start, or answered wrongly.
    """
    found = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="serve-app-") as cache:
            ways = [(BEFORE, before, False), (AFTER, ROOT, False), (AFTER, ROOT, True)]
            for system, tree, kept in ways if number % 2 == 0 else [*ways[1:], ways[0]]:
                say(f"start {number + 1} of {rounds}: {system}{', with records' if kept else ''}")
                document = read_document(tree / _DEMO)
                names = [model["name"] for model in _args(document)["models"]]
                variables = {CACHE_VARIABLE: cache}
                with Server(f"demo {system}", document, SERVE_APP_RUN, tree, variables) as server:
                    start = asyncio.run(cold_start.wait_for_answers(server, probes_for(names, cold_start.DATA)))
                    _check_code(server, Path(cache), proves=system == AFTER or any(Path(cache).iterdir()))
                found.append(Started(system, kept, start.answers_s))
    return found


def _check_code(server: Server, cache: Path, *, proves: bool) -> None:
    """Whether it runs the code that it should: only this tree's keeps verdicts."""
    kept = (cache / "joinable").is_dir()
    if kept != proves:
        raise BenchmarkError(f"{server.name} has {'kept' if kept else 'not kept'} verdicts: it runs other code")


def _args(document: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["applications"][0]["args"]
    return found


def _with_models(document: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    args = _args(document)
    args["models"] = [model for model in args["models"] if model["name"] in names]
    args.pop("pipelines", None)
    return document


def _unverified(document: dict[str, Any]) -> dict[str, Any]:
    document = deepcopy(document)
    for model in _args(document)["models"]:
        model["batching"]["verify"] = 0
    return document
