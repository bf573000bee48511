"""What every server does for an answer: decode, run the model, write the answer; and its settings."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import orjson
import soundfile
import soxr
from PIL import Image
from tokenizers import Tokenizer

PATH = "/v1/models/{}/predict"
"""Where requests for a model are posted, on every server."""
MOST_REQUESTS = 32
"""Requests of a batch at most, where a server makes batches."""
_BEST = 5

Row = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a server.

    Attributes:
        models: Folder of each model, by name.
        ports: Of 127.0.0.1: one for each process of a server that does not share one.
        workers: Processes that run models.
        threads: Threads of a session.
        batches: Whether requests of different clients may share a run.
        rows: Rows of one run at most. The rows of a request or batch are sorted by length first; with 1, nothing is
            padded.
    """

    models: Mapping[str, str]
    ports: tuple[int, ...]
    workers: int
    threads: int
    batches: bool
    rows: int

    @classmethod
    def from_text(cls, text: str) -> Settings:
        """From JSON."""
        values = json.loads(text)
        return cls(**{**values, "ports": tuple(values["ports"])})

    @classmethod
    def from_command_line(cls) -> Settings:
        """From the only argument."""
        return cls.from_text(sys.argv[1])

    def work(self) -> dict[str, Work]:
        """Every model, loaded."""
        return {name: make_work(folder, self.threads, self.rows) for name, folder in self.models.items()}


class Work:
    """One model. Requests become rows, rows become outputs, outputs become an answer.

    Args:
        folder: Of the model.
        threads: Of the session.
        rows: Of one run at most.
    """

    def __init__(self, folder: Path, threads: int, rows: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        file = str(folder / "1" / "model.onnx")
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._rows = rows

    def prepare(self, body: bytes) -> list[Row]:
        """The rows of a request, each without the axis of rows."""
        raise NotImplementedError

    def answer(self, outputs: Sequence[Row]) -> bytes:
        """The answer to a request, JSON."""
        raise NotImplementedError

    def feed(self, rows: Sequence[Row]) -> dict[str, Row]:
        """The model's inputs: the rows, padded with zeros to the longest."""
        longest = max(row.shape[-1] for row in rows)
        batch = np.zeros((len(rows), *rows[0].shape[:-1], longest), rows[0].dtype)
        for number, row in enumerate(rows):
            batch[number, ..., : row.shape[-1]] = row
        return {self._inputs[0]: batch}

    def run(self, rows: Sequence[Row]) -> list[Row]:
        """The output of each row, in the order of the rows."""
        order = sorted(range(len(rows)), key=lambda number: rows[number].shape[-1])
        found: list[Row] = [rows[0]] * len(rows)
        for at in range(0, len(order), self._rows):
            chosen = order[at : at + self._rows]
            outputs = self._session.run(None, self.feed([rows[number] for number in chosen]))[0]
            for number, output in zip(chosen, outputs, strict=True):
                found[number] = output
        return found

    def run_all(self, requests: Sequence[list[Row]]) -> list[list[Row]]:
        """The outputs of several requests, which share runs."""
        outputs = iter(self.run([row for request in requests for row in request]))
        return [[next(outputs) for _ in request] for request in requests]


class Texts(Work):
    """Sentence embeddings: ``{"inputs": text or texts}`` to a list of vectors of length 1."""

    def __init__(self, folder: Path, threads: int, rows: int) -> None:
        super().__init__(folder, threads, rows)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_read(folder, "sentence_bert_config.json")["max_seq_length"])

    def prepare(self, body: bytes) -> list[Row]:
        """Token ids of every text."""
        return self.tokens(orjson.loads(body)["inputs"])

    def tokens(self, texts: str | list[str]) -> list[Row]:
        """Token ids of every text."""
        if isinstance(texts, str):
            return [np.array(self._tokenizer.encode(texts).ids)]
        return [np.array(each.ids) for each in self._tokenizer.encode_batch_fast(texts)]

    def feed(self, rows: Sequence[Row]) -> dict[str, Row]:
        """Token ids and the mask; no token has the id 0 but padding."""
        ids = super().feed(rows)
        return {**ids, "attention_mask": (ids[self._inputs[0]] != 0).astype(np.int64)}

    def answer(self, outputs: Sequence[Row]) -> bytes:
        """Vectors."""
        vectors = np.stack(outputs)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY)


class Labelled(Work):
    """Media to the five best labels with their scores."""

    def __init__(self, folder: Path, threads: int, rows: int) -> None:
        super().__init__(folder, threads, rows)
        self._config = _read(folder, "preprocessor_config.json")
        self._labels: dict[str, str] = _read(folder, "config.json").get("id2label", {})

    def answer(self, outputs: Sequence[Row]) -> bytes:
        """``[{"label": ..., "score": ...}, ...]``, the best first."""
        logits = outputs[0].astype(np.float64)
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        best = np.argsort(-scores, kind="stable")[:_BEST].tolist()
        labels = (self._labels.get(str(each), f"LABEL_{each}") for each in best)
        return orjson.dumps(
            [{"label": label, "score": float(scores[each])} for label, each in zip(labels, best, strict=True)]
        )


class Images(Labelled):
    """Images: resized, cut, scaled and normalized."""

    def __init__(self, folder: Path, threads: int, rows: int) -> None:
        super().__init__(folder, threads, rows)
        config = self._config
        self._mode = "L" if len(config["image_mean"]) == 1 else "RGB"
        std, mean = np.array(config["image_std"]), np.array(config["image_mean"])
        self._factors = (config["rescale_factor"] / std).astype(np.float32)[:, None, None]
        self._offsets = (mean / std).astype(np.float32)[:, None, None]

    def prepare(self, body: bytes) -> list[Row]:
        """Pixels, (channels, height, width)."""
        image: Image.Image = Image.open(io.BytesIO(body))
        image = image if image.mode == self._mode else image.convert(self._mode)
        config, (width, height) = self._config, image.size
        edge, kind = config["size"].get("shortest_edge"), Image.Resampling(config["resample"])
        if edge is None:
            image = image.resize((config["size"]["width"], config["size"]["height"]), kind)
        else:
            size = (config["crop_size"]["width"], config["crop_size"]["height"])
            wide, high = edge * width // min(width, height), edge * height // min(width, height)
            left, above = (wide - size[0]) // 2, (high - size[1]) // 2
            image = image.resize((wide, high), kind).crop((left, above, left + size[0], above + size[1]))
        pixels = np.asarray(image)
        planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        return [planes * self._factors - self._offsets]


class Sounds(Labelled):
    """Sounds: mixed to one channel and resampled."""

    def prepare(self, body: bytes) -> list[Row]:
        """Samples."""
        samples, rate = soundfile.read(io.BytesIO(body), dtype="float32", always_2d=True)
        mono = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)
        wanted = self._config["sampling_rate"]
        return [mono if rate == wanted else soxr.resample(mono, rate, wanted).astype(np.float32)]


def make_work(path: str, threads: int, rows: int) -> Work:
    """The work of the model in a folder, as the files beside it say."""
    folder = Path(path)
    if (folder / "tokenizer.json").exists():
        return Texts(folder, threads, rows)
    sounds = "sampling_rate" in _read(folder, "preprocessor_config.json")
    return (Sounds if sounds else Images)(folder, threads, rows)


def _read(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found
