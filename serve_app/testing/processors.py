"""The contract of processors, as checks of one with a model for it.

With pytest:

    SUBJECT = Subject(Thumbnail, SIGNATURE, [Media(Path("cat.jpg").read_bytes(), "image/jpeg", {})])

    @pytest.mark.parametrize("check", CHECKS, ids=name_of)
    def test_my_processor(check):
        check(SUBJECT)
"""

from __future__ import annotations

import gc
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from serve_app.backends.memory import give_memory_back
from serve_app.backends.profiler import resident_bytes
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.payloads import DTYPES, Embeddings, Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors.custom import misfit, plain_answer
from serve_app.processors.processor import Processor
from serve_app.processors.registry import create_processor
from serve_app.testing.checks import NotConforming, listed_in, name_of, require

__all__ = ["CHECKS", "Check", "NotConforming", "Subject", "name_of"]

_TASK: Final = "conformance"
_ROWS: Final = (1, 3)
_CYCLES: Final = 4
_CALLS: Final = 10
_THREADS: Final = 4
_SLACK_BYTES: Final = 16 * 2**20
"""Allowed growth of a process without a leak: allocators keep some freed memory."""
_HUGE_BYTES: Final = 64 * 2**20
_HUGE_CHARACTERS: Final = 1_000_000
_DAMAGES: Final = 20
_CLASSES: Final = 4

Payload: TypeAlias = Media | Texts


@dataclass(frozen=True)
class Subject:
    """A processor to check.

    Attributes:
        processor: Its class, or its task.
        signature: Of a model for it.
        samples: Valid requests, at least one; preferably several of different sizes.
        options: ``processor`` of a configuration.
        folder: The model's folder, with the processor's files; empty by default.
        refused: Further requests that must be refused.
        outputs: The model or a substitute: outputs of tensors. Made up by default.
        raw: Whether any bytes are a sample, e.g. audio samples without header.
    """

    processor: type[Any] | str
    signature: ModelSignature
    samples: Sequence[Payload]
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    refused: Sequence[Payload] = ()
    outputs: Callable[[Tensors], Tensors] | None = None
    raw: bool = False

    def create(self, **more: Any) -> Processor:
        """Make the processor like the server, with further options."""
        options = {**self.options, **more}
        if self.folder is not None:
            return self._create(self.folder, options)
        with tempfile.TemporaryDirectory() as folder:
            return self._create(Path(folder), options)

    def _create(self, folder: Path, options: Mapping[str, Any]) -> Processor:
        if isinstance(self.processor, str):
            return create_processor(self.processor, self.signature, folder, options)
        return create_processor(_TASK, self.signature, folder, options, self.processor)


Check: TypeAlias = Callable[[Subject], None]
"""Raises `NotConforming` where a processor breaks a promise, which the message names."""

_found: list[Check] = []


def _told(error: BaseException) -> str:
    """An error, including details hidden from clients."""
    shown = error.__cause__ if isinstance(error, InferenceFailed) and error.__cause__ is not None else error
    return f"{type(shown).__name__}: {shown}"


_check = listed_in(_found, _told)


@_check
def it_is_made_and_described(subject: Subject) -> None:
    """Labels are texts, buckets ascend, and that does not change."""
    require(bool(subject.samples), "the subject needs a sample")
    made, again = subject.create(), subject.create()
    for one in (made, again):
        require(all(isinstance(each, str) for each in one.labels), f"labels are {one.labels!r}, and not all texts")
        buckets = list(one.buckets)
        require(bool(buckets) and buckets == sorted(set(buckets)), f"buckets are {buckets}, and do not ascend")
        require(isinstance(one.bucket_invariant, bool), "bucket_invariant is no bool")
    same = (made.labels, made.buckets) == (again.labels, again.buckets)
    require(same, "made again, it has other labels or buckets")


@_check
def its_options_are_checked(subject: Subject) -> None:
    """An unknown one is a fault."""
    try:
        subject.create(no_such_option=1)
    except ConfigError as error:
        require("no_such_option" in str(error), f"the fault does not name the option: {error}")
        return
    raise NotConforming("an option that there is not is taken")


@_check
def samples_become_tensors(subject: Subject) -> None:
    """Every input of the model, of its type and shape."""
    processor = subject.create()
    for number, sample in enumerate(subject.samples):
        _fits(subject, processor.preprocess(sample), f"sample {number}")


@_check
def the_cost_is_as_estimated(subject: Subject) -> None:
    """As many rows as the tensors will have, and a bucket that there is: the router plans with both."""
    processor = subject.create()
    for number, sample in enumerate(subject.samples):
        cost, tensors = processor.estimate(sample), processor.preprocess(sample)
        require(cost.rows == _rows(tensors), f"sample {number}: {cost.rows} rows estimated, {_rows(tensors)} made")
        for bucket in (cost.bucket, processor.bucket(tensors)):
            require(bucket in processor.buckets, f"sample {number}: there is no bucket {bucket}")
        require(processor.estimate(sample) == cost, f"sample {number} has another cost when it is estimated again")


@_check
def a_sample_has_one_result(subject: Subject) -> None:
    """Whoever asks before and after, and of whichever replica."""
    processor, other = subject.create(), subject.create()
    first, kept = [], []
    for sample in subject.samples:
        first.append(processor.preprocess(sample))
        kept.append(deepcopy(first[-1]))
    for number, sample in reversed(list(enumerate(subject.samples))):
        _same(kept[number], processor.preprocess(sample), f"sample {number} has other tensors when it comes again")
        _same(kept[number], other.preprocess(sample), f"sample {number} has other tensors at another replica")
        answers = [_answer(subject, each, number) for each in (processor, processor, other)]
        require(all(_alike(answers[0], each) for each in answers), f"sample {number} has several answers")
    for number, tensors in enumerate(first):
        _same(kept[number], tensors, f"the tensors of sample {number} changed when others were made")


@_check
def what_it_is_given_stays_as_it_was(subject: Subject) -> None:
    """Requests, tensors and outputs, which may be read-only, and views of others' memory."""
    processor = subject.create()
    for number, sample in enumerate(subject.samples):
        given = deepcopy(sample)
        processor.estimate(given)
        tensors = _frozen(processor.preprocess(given))
        outputs = _frozen(_outputs_of(subject, processor, number, tensors, processor.bucket(tensors)))
        before = deepcopy((tensors, outputs))
        for bucket in _next_buckets(processor, tensors):
            processor.pad(tensors, bucket)
        processor.postprocess(given, outputs, tensors)
        require(given == sample, f"sample {number} was changed")
        _same(before[0], tensors, f"the tensors of sample {number} were changed")
        _same(before[1], outputs, f"the outputs for sample {number} were changed")


@_check
def what_is_no_sample_is_refused(subject: Subject) -> None:
    """With `InvalidRequest`; what is damaged may also become tensors that fit. Samples are answered as before."""
    processor = subject.create()
    before = [processor.preprocess(sample) for sample in subject.samples]
    for what, payload, strict in _bad_payloads(subject):
        try:
            processor.estimate(payload)
            tensors = processor.preprocess(payload)
        except InvalidRequest as error:
            require(bool(error.message), f"{what} is refused without a message")
            continue
        except Exception as error:
            raise NotConforming(f"{what} is answered with {_told(error)}, and not with InvalidRequest") from error
        require(not strict, f"{what} is not refused")
        _fits(subject, tensors, what)
    for sample, tensors in zip(subject.samples, before, strict=True):
        _same(tensors, processor.preprocess(sample), "after requests that were refused, a sample has other tensors")


@_check
def larger_tensors_are_refused(subject: Subject) -> None:
    """Of clients that prepare them: what is larger than any bucket costs more than the model was measured for."""
    specs = {spec.name: spec for spec in subject.signature.inputs}
    processor = subject.create()
    largest = processor.example(1, processor.buckets[-1])
    larger = dict(largest)
    for name, array in largest.items():
        for axis in range(1, array.ndim):
            if name in specs and specs[name].shape[axis] < 0:
                larger[name] = np.repeat(larger[name], 2, axis=axis)
    if all(larger[name].shape == array.shape for name, array in largest.items()):
        return
    try:
        bucket = processor.bucket(larger)
    except InvalidRequest:
        return
    shapes = {name: list(array.shape) for name, array in larger.items()}
    raise NotConforming(f"tensors of {shapes} get bucket {bucket}, though those of samples are at most half as large")


@_check
def padding_keeps_what_was_there(subject: Subject) -> None:
    """In a larger bucket the tensors are as those of every other request in it, and theirs are among them."""
    processor = subject.create()
    for number, sample in enumerate(subject.samples):
        tensors = processor.preprocess(sample)
        for bucket in _next_buckets(processor, tensors):
            padded, what = processor.pad(tensors, bucket), f"sample {number}, padded to {bucket},"
            _fits(subject, padded, what)
            require(processor.bucket(padded) == bucket, f"{what} is of bucket {processor.bucket(padded)}")
            require(_rows(padded) == _rows(tensors), f"{what} has {_rows(padded)} rows")
            example = processor.example(1, bucket)
            for name, array in padded.items():
                inside = name in tensors and _is_inside(tensors[name], array)
                require(inside, f"{what} has not what it had in {name!r}")
                joins = name in example and array.shape[1:] == example[name].shape[1:]
                require(joins, f"{what} has {name!r} of shape {list(array.shape)}, which joins none of its bucket")


@_check
def examples_are_like_samples(subject: Subject) -> None:
    """Of any number of rows and every bucket: a model is warmed up and measured with them."""
    processor = subject.create()
    for bucket in {processor.buckets[0], processor.buckets[len(processor.buckets) // 2], processor.buckets[-1]}:
        for rows in _ROWS:
            example, what = processor.example(rows, bucket), f"the example of {rows} rows and bucket {bucket}"
            _fits(subject, example, what)
            require(_rows(example) == rows, f"{what} has {_rows(example)} rows")
            require(processor.bucket(example) == bucket, f"{what} is of bucket {processor.bucket(example)}")


@_check
def answers_can_be_written(subject: Subject) -> None:
    """As JSON, or as vectors of an embedding; they cross from the replica's process to the router's."""
    processor = subject.create()
    for number in range(len(subject.samples)):
        answer = _answer(subject, processor, number)
        if isinstance(answer, Embeddings):
            vectors = answer.vectors
            require(vectors.ndim == 2 and vectors.dtype == np.float32, f"vectors are {vectors.dtype} {vectors.shape}")
        try:
            plain_answer(answer)
            pickle.dumps(answer)
        except Exception as error:
            raise NotConforming(f"the answer to sample {number} cannot be written: {error}") from error


@_check
def an_answer_is_of_its_request_alone(subject: Subject) -> None:
    """Whoever shared its run: others come in between, and where the processor says so, are larger."""
    processor = subject.create()
    made = [processor.preprocess(sample) for sample in subject.samples]
    alone = [_answer(subject, subject.create(), number) for number in range(len(made))]
    for number, tensors in reversed(list(enumerate(made))):
        for bucket in _next_buckets(processor, tensors) if processor.bucket_invariant else [processor.bucket(tensors)]:
            outputs = _outputs_of(subject, processor, number, tensors, bucket)
            answer = processor.postprocess(subject.samples[number], outputs, tensors)
            what = f"sample {number} in bucket {bucket} has another answer than alone"
            require(_alike(alone[number], answer), f"{what}: {answer!r}, and not {alone[number]!r}"[:1000])


@_check
def outputs_that_are_no_numbers_are_no_answer(subject: Subject) -> None:
    """`InferenceFailed`, or an answer without NaN: JSON has none."""
    processor = subject.create()
    if not any(_is_float(spec) for spec in subject.signature.outputs):
        return
    for number, sample in enumerate(subject.samples):
        tensors = processor.preprocess(sample)
        outputs = _outputs_of(subject, processor, number, tensors, processor.bucket(tensors))
        nan = {name: np.full_like(array, np.nan) if _is_real(array) else array for name, array in outputs.items()}
        try:
            answer = plain_answer(processor.postprocess(sample, nan, tensors))
        except InferenceFailed:
            continue
        require(_is_finite(answer), f"the answer to sample {number}, where the model gives NaN, is {answer!r}"[:1000])


@_check
def several_threads_may_call_it(subject: Subject) -> None:
    """At once, and not the one that made it."""
    processor = subject.create()
    numbers = list(range(len(subject.samples)))

    def work(number: int) -> tuple[Tensors, Any]:
        return processor.preprocess(subject.samples[number]), _answer(subject, processor, number)

    alone = [work(number) for number in numbers]
    with ThreadPoolExecutor(_THREADS) as pool:
        for number, (tensors, answer) in zip(numbers * _CALLS, pool.map(work, numbers * _CALLS), strict=True):
            _same(alone[number][0], tensors, f"sample {number} has other tensors in another thread")
            require(_alike(alone[number][1], answer), f"sample {number} has another answer in another thread")


@_check
def it_holds_no_memory(subject: Subject) -> None:
    """Of requests that were answered. Says nothing where the system does not tell."""
    processor = subject.create()
    calls = _CALLS * len(subject.samples)

    def held_after(cycles: int) -> int | None:
        for call in range(cycles * calls):
            _answer(subject, processor, call % len(subject.samples))
        gc.collect()
        give_memory_back()  # else what is held may take the room of what was freed, and nothing grows
        return resident_bytes()

    before, after = held_after(1), held_after(_CYCLES)
    if before is None or after is None:
        return
    growth = f"after {_CYCLES * calls} more requests the process holds {(after - before) / 2**20:.0f} MiB more"
    require(after - before <= _SLACK_BYTES, growth)


CHECKS: Final = tuple(_found)
"""All of them."""


# --- Requests and outputs ---------------------------------------------------------------------------------------------


def _bad_payloads(subject: Subject) -> Iterator[tuple[str, Payload, bool]]:
    """Its description, and whether it must be refused. Otherwise it may also be accepted."""
    random = np.random.default_rng(0)
    for number, refused in enumerate(subject.refused):
        yield f"refused request {number}", refused, True
    for number, sample in enumerate(subject.samples):
        if isinstance(sample, Media):
            yield from _bad_media(sample, number, random, strict=not subject.raw)
        else:
            yield from _bad_texts(sample, number)
        for name in ("no_such_parameter", *sample.parameters):
            for value in (None, "", "no such value", -1, 10**30, 1e308, [], [""], True):
                changed = {**sample.parameters, name: value}
                yield f"sample {number} with {name}={value!r}", sample._replace(parameters=changed), False


def _bad_media(
    sample: Media, number: int, random: np.random.Generator, *, strict: bool
) -> Iterator[tuple[str, Payload, bool]]:
    content = sample.content
    yield f"a text in place of sample {number}", Texts(["a text"], sample.parameters), True
    yield "an empty file", sample._replace(content=b""), True
    for declared in (sample.content_type, ""):
        yield "a file of random bytes", Media(random.bytes(1000), declared, sample.parameters), strict
        yield "a huge file of zeros", Media(bytes(_HUGE_BYTES), declared, sample.parameters), strict
    yield f"sample {number} of another type", sample._replace(content_type="application/x-no-such-type"), False
    for length in (1, len(content) // 4, len(content) // 2, len(content) - 1):
        yield f"sample {number}, cut to {length} bytes,", sample._replace(content=content[:length]), length <= 1
    for _ in range(_DAMAGES):
        damaged = bytearray(content)
        for at in random.integers(0, len(content), 3):
            damaged[at] = int(random.integers(256))
        yield f"sample {number}, damaged,", sample._replace(content=bytes(damaged)), False


def _bad_texts(sample: Texts, number: int) -> Iterator[tuple[str, Payload, bool]]:
    yield f"a picture in place of sample {number}", Media(b"\x89PNG\r\n\x1a\n", "image/png", sample.parameters), True
    yield "no text at all", Texts([], sample.parameters), True
    for what, text in (
        ("an empty text", ""),
        ("a text of one zero", "\0"),
        ("half of a surrogate pair", "\ud800"),
        ("a text of all scripts", "a\u00e9\u05d0\u4e2d\U0001f600\u200d"),
        ("a huge text", "a " * (_HUGE_CHARACTERS // 2)),
    ):
        yield what, Texts([text], sample.parameters), False


def _answer(subject: Subject, processor: Processor, number: int) -> Any:
    sample = subject.samples[number]
    tensors = processor.preprocess(sample)
    outputs = _outputs_of(subject, processor, number, tensors, processor.bucket(tensors))
    return processor.postprocess(sample, outputs, tensors)


def _outputs_of(subject: Subject, processor: Processor, number: int, tensors: Tensors, bucket: int) -> Tensors:
    """A model's outputs for a sample padded to a bucket."""
    if subject.outputs is not None:
        return subject.outputs(processor.pad(tensors, bucket))
    return {
        spec.name: _draw(spec, processor, number, _rows(tensors), bucket, processor.bucket(tensors))
        for spec in subject.signature.outputs
    }


def _draw(spec: TensorSpec, processor: Processor, number: int, rows: int, bucket: int, own: int) -> Any:
    """Made-up outputs: those in a larger bucket begin with those in the sample's own."""

    def sizes(varying: int) -> list[int]:
        return [rows, *(varying if size < 0 else size for size in spec.shape[1:])]

    varying = bucket or len(processor.labels) or _CLASSES
    if spec.shape[1:] == (-1,) and processor.labels:
        varying, own = len(processor.labels), 0
    drawn = np.random.default_rng((number, bucket)).random(sizes(varying))
    mine = sizes(min(own, varying) or varying)
    drawn[tuple(map(slice, mine))] = np.random.default_rng(number).random(mine)
    if spec.datatype == "BYTES":
        return np.full(drawn.shape, "a text", object)
    dtype = DTYPES[spec.datatype]
    return (drawn if _is_float(spec) else drawn * _CLASSES).astype(dtype)


def _next_buckets(processor: Processor, tensors: Tensors) -> list[int]:
    """The bucket of tensors and the next one."""
    at = list(processor.buckets).index(processor.bucket(tensors))
    return list(processor.buckets[at : at + 2])


# --- Looking at tensors and answers -----------------------------------------------------------------------------------


def _fits(subject: Subject, tensors: Any, what: str) -> None:
    fault = misfit(subject.signature, tensors)
    require(fault is None, f"{what}: {fault}")


def _rows(tensors: Tensors) -> int:
    return len(next(iter(tensors.values())))


def _frozen(tensors: Tensors) -> Tensors:
    """Read-only copies, as every second element of larger arrays."""
    found = {}
    for name, array in tensors.items():
        view = np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim > 1 else array.copy()
        view.flags.writeable = False
        found[name] = view
    return found


def _same(expected: Tensors, found: Tensors, fault: str) -> None:
    require(expected.keys() == found.keys(), fault)
    for name, array in expected.items():
        other = found[name]
        equal = array.dtype == other.dtype and np.array_equal(array, other, equal_nan=_is_real(array))
        require(equal, f"{fault}: {name!r} differs")


def _is_inside(array: Any, padded: Any) -> bool:
    """Whether an array is a leading corner of a larger one."""
    if array.ndim != padded.ndim or any(size > most for size, most in zip(array.shape, padded.shape, strict=True)):
        return False
    before = tuple(slice(size) for size in array.shape)
    behind = tuple(slice(most - size, most) for size, most in zip(array.shape, padded.shape, strict=True))
    return any(np.array_equal(array, padded[corner], equal_nan=_is_real(array)) for corner in (before, behind))


def _alike(expected: Any, found: Any) -> bool:
    """Whether two answers are equal except for rounding."""
    if isinstance(expected, Embeddings) and isinstance(found, Embeddings):
        return expected.tokens == found.tokens and _alike(expected.vectors, found.vectors)
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return expected.keys() == found.keys() and all(_alike(value, found[key]) for key, value in expected.items())
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        return len(expected) == len(found) and all(map(_alike, expected, found))
    numbers = (int, float, np.generic, np.ndarray)
    if isinstance(expected, numbers) and isinstance(found, numbers):
        one, other = np.asarray(expected), np.asarray(found)
        if one.dtype.kind in "biuf" and other.dtype.kind in "biuf":
            return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))
        return bool(np.array_equal(one, other))
    return bool(expected == found)


def _is_finite(answer: Any) -> bool:
    if isinstance(answer, Embeddings):
        return bool(np.isfinite(answer.vectors).all())
    if isinstance(answer, Mapping):
        return all(map(_is_finite, answer.values()))
    if isinstance(answer, list | tuple):
        return all(map(_is_finite, answer))
    return not isinstance(answer, float) or bool(np.isfinite(answer))


def _is_float(spec: TensorSpec) -> bool:
    return spec.datatype in {"FP16", "FP32", "FP64", "BF16"}


def _is_real(array: Any) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating)) or array.dtype == DTYPES["BF16"]
