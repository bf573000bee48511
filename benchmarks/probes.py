"""A request for each of the demo's models as a user would send it, whose answer is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.failure import BenchmarkError

_LEAST_COSINE = 0.9999


@dataclass(frozen=True, slots=True)
class Probe:
    """One request.

    Attributes:
        model: Who is asked.
        content_type: Media type of the body.
        body: The request's body.
        is_right: Whether the answer, decoded from JSON, is the known one.
    """

    model: str
    content_type: str
    body: bytes
    is_right: Callable[[Any], bool]

    @property
    def path(self) -> str:
        """Where it is posted."""
        return f"/v1/models/{self.model}/predict"


def probes_for(models: list[str], data: Path) -> list[Probe]:
    """Probes of models of the demo.

    Args:
        models: Their names.
        data: Folder of the committed media, in which a file's name starts with its label.

    Raises:
        BenchmarkError: For a model without a known answer.
    """
    makers: Mapping[str, Callable[[Path], Probe]] = {
        "digits": _picture,
        "spoken-digits": _clip,
        "minilm": _sentence,
    }
    unknown = [model for model in models if model not in makers]
    if unknown:
        raise BenchmarkError(f"no right answer is known of {', '.join(unknown)}; only of {', '.join(makers)}")
    return [makers[model](data) for model in models]


def _picture(data: Path) -> Probe:
    file = min((data / "digits").glob("*.png"))
    return Probe("digits", "image/png", file.read_bytes(), partial(_top_is, file.name.partition("_")[0]))


def _clip(data: Path) -> Probe:
    file = min((data / "speech").glob("*.wav"))
    return Probe("spoken-digits", "audio/wav", file.read_bytes(), partial(_top_is, file.name.partition("_")[0]))


def _sentence(data: Path) -> Probe:
    sentence = json.loads((data / "minilm" / "sentences.json").read_text(encoding="utf-8"))[0]["text"]
    vector = np.load(data / "minilm" / "reference.npy")[0]
    body = json.dumps({"inputs": sentence}).encode()
    return Probe("minilm", "application/json", body, partial(_points_along, vector))


def _top_is(label: str, answer: Any) -> bool:
    return bool(answer[0]["label"] == label)


def _points_along(vector: npt.NDArray[np.float32], answer: Any) -> bool:
    return bool(np.ravel(answer) @ vector >= _LEAST_COSINE)
