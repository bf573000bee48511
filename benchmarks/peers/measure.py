"""Measure the cases: every system of a case is up, one at a time is under load, in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.progress import Progress, TaskID

from benchmarks import wrk
from benchmarks.failure import BenchmarkError
from benchmarks.open_loop import send_apart
from benchmarks.open_loop_workload import Workload, poisson
from benchmarks.peers import alone
from benchmarks.peers.cases import OURS, RAW, Case
from benchmarks.peers.results import Alone, CaseResult, LeftOut, Paced, Run, median_rates
from benchmarks.peers.systems import Subject, endpoints, make, settings_of, wire_of
from benchmarks.peers.traffic import Sample, make_samples, mistakes
from benchmarks.process import OUT, ServerProcess
from benchmarks.requests import write_requests

_START_WITHIN_S = 240.0
_DRAIN_WITHIN_S = 120.0
_ASK_EVERY_S = 0.3
_SINGLE_S = 1.0
_SHARES = (0.5, 0.8)
_SEED = 23


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often.

    Attributes:
        seconds: Length of each run.
        warm_up_s: Load before each run that is not counted, seconds.
        repetitions: Runs per system and number of connections.
    """

    seconds: float
    warm_up_s: float
    repetitions: int

    def turns(self, connections: Sequence[int], systems: Sequence[str]) -> Iterator[tuple[int, int, str]]:
        """(repetition, connections, system): the systems in turns, and which is first in turns too."""
        for repetition in range(self.repetitions):
            for number in connections:
                for system in systems if repetition % 2 == 0 else systems[::-1]:
                    yield repetition, number, system


@dataclass(slots=True)
class _Target:
    """One way into a server that is up."""

    server: ServerProcess
    url: str
    requests: Path


@dataclass(slots=True)
class CaseMeasurement:
    """One case, while it is measured.

    Args:
        case: What is compared.
        plan: How long and how often.
        progress: Where it is shown.
        task: Its line there.
    """

    case: Case
    plan: Plan
    progress: Progress
    task: TaskID
    left_out: list[LeftOut] = field(default_factory=list)
    _targets: dict[str, _Target] = field(default_factory=dict)
    _runs: list[Run] = field(default_factory=list)
    _paced: list[Paced] = field(default_factory=list)
    _body_bytes: dict[str, int] = field(default_factory=dict)

    def run(self) -> CaseResult:
        """Measure it. A system that cannot be measured is left out, and said to be.

        Raises:
            ConfigError: The configuration is not valid, or the model is not there.
            BenchmarkError: A load generator failed.
        """
        self._say("preparing")
        OUT.mkdir(parents=True, exist_ok=True)
        subject = Subject.of(self.case.model)
        samples = make_samples(subject.model_file)
        buckets = subject.buckets()
        ways: list[tuple[Alone, float]] = []
        single_ms = None
        if RAW in self.case.systems:
            self._say("ONNX Runtime alone: looking for its best setting")
            ways = alone.search(subject.model_file, buckets, subject.model.batching.configured_rows, subject.threads)
            single_ms = alone.measure(subject.model_file, buckets, Alone(1, 1, 1), _SINGLE_S).latencies_ms[0]
        with ExitStack() as stack:
            for system in self.case.systems:
                if system != RAW:
                    self._start(stack, system, subject, samples)
            self._measure(subject, samples[0], buckets, ways)
            self._say("checking answers again")
            for name, target in list(self._targets.items()):
                self._check(name, target, samples)
            self._say("ending the servers")
        systems = [system for system in self.case.systems if system != RAW]
        return CaseResult(
            name=self.case.name,
            body_bytes=self._body_bytes,
            wires={system: wire_of(system, self.case.wire).says for system in systems},
            settings={system: settings_of(system, subject) for system in systems},
            searched=ways,
            single_ms=single_ms,
            timeout_s=self.case.timeout_s,
            runs=self._runs,
            paced=self._paced,
        )

    def _start(self, stack: ExitStack, system: str, subject: Subject, samples: Sequence[Sample]) -> None:
        """Start a server, wait until it answers and look at its answers; or leave it out."""
        self._say(f"starting {system}")
        wire = wire_of(system, self.case.wire)
        requests = OUT / f"{self.case.name}-{wire.name}.requests"
        made = [wire.request(sample.inputs) for sample in samples]
        write_requests(requests, made)
        self._body_bytes[wire.says] = round(sum(len(each.body) for each in made) / len(made))
        for last in (False, True):  # on a busy machine a start may take longer than Ray or a peer allows itself
            with ExitStack() as own:
                try:
                    server = own.enter_context(make(system, subject, self.case))
                    targets = {
                        name: _Target(server, self._url(url), requests) for name, url in endpoints(server).items()
                    }
                    for target in targets.values():
                        self._wait(target, system, samples[0])
                except BenchmarkError as error:
                    if last:
                        self._leave_out(system, str(error))
                    continue
                stack.push(own.pop_all())
            self._targets.update(targets)
            for name, target in targets.items():
                self._check(name, target, samples)
            return

    def _measure(
        self, subject: Subject, sample: Sample, buckets: Sequence[int], ways: Sequence[tuple[Alone, float]]
    ) -> None:
        systems = [*self._targets, *([RAW] if ways else [])]
        paced = [name for name in self._targets if self._system(name) in self.case.paced]
        turns = list(self.plan.turns(self.case.connections, systems))
        each = len(_SHARES) * self.plan.repetitions * len(paced)
        self.progress.update(self.task, total=len(turns) + each, completed=0)
        for repetition, connections, name in turns:
            self._say(f"{name}, {connections} connections")
            if name == RAW:
                self._runs.append(self._alone(subject, buckets, ways[0][0], connections, repetition))
            elif name in self._targets:
                self._under_load(name, self._targets[name], connections, repetition, sample)
            self.progress.advance(self.task)
        if paced:
            self._at_fixed_rates(paced)

    def _under_load(self, name: str, target: _Target, connections: int, repetition: int, sample: Sample) -> None:
        timeout_s = self.case.timeout_s
        others = [each for each in self._servers() if each is not target.server]
        try:
            wrk.run(target.url, target.requests, connections, self.plan.warm_up_s, timeout_s)
            self._drain(target, sample)
            before, others_before = target.server.cpu_s(), sum(sum(each.cpu_s().values()) for each in others)
            load, generator = wrk.run(target.url, target.requests, connections, self.plan.seconds, timeout_s)
            after, others_after = target.server.cpu_s(), sum(sum(each.cpu_s().values()) for each in others)
            target.server.check_alive()
            self._drain(target, sample)
        except BenchmarkError as error:
            self._leave_out(name, str(error))
            del self._targets[name]
            return
        cores = {role: (spent - before.get(role, 0.0)) / load.duration_s for role, spent in after.items()}
        others_cores = (others_after - others_before) / load.duration_s
        run = Run(self.case.name, name, connections, repetition, load, generator, cores, others_cores)
        self._runs.append(run)
        self._print(run)

    def _alone(self, subject: Subject, buckets: Sequence[int], way: Alone, connections: int, repetition: int) -> Run:
        looped = alone.measure(subject.model_file, buckets, way, self.plan.seconds)
        run = Run(self.case.name, RAW, connections, repetition, looped.load, 0.0, {"loop": looped.cores}, 0.0)
        self._print(run)
        return run

    def _at_fixed_rates(self, names: Sequence[str]) -> None:
        """Latencies at shares of what the slowest of these systems can do."""
        rates = median_rates(self._runs)
        capacity = min(max(rate for (name, _), rate in rates.items() if name == each) for each in names)
        for share in _SHARES:
            for repetition in range(self.plan.repetitions):
                for name in names if repetition % 2 == 0 else names[::-1]:
                    self._say(f"{name} at {share * capacity:,.0f} requests/s")
                    if name in self._targets:
                        self._paced.append(self._pace(name, share, share * capacity, repetition))
                    self.progress.advance(self.task)

    def _pace(self, name: str, share: float, rate: float, repetition: int) -> Paced:
        target = self._targets[name]
        arrival_s = poisson(rate, self.plan.seconds, (_SEED, repetition))  # the same for every system
        workload = Workload.alike(arrival_s, self.case.model, self.case.timeout_s)
        base = target.url.partition("/v2/")[0]
        result = send_apart(base, workload, OUT / "open-loop", requests=target.requests)
        good = result.in_time(workload)
        quantiles = np.quantile(result.latency_s[good], (0.5, 0.9, 0.99)) * 1000 if good.any() else np.full(3, np.nan)
        p50, p90, p99 = (float(value) for value in quantiles)
        found = Paced(
            *(self.case.name, name, share, rate, repetition, p50, p90, p99),
            requests=len(workload),
            failures=int((~good).sum()),
            late_p99_ms=result.late_p99_s * 1000,
        )
        self.progress.console.print(
            f"{name:>22}  {rate:8,.0f} requests/s   p50 {p50:8.1f} ms  p99 {p99:8.1f} ms"
            + (f"  [red]{found.failures} failures[/]" if found.failures else ""),
            highlight=False,
            soft_wrap=True,
        )
        return found

    def _wait(self, target: _Target, system: str, sample: Sample) -> None:
        """Wait until a server answers."""
        wire = wire_of(system, self.case.wire)
        while found := mistakes(target.url, wire, [sample]):
            target.server.check_alive()
            if time.monotonic() - target.server.started_at > _START_WITHIN_S:
                raise BenchmarkError(f"no right answer within {_START_WITHIN_S:.0f} s; the last one: {found[0]}")
            time.sleep(_ASK_EVERY_S)

    def _drain(self, target: _Target, sample: Sample) -> None:
        """Wait until a server has done what a load generator left behind when it went: that would slow the next run."""
        began = time.monotonic()
        while mistakes(target.url, wire_of(self._system(target.server.name), self.case.wire), [sample]):
            target.server.check_alive()
            if time.monotonic() - began > _DRAIN_WITHIN_S:
                raise BenchmarkError(f"no right answer within {_DRAIN_WITHIN_S:.0f} s after a run")
            time.sleep(_ASK_EVERY_S)

    def _check(self, name: str, target: _Target, samples: Sequence[Sample]) -> None:
        found = mistakes(target.url, wire_of(self._system(name), self.case.wire), samples)
        if found:
            self._leave_out(name, f"{len(found)} of {len(samples)} answers are wrong: {found[0]}")
            self._targets.pop(name, None)
            # What it answered that fast is worth nothing.
            self._runs = [run for run in self._runs if run.system != name]
            self._paced = [run for run in self._paced if run.system != name]

    def _leave_out(self, system: str, reason: str) -> None:
        self.left_out.append(LeftOut(self.case.name, system, reason))
        self.progress.console.print(f"[red]{system} is left out:[/] ", end="")
        self.progress.console.print(reason, markup=False, highlight=False, soft_wrap=True)

    def _print(self, run: Run) -> None:
        load = run.load
        self.progress.console.print(
            f"{run.system:>22}  {run.connections:4} connections  {load.per_second:10,.1f} answers/s"
            f"  p50 {load.p50_ms:8.1f} ms  p99 {load.p99_ms:8.1f} ms  {sum(run.cores.values()):4.2f} cores"
            + (f"  [red]{load.failures} failures[/]" if load.failures else ""),
            highlight=False,
            soft_wrap=True,
        )

    def _say(self, what: str) -> None:
        self.progress.update(self.task, description=f"{self.case.name}: {what}")

    def _url(self, base: str) -> str:
        return f"{base}/v2/models/{self.case.model}/infer"

    def _servers(self) -> list[ServerProcess]:
        return list({id(target.server): target.server for target in self._targets.values()}.values())

    @staticmethod
    def _system(name: str) -> str:
        """The system that a way in belongs to."""
        return OURS if name.startswith(OURS) else name
