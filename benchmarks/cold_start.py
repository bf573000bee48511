"""How long a server takes from the command to its first correct answer, and how much memory it needs then.

``python -m benchmarks.cold_start`` prints the figures; ``python -m benchmarks.smoke`` puts them into its report. The
environment is warm (installed, models built) and the server is not running. The first start also reads from disk what
later ones find in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import httpx
import orjson
import typer
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.probes import Probe, probes_for
from benchmarks.results import ColdStart, Start
from benchmarks.server import ROOT, SERVE_APP_RUN, Server
from benchmarks.session import ending_in_order, quiet_machine
from serve_app.config.file import load_file

DEMO = ROOT / "configs" / "demo.yaml"

DATA = ROOT / "tests" / "data"
"""Folder of the committed media."""

_START_WITHIN_S = 300.0
_ANSWER_WITHIN_S = 60.0
_ASK_EVERY_S = 0.05
_POLL_INTERVAL_S = 0.5
_CLIENTS_PER_MODEL = 4


def measure(config: Path, repetitions: int, seconds: float, say: Callable[[str], None]) -> ColdStart:
    """Start a server several times.

    Args:
        config: A Serve file of ours with models of the demo.
        repetitions: Starts.
        seconds: How long each serves while memory is looked at.
        say: Told what is going on.

    Raises:
        BenchmarkError: A server did not start, or answered wrongly.
        ConfigError: The configuration is not valid.
    """
    file = load_file(config)
    probes = probes_for([model.name for model in file.args.models], DATA)
    starts: list[Start] = []
    served = 0
    memory: dict[str, int] = {}
    for repetition in range(repetitions):
        say(f"start {repetition + 1} of {repetitions}")
        with Server("cold-start", file.document, SERVE_APP_RUN) as server:
            start = asyncio.run(wait_for_answers(server, probes))
            say(f"{start.all_answer_s:.1f} s; now serving")
            answered, seen = asyncio.run(_serve(server, probes, seconds))
        starts.append(start)
        served += answered
        memory = max(memory, seen, key=lambda roles: sum(roles.values()))
    return ColdStart(str(config.resolve().relative_to(ROOT)), tuple(starts), served, memory)


async def wait_for_answers(server: Server, probes: list[Probe]) -> Start:
    """Ask every model of a server that has just been started until it answers.

    Raises:
        BenchmarkError: The server has ended, a model answers wrongly, or takes more than five minutes.
    """
    async with httpx.AsyncClient(base_url=server.url, timeout=_ANSWER_WITHIN_S) as client:

        async def first(probe: Probe) -> float:
            while not await _ask(client, probe):
                server.check_alive()
                if time.monotonic() - server.started_at > _START_WITHIN_S:
                    raise BenchmarkError(f"{probe.model} has not answered within {_START_WITHIN_S:.0f} s")
                await asyncio.sleep(_ASK_EVERY_S)
            return time.monotonic() - server.started_at

        seconds = await asyncio.gather(*map(first, probes))
    return Start(min(seconds), {probe.model: each for probe, each in zip(probes, seconds, strict=True)})


async def _serve(server: Server, probes: list[Probe], seconds: float) -> tuple[int, dict[str, int]]:
    """Ask every model without a pause, and watch the memory."""
    until = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=server.url, timeout=_ANSWER_WITHIN_S) as client:

        async def keep_asking(probe: Probe) -> int:
            answered = 0
            while time.monotonic() < until:
                if not await _ask(client, probe):
                    raise BenchmarkError(f"{probe.model} stopped answering")
                answered += 1
            return answered

        async def watch() -> dict[str, int]:
            highest: dict[str, int] = {}
            while True:
                seen = await asyncio.to_thread(server.memory)
                highest = max(highest, seen, key=lambda roles: sum(roles.values()))
                if time.monotonic() >= until:
                    return highest
                await asyncio.sleep(_POLL_INTERVAL_S)

        watching = asyncio.create_task(watch())
        answered = await asyncio.gather(*(keep_asking(probe) for probe in probes for _ in range(_CLIENTS_PER_MODEL)))
        return sum(answered), await watching


async def _ask(client: httpx.AsyncClient, probe: Probe) -> bool:
    """Whether the model answers.

    Raises:
        BenchmarkError: It answers wrongly.
    """
    try:
        answer = await client.post(probe.path, content=probe.body, headers={"Content-Type": probe.content_type})
    except httpx.TransportError:
        return False
    if answer.status_code != 200:
        return False
    with contextlib.suppress(ValueError, LookupError, TypeError):
        if probe.is_right(orjson.loads(answer.content)):
            return True
    raise BenchmarkError(f"{probe.model} answered wrongly: {answer.text[:200]}")


def main(
    config: Annotated[Path, typer.Option(help="A configuration with models of the demo.")] = DEMO,
    repetitions: Annotated[int, typer.Option(min=1, help="Starts.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="How long each start serves while memory is watched.")] = 5.0,
) -> None:
    """Measure cold starts and print them."""
    console = Console()
    with ending_in_order(console):
        quiet_machine(console)
        with console.status("starting") as status:
            found = measure(config, repetitions, seconds, lambda text: status.update(f"cold start: {text}"))
    for start in found.starts:
        models = ", ".join(f"{model} {each:.1f} s" for model, each in start.answers_s.items())
        console.print(f"first answer {start.first_answer_s:.1f} s  ({models})", highlight=False)
    for role, size in sorted(found.memory.items(), key=lambda item: -item[1]):
        console.print(f"{size / 2**20:7.0f} MiB  {role}", highlight=False)
    console.print(f"{sum(found.memory.values()) / 2**20:7.0f} MiB  in all, at most", highlight=False)


if __name__ == "__main__":
    typer.run(main)
