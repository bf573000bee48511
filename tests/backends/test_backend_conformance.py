"""Every kind of backend keeps what backends promise, and the checks find one that does not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_models
import pytest
import python_models

from rowproof.result import RowProof
from serve_app.backends.backend import Backend
from serve_app.backends.kind import BackendOptions, BuildSettings, ModelFile
from serve_app.backends.onnx.kind import ONNX, OnnxOptions
from serve_app.backends.python.backend import PythonBackend, StreamingPythonBackend
from serve_app.backends.python.kind import PYTHON
from serve_app.backends.registry import BACKENDS
from serve_app.errors import ServeAppError
from serve_app.payloads import ModelSignature, Tensors
from serve_app.testing.backends import CHECKS, Check, NotConforming, Subject, name_of


def onnx_subject(model: onnx_models.Kind, folder: Path) -> Subject:
    """An ONNX model, made."""
    failing = {"x": np.full((1, 3), -1, np.float32)} if model == "fail_on_negative" else None
    inputs = _positive if model == "fail_on_negative" else None
    return Subject(ONNX, onnx_models.make(folder / "1" / "model.onnx", model), inputs=inputs, failing=failing)


def _positive(rows: int, seed: int) -> Tensors:
    return {"x": np.random.default_rng(seed).random((rows, 3), np.float32)}


def python_subject(model: str, options: dict[str, Any], folder: Path) -> Subject:
    """A Python class, made."""
    return Subject(PYTHON, python_models.make(folder / "1", model), options=options)


def torch_subject(kind: Literal["torchscript", "torch_export"], model: str, folder: Path) -> Subject:
    """A model of PyTorch, made."""
    import torch_models  # skips where there is no PyTorch

    options = torch_models.model(model).options() if kind == "torchscript" else {}
    return Subject(torch_models.KINDS[kind], torch_models.make(folder, kind, model), options)


TORCH_SCRIPTS = ("dense", "several", "half", "fixed", "total", "in_place")
TORCH_PROGRAMS = ("dense", "convolution", "attention", "several", "bfloat16", "bounded", "total", "scalar")
SUBJECTS: Mapping[str, Mapping[str, Callable[[Path], Subject]]] = {
    "onnx": {model: partial(onnx_subject, model) for model in onnx_models.KINDS},
    "torchscript": {model: partial(torch_subject, "torchscript", model) for model in TORCH_SCRIPTS},
    "torch_export": {model: partial(torch_subject, "torch_export", model) for model in TORCH_PROGRAMS},
    "python": {
        **{model: partial(python_subject, model, {}) for model in python_models.MODELS},
        "its own process": partial(python_subject, "linear", {"environment": {"python": sys.executable}}),
        "parts of its own process": partial(python_subject, "parts", {"environment": {"python": sys.executable}}),
    },
}
"""By the name of a kind of backend, models to check it with, made in a folder."""


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize(
    ("kind", "model"),
    [
        pytest.param(kind, model, marks=[pytest.mark.torch] if BACKENDS[kind].extra == "torch" else [])
        for kind in BACKENDS
        for model in SUBJECTS[kind]
    ],
)
def test_a_kind_of_backend(kind: str, model: str, check: Check, tmp_path: Path) -> None:
    """All that there are, each with several models."""
    check(SUBJECTS[kind][model](tmp_path))


# --- Backends that break one promise each -----------------------------------------------------------------------------


class Wrapped:
    """ONNX Runtime's backend, for one promise to be broken."""

    def __init__(self, build: BuildSettings, options: OnnxOptions) -> None:
        self.build = build
        self.inner: Any = ONNX.create(build, options)

    @property
    def signature(self) -> ModelSignature:
        """The model's."""
        signature: ModelSignature = self.inner.signature
        return signature

    @property
    def device(self) -> str:
        """The model's."""
        device: str = self.inner.device
        return device

    def load(self) -> str | None:
        """Load it."""
        note: str | None = self.inner.load()
        return note

    def answer(self, inputs: Tensors) -> Tensors:
        """What `run` and `run_whole` answer."""
        outputs: Tensors = self.inner.run(inputs)
        return outputs

    def run(self, inputs: Tensors) -> Tensors:
        """Answer."""
        return self.answer(inputs)

    def run_whole(self, inputs: Tensors) -> Tensors:
        """Answer."""
        return self.answer(inputs)

    def close(self) -> None:
        """Close it."""
        self.inner.close()


class OfAnotherType(Wrapped):
    """FP64 where FP32 is declared."""

    def answer(self, inputs: Tensors) -> Tensors:
        return {name: array.astype(np.float64) for name, array in self.inner.run(inputs).items()}


class OfFewerRows(Wrapped):
    """One row for all."""

    def answer(self, inputs: Tensors) -> Tensors:
        return {name: array[:1] for name, array in self.inner.run(inputs).items()}


class Unnamed(Wrapped):
    """An output by another name."""

    def answer(self, inputs: Tensors) -> Tensors:
        return {f"{name}:0": array for name, array in self.inner.run(inputs).items()}


class Normalised(Wrapped):
    """Rows that know of each other."""

    def answer(self, inputs: Tensors) -> Tensors:
        return {name: array - array.mean(axis=0) for name, array in self.inner.run(inputs).items()}


class SpreadsNan(Wrapped):
    """NaN of one row in all."""

    def answer(self, inputs: Tensors) -> Tensors:
        return {name: array + 0 * array.sum() for name, array in self.inner.run(inputs).items()}


class Numbered(Wrapped):
    """Another answer each time."""

    runs = 0

    def answer(self, inputs: Tensors) -> Tensors:
        self.runs += 1
        return {name: array + np.float32(self.runs) for name, array in self.inner.run(inputs).items()}


class OneBuffer(Wrapped):
    """Every answer in the same memory."""

    def answer(self, inputs: Tensors) -> Tensors:
        outputs = self.inner.run(inputs)
        held: Any = self.__dict__.setdefault("held", {name: np.zeros((64, 4), np.float32) for name in outputs})
        for name, array in outputs.items():
            held[name][: len(array)] = array
        return {name: held[name][: len(array)] for name, array in outputs.items()}


class Scales(Wrapped):
    """Writes to what it is given."""

    def answer(self, inputs: Tensors) -> Tensors:
        for array in inputs.values():
            if array.flags.writeable:
                np.multiply(array, np.float32(0.5), out=array)
        outputs: Tensors = self.inner.run(inputs)
        return outputs


class RaisesAnything(Wrapped):
    """An error of its own."""

    def answer(self, inputs: Tensors) -> Tensors:
        try:
            outputs: Tensors = self.inner.run(inputs)
        except Exception as error:
            raise KeyError("x") from error
        return outputs


class TakesAnything(Wrapped):
    """Cuts off what does not fit."""

    def answer(self, inputs: Tensors) -> Tensors:
        outputs: Tensors = self.inner.run({name: array[:, :3] for name, array in inputs.items()})
        return outputs


class StaysBroken(Wrapped):
    """Fails for ever once it has failed."""

    failed = False

    def answer(self, inputs: Tensors) -> Tensors:
        try:
            outputs: Tensors = self.inner.run({} if self.failed else inputs)
        except Exception:
            self.failed = True
            raise
        return outputs


class AnotherWhole(Wrapped):
    """`run_whole` is not `run`."""

    def run_whole(self, inputs: Tensors) -> Tensors:
        return {name: 2 * array for name, array in self.inner.run(inputs).items()}


class Bound(Wrapped):
    """Runs in the thread that loaded it."""

    def load(self) -> str | None:
        self.thread = threading.get_ident()
        return super().load()

    def answer(self, inputs: Tensors) -> Tensors:
        if threading.get_ident() != self.thread:
            raise RuntimeError("made in another thread")
        return super().answer(inputs)


class ClosesOnce(Wrapped):
    """Fails when it is closed again."""

    def load(self) -> str | None:
        self.open = [True]
        return super().load()

    def close(self) -> None:
        self.open.pop()
        super().close()


_HELD: list[np.ndarray[Any, Any]] = []


class Leaks(Wrapped):
    """Holds what it loaded."""

    def load(self) -> str | None:
        _HELD.append(np.ones(2**22, np.float64))
        return super().load()


class RanksLost(Wrapped):
    """Another signature than the file's."""

    @property
    def signature(self) -> ModelSignature:
        found: ModelSignature = self.inner.signature
        return found._replace(outputs=tuple(spec._replace(shape=(-1,)) for spec in found.outputs))


class Elsewhere(Wrapped):
    """On a device that nobody knows."""

    device = "tpu"


class TakesNoGpu(Wrapped):
    """Runs on the CPU whatever it is asked for."""

    def __init__(self, build: BuildSettings, options: OnnxOptions) -> None:
        super().__init__(replace(build, device="cpu"), options)


class WarmsOneRow(Wrapped):
    """Fails on more than seven rows."""

    def answer(self, inputs: Tensors) -> Tensors:
        return super().answer({} if len(inputs["pixels"]) > 7 else inputs)


class NeedsRows(Wrapped):
    """Does not know that there may be none."""

    def answer(self, inputs: Tensors) -> Tensors:
        outputs = super().answer(inputs)
        return outputs if self.build.layout.rows else {name: array[0] for name, array in outputs.items()}


def _trusting(model_file: Path, model: str, options: OnnxOptions) -> ModelFile:
    try:
        return ONNX.inspect(model_file, model, options)
    except Exception:
        return ModelFile(ModelSignature((), ()), lambda _: RowProof(False, ""))


def _raising(model_file: Path, model: str, options: OnnxOptions) -> ModelFile:
    model_file.read_bytes()
    return ONNX.inspect(model_file, model, options)


class AnyOption(BackendOptions, extra="allow"):
    """Takes what it does not know."""


BROKEN: list[tuple[Mapping[str, Any], str]] = [
    ({"create": OfAnotherType}, "answers_are_as_declared"),
    ({"create": OfFewerRows}, "answers_are_as_declared"),
    ({"create": Unnamed}, "answers_are_as_declared"),
    ({"create": Normalised}, "rows_answer_alone_as_beside_others"),
    ({"create": SpreadsNan}, "nan_stays_in_its_row"),
    ({"create": Numbered}, "a_request_has_one_answer"),
    ({"create": OneBuffer}, "a_request_has_one_answer"),
    ({"create": Scales}, "a_request_has_one_answer"),
    ({"create": AnotherWhole}, "a_request_has_one_answer"),
    ({"create": RaisesAnything}, "an_error_is_of_its_entry"),
    ({"create": TakesAnything}, "an_error_is_of_its_entry"),
    ({"create": StaysBroken}, "an_error_is_of_its_entry"),
    ({"create": WarmsOneRow}, "it_warms_up"),
    ({"create": Bound}, "another_thread_may_run_it"),
    ({"create": ClosesOnce}, "it_may_be_closed_and_loaded_again"),
    ({"create": Leaks}, "closed_it_holds_no_memory"),
    ({"create": RanksLost}, "what_is_loaded_is_what_was_described"),
    ({"create": Elsewhere}, "what_is_loaded_is_what_was_described"),
    ({"create": TakesNoGpu}, "a_gpu_that_there_is_not_is_refused"),
    ({"create": NeedsRows}, "without_rows_it_runs_a_request_as_it_came"),
    ({"inspect": _trusting}, "a_file_that_is_no_model_is_refused"),
    ({"inspect": _raising}, "a_file_that_is_no_model_is_refused"),
    ({"options": AnyOption}, "its_options_are_checked"),
    ({"file": "model.pt", "suffixes": (".pt",)}, "its_file_is_recognised"),
    ({"suffixes": ("onnx",)}, "its_file_is_recognised"),
    ({"further_files": lambda _: ("../weights.bin",)}, "its_file_is_described"),
]


class WrappedStream(StreamingPythonBackend):
    """A class that yields, for one promise to be broken."""


class OneBufferForParts(WrappedStream):
    """Every part in the same memory."""

    def stream(self, inputs: Tensors) -> Generator[Tensors, None, None]:
        held: Tensors = {}
        for part in super().stream(inputs):
            held = held or part
            held["sum"][:] = part["sum"]
            yield held


class OnlyAtOnce(PythonBackend):
    """No parts, whatever its file says."""


class KeepsWhatWasLeft(WrappedStream):
    """Gives the next request what the one before has not read."""

    left: tuple[Tensors, ...] = ()

    def stream(self, inputs: Tensors) -> Generator[Tensors, None, None]:
        parts = [*self.left, *super().stream(inputs)]
        try:
            while parts:
                yield parts.pop(0)
        finally:
            self.left = tuple(parts)


class RaisesAnythingInParts(WrappedStream):
    """An error of its own."""

    def stream(self, inputs: Tensors) -> Generator[Tensors, None, None]:
        try:
            yield from super().stream(inputs)
        except Exception as error:
            raise KeyError("x") from error


class EndsInstead(WrappedStream):
    """Says nothing of what went wrong."""

    def stream(self, inputs: Tensors) -> Generator[Tensors, None, None]:
        with suppress(ServeAppError):
            yield from super().stream(inputs)


BROKEN_STREAMS: list[tuple[Callable[[BuildSettings, Any], Backend], str]] = [
    (OneBufferForParts, "parts_are_as_declared"),
    (OnlyAtOnce, "parts_are_as_declared"),
    (KeepsWhatWasLeft, "a_stream_that_is_left_ends"),
    (RaisesAnythingInParts, "a_stream_that_fails_is_over"),
    (EndsInstead, "a_stream_that_fails_is_over"),
]


@pytest.mark.parametrize(("create", "check"), BROKEN_STREAMS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_broken_promise_of_parts_is_found(
    create: Callable[[BuildSettings, Any], Backend], check: str, tmp_path: Path
) -> None:
    """Likewise."""
    whole = python_subject("parts", {}, tmp_path)
    (named,) = (each for each in CHECKS if name_of(each) == check)
    with pytest.raises(NotConforming):
        named(replace(whole, kind=replace(whole.kind, create=create)))


def _label(case: Any) -> str:
    value, *_ = case.values() if isinstance(case, Mapping) else (case,)
    return str(getattr(value, "__name__", value)).strip("_<>")


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=_label)
def test_a_broken_promise_is_found(broken: Mapping[str, Any], check: str, tmp_path: Path) -> None:
    """By the check that is about it, which says what is wrong."""
    whole = onnx_subject("image_logits", tmp_path)
    (named,) = (each for each in CHECKS if name_of(each) == check)
    try:
        with pytest.raises(NotConforming) as caught:
            named(replace(whole, kind=replace(whole.kind, **broken)))
    finally:
        _HELD.clear()
    assert str(caught.value)


def test_every_check_has_been_seen_to_fail() -> None:
    """A check that nothing fails says nothing."""
    seen = {check for _, check in BROKEN} | {check for _, check in BROKEN_STREAMS}
    assert seen == {name_of(check) for check in CHECKS}


_: Callable[[BuildSettings, OnnxOptions], Backend] = Wrapped
