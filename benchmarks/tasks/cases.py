"""What is asked: the tasks, their media, and the answers of the models alone."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson
from PIL import Image

from benchmarks.failure import BenchmarkError
from benchmarks.preprocessing_cases import photograph
from benchmarks.process import OUT, ROOT
from benchmarks.requests import JSON_HEADERS, Request
from benchmarks.tasks.apps.work import make_work

MIXED = "mixed"
"""All tasks at once, on few connections each."""

_SEED = 29
_WORDS = (5, 200)
_FEWEST_WORDS_WEIGHT = 0.62
"""Brings the mean to 49 tokens: shorter texts are more frequent than log-uniform lengths would have them."""
_TEXTS, _MANY, _DIGITS, _PHOTOGRAPHS = 256, 16, 128, 32
_RESNET = {
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 2,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "rescale_factor": 1 / 255,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


@dataclass(frozen=True, slots=True)
class Task:
    """A task.

    Attributes:
        name: For the command line and the report.
        model: Who does it.
        connections: Kept busy.
        mixed: Kept busy where all tasks run at once.
        deadline_ms: Of requests that have one.
        title: A phrase for people.
    """

    name: str
    model: str
    connections: int
    mixed: int
    deadline_ms: int
    title: str


TASKS = {
    task.name: task
    for task in (
        Task("text", "minilm", 32, 8, 500, "embedding of a text of 5 to 200 words"),
        Task("texts", "minilm", 4, 1, 2000, "embeddings of 16 such texts"),
        Task("digits", "digits", 16, 4, 200, "PNG of 28 x 28 to a digit"),
        Task("speech", "spoken-digits", 16, 4, 500, "WAV of 0.3 to 1.9 s to a spoken digit"),
        Task("resnet50", "resnet50", 8, 2, 2000, "ResNet-50, JPEG of 500 x 375"),
    )
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A request and its answer.

    Attributes:
        request: As it is posted.
        expected: What the model alone answers, JSON.
    """

    request: Request
    expected: bytes


def model_folders(made: Path = OUT / "tasks-models") -> dict[str, Path]:
    """Folder of each model, by name.

    Args:
        made: Where ``resnet50`` gets a folder of its own, with its preprocessing.

    Raises:
        BenchmarkError: A model is not there.
    """
    folders = {task.model: ROOT / "models" / task.model for task in TASKS.values()}
    for folder in folders.values():
        if not (folder / "1" / "model.onnx").exists():
            raise BenchmarkError(f"there is no model {folder.name}; `make models` makes it")
    own = made / "resnet50"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    (own / "1").symlink_to(folders["resnet50"] / "1", target_is_directory=True)
    (own / "preprocessor_config.json").write_text(json.dumps(_RESNET), encoding="utf-8")
    return {**folders, "resnet50": own}


def make_samples(task: Task, folder: Path) -> list[Sample]:
    """Requests of a task, always the same ones, and what the model alone answers to each, row by row."""
    work = make_work(str(folder), threads=1, rows=1)
    requests = _MAKERS[task.name](np.random.default_rng(_SEED))
    return [Sample(each, work.answer(work.run(work.prepare(each.body)))) for each in requests]


def mistake(content: bytes, expected: bytes) -> str | None:
    """What is wrong with an answer, or ``None``: labels must be the same, numbers equal within 1e-5 of the largest."""
    try:
        found, right = _values(content), _values(expected)
    except (ValueError, TypeError, LookupError) as error:
        return f"not an answer ({error!r}): {content[:200].decode(errors='replace')}"
    if found[0] != right[0] or found[1].shape != right[1].shape:
        return f"labels {found[0]} and shape {found[1].shape} instead of {right[0]} and {right[1].shape}"
    off = float(np.abs(found[1] - right[1]).max() / np.abs(right[1]).max())
    return None if off <= 1e-5 else f"off by {off:.1e} of the largest value"


def sentences(random: np.random.Generator, count: int) -> list[str]:
    """Texts of words of the documentation, most of them short."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    words = sorted(
        {word.lower() for page in pages for word in re.findall(r"\b[A-Za-z]{2,12}\b", page.read_text("utf-8"))}
    )
    shortest, longest = np.log(_WORDS)
    lengths = np.exp(shortest + (longest - shortest) * random.random(count) ** (1 / _FEWEST_WORDS_WEIGHT))
    return [" ".join(random.choice(words, round(length))) for length in lengths]


def _values(content: bytes) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Labels and numbers of an answer."""
    answer = orjson.loads(content)
    if isinstance(answer[0], dict):
        return [each["label"] for each in answer], np.array([each["score"] for each in answer])
    return [], np.array(answer)


def _text(random: np.random.Generator) -> Iterator[Request]:
    for text in sentences(random, _TEXTS):
        yield Request(JSON_HEADERS, orjson.dumps({"inputs": text}))


def _texts(random: np.random.Generator) -> Iterator[Request]:
    texts = sentences(random, _TEXTS * _MANY // 4)
    for at in range(0, len(texts), _MANY):
        yield Request(JSON_HEADERS, orjson.dumps({"inputs": texts[at : at + _MANY]}))


def _digits(random: np.random.Generator) -> Iterator[Request]:
    """Handwritten digits, enlarged to the size that the model takes."""
    ink = np.load(ROOT / "tests" / "data" / "digits" / "held_out.npz")["ink"]
    for chosen in random.choice(ink, _DIGITS, replace=False):
        image = Image.fromarray((255 - chosen.astype(np.float32) / 16 * 255).astype(np.uint8))
        yield _encoded(image.resize((28, 28), Image.Resampling.BICUBIC), "PNG")


def _speech(_: np.random.Generator) -> Iterator[Request]:
    """The sounds of the tests: several voices, rates and sample formats."""
    for file in sorted((ROOT / "tests" / "data" / "speech").glob("*.wav")):
        yield Request({"Content-Type": "audio/wav"}, file.read_bytes())


def _photographs(random: np.random.Generator) -> Iterator[Request]:
    """Parts of a photograph."""
    whole = photograph(1000, 750)
    for _ in range(_PHOTOGRAPHS):
        left, above = int(random.integers(0, 400)), int(random.integers(0, 300))
        part = whole.crop((left, above, left + 600, above + 450)).resize((500, 375), Image.Resampling.BICUBIC)
        yield _encoded(part, "JPEG")


def _encoded(image: Image.Image, kind: str) -> Request:
    file = io.BytesIO()
    image.save(file, kind, quality=90)
    return Request({"Content-Type": f"image/{kind.lower()}"}, file.getvalue())


_MAKERS = {"text": _text, "texts": _texts, "digits": _digits, "speech": _speech, "resnet50": _photographs}


def connections_of(name: str) -> Mapping[str, int]:
    """Connections by task: of one task, or of all of them at once."""
    if name == MIXED:
        return {task.name: task.mixed for task in TASKS.values()}
    return {name: TASKS[name].connections}
