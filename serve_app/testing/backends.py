"""The contract of backends, as checks of a model that one runs.

With pytest:

    SUBJECT = Subject(KIND, Path("models/linear/1/model.npz"))

    @pytest.mark.parametrize("check", CHECKS, ids=name_of)
    def test_my_backend(check):
        check(SUBJECT)
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from pydantic import ValidationError

from serve_app.backends.backend import Backend, StreamingBackend
from serve_app.backends.batch import run_entries
from serve_app.backends.description import Description, describe_build
from serve_app.backends.joining.drawing import Varied
from serve_app.backends.joining.experiment import difference, try_joining
from serve_app.backends.kind import AnyKind, BuildSettings, ModelFile
from serve_app.backends.profiler import resident_bytes
from serve_app.backends.samples import Samples, make_samples
from serve_app.backends.warm_up import first_that_runs, try_warm_up
from serve_app.domain.settings import JoinSettings
from serve_app.errors import ConfigError, ServeAppError
from serve_app.payloads import DTYPES, PROVEN, ModelSignature, Tensors, TensorSpec
from serve_app.testing.checks import NotConforming, listed_in, name_of, require

__all__ = ["CHECKS", "Check", "NotConforming", "Subject", "name_of"]

_MODEL: Final = "conformance"
_CYCLES: Final = 4
_SLACK_BYTES: Final = 16 * 2**20
"""Allowed growth of a process without a leak: allocators keep some freed memory."""


@dataclass(frozen=True)
class Subject:
    """A model for checking a kind of backend. Use several: with text, without rows, with a fixed number of rows.

    Attributes:
        options: ``backend_options`` of a configuration.
        inputs: Makes inputs that the model runs, of (rows, seed); made up by default. A model without rows gets one
            row.
        failing: A request on which the model fails; for a streaming model, at any part. Default: one of an undeclared
            shape, if any is declared.
        device: ``cuda`` on a machine with a GPU.
    """

    kind: AnyKind
    model_file: Path
    options: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[[int, int], Tensors] | None = None
    failing: Tensors | None = None
    max_rows: int = 8
    device: Literal["cpu", "cuda"] = "cpu"

    def describe(self, *, join: bool = True) -> Description:
        """Describe its file."""
        settings = JoinSettings(join=join)
        return describe_build(self.kind, self.model_file, model=_MODEL, options=self._read(), settings=settings)

    def inspect(self, model_file: Path) -> ModelFile:
        """The declarations of its file."""
        found: ModelFile = self.kind.inspect(model_file, _MODEL, self._read())
        return found

    def create(self, **changes: Any) -> Backend:
        """Make its backend, unloaded, by default with the file's settings."""
        build = BuildSettings(
            _MODEL,
            self.model_file,
            device=self.device,
            gpu_available=self.device == "cuda",
            max_rows=self.max_rows,
            layout=self.describe().layout,
        )
        made: Backend = self.kind.create(replace(build, **changes), self._read())
        return made

    def _read(self) -> Any:
        return self.kind.options.model_validate(self.options)


Check: TypeAlias = Callable[[Subject], None]
"""Raises `NotConforming` where a backend breaks a promise, which the message names."""


_found: list[Check] = []


_check = listed_in(_found)


@_check
def its_file_is_recognised(subject: Subject) -> None:
    """By its name, and a configuration without `backend` finds it, unless files of its kind are programs."""
    kind = subject.kind
    name = subject.model_file.name
    require(kind.recognises(name), f"{name} is not called {kind.file}, and ends with none of {kind.suffixes}")
    require(
        all(suffix.startswith(".") and suffix == suffix.lower() for suffix in kind.suffixes),
        f"suffixes are lower case and begin with a dot: {kind.suffixes}",
    )


@_check
def its_options_are_checked(subject: Subject) -> None:
    """None is required, and an unknown one is a fault."""
    subject.kind.options()
    try:
        subject.kind.options.model_validate({"no_such_option": 1})
    except ValidationError:
        return
    raise NotConforming("an option that there is not is taken")


@_check
def its_file_is_described(subject: Subject) -> None:
    """Without running it: tensors of the protocol's types, each named once, and files beside it that are there."""
    signature = subject.inspect(subject.model_file).signature
    specs = (*signature.inputs, *signature.outputs, *signature.optional)
    require(bool(signature.outputs), "the model has no output")
    for spec in specs:
        require(spec.datatype in DTYPES, f"{spec.name!r} is of datatype {spec.datatype!r}, which is none")
        require(all(size >= -1 for size in spec.shape), f"{spec.name!r} has shape {spec.shape}")
    for side in (signature.inputs + signature.optional, signature.outputs):
        names = [spec.name for spec in side]
        require(len(set(names)) == len(names), f"a name is there twice: {names}")
    for name in subject.kind.further_files(subject.model_file):
        path = PurePosixPath(name)
        require(not path.is_absolute() and ".." not in path.parts, f"{name!r} is outside the model's folder")
        require((subject.model_file.parent / name).is_file(), f"{name!r} is no file beside the model")


@_check
def a_file_that_is_no_model_is_refused(subject: Subject) -> None:
    """With a fault of the configuration that names the model: when it is described, and when it is loaded."""
    layout = subject.describe().layout
    with tempfile.TemporaryDirectory() as folder:
        for what, content in (("is not there", None), ("is empty", b""), ("holds something else", b"no model" * 99)):
            file = Path(folder) / what.replace(" ", "-") / subject.kind.file
            file.parent.mkdir()
            if content is not None:
                file.write_bytes(content)
            _raises_config_error(partial(subject.inspect, file), f"inspect, of a file that {what},")
            load = partial(_load_and_close, subject, model_file=file, layout=layout)
            _raises_config_error(load, f"load, of a file that {what},")


@_check
def what_is_loaded_is_what_was_described(subject: Subject) -> None:
    """The same tensors, on a device that there is."""
    for join in (True, False):
        described = subject.describe(join=join)
        with _loaded(subject, layout=described.layout) as backend:
            found, wanted = _without_ranks(backend.signature), _without_ranks(described.signature)
            require(found == wanted, f"signature of the backend: {found}; of the description: {wanted}")
            asked, found_on = subject.device, backend.device
            require(found_on == asked, f"device is {asked}, and it runs on {found_on!r}")


@_check
def a_gpu_that_there_is_not_is_refused(subject: Subject) -> None:
    """Where the configuration insists on it."""
    load = partial(_load_and_close, subject, device="cuda", gpu_available=False)
    _raises_config_error(load, "device: cuda without a GPU")


@_check
def answers_are_as_declared(subject: Subject) -> None:
    """Every output by name, of the declared type and shape, with as many rows as went in."""
    with _ready(subject) as (backend, draw):
        outputs = backend.signature.outputs
        for rows in _counts(subject):
            request = draw(rows, rows)
            for run in (backend.run, backend.run_whole):
                answer = run(request)
                require(list(answer) == [spec.name for spec in outputs], f"outputs are {list(answer)}")
                for spec in outputs:
                    _check_tensor(spec, answer[spec.name], rows if subject.describe().joinable.rows else None)


@_check
def a_request_has_one_answer(subject: Subject) -> None:
    """However its arrays lie in memory, whoever asks before and after, and it is left as it came."""
    with _ready(subject) as (backend, draw):
        request, other = draw(_counts(subject)[-1], 1), draw(_counts(subject)[-1], 2)
        before = {name: array.copy() for name, array in request.items()}
        answer = backend.run_whole(request)
        kept = {name: array.copy() for name, array in answer.items()}
        backend.run_whole(other)
        _same(kept, answer, "an answer changed when another request was run")
        _same(before, request, "a run changed its inputs")
        apart = {name: np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array for name, array in other.items()}
        for array in apart.values():
            array.flags.writeable = False
        _same(backend.run_whole(other), backend.run_whole(apart), "read-only views have another answer")
        _same(answer, backend.run_whole(request), "the same request has another answer")
        _same(answer, backend.run(request), "run and run_whole differ")


@_check
def without_rows_it_runs_a_request_as_it_came(subject: Subject) -> None:
    """As `batching: none` has it."""
    with _ready(subject) as (backend, draw):
        request = draw(1, 1)
        expected = backend.run_whole(request)
    if subject.describe().layout.axes or subject.describe().fixed_rows not in {None, 1}:
        return  # as it came, it has other shapes than these
    with _loaded(subject, layout=subject.describe(join=False).layout) as backend:
        _same(expected, backend.run_whole(request), "without rows a request has another answer")
        _same(expected, backend.run(request), "without rows, run and run_whole differ")


@_check
def rows_answer_alone_as_beside_others(subject: Subject) -> None:
    """Where the file says that rows are independent: that is why requests of different clients may share a run."""
    described = subject.describe()
    if not (described.joinable.joins or described.joinable.verdict == PROVEN):
        return
    with _ready(subject) as (backend, draw):
        verdict = try_joining(
            backend, lambda rows, seed, _: draw(rows, seed), max_rows=subject.max_rows, tolerance=None, budget_s=2.0
        )
        require(verdict.joins, verdict.reason)


@_check
def nan_stays_in_its_row(subject: Subject) -> None:
    """A request that is no number harms nobody but itself."""
    described = subject.describe()
    floats = [spec.name for spec in described.signature.inputs if DTYPES[spec.datatype].kind == "f"]
    if not floats or not (described.joinable.joins or described.joinable.verdict == PROVEN):
        return
    with _ready(subject) as (backend, draw):
        first, last = draw(1, 1), draw(1, 2)
        bad = dict(draw(1, 3))
        bad |= {name: np.full_like(bad[name], np.nan) for name in floats}
        ran = run_entries(backend, [first, bad, last], subject.max_rows)
        _answered(backend, first, ran.outcomes[0], "before one of NaN")
        _answered(backend, last, ran.outcomes[2], "behind one of NaN")


@_check
def an_error_is_of_its_entry(subject: Subject) -> None:
    """A request on which the model fails has an error of `serve_app.errors`; all others are answered, also later."""
    with _ready(subject) as (backend, draw):
        good = [draw(1, seed) for seed in (1, 2)]
        bad = subject.failing or _misshapen(backend.signature, draw(1, 3))
        if bad is None:
            return
        for run in (backend.run_whole, backend.run):
            try:
                run(bad)
            except ServeAppError:
                pass
            except Exception as error:
                raise NotConforming(f"{run.__name__} raises {type(error).__name__}, no ServeAppError") from error
            else:
                raise NotConforming(f"{run.__name__} answers a request that it cannot run")
        outcomes = run_entries(
            backend, [good[0], bad, good[1]], subject.max_rows, whole=None if _has_rows(subject) else [1, 1, 1]
        ).outcomes
        require(isinstance(outcomes[1], ServeAppError), "among others it answers a request that it cannot run")
        _answered(backend, good[0], outcomes[0], "before one that fails")
        _answered(backend, good[1], outcomes[2], "behind one that fails")


@_check
def parts_are_as_declared(subject: Subject) -> None:
    """Of a model that answers in parts: each is an answer by itself, stays as it is, and `run` gives the first."""
    with _ready(subject) as (backend, draw):
        streams = subject.inspect(subject.model_file).streams
        able = isinstance(backend, StreamingBackend)
        require(able == streams, f"its file says that it {'has' if streams else 'has no'} parts; its backend differs")
        if not isinstance(backend, StreamingBackend):
            return
        request = draw(1, 1)
        before = {name: array.copy() for name, array in request.items()}
        kept: list[Tensors] = []
        parts: list[Tensors] = []
        with closing(backend.stream(request)) as stream:
            for part in stream:
                require(list(part) == [spec.name for spec in backend.signature.outputs], f"a part has {list(part)}")
                for spec in backend.signature.outputs:
                    _check_tensor(spec, part[spec.name], None)
                parts.append(part)
                kept.append({name: array.copy() for name, array in part.items()})
        require(bool(parts), "a request has no part")
        for at, (was, part) in enumerate(zip(kept, parts, strict=True)):
            _same(was, part, f"part {at} changed when others were made")
        _same(before, request, "a stream changed its inputs")
        _same(parts[0], backend.run_whole(request), "run_whole does not give the first part")


@_check
def a_stream_that_is_left_ends(subject: Subject) -> None:
    """Closed before, between or behind its parts: it gives no more, and the next request has all of its own."""
    with _ready(subject) as (backend, draw):
        if not isinstance(backend, StreamingBackend):
            return
        request = draw(1, 1)
        expected = list(backend.stream(request))
        for read in range(len(expected) + 1):
            stream = backend.stream(request)
            for _ in range(read):
                next(stream)
            stream.close()
            require(next(stream, None) is None, "a stream goes on when it was closed")
            found = list(backend.stream(request))
            require(len(found) == len(expected), f"behind a stream that was left there are {len(found)} parts")
            for was, part in zip(expected, found, strict=True):
                _same(was, part, "behind a stream that was left a part differs")


@_check
def a_stream_that_fails_is_over(subject: Subject) -> None:
    """With an error of `serve_app.errors`, after parts or before them; the next request is answered."""
    with _ready(subject) as (backend, draw):
        if not isinstance(backend, StreamingBackend):
            return
        good = draw(1, 1)
        bad = subject.failing or _misshapen(backend.signature, draw(1, 3))
        if bad is None:
            return
        expected = backend.run_whole(good)
        try:
            for _ in backend.stream(bad):
                pass
        except ServeAppError:
            pass
        except Exception as error:
            raise NotConforming(f"a stream raises {type(error).__name__}, no ServeAppError") from error
        else:
            raise NotConforming("a stream answers a request that it cannot run")
        _same(expected, backend.run_whole(good), "behind a stream that failed a request has another answer")


@_check
def it_warms_up(subject: Subject) -> None:
    """Every number of rows, with inputs that nobody had to think of or with those of the subject."""
    with _ready(subject) as (backend, draw):
        max_rows = subject.max_rows if _has_rows(subject) else 1
        warm = try_warm_up(backend, [lambda rows, _: draw(rows, 0)], max_rows=max_rows, repeats=1)
        require(warm.reason is None, f"it does not warm up: {warm.reason}")


@_check
def another_thread_may_run_it(subject: Subject) -> None:
    """Whoever loads it is not who runs it."""
    with _ready(subject) as (backend, draw), ThreadPoolExecutor(1) as thread:
        request = draw(1, 1)
        answer = thread.submit(backend.run_whole, request).result()
        _same(backend.run_whole(request), answer, "another thread has another answer")


@_check
def it_may_be_closed_and_loaded_again(subject: Subject) -> None:
    """Closed twice, or without having been loaded, is closed."""
    subject.create().close()
    with _ready(subject) as (backend, draw):
        request = draw(1, 1)
        expected = backend.run_whole(request)
        for _ in range(2):
            backend.close()
        backend.load()
        _same(expected, backend.run_whole(request), "after it was loaded again a request has another answer")


@_check
def closed_it_holds_no_memory(subject: Subject) -> None:
    """A model that comes and goes leaves nothing. Says little of a small one, and nothing where the system does not."""
    first = after = held = None
    for _ in range(1 + _CYCLES):
        with _ready(subject) as (backend, draw):
            backend.run_whole(draw(1, 1))
            held = resident_bytes()
        gc.collect()
        after = resident_bytes()
        first = first or after
    if first is None or after is None or held is None:
        return
    growth, allowed = after - first, _SLACK_BYTES + max(0, held - after)
    require(growth <= allowed, f"loaded and closed {_CYCLES} times, it holds {growth / 2**20:.0f} MiB more")


CHECKS: Final = tuple(_found)
"""All of them."""


def _raises_config_error(do: Callable[[], object], what: str) -> None:
    try:
        do()
    except ConfigError as error:
        require(_MODEL in str(error), f"{what} raises an error that does not name the model: {error}")
    except Exception as error:
        raise NotConforming(f"{what} raises {type(error).__name__}, no ConfigError") from error
    else:
        raise NotConforming(f"{what} raises nothing")


def _load_and_close(subject: Subject, **changes: Any) -> None:
    with _loaded(subject, **changes):
        pass


@contextmanager
def _loaded(subject: Subject, **changes: Any) -> Iterator[Backend]:
    backend = subject.create(**changes)
    try:
        note = backend.load()
        require(note is None or isinstance(note, str), f"load returns {note!r}")
        yield backend
    finally:
        backend.close()


@contextmanager
def _ready(subject: Subject) -> Iterator[tuple[Backend, Callable[[int, int], Tensors]]]:
    """A loaded backend, and a maker of its inputs by (rows, seed)."""
    with _loaded(subject) as backend:
        yield backend, subject.inputs or _drawn(backend, _samples_of(subject))


def _samples_of(subject: Subject) -> Samples:
    """Made-up inputs for a model without configured ones."""
    described = subject.describe()
    return make_samples(described.signature, None, model=_MODEL, rows=described.joinable.rows)


def _drawn(backend: Backend, samples: Samples) -> Callable[[int, int], Tensors]:
    example = first_that_runs([backend], samples.candidates())(1, 0)
    varied = Varied(partial(samples.draw, like=example))
    varied.learn(backend)
    return lambda rows, seed: varied(rows, seed, 1.0)


def _has_rows(subject: Subject) -> bool:
    return subject.describe().joinable.rows


def _counts(subject: Subject) -> tuple[int, ...]:
    """Numbers of rows to run."""
    return (1, 2, 3, subject.max_rows) if _has_rows(subject) else (1,)


def _without_ranks(signature: ModelSignature) -> ModelSignature:
    """Drop ranks: whether a file declares them is known before loading, and not needed later."""

    def shown(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(spec if spec.ranked else spec._replace(shape=(), ranked=True) for spec in specs)

    return ModelSignature(shown(signature.inputs), shown(signature.outputs), shown(signature.optional))


def _check_tensor(spec: TensorSpec, array: Any, rows: int | None) -> None:
    require(isinstance(array, np.ndarray), f"output {spec.name!r} is a {type(array).__name__}, no array")
    dtype = DTYPES[spec.datatype]
    require(array.dtype == dtype, f"output {spec.name!r} is of dtype {array.dtype}; {spec.datatype} is {dtype}")
    if spec.datatype == "BYTES":
        kinds = {type(value) for value in array.ravel().tolist()}
        require(kinds <= {str, bytes}, f"output {spec.name!r} holds {kinds}, not texts")
    if rows is not None:
        require(array.ndim > 0 and len(array) == rows, f"output {spec.name!r} has shape {array.shape} for {rows} rows")
    if rows is None or len(spec.shape) > 1:  # one that is (-1,) beside rows may be of unknown rank
        fits = array.ndim == len(spec.shape) and all(
            wanted in {-1, size} for size, wanted in zip(array.shape, spec.shape, strict=True)
        )
        require(fits or not spec.ranked, f"output {spec.name!r} has shape {array.shape}, and declares {spec.shape}")


def _same(expected: Tensors, found: Tensors, fault: str) -> None:
    require(expected.keys() == found.keys(), fault)
    worst = difference(expected, found, None)
    require(worst.allowed, f"{fault}: {worst.output!r} differs by {worst.relative:.2g} of its largest value")


def _answered(backend: Backend, request: Tensors, outcome: Tensors | ServeAppError, where: str) -> None:
    if isinstance(outcome, ServeAppError):
        raise NotConforming(f"a request {where} fails: {outcome}")
    _same(backend.run_whole(request), outcome, f"a request {where} has another answer than alone")


def _misshapen(signature: ModelSignature, request: Tensors) -> Tensors | None:
    """A request of an undeclared shape, if the model does not take any shape."""
    for spec in signature.inputs:
        for axis, size in list(enumerate(spec.shape))[1:]:
            if size > 0:
                return {**request, spec.name: np.repeat(request[spec.name], 2, axis=axis)}
    return None
