"""Which 8-bit build of minilm is quick, close to FP32 and the same in any batch: ``make bench-int8``.

Makes every candidate, compares embeddings of made-up texts of 1 to 200 words with FP32's, runs rows alone and among
neighbours, and times batches in turns in one process, one thread. Writes docs/benchmarks/int8.{json,md}.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from tokenizers import Tokenizer

from benchmarks.int8_candidates import CANDIDATES, quiet
from benchmarks.machine import Machine, describe, watched_load
from benchmarks.publishing import PUBLISHED, measured_on, table, write_report
from serve_app.backends.onnx.int8.balance import make_session
from serve_app.payloads import Tensors
from training.minilm.texts import make_texts
from training.paths import MODELS

_SHAPES = tuple((rows, tokens) for tokens in (16, 64) for rows in (1, 8, 32))
_SHOWN = ("1 x 16", "32 x 16", "1 x 64", "32 x 64")
_PIECE_S = 0.02
_CALIBRATION_SEED, _TEST_SEED = 20, 7  # those of `training.minilm.quantization`, and others
_CALIBRATION_TOKENS = 64  # the Percentile method wants samples of one shape
_VOCABULARY = 30_522
_FEW = 10  # texts that are run among neighbours


@dataclass(frozen=True, slots=True)
class Result:
    """What was found of one build.

    Attributes:
        name: Of the build.
        megabytes: Size of the file, 10^6 bytes.
        mean_cosine: To FP32 over the texts.
        least_cosine: Of the text that is farthest off.
        alone: Largest difference of a value between a row alone and among neighbours of its length.
        padded: The same where neighbours may be longer, so that the row is padded.
        milliseconds: Of a batch, by "rows x tokens".
    """

    name: str
    megabytes: float
    mean_cosine: float
    least_cosine: float
    alone: float
    padded: float
    milliseconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Report:
    """All that was measured; the first result is FP32's."""

    date: str
    machine: Machine
    rounds: int
    texts: int
    results: list[Result]


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of every batch; the median counts.")] = 9,
    texts: Annotated[int, typer.Option(min=2, help="Texts to compare.")] = 100,
    to: Annotated[Path, typer.Option(help="Folder for the report.")] = PUBLISHED,
) -> None:
    """Compare ways to compute minilm in 8 bits."""
    console = Console(stderr=True)
    machine = describe({"onnx": version("onnx")})
    source = MODELS / "minilm" / "1" / "model.onnx"
    calibration = [_batch([row], _CALIBRATION_TOKENS) for row in _tokens(64, _CALIBRATION_SEED, _CALIBRATION_TOKENS)]
    sessions, sizes = {"FP32": make_session(str(source))}, {"FP32": source.stat().st_size}
    with tempfile.TemporaryDirectory() as folder, quiet():
        for number, (name, make) in enumerate(CANDIDATES.items()):
            console.print(f"making: {name}")
            target = Path(folder) / f"{number}.onnx"
            make(source, target, calibration)
            sessions[name], sizes[name] = make_session(str(target)), target.stat().st_size
    rows = _tokens(texts, _TEST_SEED, 256)
    some = rows[:: max(1, texts // _FEW)][:_FEW]
    expected = _embed(sessions["FP32"], rows)
    with watched_load(machine):
        times = _times(sessions, rounds)
    results = []
    for name, session in sessions.items():
        console.print(f"comparing: {name}")
        cosines = (expected * _embed(session, rows)).sum(axis=1)
        apart = _dependence(session, some, padded=False), _dependence(session, some, padded=True)
        results.append(
            Result(name, sizes[name] / 1e6, float(cosines.mean()), float(cosines.min()), *apart, times[name])
        )
    report = Report(datetime.now(UTC).date().isoformat(), machine, rounds, texts, results)
    write_report(to, "int8", report, render(report))


def render(report: Report) -> str:
    """The report as Markdown."""
    fp32 = report.results[0]
    rows = [
        [
            each.name,
            f"{each.megabytes:.1f}",
            f"{each.mean_cosine:.4f}",
            f"{each.least_cosine:.4f}",
            f"{max(each.alone, each.padded):.1g}",
            *(f"{fp32.milliseconds[shape] / each.milliseconds[shape]:.2f}" for shape in _SHOWN),
        ]
        for each in report.results
    ]
    return f"""# minilm in 8 bits

Which 8-bit build of `models/minilm` is close, quick, and the same beside any neighbours? `make bench-int8` makes and
measures them; every shape is in `int8.json`. `models/minilm-int8` is the last one, which `serve-app convert --int8
--samples` makes of any model ([profiling](../profiling.md#int8)).

Cosine of embeddings to FP32's over {report.texts} made-up texts, each alone. *Change*: the largest of a value of an
embedding (length 1, 384 values) between a row alone and among neighbours, also longer ones, which pad it. Last, times
as fast as FP32 by rows x tokens, one thread, median of {report.rounds} rounds in turns.

{table(["build", "MB", "cosine, mean", "least", "change", *_SHOWN], rows)}

Take a scale per row of activations, with samples: it is the same in any batch, closer to FP32 than a scale per batch,
and as fast. A scale per batch (`quantize_dynamic`) lets neighbours change answers, and so does `MatMulNBits` with
blocks of 128; fixed scales are too coarse; 8-bit weights with FP32 sums save room only.

{measured_on(report.date, report.machine)}
"""


def _tokens(count: int, seed: int, longest: int) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(MODELS / "minilm" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    return [encoding.ids for encoding in tokenizer.encode_batch(make_texts(count, seed))]


def _batch(rows: Sequence[Sequence[int]], tokens: int) -> Tensors:
    ids = np.zeros((len(rows), tokens), np.int64)
    mask = np.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _run(session: Any, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
    (found,) = session.run(None, _batch(rows, max(map(len, rows))))
    return np.asarray(found, np.float64)


def _embed(session: Any, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
    return np.concatenate([_run(session, [row]) for row in rows])


def _dependence(session: Any, rows: Sequence[list[int]], *, padded: bool) -> float:
    """The largest change of a value between a row alone and among neighbours."""
    maker = random.Random(0)
    strange = [[101, *[0] * 62, 102], [_VOCABULARY - 1] * 64, [1] * 128, [101, 102]]
    strange += [[maker.randrange(_VOCABULARY) for _ in range(64)]]
    largest = 0.0
    for row in rows:
        alone = _run(session, [row])[0]
        for count in (2, 3, 5, 8) if padded else (2, 3, 8, 13, 32):
            place = maker.randrange(count)
            batch = [maker.choice(strange if maker.random() < 0.3 else rows) for _ in range(count)]
            if not padded:
                batch = [(other * (len(row) // len(other) + 1))[: len(row)] for other in batch]
            batch[place] = row
            largest = max(largest, float(np.abs(_run(session, batch)[place] - alone).max()))
    return largest


def _times(sessions: dict[str, Any], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a batch, by build and shape: the median of rounds that take turns."""
    maker = np.random.default_rng(0)
    times: dict[str, dict[str, float]] = {name: {} for name in sessions}
    for rows, tokens in _SHAPES:
        batch = _batch(maker.integers(1000, _VOCABULARY, (rows, tokens)).tolist(), tokens)
        found: dict[str, list[float]] = {name: [] for name in sessions}
        for _ in range(rounds + 1):
            for name, session in sessions.items():
                runs, started = 0, time.perf_counter()
                while (now := time.perf_counter()) - started < _PIECE_S:
                    session.run(None, batch)
                    runs += 1
                found[name].append(1000 * (now - started) / runs)
        for name, each in found.items():
            times[name][f"{rows} x {tokens}"] = statistics.median(each[1:])  # the first round warms up
    return times


if __name__ == "__main__":
    typer.run(main)
