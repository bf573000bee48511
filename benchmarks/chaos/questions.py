"""Requests to real models whose answers are known, no two of them alike.

Every answer is computed beforehand by ONNX Runtime in this process, one request at a time. Within a model all answers
differ by far more than the tolerance, so that an answer which belongs to another request is recognised as wrong.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import soundfile
from PIL import Image

from benchmarks.answers import open_session
from benchmarks.failure import BenchmarkError
from benchmarks.process import ROOT
from benchmarks.requests import JSON_HEADERS, Request
from benchmarks.wires import Binary, Json
from serve_app.backends.onnx.signature import read_signature
from serve_app.composition.model import find_files, make_processor
from serve_app.config.model import ModelConfig
from serve_app.payloads import Embeddings, Media, Texts
from serve_app.processors.processor import Processor

DATA = ROOT / "tests" / "data"
TOLERANCE = 2e-3
"""Largest difference to ONNX Runtime's own answer, of each value; scores are compared by their logarithms. A batch of
another size adds up in another order."""

_LEAST_SCORE = 1e-7
_SENTENCES = 3
_SEED = 11

Floats: TypeAlias = npt.NDArray[np.float32]
Known: TypeAlias = Floats | Mapping[str, float]
"""An answer: the values of the first output, flat, or logarithms of scores by label."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request in every form that clients send.

    Attributes:
        model: Who is asked.
        path: Where it is posted.
        request: What is posted.
        known: The right answer.
        tensors: The inputs by name, of a model that takes tensors.
        media: A text, or the bytes of a file.
        refusals: Codes of which one is the right end of a request that no model can answer; empty for all others.
    """

    model: str
    path: str
    request: Request
    known: Known
    tensors: Mapping[str, npt.NDArray[Any]] | None = None
    media: str | bytes | None = None
    refusals: tuple[str, ...] = ()

    def read(self, headers: Mapping[str, str], content: bytes) -> Known:
        """The answer in a response's body.

        Raises:
            ValueError, LookupError, TypeError: It is none.
        """
        if self.tensors is None:
            return known_of(orjson.loads(content))
        if "inference-header-content-length" in headers:
            return Binary().answer(headers, content)
        return Json().answer(headers, content)

    def mistake(self, answer: Known) -> str | None:
        """What is wrong with an answer, or ``None``."""
        if difference(answer, self.known) <= TOLERANCE:
            return None
        return f"{_shown(answer)} instead of {_shown(self.known)}"


class Bank:
    """Questions by model, handed out in turn.

    Args:
        questions: By model; all of a model's differ in their answers.
        guilty: By model, questions that make it fail; handed out only after `spoil`.

    Raises:
        BenchmarkError: Two answers are so close that one could stand for the other.
    """

    def __init__(
        self, questions: Mapping[str, Sequence[Question]], guilty: Mapping[str, Sequence[Question]] | None = None
    ) -> None:
        for model, each in questions.items():
            _require_distinct(model, each)
        self.models = tuple(questions)
        self._turns = {model: cycle(each) for model, each in questions.items()}
        self._guilty = {model: cycle(each) for model, each in (guilty or {}).items()}
        self._every = 0
        self._next: set[str] = set()
        self._taken: dict[str, int] = dict.fromkeys(questions, 0)

    def spoil(self, every: int) -> None:
        """From now on make one question in so many of each model a guilty one, where there are any; 0 for none."""
        self._every = every
        self._taken = dict.fromkeys(self._taken, 0)

    def spoil_next(self, model: str) -> None:
        """Make the next question of a model a guilty one."""
        self._next.add(model)

    def take(self, model: str) -> Question:
        """The next question for a model."""
        self._taken[model] += 1
        guilty = self._guilty.get(model)
        due = model in self._next or (self._every and self._taken[model] % self._every == 0)
        if guilty is not None and due:
            self._next.discard(model)
            return next(guilty)
        return next(self._turns[model])


def bank_of(models: Sequence[ModelConfig], size: int = 192) -> Bank:
    """Questions for models of the demo and for those that take rows of floats ``x`` and give ``y``.

    Args:
        models: As configured.
        size: How many for each.
    """
    makers: Mapping[str, Callable[[], Iterator[str | bytes]]] = {
        "feature-extraction": _texts,
        "image-classification": _pictures,
        "audio-classification": _clips,
    }
    found: dict[str, list[Question]] = {}
    for model in models:
        maker = makers.get(model.task)
        found[model.name] = _tensor_questions(model, 4 * size) if maker is None else _asked(model, maker(), size)
    return Bank(found)


def long_texts(models: Sequence[ModelConfig], size: int = 96) -> Bank:
    """Questions for models of texts: dozens of words each, which take a model long and a client nothing."""
    texts = _texts()
    joined = (" ".join(islice(texts, _SENTENCES)) for _ in count())
    return Bank({model.name: _asked(model, joined, size) for model in models})


def known_of(value: Any) -> Known:
    """An answer as JSON has it, in the form that is compared."""
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, Mapping):
        return {each["label"]: float(np.log(max(each["score"], _LEAST_SCORE))) for each in value}
    return np.asarray(value, np.float32).ravel()


def difference(left: Known, right: Known) -> float:
    """The largest difference of two answers; infinite where they are of different kinds or not finite."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        # What is cut off after the first labels may differ where two scores are next to each other.
        shared = left.keys() & right.keys()
        if len(shared) + 1 < len(right):
            return float("inf")
        return max(abs(left[label] - right[label]) for label in shared)
    if isinstance(left, Mapping) or isinstance(right, Mapping) or left.shape != right.shape:
        return float("inf")
    found = float(np.max(np.abs(left - right), initial=0.0))
    return found if np.isfinite(found) else float("inf")


def tensor_question(
    model: str, x: npt.NDArray[Any], known: Floats, *, binary: bool, refusals: tuple[str, ...] = ()
) -> Question:
    """A question with the input ``x``."""
    wire = Binary() if binary else Json()
    path = f"/v2/models/{model}/infer"
    return Question(model, path, wire.request({"x": x}), known.ravel(), {"x": x}, refusals=refusals)


def _tensor_questions(model: ModelConfig, size: int) -> list[Question]:
    session = open_session(find_files(model)[""].model_file)
    features = session.get_inputs()[0].shape[1]
    rows = np.random.default_rng(_SEED).standard_normal((size, 1, features), np.float32)
    return [
        tensor_question(model.name, row, session.run(["y"], {"x": row})[0], binary=bool(number % 2))
        for number, row in enumerate(rows)
    ]


def _asked(model: ModelConfig, media: Iterator[str | bytes], size: int) -> list[Question]:
    """Ask ONNX Runtime, until there are enough questions whose answers can be told apart."""
    location = find_files(model)[""]
    processor = make_processor(model, read_signature(location.model_file, model=model.name), location)
    assert processor is not None
    session = open_session(location.model_file)
    found: list[Question] = []
    for each in media:
        payload: Media | Texts = Texts([each], {}) if isinstance(each, str) else Media(each, "", {})
        known = _run(processor, session, payload)
        if all(difference(known, other.known) > 4 * TOLERANCE for other in found):
            found.append(Question(model.name, f"/v1/models/{model.name}/predict", _posted(each), known, media=each))
        if len(found) == size:
            break
    return found


def _run(processor: Processor, session: Any, payload: Media | Texts) -> Known:
    tensors = processor.preprocess(payload)
    padded = processor.pad(tensors, processor.bucket(tensors))
    names = [each.name for each in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, dict(padded)), strict=True))
    value = processor.postprocess(payload, outputs, tensors)
    return known_of(value.vectors[0].tolist() if isinstance(value, Embeddings) else value)


def _posted(media: str | bytes) -> Request:
    if isinstance(media, str):
        return Request(JSON_HEADERS, orjson.dumps({"inputs": media}))
    return Request({"Content-Type": "application/octet-stream"}, media)


def _texts() -> Iterator[str]:
    sentences = json.loads((DATA / "minilm" / "sentences.json").read_text(encoding="utf-8"))
    short = [each["text"] for each in sentences if len(each["text"]) < 120]
    for number in count():
        yield f"{short[number % len(short)]} ({number})"


def _pictures() -> Iterator[bytes]:
    """Real digits as PNG files of 64 x 64 pixels, each with its own faint noise."""
    files = sorted((DATA / "digits").glob("*.png"))
    pictures = [np.asarray(Image.open(file).convert("L").resize((64, 64)), np.int16) for file in files]
    random = np.random.default_rng(_SEED)
    for number in count():
        noisy = pictures[number % len(pictures)] + random.integers(-12, 13, (64, 64), np.int16)
        yield _file(Image.fromarray(noisy.clip(0, 255).astype(np.uint8)))


def _file(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _clips() -> Iterator[bytes]:
    """Real spoken digits as WAV files, each with its own faint noise."""
    files = sorted((DATA / "speech").glob("*.wav"))
    random = np.random.default_rng(_SEED)
    for number in count():
        samples, rate = soundfile.read(files[number % len(files)], dtype="float32", always_2d=True)
        noise = 0.003 * random.standard_normal(len(samples), np.float32)
        file = io.BytesIO()
        soundfile.write(file, (samples[:, 0] + noise).clip(-1, 1), rate, format="WAV", subtype="PCM_16")
        yield file.getvalue()


def _require_distinct(model: str, questions: Sequence[Question]) -> None:
    first = questions[0].known
    if isinstance(first, Mapping):
        return  # chosen so
    values = np.stack([each.known for each in questions if not isinstance(each.known, Mapping)])
    for number, row in enumerate(values[:-1]):
        if np.abs(values[number + 1 :] - row).max(axis=1).min() <= TOLERANCE:
            raise BenchmarkError(f"two answers of {model} are too much alike to be told apart")


def _shown(answer: Known) -> str:
    if isinstance(answer, Mapping):
        return str({label: round(value, 3) for label, value in answer.items()})
    return f"{np.round(answer[:4], 3).tolist()} of {answer.shape}"
