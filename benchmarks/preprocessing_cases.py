"""What `benchmarks.preprocessing` measures, in a process of its own: prints JSON, one line per case.

Imports no other file of the benchmarks: with PYTHONPATH it also measures the processors of another checkout.
"""

from __future__ import annotations

import gc
import io
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import soundfile
from PIL import Image

from serve_app.payloads import Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors import create_processor
from serve_app.processors.processor import Processor

ROOT = Path(__file__).resolve().parents[1]
THREADS = 2
_REPEATS = 9
_LONG_REPEATS = 3
_LONG_S = 0.05
_WORDS = (
    *("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seventeen", "engineers"),
    *("measure", "how", "tokenization", "scales"),
)
_TOKENS_PER_WORD = 1.2
_RATES = (8_000, 16_000, 44_100)
_SOUNDS = (("wav", "WAV", "PCM_16"), ("flac", "FLAC", "PCM_16"), ("ogg", "OGG", "VORBIS"))
_PICTURES = (
    ("JPEG", 224, 224), ("JPEG", 640, 480), ("JPEG", 1600, 1200), ("JPEG", 4000, 3000), ("PNG", 224, 224),
    ("PNG", 640, 480), ("PNG", 4000, 3000),
)  # fmt: skip


class Case(NamedTuple):
    """What is measured.

    Attributes:
        modality: image, text or audio.
        title: What the report calls it.
        items: Pictures, texts or sounds in the payload.
        processor: Makes tensors.
        payload: What a client sent.
    """

    modality: str
    title: str
    items: int
    processor: Processor
    payload: Media | Texts


def photograph(width: int, height: int) -> Image.Image:
    """A real photograph, cut to these proportions and scaled; enlarged, with the grain that enlarging smooths away."""
    image = Image.open(Path(mpl.get_data_path(), "sample_data", "grace_hopper.jpg")).convert("RGB")
    scale = min(image.width / width, image.height / height)
    box = (0, 0, int(width * scale), int(height * scale))
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC, box), np.float32)
    grain = np.random.default_rng(1).normal(0.0, 4.0 if scale < 1 else 0.0, (height, width, 1)).astype(np.float32)
    return Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str) -> Media:
    """As a client sends it."""
    file = io.BytesIO()
    image.save(file, kind, quality=90)
    return Media(file.getvalue(), f"image/{kind.lower()}", {})


def image_processor(channels: int, size: int, options: dict[str, Any]) -> Processor:
    """The processor of a model that takes such pictures."""
    signature = ModelSignature(
        (TensorSpec("x", "FP32", (-1, channels, size, size)),), (TensorSpec("logits", "FP32", (-1, 10)),)
    )
    return create_processor("image-classification", signature, ROOT / "no files", options)


def _images() -> Iterator[Case]:
    colour = image_processor(
        3, 224, {"resize": "crop", "edge": 256, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    )
    for kind, width, height in _PICTURES:
        payload = encoded(photograph(width, height), kind)
        yield Case("image", f"{kind} {width} x {height} to 224 x 224, colour", 1, colour, payload)
    grey = image_processor(1, 28, {})
    for width, height in ((640, 480), (4000, 3000)):
        payload = encoded(photograph(width, height), "JPEG")
        yield Case("image", f"JPEG {width} x {height} to 28 x 28, grey", 1, grey, payload)


def _texts() -> Iterator[Case]:
    names = ("input_ids", "attention_mask", "token_type_ids")
    signature = ModelSignature(
        tuple(TensorSpec(name, "INT64", (-1, -1)) for name in names), (TensorSpec("embeddings", "FP32", (-1, 384)),)
    )
    processor = create_processor("feature-extraction", signature, ROOT / "models" / "minilm", {"pooling": "none"})
    random = np.random.default_rng(1)
    for tokens in (16, 64, 256):
        for count in (1, 8, 32):
            words = int((tokens - 2) / _TOKENS_PER_WORD)
            texts = [" ".join(random.choice(_WORDS, words - number % 3)) for number in range(count)]
            yield Case("text", f"{count} x {tokens} tokens", count, processor, Texts(texts, {}))


def _sounds() -> Iterator[Case]:
    signature = ModelSignature((TensorSpec("waveform", "FP32", (-1, -1)),), (TensorSpec("logits", "FP32", (-1, 10)),))
    processor = create_processor("audio-classification", signature, ROOT / "no files", {"sampling_rate": 16_000})
    for seconds in (1, 10):
        for kind, container, subtype in _SOUNDS:
            for rate in _RATES:
                payload = _sound(_noise(seconds, rate, 1), rate, kind, container, subtype)
                yield Case("audio", f"{kind} {seconds} s, {rate / 1000:g} kHz", 1, processor, payload)
        payload = _sound(_noise(seconds, 44_100, 2), 44_100, "wav", "WAV", "PCM_16")
        yield Case("audio", f"wav {seconds} s, 44.1 kHz, stereo", 1, processor, payload)


def _noise(seconds: int, rate: int, channels: int) -> npt.NDArray[np.float32]:
    """Brown noise, (samples, channels): about as hard to compress as speech."""
    steps = np.random.default_rng(1).standard_normal((seconds * rate, channels))
    values = np.cumsum(steps - steps.mean(axis=0), axis=0)
    return np.asarray(0.9 * values / np.abs(values).max(), np.float32)


def _sound(samples: npt.NDArray[np.float32], rate: int, kind: str, container: str, subtype: str) -> Media:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=container, subtype=subtype)
    return Media(file.getvalue(), f"audio/{kind}", {})


def cases() -> Iterator[Case]:
    """Every case, made when it is asked for."""
    yield from _images()
    yield from _texts()
    yield from _sounds()


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """Measure one case.

    Args:
        case: What is measured.
        seconds: Of every repetition.

    Returns:
        ``us``: microseconds of the processor per item in one thread, the least of the repetitions, since everything
        else that runs on a machine only adds to it; ``pad_us``: of these, what the session's thread does;
        ``per_second``: items per second by number of threads, the most of the repetitions.
    """
    tensors = case.processor.preprocess(case.payload)
    one = _cpu(lambda: case.processor.preprocess(case.payload), 1)
    runs = max(1, int(seconds / one))
    bucket = case.processor.bucket(tensors)

    def pad() -> Tensors:
        return case.processor.pad(tensors, bucket)

    def work() -> None:
        for _ in range(runs):
            case.processor.pad(case.processor.preprocess(case.payload), bucket)

    spent, padding = float("inf"), float("inf")
    fastest = dict.fromkeys((1, THREADS), float("inf"))
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(_LONG_REPEATS if runs == 1 and one > _LONG_S else _REPEATS):
            padding = min(padding, _cpu(pad, 20))
            spent = min(spent, _cpu(work, 1) / runs)
            for threads in fastest:
                begin = perf_counter()
                for future in [pool.submit(work) for _ in range(threads)]:
                    future.result()
                fastest[threads] = min(fastest[threads], (perf_counter() - begin) / threads / runs)
    return {
        "modality": case.modality,
        "title": case.title,
        "us": 1e6 * spent / case.items,
        "pad_us": 1e6 * padding / case.items,
        "per_second": {threads: case.items / best for threads, best in fastest.items()},
    }


def _cpu(work: Callable[[], object], times: int) -> float:
    begin = thread_time()
    for _ in range(times):
        work()
    return (thread_time() - begin) / times


if __name__ == "__main__":
    gc.disable()
    for each in cases():
        if len(sys.argv) < 3 or sys.argv[2] in f"{each.modality} {each.title}":
            print(json.dumps(measure(each, float(sys.argv[1]))), flush=True)
