"""Is the GPU really used, and are its answers right? Faults included: they must not turn into wrong answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.gpu.subjects import MIB, Bench, Device, Subject, distance, gpu_memory_used, make_inputs, measure
from serve_app.backends.onnx.device import preload_cuda, providers_for
from serve_app.errors import ServeAppError

_ROWS = 8
_REFUSAL = """
import sys
from pathlib import Path
from serve_app.errors import ConfigError
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
path = Path(sys.argv[1])
automatic = OnnxBackend(OnnxSettings("m", path, device="auto", gpu_available=True))
automatic.load()
print(automatic.device, "with a note" if automatic.note else "silently")
try:
    OnnxBackend(OnnxSettings("m", path, device="cuda", gpu_available=True)).load()
    print("loaded")
except ConfigError as error:
    print("refused:", error)
"""


def check(bench: Bench) -> dict[str, Any]:
    """Every model: operators per provider, memory taken, agreement with the CPU; then what happens without a GPU."""
    return {
        "rows": _ROWS,
        "models": {subject.name: _model(bench, subject) for subject in bench.subjects()},
        "tf32": {name: _tf32(bench, name) for name in ("wide", "resnet50") if bench.file(name).exists()},
        "hidden_gpu": _hidden_gpu(bench),
        "out_of_range": _out_of_range(bench),
    }


def _model(bench: Bench, subject: Subject) -> dict[str, Any]:
    before = gpu_memory_used()
    backend = bench.load(subject.name)
    inputs = make_inputs(backend.signature, _ROWS, subject.length)
    outputs = backend.run(inputs)
    taken = gpu_memory_used() - before
    reference = bench.load(subject.name, device="cpu", threads=4).run(inputs)
    device = backend.device
    backend.close()
    return {
        "device": device,
        "distance_to_cpu": distance(outputs, reference),
        "finite": all(bool(np.isfinite(array).all()) for array in outputs.values()),
        "memory_taken_mib": taken / MIB,
        **_profile(bench, subject),
    }


def _profile(bench: Bench, subject: Subject) -> dict[str, Any]:
    """Operators and time per execution provider, by ONNX Runtime's own profiler."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = _session(bench, subject.name, options)
        inputs = make_inputs(bench.load(subject.name, device="cpu").signature, _ROWS, subject.length)
        for _ in range(3):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        nodes: dict[str, str] = {}
        on_cpu: Counter[str] = Counter()
        for event in events:
            provider = event.get("args", {}).get("provider")
            if event.get("cat") == "Node" and provider:
                if event["name"] not in nodes and provider == "CPUExecutionProvider":
                    on_cpu[event["args"].get("op_name", "?")] += 1
                nodes[event["name"]] = provider
        return {
            "providers": session.get_providers(),
            "operators": dict(Counter(nodes.values())),
            "operators_on_cpu": dict(on_cpu),
        }


def _session(bench: Bench, name: str, options: Any, **cuda: str) -> Any:
    if bench.device == "cuda":
        preload_cuda()
    providers = providers_for(bench.device, None)
    if bench.device == "cuda":
        providers[0][1].update(cuda)
    return onnxruntime.InferenceSession(bench.file(name), options, providers=providers, enable_fallback=0)


def _tf32(bench: Bench, name: str) -> list[dict[str, Any]]:
    """Speed and accuracy with and without TF32, the reduced float32 of the matrix units."""
    signature = bench.load(name, device="cpu").signature
    reference = bench.load(name, device="cpu", threads=4)
    rows_of_table = []
    for setting in ("1", "0"):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = _session(bench, name, options, use_tf32=setting)
        names = [node.name for node in session.get_outputs()]
        for rows in (1, 8, 64):
            inputs = make_inputs(signature, rows, 1)
            found = dict(zip(names, session.run(names, inputs), strict=True))
            timing = measure(lambda: session.run(names, inputs), bench.seconds / 8)  # noqa: B023 - called right here
            gap = distance(found, reference.run(inputs)) if rows <= 8 else None
            rows_of_table.append({"tf32": setting == "1", "rows": rows, "distance": gap, **timing.as_json()})
    return rows_of_table


def _hidden_gpu(bench: Bench) -> list[str]:
    """What a replica does that was promised a GPU and sees none: never a silent move to the CPU."""
    command = [sys.executable, "-c", _REFUSAL, str(bench.file("tiny"))]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout.splitlines() or done.stderr.splitlines()[-3:]


def _out_of_range(bench: Bench) -> dict[str, str]:
    """Token ids beyond the vocabulary: an error, wrong numbers, or a session that is broken from then on?"""
    if not bench.file("minilm").exists():
        return {}
    found: dict[str, str] = {}
    devices: tuple[Device, ...] = (bench.device, "cpu")
    for device in dict.fromkeys(devices):
        backend = bench.load("minilm", device=device)
        good = make_inputs(backend.signature, 2, 16)
        expected = backend.run(good)
        bad = {**good, "input_ids": np.full((2, 16), 10**6, np.int64)}
        try:
            answer = next(iter(backend.run(bad).values()))
            outcome = f"answered, {'finite' if np.isfinite(answer).all() else 'not finite'}"
        except ServeAppError as error:
            outcome = f"{error.code}: {error}"
        try:
            again = distance(backend.run(good), expected)
            outcome += f"; the next run is {'right' if again < 1e-3 else f'off by {again:.3g}'}"
        except ServeAppError as error:
            outcome += f"; the next run fails: {error}"
        found[device] = outcome
    return found
