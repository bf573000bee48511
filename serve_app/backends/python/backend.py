"""The backends of models that are a Python class."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from serve_app.backends.batch import rows_of
from serve_app.backends.device import resolve_device
from serve_app.backends.failure import safe_line
from serve_app.backends.filling import run_filled
from serve_app.backends.kind import BuildSettings
from serve_app.backends.layout import rows_from, rows_to, served
from serve_app.backends.python.declaration import Declaration, read_declaration
from serve_app.backends.python.environment import interpreter_of
from serve_app.backends.python.host import Fault
from serve_app.backends.python.options import PythonOptions
from serve_app.backends.python.session import InProcess, LoadSettings, OwnProcess, PythonSession
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest, ServeAppError
from serve_app.payloads import ModelSignature, Tensors, TensorSpec

_T = TypeVar("_T")

logger = logging.getLogger(__name__)


class PythonBackend:
    """Runs a Python class.

    If the class declares a number of rows, it runs in pieces of it, the last filled up with copies of its last row.

    Raises:
        ConfigError: A GPU is required but not available.
    """

    def __init__(self, build: BuildSettings, options: PythonOptions) -> None:
        self._build = build
        self._options = options
        self.device = str(resolve_device(build.device, build.gpu_available, build.model))
        self.signature = ModelSignature((), ())
        self._fixed_rows: int | None = None
        self._texts: dict[str, str] = {}
        self._session: PythonSession | None = None

    def __repr__(self) -> str:
        return f"<PythonBackend {self._build.model} {'not loaded' if self._session is None else self.device}>"

    def load(self) -> str | None:
        """Make and set up the class, in this process or in one of its own.

        Raises:
            ConfigError: Its file, class or environment is not usable; one line for each fault.
        """
        build = self._build
        declared = read_declaration(build.model_file, build.model, self._options.class_)
        shown = served(declared.signature, build.layout, model=build.model)
        self.signature, self._fixed_rows = shown.signature, shown.fixed_rows
        self._texts = {each.name: each.kind for each in declared.inputs if each.kind in {"str", "bytes"}}
        try:
            self._session = self._make_session(declared)
        except Fault as fault:
            raise ConfigError((f"model {build.model!r}: {fault}",)) from None
        return None

    def run(self, inputs: Tensors) -> Tensors:
        """Run one batch.

        Raises:
            InferenceFailed: The class raised, or returned other tensors than it declares.
            InvalidRequest: An input's shape differs from the declared one, or an element is no text.
        """
        if not self._build.layout.rows:
            return self.run_whole(inputs)
        rows = rows_of(inputs)
        if self._fixed_rows is None:
            return self._ask(inputs, rows)
        fixed = self._fixed_rows
        return run_filled(inputs, fixed, lambda _: fixed, self._ask)

    def run_whole(self, inputs: Tensors) -> Tensors:
        """Run one request uncut. Raises what `run` raises."""
        if self._fixed_rows is not None:
            return self.run(inputs)
        rows = None
        if self._build.layout.rows:
            counts = {len(array) for array in inputs.values() if array.ndim}
            rows = counts.pop() if len(counts) == 1 else None
        return self._ask(inputs, rows)

    def preprocess(self, content: Sequence[bytes], about: Mapping[str, Any]) -> Tensors:
        """Make the inputs of one request with the class; see `Processing`."""
        made = self._asked(lambda session: session.preprocess(content, about))
        tensors = {spec.name: rows_from(made[spec.name], spec.axis) for spec in self.signature.inputs}
        if self._build.layout.rows and self._build.max_rows is not None:
            rows = rows_of(tensors)
            if rows > self._build.max_rows:  # the router took it for less, and others wait for it
                raise InvalidRequest(f"the request makes {rows} rows; the most is {self._build.max_rows}")
        return tensors

    def postprocess(self, content: Sequence[bytes], about: Mapping[str, Any], outputs: Tensors) -> Any:
        """Make the answer to one request with the class; see `Processing`."""
        given = {spec.name: rows_to(outputs[spec.name], spec.axis) for spec in self.signature.outputs}
        return self._asked(lambda session: session.postprocess(content, about, given))

    def close(self) -> None:
        """Let the class free its resources, and end its process."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _make_session(self, declared: Declaration) -> PythonSession:
        build = self._build
        axes = {each.name: build.layout.axes.get(each.name, 0) for each in (*declared.inputs, *declared.outputs)}
        shapes = {spec.name: spec.public_shape for spec in self.signature.inputs}
        load = LoadSettings(
            model=build.model,
            file=build.model_file,
            declared=declared,
            made=tuple(each._replace(shape=shapes[each.name]) for each in declared.inputs),
            rows_at=axes if build.layout.rows else None,
            device=self.device,
            threads=build.threads,
            parameters=self._options.parameters,
            processor_threads=build.processor_threads if declared.methods else 0,
            timeout_s=self._options.setup_timeout_s,
        )
        environment = self._options.environment
        if environment is None:
            return InProcess(load)
        if sys.platform != "linux":
            raise ConfigError((f"model {build.model!r}: backend_options.environment needs Linux",))
        return OwnProcess(load, interpreter_of(environment, build.model_file.parent, build.model))

    def _ask(self, inputs: Tensors, rows: int | None) -> Tensors:
        batch = {spec.name: self._as_declared(spec, inputs) for spec in self.signature.inputs}
        outputs = self._asked(lambda session: session.predict(batch, rows))
        return {spec.name: rows_from(outputs[spec.name], spec.axis) for spec in self.signature.outputs}

    def _asked(self, ask: Callable[[PythonSession], _T]) -> _T:
        session = self._session
        if session is None:
            raise RuntimeError(f"the backend of model {self._build.model!r} is not loaded")
        try:
            return ask(session)
        except Fault as fault:
            raise self._error(fault) from None

    def _error(self, fault: Fault) -> ServeAppError:
        """The client's error for a fault of the class."""
        if fault.refused:
            return InvalidRequest(safe_line(fault.message))
        logger.error("model %r: %s", self._build.model, fault)
        return InferenceFailed(safe_line(fault.message))

    def _as_declared(self, spec: TensorSpec, inputs: Tensors) -> npt.NDArray[Any]:
        array = inputs.get(spec.name)
        if array is None:
            raise InvalidRequest(f"input {spec.name!r} is missing")
        if array.ndim != len(spec.shape) or any(
            size not in {-1, found} for size, found in zip(spec.shape, array.shape, strict=True)
        ):
            raise InvalidRequest(
                f"input {spec.name!r} has shape {list(array.shape)}, and the model takes {list(spec.shape)}"
            )
        kind = self._texts.get(spec.name)
        return rows_to(array if kind is None else _texts(spec.name, array, kind), spec.axis)


class StreamingPythonBackend(PythonBackend):
    """Runs a Python class whose `predict` yields parts."""

    def run(self, inputs: Tensors) -> Tensors:
        """The first part of the answer to one request. Raises what `PythonBackend.run` raises.

        Raises:
            InferenceFailed: Also if there is no part.
        """
        with closing(self.stream(inputs)) as parts:
            for part in parts:
                return part
        raise InferenceFailed("the model answered this input with no part")

    def run_whole(self, inputs: Tensors) -> Tensors:
        """`run`."""
        return self.run(inputs)

    def stream(self, inputs: Tensors) -> Generator[Tensors, None, None]:
        """Run one request, part by part."""
        batch = {spec.name: self._as_declared(spec, inputs) for spec in self.signature.inputs}
        try:
            with closing(self._asked(lambda session: session.stream(batch))) as parts:
                for part in parts:
                    yield {spec.name: rows_from(part[spec.name], spec.axis) for spec in self.signature.outputs}
        except Fault as fault:
            raise self._error(fault) from None


def _texts(name: str, array: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    """An array of `str` or of `bytes`, as the class declares."""
    values = array.ravel().tolist()
    wanted = str if kind == "str" else bytes
    if all(type(value) is wanted for value in values):
        return array
    texts = np.empty(len(values), np.object_)
    for index, value in enumerate(values):
        if not isinstance(value, (str, bytes)):
            raise InvalidRequest(f"input {name!r}: element {index} is neither text nor bytes")
        try:
            texts[index] = value if isinstance(value, wanted) else _converted(value)
        except UnicodeDecodeError:
            raise InvalidRequest(f"input {name!r}: element {index} is not UTF-8") from None
    return texts.reshape(array.shape)


def _converted(value: str | bytes) -> str | bytes:
    return value.decode() if isinstance(value, bytes) else value.encode()
