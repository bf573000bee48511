"""A replica's start in a process of its own, step by step, without Serve: ``benchmarks.joining`` starts it.

It does what `serve_app.deployments.model` does, build by build, so that each has its own figures. A `Work` comes in
pickled, on standard input; one `BuildTimes` per build goes out as JSON.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.failure import BenchmarkError
from serve_app.api.open_inference.sample import decode_sample
from serve_app.backends.description import Description
from serve_app.backends.joining.verdict_store import VerdictStore, record_key
from serve_app.composition.backend import make_backend
from serve_app.composition.model import find_files, make_processor, make_samples
from serve_app.config.model import ModelConfig
from serve_app.deployments.model import ModelDeployment  # noqa: F401 - what a replica has to import
from serve_app.payloads import Joinable, Tensors
from serve_app.replica.proof import ProofContext, proof_budget_s, prove_replica
from serve_app.replica.warm_up import warm_up_replica


class Work(msgspec.Struct):
    """What is to be started.

    Attributes:
        model: As configured.
        builds: By variant, what the graph says.
        records: Folder where verdicts are kept.
        began: When the process was started, monotonic seconds.
    """

    model: ModelConfig
    builds: Mapping[str, Description]
    records: Path
    began: float = 0.0


class BuildTimes(msgspec.Struct):
    """One build of a model, seconds.

    Attributes:
        variant: ``""`` for the exact model.
        imports: From the start of the process until everything was imported; the same for all builds.
        load: The session.
        warm_up: All that the warm-up runs.
        key: What its record is kept by: the digest of its files.
        experiment: The experiment, and writing its record.
        found: The same where there is a record.
        verdict: What came of it.
    """

    variant: str
    imports: float
    load: float
    warm_up: float
    key: float
    experiment: float
    found: float
    verdict: Joinable


def start_replica(work: Work) -> list[BuildTimes]:
    """Start it in a fresh process.

    Raises:
        BenchmarkError: It failed.
    """
    command = [sys.executable, "-m", "benchmarks.joining_replica"]
    finished = subprocess.run(
        command,
        input=pickle.dumps((work.model, dict(work.builds), work.records, time.monotonic())),
        capture_output=True,
        check=False,
    )
    if finished.returncode != 0:
        raise BenchmarkError(f"{work.model.name}: {finished.stderr.decode(errors='replace').strip()}")
    return msgspec.json.decode(finished.stdout.splitlines()[-1], type=list[BuildTimes])


def measure(work: Work) -> list[BuildTimes]:
    """Load, warm up and try every build in this process."""
    imports = time.monotonic() - work.began
    model, locations = work.model, find_files(work.model)
    backends, loads = {}, {}
    for variant, location in locations.items():
        began = time.perf_counter()
        backends[variant] = make_backend(model, location, work.builds[variant], gpu_available=False)
        backends[variant].load()
        loads[variant] = time.perf_counter() - began
    signature, rows = backends[""].signature, work.builds[""].joinable.rows
    processor = make_processor(model, signature, locations[""])
    samples = make_samples(model, signature, decode_sample, rows=rows)
    warm_ups: dict[str, float] = {}
    examples: dict[str, Tensors] = {}
    for variant, backend in backends.items():
        began = time.perf_counter()
        warm = warm_up_replica(
            model.name,
            {variant: backend},
            processor,
            samples,
            max_rows=model.batching.configured_rows if rows else 1,
            budget_s=model.health.warm_up_s / len(backends),
        )
        warm_ups[variant] = time.perf_counter() - began
        examples |= warm.examples
    budget_s = proof_budget_s(sum(loads.values()) + sum(warm_ups.values())) / len(backends)
    found = []
    for variant, location in locations.items():
        began = time.perf_counter()
        key = record_key(
            location.model_file, location.kind.versions(), model.batching.configured_rows, model.batching.tolerance
        )
        keyed = time.perf_counter()
        proofs = ProofContext(
            model.name,
            model.batching.configured_rows,
            model.batching.tolerance,
            budget_s,
            VerdictStore(work.records),
            {variant: key},
        )
        times, verdict = [], work.builds[variant].joinable
        for _ in ("tried", "found"):
            before = time.perf_counter()
            verdict = prove_replica(
                proofs,
                {variant: backends[variant]},
                {variant: work.builds[variant].joinable},
                processor,
                samples,
                examples,
            )[variant]
            times.append(time.perf_counter() - before)
        found.append(
            BuildTimes(variant, imports, loads[variant], warm_ups[variant], keyed - began, times[0], times[1], verdict)
        )
    return found


if __name__ == "__main__":
    print(msgspec.json.encode(measure(Work(*pickle.loads(sys.stdin.buffer.read())))).decode())
