"""What decoding JPEG pictures smaller than they are saves, and what it changes in answers: `processor.reducing_gap`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image

from benchmarks.preprocessing_cases import ROOT, encoded, image_processor, photograph
from serve_app.payloads import Media, ModelSignature, TensorSpec
from serve_app.processors import create_processor
from serve_app.processors.processor import Processor

_GAPS = (0, 1, 1.5, 2, 3, 4)
_SIZES = range(32, 257, 16)
_PAPERS = (150, 1200)
"""Least and most pixels per edge of the pictures of digits."""
_REPEATS = 9
_DIGITS = ROOT / "tests" / "data" / "digits" / "held_out.npz"


@dataclass(frozen=True, slots=True)
class Gap:
    """One setting, beside decoding every pixel.

    Attributes:
        gap: `processor.reducing_gap`.
        large_ms: CPU time for a photograph of 12 megapixels, to 224 x 224.
        medium_ms: For one of 1,600 x 1,200.
        mean_levels: Mean difference of a pixel over photographs made smaller to many sizes, levels of 255.
        most_levels: The largest.
        mean_score: Mean over pictures of digits of the largest difference of a score.
        most_score: The largest.
        other_answers: Pictures of digits with another answer, part of all.
        correct: Pictures of digits whose answer is right, part of all.
    """

    gap: float
    large_ms: float
    medium_ms: float
    mean_levels: float
    most_levels: float
    mean_score: float
    most_score: float
    other_answers: float
    correct: float


def measure_gaps() -> list[Gap]:
    """Measure every setting."""
    pictures, labels = _digits()
    session = onnxruntime.InferenceSession(
        ROOT / "models" / "digits" / "1" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    exact_scores = _scores(session, pictures, 0)
    exact_pixels = _pixels(0)
    large, medium = (encoded(photograph(*size), "JPEG") for size in ((4000, 3000), (1600, 1200)))
    gaps = []
    for gap in _GAPS:
        processor = image_processor(3, 224, {"reducing_gap": gap})
        differences = [np.abs(some - exact) for some, exact in zip(_pixels(gap), exact_pixels, strict=True)]
        scores = _scores(session, pictures, gap)
        changes = np.abs(scores - exact_scores).max(axis=1)
        gaps.append(
            Gap(
                gap=gap,
                large_ms=_milliseconds(processor, large),
                medium_ms=_milliseconds(processor, medium),
                mean_levels=float(np.mean([each.mean() for each in differences])),
                most_levels=float(max(each.max() for each in differences)),
                mean_score=float(changes.mean()),
                most_score=float(changes.max()),
                other_answers=float((scores.argmax(axis=1) != exact_scores.argmax(axis=1)).mean()),
                correct=float((scores.argmax(axis=1) == labels).mean()),
            )
        )
    return gaps


def _milliseconds(processor: Processor, payload: Media) -> float:
    least = float("inf")
    for _ in range(_REPEATS):
        begin = thread_time()
        processor.preprocess(payload)
        least = min(least, thread_time() - begin)
    return 1000 * least


def _pixels(gap: float) -> list[npt.NDArray[np.float32]]:
    """The photograph, and one whose edges are no multiples of anything, made smaller to many sizes; 0 to 255."""
    photographs = [encoded(photograph(width, height), "JPEG") for width, height in ((512, 600), (509, 599))]
    return [
        255 * image_processor(3, size, {"reducing_gap": gap}).preprocess(payload)["x"]
        for payload in photographs
        for size in _SIZES
    ]


def _digits() -> tuple[list[Media], npt.NDArray[np.int64]]:
    """Held-out digits as JPEG pictures of many sizes, and what they show."""
    random = np.random.default_rng(1)
    pictures = []
    with np.load(_DIGITS) as archive:
        inks, labels = archive["ink"], archive["labels"]
    for ink in inks:
        size = int(random.integers(*_PAPERS))
        paper = Image.fromarray((ink * (255 / inks.max())).astype(np.uint8)).resize((size, size))
        grain = random.normal(0.0, 6.0, (size, size))
        pixels = np.clip(np.asarray(paper) + grain, 0, 255).astype(np.uint8)
        pictures.append(encoded(Image.fromarray(pixels).convert("RGB"), "JPEG"))
    return pictures, labels


def _scores(session: Any, pictures: list[Media], gap: float) -> npt.NDArray[np.float64]:
    """Probabilities, (pictures, 10)."""
    signature = ModelSignature((TensorSpec("image", "FP32", (-1, 1, 28, 28)),), (TensorSpec("x", "FP32", (-1, 10)),))
    folder = Path(ROOT, "models", "digits")
    processor = create_processor("image-classification", signature, folder, {"reducing_gap": gap})
    rows = np.concatenate([processor.preprocess(picture)["image"] for picture in pictures])
    logits = session.run(["logits"], {"image": rows})[0].astype(np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
