"""Which exported models share runs, and whether their answers stay right: ``make bench-architectures``.

Reads the models of `make architectures`. Each is described and tried as a replica does it; where requests share runs,
random requests are joined and compared with each alone. Texts and sounds are also padded. Writes
``architectures.json`` and ``architectures.md``.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.architectures.collection import PAD
from benchmarks.machine import Machine, describe
from benchmarks.process import OUT
from benchmarks.publishing import measured_on, now, publish_report, table
from serve_app.backends.backend import Backend
from serve_app.backends.description import describe_build
from serve_app.backends.joining.experiment import difference, leading_part, sensitivity
from serve_app.backends.kind import BuildSettings
from serve_app.backends.onnx.kind import ONNX, OnnxOptions
from serve_app.backends.samples import Samples
from serve_app.errors import ConfigError, ServeAppError
from serve_app.payloads import DTYPES, Joinable, Tensors, TensorSpec
from serve_app.replica.proof import ProofContext, prove_replica

_REQUESTS, _MOST_ROWS, _BATCH = 24, 3, 8
"""Of each model: requests, their rows, and how many share a run."""

_TOKENS, _SAMPLES, _PIXELS, _CHANNELS = 24, 8_000, 64, 3
_IDS, _MASK = "input_ids", "attention_mask"
_WORDS = ("red", "green", "blue", "a small dog", "the big cat sees birds")
_PADDED = 2  # times as long
_ROUNDING = 8.0
"""A difference of up to so many times what the last bits of a request do to its answer is rounding."""


_MANY = 2
"""Models of one library, exporter and verdict that the page names; single ones are in the JSON."""
_ASIDE = re.compile(r" \(|; (?:give|not compared)|: (?:the model failed|axis ==)|, found ")
"""What follows the cause in a reason: advice, and what the runtime said."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found of one model.

    Attributes:
        library: That made the architecture, or its exporter.
        architecture: By the library's name.
        task: What it does.
        exporter: That wrote the file.
        verdict: See `serve_app.payloads.Joinable`; ``refused``: the server does not load it.
        reason: Why.
        padding: Whether padding changes answers, ``close`` or ``changes``; empty where it was not tried.
        deviation: The largest that the replica measured.
        compared: Joined requests whose answers were compared.
        wrong: Those that differed from the answer alone.
        seconds: For reading the graph, loading, and trying.
    """

    library: str
    architecture: str
    task: str
    exporter: str
    verdict: str
    reason: str
    padding: str
    deviation: float
    compared: int
    wrong: int
    seconds: float

    @property
    def joins(self) -> bool:
        """Whether requests share runs."""
        return self.verdict in {"exact", "close"}


def judge(folder: Path, target: Path) -> Judged:
    """Describe a model, try it, and compare joined requests with each alone."""
    library, architecture, task, exporter = folder.relative_to(target).parts
    file, began = folder / "model.onnx", time.perf_counter()
    padding, compared, wrong = "", 0, 0
    try:
        described = describe_build(ONNX, file, model=architecture)
        backend = ONNX.create(BuildSettings(architecture, file, layout=described.layout), OnnxOptions())
        backend.load()
        verdict = _proven(architecture, backend, described.joinable)
        seconds = time.perf_counter() - began
        padding = _padded(backend, verdict)
        if verdict.joins:
            compared, wrong = _joined(backend, verdict)
    except ConfigError as error:
        seconds = time.perf_counter() - began
        verdict = Joinable("refused", error.problems[0].partition(": ")[2])
    return Judged(
        library, architecture, task, exporter, verdict.verdict, verdict.reason, padding, verdict.deviation, compared,
        wrong, seconds,
    )  # fmt: skip


def _proven(name: str, backend: Backend, joinable: Joinable) -> Joinable:
    samples = Samples(backend.signature, (), {}, rows=joinable.rows)
    examples = {"": requests(backend.signature.inputs, 2, np.random.default_rng(0))}
    return prove_replica(ProofContext(name, 32, budget_s=1.0), {"": backend}, {"": joinable}, None, samples, examples)[
        ""
    ]


def requests(specs: Sequence[TensorSpec], rows: int, rng: np.random.Generator, length: int = 1) -> Tensors:
    """Random inputs of so many rows; free axes have the sizes that architectures take, or a multiple of them."""
    return {spec.name: _random(spec, rows, rng, length) for spec in specs}


def _random(spec: TensorSpec, rows: int, rng: np.random.Generator, length: int) -> Any:
    free = {1: length * (_SAMPLES if "value" in spec.name else _TOKENS)}
    if len(spec.shape) == 4:
        free = {1: _CHANNELS, 2: _PIXELS, 3: _PIXELS}
    shape = (rows, *(free.get(axis, _TOKENS) if size < 0 else size for axis, size in enumerate(spec.shape) if axis))
    if spec.datatype == "BYTES":
        return rng.choice(np.array(_WORDS, object), shape)
    if spec.datatype.startswith(("FP", "BF")):
        return rng.standard_normal(shape).astype(DTYPES[spec.datatype])
    if "mask" in spec.name:
        lengths = rng.integers(1, shape[1] + 1, (rows, 1))
        return (np.arange(shape[1]) < lengths).astype(DTYPES[spec.datatype])
    return rng.integers(0, 2 if "type" in spec.name else 100, shape).astype(DTYPES[spec.datatype])


def _joined(backend: Backend, verdict: Joinable) -> tuple[int, int]:
    """How many joined requests were compared, and how many differed."""
    rng = np.random.default_rng(1)
    compared = wrong = 0
    for _ in range(_REQUESTS // _BATCH):
        parts = [requests(backend.signature.inputs, int(rng.integers(1, _MOST_ROWS + 1)), rng) for _ in range(_BATCH)]
        try:
            alone = [backend.run_whole(part) for part in parts]
        except ServeAppError:  # these numbers are none that the model takes
            return compared, wrong
        together = backend.run({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
        end = 0
        for part, own in zip(parts, alone, strict=True):
            start, end = end, end + len(next(iter(part.values())))
            found = {name: array[start:end] for name, array in together.items()}
            compared += 1
            gap = difference(own, found, None, verdict.rounding)
            wrong += not gap.allowed and gap.relative > _ROUNDING * sensitivity(backend, part, own)
    return compared, wrong


def _padded(backend: Backend, verdict: Joinable) -> str:
    """What padding changes, where an input's second axis may vary and a mask tells where it ends."""
    specs = {spec.name: spec for spec in backend.signature.inputs}
    mask = specs.get(_MASK)
    if mask is None or mask.shape[1] > 0:
        return ""
    rng = np.random.default_rng(2)
    short = requests(backend.signature.inputs, 1, rng)
    short[_MASK] = np.ones_like(short[_MASK])
    long = requests(backend.signature.inputs, 1, rng, _PADDED)
    padded = {name: np.full_like(array, PAD if name == _IDS else 0) for name, array in long.items()}
    for name, array in short.items():
        padded[name][:, : array.shape[1]] = array
    try:
        alone = backend.run_whole(short)
        found = leading_part(backend.run_whole(padded), alone)
    except ServeAppError:
        return ""
    return "close" if difference(alone, found, None, verdict.rounding).allowed else "changes"


def _report(date: str, machine: Machine, judged: Sequence[Judged]) -> str:
    served = [each for each in judged if each.verdict != "refused"]
    joined = sum(each.joins for each in served)
    compared, wrong = sum(each.compared for each in served), sum(each.wrong for each in served)
    differed = ", ".join(
        f"{each.library} {each.architecture} by {each.exporter} ({each.wrong} of {each.compared})"
        for each in served
        if each.wrong
    )
    changed = dict.fromkeys(f"{each.library} {each.architecture}" for each in served if each.padding == "changes")
    lines = [
        "# Exported models that share runs",
        "",
        "Small models with random weights, of `make architectures`; `make bench-architectures` tries them. Every",
        "architecture, with its task, its verdict and the reason, is in `architectures.json`.",
        "",
        f"**{joined:,} of {len(served):,}** models share runs. {compared:,} joined requests were compared with each",
        f"alone; **{wrong:,}** differed{f': {differed}' if differed else ''}.",
        "",
        table(["library", "exporter", "share runs", "of", "refused"], list(_by_library(judged))),
        "",
        "*Refused*: the server does not load the file, since an output is no tensor or rows cannot be told.",
        "",
        "## What is not joined, and why",
        "",
        table(["library and exporter", "verdict", "models", "for example"], list(_apart(served))),
        "",
        f"Groups of fewer than {_MANY} are in the JSON. Where one exporter's graph is not joined, try the other:",
        "`/status` says why.",
        "",
        "## Models that padding changes",
        "",
        "A mask says where the input ends, and the answer differs all the same where it is padded to twice its length.",
        f"The server tries the same at its start, and pads nothing then: {', '.join(changed) or 'none'}.",
        "",
        measured_on(date, machine),
        "",
    ]
    return "\n".join(lines)


def _by_library(judged: Sequence[Judged]) -> Iterator[list[str]]:
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for each in judged:
        groups[each.library, each.exporter].append(each)
    for key, members in sorted(groups.items()):
        refused = sum(each.verdict == "refused" for each in members)
        yield [*key, str(sum(each.joins for each in members)), str(len(members) - refused), str(refused)]


def _apart(judged: Sequence[Judged]) -> Iterator[list[str]]:
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for each in judged:
        if not each.joins:
            groups[f"{each.library}, {each.exporter}", each.verdict].append(each)
    for (group, verdict), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        if len(members) < _MANY:
            continue
        reason = _ASIDE.split(members[0].reason)[0].replace("|", "\\|")
        yield [group, verdict, str(len(members)), f"{members[0].architecture}: {reason}"]


def main(
    target: Annotated[Path, typer.Argument(help="Folder of the exported models.")] = OUT / "architectures",
    *,
    publish: Annotated[bool, typer.Option(help="Write into docs/benchmarks, too.")] = False,
) -> None:
    """Judge every model in TARGET."""
    console = Console()
    machine = describe({})
    folders = sorted(file.parent for file in target.glob("*/*/*/*/model.onnx"))
    if not folders:
        raise typer.BadParameter(f"there are no models in {target}: make architectures")
    judged = [judge(folder, target) for folder in track(folders, "Judging", console=console)]
    console.print(dict(Counter(each.verdict for each in judged)))
    date = now()
    figures: Mapping[str, Any] = {"date": date, "machine": machine, "models": judged}
    publish_report(console, "architectures", figures, _report(date, machine, judged), publish=publish)


if __name__ == "__main__":
    typer.run(main)
