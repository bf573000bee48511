"""Every processor keeps what processors promise, and the checks find one that does not."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from serve_app.config.processor import PROCESSOR_OPTIONS
from serve_app.errors import InferenceFailed
from serve_app.payloads import Tensors
from serve_app.processors import (
    Cost,
    Embeddings,
    InvalidRequest,
    Media,
    ModelSignature,
    Processor,
    TensorSpec,
    Texts,
    bucket_of,
    expect_media,
    expect_texts,
    widen,
)
from serve_app.testing.processors import CHECKS, Check, NotConforming, Subject, name_of

LOGITS = TensorSpec("logits", "FP32", (-1, 3))


def pictures(kind: str, width: int = 40, height: int = 30) -> Media:
    """A picture of that format."""
    file = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(file, kind)
    return Media(file.getvalue(), f"image/{kind.lower()}", {"top_k": 2})


def sounds(kind: str, seconds: float) -> Media:
    """A sound of that format."""
    file = io.BytesIO()
    soundfile.write(file, 0.5 * np.sin(np.arange(round(seconds * 8000)) / 5), 8000, format=kind)
    return Media(file.getvalue(), f"audio/{kind.lower()}", {})


def texts_of(task: str, outputs: tuple[TensorSpec, ...], folder: Path, **parameters: Any) -> Subject:
    """A text model's processor."""
    inputs = tuple(TensorSpec(name, "INT64", (-1, -1)) for name in ("input_ids", "attention_mask"))
    samples = [Texts(["hello"], parameters), Texts(["hello world", "this text is about playing " * 5], parameters)]
    return Subject(task, ModelSignature(inputs, outputs), samples, {"max_length": 64}, folder)


TOKENS = TensorSpec("last_hidden_state", "FP32", (-1, -1, 5))
SUBJECTS: Mapping[str, Mapping[str, Callable[[Path], Subject]]] = {
    "image-classification": {
        "sized": lambda folder: Subject(
            "image-classification",
            ModelSignature((TensorSpec("x", "FP32", (-1, 3, 16, 16)),), (LOGITS,)),
            [pictures("PNG"), pictures("JPEG", 200, 100)],
        ),
        "any size": lambda folder: Subject(
            "image-classification",
            ModelSignature((TensorSpec("x", "UINT8", (-1, -1, -1, 1)),), (LOGITS,)),
            [pictures("GIF")],
            {"size": [12, 8], "resize": "crop"},
        ),
    },
    "audio-classification": {
        "plain": lambda folder: Subject(
            "audio-classification",
            ModelSignature((TensorSpec("x", "FP32", (-1, -1)),), (LOGITS,)),
            [sounds("WAV", 0.2), sounds("FLAC", 0.7)],
            {"sampling_rate": 8000, "max_seconds": 2.0},
        ),
        "with lengths": lambda folder: Subject(
            "audio-classification",
            ModelSignature((TensorSpec("x", "FP32", (-1, -1)), TensorSpec("n", "INT64", (-1,))), (LOGITS,)),
            [sounds("OGG", 0.6)],
            {"sampling_rate": 16000, "max_seconds": 2.0, "normalize": True},
        ),
    },
    "feature-extraction": {
        "pooled here": lambda folder: texts_of("feature-extraction", (TOKENS,), folder),
        "similarities": lambda folder: texts_of("feature-extraction", (TOKENS,), folder, source_sentence="hello"),
    },
    "text-classification": {"plain": lambda folder: texts_of("text-classification", (LOGITS,), folder, top_k=2)},
    "zero-shot-classification": {
        "plain": lambda folder: texts_of("zero-shot-classification", (TOKENS,), folder, candidate_labels=["a", "b"])
    },
}
"""By task, models to check the server's own processor with."""


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize(("task", "model"), [(task, model) for task in PROCESSOR_OPTIONS for model in SUBJECTS[task]])
def test_a_processor_of_the_server(task: str, model: str, check: Check, text_folder: Path) -> None:
    """All that there are."""
    check(SUBJECTS[task][model](text_folder))


# --- Processors that break one promise each ---------------------------------------------------------------------------


class Letters(Processor):
    """Letters of texts as numbers, with a mask; the answer is the mean of what the model says of them."""

    buckets: tuple[int, ...] = (4, 8, 16)

    def __init__(self, signature: ModelSignature, folder: Any) -> None:
        self.specs = signature.inputs

    def estimate(self, payload: Media | Texts) -> Cost:
        texts = expect_texts(payload).texts
        if not texts:
            raise InvalidRequest("inputs: no text")
        longest = max(map(len, texts))
        return Cost(len(texts), next((size for size in self.buckets if size >= longest), self.buckets[-1]))

    def preprocess(self, payload: Media | Texts) -> Tensors:
        if unknown := payload.parameters.keys() - {"scale"}:
            raise InvalidRequest(f"parameters: unknown {min(unknown)}")
        texts = [str(text)[: self.buckets[-1]] for text in expect_texts(payload).texts]
        ids = np.zeros((len(texts), max(1, *map(len, texts))), np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = [ord(letter) for letter in text]
            mask[row, : len(text)] = 1
        return {"ids": ids, "mask": mask}

    def bucket(self, tensors: Tensors) -> int:
        return bucket_of(tensors, ("ids", "mask"), self.buckets, "letters")

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        return {name: widen(array, bucket, 0) for name, array in tensors.items()}

    def example(self, rows: int, bucket: int) -> Tensors:
        return {name: np.ones((rows, bucket), np.int64) for name in ("ids", "mask")}

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        mask = inputs["mask"]
        scores = np.where(mask, outputs["y"][:, : mask.shape[1]], 0).sum(axis=1) / np.maximum(1, mask.sum(axis=1))
        if not np.isfinite(scores).all():
            raise InferenceFailed("y is not finite")
        return [{"score": score} for score in scores]


class Bytes(Processor):
    """Files of a length, that many bytes, and nothing behind: their mean goes in."""

    def __init__(self, signature: ModelSignature, folder: Any) -> None: ...

    def preprocess(self, payload: Media | Texts) -> Tensors:
        content = expect_media(payload, "image").content
        if content[:1] != b"P" or len(content) < 3 or len(content) != 2 + content[1]:
            raise InvalidRequest("no picture")
        return {"x": np.array([[np.frombuffer(content[2:], np.uint8).mean()]], np.float32)}

    def example(self, rows: int, bucket: int) -> Tensors:
        return {"x": np.ones((rows, 1), np.float32)}

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        return {"large": bool(outputs["y"][0, 0] > 0.5)}


MASKED = ModelSignature(
    tuple(TensorSpec(name, "INT64", (-1, -1)) for name in ("ids", "mask")), (TensorSpec("y", "FP32", (-1, -1)),)
)
ONE = ModelSignature((TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),))
LETTERS = Subject(Letters, MASKED, [Texts(["abc"], {"scale": 1}), Texts(["hello", "hi"], {})])
BYTES = Subject(
    Bytes,
    ONE,
    [Media(b"P\x03abc", "image/p", {}), Media(b"P\x01z", "image/p", {})],
    refused=[Media(b"P\x04abc", "image/p", {})],
)


class AnyOption(Letters):
    """Takes what it does not know."""

    def __init__(self, signature: ModelSignature, folder: Any, **options: Any) -> None:
        super().__init__(signature, folder)


class Unordered(Letters):
    """Buckets in no order."""

    buckets = (8, 4)


class OtherType(Letters):
    """Halves of the numbers."""

    def preprocess(self, payload: Media | Texts) -> Tensors:
        return {name: array.astype(np.int32) for name, array in super().preprocess(payload).items()}


class OneRow(Letters):
    """One row for all texts, says the estimate."""

    def estimate(self, payload: Media | Texts) -> Cost:
        return Cost(1, 4)


class NoBucket(Letters):
    """A bucket that there is not."""

    def estimate(self, payload: Media | Texts) -> Cost:
        return Cost(super().estimate(payload).rows, 5)


class Counts(Letters):
    """Other tensors each time."""

    calls = 0

    def preprocess(self, payload: Media | Texts) -> Tensors:
        self.calls += 1
        tensors = super().preprocess(payload)
        return {**tensors, "ids": tensors["ids"] + self.calls}


class OneBuffer(Bytes):
    """Every request in the same memory."""

    def preprocess(self, payload: Media | Texts) -> Tensors:
        made = super().preprocess(payload)["x"]
        held = self.__dict__.setdefault("held", made)
        held[:] = made
        return {"x": held}


class TakesParameters(Letters):
    """Takes parameters out of the request."""

    def estimate(self, payload: Media | Texts) -> Cost:
        payload.parameters.pop("scale", None)
        return super().estimate(payload)


class WritesToOutputs(Letters):
    """Scales where the outputs are."""

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        outputs["y"] *= 2
        return super().postprocess(payload, outputs, inputs)


class TakesAnything(Bytes):
    """Any bytes are a picture."""

    def preprocess(self, payload: Media | Texts) -> Tensors:
        return {"x": np.array([[len(payload[0])]], np.float32)}


class RaisesIndexError(Bytes):
    """Does not look before it reads."""

    def preprocess(self, payload: Media | Texts) -> Tensors:
        content = expect_media(payload, "image").content
        if content[0] != ord("P") or content[1 + content[1]] != content[-1]:
            raise InvalidRequest("no picture")
        return super().preprocess(payload)


class StaysBroken(Bytes):
    """Another result once a request was refused."""

    def preprocess(self, payload: Media | Texts) -> Tensors:
        try:
            tensors = super().preprocess(payload)
        except InvalidRequest:
            self.refused = True
            raise
        return {"x": tensors["x"] + np.float32(hasattr(self, "refused"))}


class AnySize(Letters):
    """Prices what is too large like the largest."""

    def bucket(self, tensors: Tensors) -> int:
        return bucket_of({"ids": tensors["ids"][:, :16]}, ("ids",), self.buckets, "letters")


class PadsNothing(Letters):
    """Leaves tensors as they are."""

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        return tensors


class PadsOver(Letters):
    """Zeros everywhere."""

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        return {name: np.zeros((len(array), bucket), array.dtype) for name, array in tensors.items()}


class OneExample(Letters):
    """One row, whatever it is asked for."""

    def example(self, rows: int, bucket: int) -> Tensors:
        return super().example(1, bucket)


class AnswersObjects(Letters):
    """An object that nobody can write."""

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        return {"score": object()}


class AnswersHalves(Letters):
    """Vectors that are no vectors."""

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        return Embeddings(np.ones(3, np.float16), 1)


class MeansOfAll(Letters):
    """Takes what stands behind for its own."""

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        return outputs["y"].mean(axis=1)


class AnswersNan(Letters):
    """Whatever the model says."""

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        return outputs["y"].max(axis=1)


class Bound(Letters):
    """Works in the thread that made it."""

    def __init__(self, signature: ModelSignature, folder: Any) -> None:
        super().__init__(signature, folder)
        self.thread = threading.get_ident()

    def preprocess(self, payload: Media | Texts) -> Tensors:
        if threading.get_ident() != self.thread:
            raise RuntimeError("made in another thread")
        return super().preprocess(payload)


_HELD: list[np.ndarray[Any, Any]] = []


class Leaks(Letters):
    """Holds what it made."""

    def preprocess(self, payload: Media | Texts) -> Tensors:
        _HELD.append(np.ones(2**17, np.float64))
        return super().preprocess(payload)


BROKEN: list[tuple[type[Any], str, str]] = [
    (Unordered, "it_is_made_and_described", "buckets must be whole numbers from 0 on, ascending, got (8, 4)"),
    (AnyOption, "its_options_are_checked", "an option that there is not is taken"),
    (OtherType, "samples_become_tensors", "input 'ids' is of dtype int32; INT64 is int64"),
    (OneRow, "the_cost_is_as_estimated", "sample 1: 1 rows estimated, 2 made"),
    (NoBucket, "the_cost_is_as_estimated", "NoBucket.estimate gives 1 rows of bucket 5"),
    (Counts, "a_sample_has_one_result", "sample 1 has other tensors when it comes again: 'ids' differs"),
    (OneBuffer, "a_sample_has_one_result", "the tensors of sample 1 changed when others were made: 'x' differs"),
    (TakesParameters, "what_it_is_given_stays_as_it_was", "sample 0 was changed"),
    (WritesToOutputs, "what_it_is_given_stays_as_it_was", "ValueError: output array is read-only"),
    (TakesAnything, "what_is_no_sample_is_refused", "refused request 0 is not refused"),
    (RaisesIndexError, "what_is_no_sample_is_refused", "IndexError: index out of range"),
    (StaysBroken, "what_is_no_sample_is_refused", "after requests that were refused, a sample has other tensors"),
    (AnySize, "larger_tensors_are_refused", "get bucket 16, though those of samples are at most half as large"),
    (PadsNothing, "padding_keeps_what_was_there", "shape [1, 3], which joins none of its bucket"),
    (PadsOver, "padding_keeps_what_was_there", "sample 0, padded to 4, has not what it had in 'ids'"),
    (OneExample, "examples_are_like_samples", "the example of 3 rows and bucket 8 has 1 rows"),
    (AnswersObjects, "answers_can_be_written", "object has no form in JSON"),
    (AnswersHalves, "answers_can_be_written", "vectors are float16 (3,)"),
    (MeansOfAll, "an_answer_is_of_its_request_alone", "sample 1 in bucket 16 has another answer than alone"),
    (AnswersNan, "outputs_that_are_no_numbers_are_no_answer", "the answer to sample 0, where the model gives NaN, is"),
    (Bound, "several_threads_may_call_it", "RuntimeError: made in another thread"),
    (Leaks, "it_holds_no_memory", "after 80 more requests the process holds "),
]


def _check(name: str) -> Check:
    (found,) = (each for each in CHECKS if name_of(each) == name)
    return found


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("subject", [LETTERS, BYTES], ids=["letters", "bytes"])
def test_what_is_broken_below_is_whole_here(subject: Subject, check: Check) -> None:
    """With options, files and outputs left to the checks."""
    check(subject)


@pytest.mark.parametrize(("broken", "check", "fault"), BROKEN, ids=[broken.__name__ for broken, _, _ in BROKEN])
def test_a_broken_promise_is_found(broken: type[Any], check: str, fault: str) -> None:
    """By the check that is about it, which says what is wrong."""
    whole = replace(LETTERS if issubclass(broken, Letters) else BYTES, processor=broken)
    try:
        with pytest.raises(NotConforming) as caught:
            _check(check)(whole)
    finally:
        _HELD.clear()
    assert fault in str(caught.value)


def test_every_check_has_been_seen_to_fail() -> None:
    """A check that nothing fails says nothing."""
    assert {check for _, check, _ in BROKEN} == {name_of(check) for check in CHECKS}


def test_the_model_itself_may_answer(text_folder: Path) -> None:
    """Then padding is checked with what it makes of it."""
    (text_folder / "config.json").write_text(json.dumps({}))

    def model(tensors: Tensors) -> Tensors:
        asked.append(tensors["ids"].shape)
        return {"y": tensors["ids"].astype(np.float32)}

    asked: list[tuple[int, ...]] = []
    _check("an_answer_is_of_its_request_alone")(replace(LETTERS, outputs=model))
    assert set(asked) == {(1, 4), (1, 8), (2, 8), (2, 16)}
