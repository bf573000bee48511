"""Measure the systems in turns: one server is up at a time, and nothing else runs beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.progress import Progress, TaskID

from benchmarks.failure import BenchmarkError
from benchmarks.process import OUT, ServerProcess
from benchmarks.requests import write_requests
from benchmarks.tasks import load
from benchmarks.tasks.apps.work import PATH
from benchmarks.tasks.cases import MIXED, TASKS, Sample, connections_of, make_samples, mistake, model_folders
from benchmarks.tasks.results import CLOSED, OVERLOAD, PACED, Run, best_settings, is_ours, medians
from benchmarks.tasks.systems import Setting, System, ways

_START_WITHIN_S = 120.0
_TIMEOUT_S = 60.0
_TRIED_WARM_UP_S = 0.5
_CHECKED_IN_TRIES = 8
_CHECKED_WITH = {"X-Timeout-Ms": str(int(_TIMEOUT_S * 1000)), **dict([load.EXACT.split(": ")])}
_PACED, _OVERLOAD = 0.6, 1.5
"""Shares of the slowest rival's answers per second, and of serve_app's."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often.

    Attributes:
        seconds: Length of each run.
        warm_up_s: Load before each run that is not counted, seconds.
        rounds: Runs per contender and task in the closed loop.
        open_rounds: The same at given rates.
        tried_s: Length of the runs in which settings are compared, seconds; 0 takes the first setting.
        kinds: Of load.
    """

    seconds: float
    warm_up_s: float
    rounds: int
    open_rounds: int
    tried_s: float
    kinds: tuple[str, ...]


@dataclass(slots=True)
class Comparison:
    """The measurement.

    Args:
        systems: That are compared.
        tasks: Names.
        plan: How long and how often.
        progress: Where it is shown.
        task: Its line there.
    """

    systems: Sequence[System]
    tasks: Sequence[str]
    plan: Plan
    progress: Progress
    task: TaskID
    tried: list[Run] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    _folders: Mapping[str, Path] = field(default_factory=dict)
    _samples: dict[str, list[Sample]] = field(default_factory=dict)
    _checked: set[tuple[str, str, str]] = field(default_factory=set)

    def run(self) -> None:
        """Measure everything. A system that cannot be measured is left out, and said to be.

        Raises:
            BenchmarkError: A model is not there, or the load generator failed.
        """
        OUT.mkdir(parents=True, exist_ok=True)
        self._folders = model_folders()
        for name in sorted({part for task in self.tasks for part in connections_of(task)}):
            self.progress.update(self.task, description=f"preparing {name}")
            self._samples[name] = make_samples(TASKS[name], self._folders[TASKS[name].model])
            write_requests(_requests(name), [each.request for each in self._samples[name]])
        chosen = self._choose()
        for kind in self.plan.kinds:
            rates = {task: rate for task in self.tasks if (rate := self._rate(task, kind)) is not None}
            for number in range(self.plan.rounds if kind == CLOSED else self.plan.open_rounds):
                for system in self.systems if number % 2 == 0 else self.systems[::-1]:
                    for setting in dict.fromkeys(chosen[system.name, task] for task in rates):
                        asked = [each for each in rates.items() if chosen[system.name, each[0]] == setting]
                        self._visit(system, setting, kind, number, asked)

    def _choose(self) -> dict[tuple[str, str], Setting]:
        """The best setting of each system for each task."""
        first = {(system.name, task): system.settings[0] for system in self.systems for task in self.tasks}
        for system in self.systems if self.plan.tried_s and not self.tried else ():
            for setting in system.settings if len(system.settings) > 1 else ():
                asked = [(task, 0.0) for task in self.tasks if _differs(setting, task)]
                self._visit(system, setting, CLOSED, -1, asked)
        by_text = {(system.name, str(setting)): setting for system in self.systems for setting in system.settings}
        best = best_settings(self.tried)
        return {**first, **{key: by_text[key[0], text] for key, text in best.items()}}

    def _rate(self, task: str, kind: str) -> float | None:
        """Requests per second, 0 for a closed loop; ``None`` where there is nothing to derive them from."""
        if kind == CLOSED:
            return 0.0
        found = medians(self.runs).get(task, {})
        rivals = [rate for name, rate in found.items() if not is_ours(name)]
        own = [rate for name, rate in found.items() if is_ours(name)]
        if task == MIXED or not own or not rivals:
            return None
        return _PACED * min(rivals) if kind == PACED else _OVERLOAD * max(own)

    def _visit(
        self, system: System, setting: Setting, kind: str, number: int, asked: Sequence[tuple[str, float]]
    ) -> None:
        """Start a server, look at its answers, measure it and end it.

        Args:
            system: Whose server.
            setting: How it is tuned.
            kind: Of the load.
            number: Of the round; negative where settings are tried.
            asked: Tasks, with the requests per second of an open loop.
        """
        if not asked or system.name in self.left_out:
            return
        self.progress.update(self.task, description=self._called(system, setting))
        try:
            with system.start(setting, self._folders) as server:
                for contender, ports in ways(system, server).items():
                    for part in sorted({part for task, _ in asked for part in connections_of(task)}):
                        self._check(server, (contender, str(setting), part), ports, tried=number < 0)
                for task, rate in asked:
                    self._measure(system, server, setting, task, kind, number, rate)
        except BenchmarkError as error:
            if number >= 0:  # a setting that does not work is not chosen
                self.left_out[system.name] = str(error)
            self._tell(f"{self._called(system, setting)}: {error}")

    def _check(self, server: ServerProcess, key: tuple[str, str, str], ports: Sequence[int], *, tried: bool) -> None:
        """Wait for the first right answer of a task, then compare all of them, the first time that it is asked."""
        part = key[2]
        samples = self._samples[part]
        url = f"http://127.0.0.1:{{}}{PATH.format(TASKS[part].model)}"
        while found := _mistakes([url.format(port) for port in ports], samples[: len(ports)], len(ports)):
            server.check_alive()
            if time.monotonic() - server.started_at > _START_WITHIN_S:
                raise BenchmarkError(f"no right answer within {_START_WITHIN_S:.0f} s; the last one: {found[0]}")
            time.sleep(0.3)
        if key in self._checked:
            return
        urls = [url.format(port) for port in ports]
        some = samples[: _CHECKED_IN_TRIES if tried else None]
        if found := _mistakes(urls, some, TASKS[part].connections):
            raise BenchmarkError(f"{part}: {len(found)} of {len(some)} answers are wrong: {found[0]}")
        if not tried:
            self._checked.add(key)

    def _measure(
        self, system: System, server: ServerProcess, setting: Setting, task: str, kind: str, number: int, rate: float
    ) -> None:
        for contender, ports in ways(system, server).items():
            streams = [
                load.Stream(
                    name=part,
                    ports=ports,
                    path=PATH.format(TASKS[part].model),
                    requests=str(_requests(part)),
                    connections=connections,
                    rate=rate,
                    deadline_ms=TASKS[part].deadline_ms if kind == OVERLOAD else 0,
                )
                for part, connections in connections_of(task).items()
            ]
            tried = number < 0
            warm_up_s = _TRIED_WARM_UP_S if tried else self.plan.warm_up_s
            before = sum(server.cpu_s().values())
            began = time.monotonic()
            seen = load.measure(streams, warm_up_s, self.plan.tried_s if tried else self.plan.seconds)
            cores = (sum(server.cpu_s().values()) - before) / (time.monotonic() - began)
            server.check_alive()
            run = Run(contender, task, kind, number, str(setting), rate, seen, cores)
            (self.tried if tried else self.runs).append(run)
            self._print(run, setting, tried)
            self.progress.advance(self.task)

    def _print(self, run: Run, setting: Setting, tried: bool) -> None:
        first = next(iter(run.seen.values()))
        parts = ", ".join(f"{name} {each.per_second:,.1f}/s" for name, each in run.seen.items())
        failures = sum(each.failures for each in run.seen.values())
        shares = ", ".join(f"{name} {share:.0%}" for name, share in first.in_time.items())
        self._tell(
            f"{run.contender}: {parts}  p50 {first.p50_ms:.1f}  p99 {first.p99_ms:.1f} ms  {run.cores:.2f} cores,"
            f" load generator {first.cpu:.2f}{f'  in time: {shares}' if shares else ''}"
            f"{f'  ({setting})' if tried else ''}{f'  failures: {failures} ({first.bad[:200]})' if failures else ''}"
        )

    def _tell(self, line: str) -> None:
        self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @staticmethod
    def _called(system: System, setting: Setting) -> str:
        return f"{system.name}, {setting}" if len(system.settings) > 1 else system.name


def _requests(task: str) -> Path:
    """The file of a task's requests."""
    return OUT / f"tasks-{task}.requests"


def _differs(setting: Setting, task: str) -> bool:
    """Whether a task can tell the setting from others: only requests of several texts have rows to put together."""
    return setting.batches or setting.rows == 1 or task in {"texts", MIXED}


def _mistakes(urls: Sequence[str], samples: Sequence[Sample], at_once: int) -> list[str]:
    async def ask_all() -> list[str | None]:
        gate = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, limits=httpx.Limits(max_connections=at_once)) as client:

            async def ask(number: int, sample: Sample) -> str | None:
                request = sample.request
                async with gate:
                    url, headers = urls[number % len(urls)], {**request.headers, **_CHECKED_WITH}
                    try:
                        answer = await client.post(url, content=request.body, headers=headers)
                    except httpx.TransportError as error:
                        return f"no answer: {type(error).__name__}: {error}"
                if answer.status_code != 200:
                    return f"status {answer.status_code}: {answer.text[:200]}"
                return mistake(answer.content, sample.expected)

            return await asyncio.gather(*(ask(*each) for each in enumerate(samples)))

    return [line for line in asyncio.run(ask_all()) if line is not None]
