"""The ONNX Runtime backend."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime

from serve_app.backends.backend import RuntimeCheck, not_compared
from serve_app.backends.filling import run_filled
from serve_app.backends.layout import ServedSignature, rows_from, rows_to
from serve_app.backends.onnx.bfloat16 import run_bfloat16, takes_or_gives_bfloat16
from serve_app.backends.onnx.failure import describe_failure
from serve_app.backends.onnx.reference import LARGEST_BYTES, Open, compare
from serve_app.backends.onnx.sessions import Sessions, make_sessions, weight_bytes
from serve_app.backends.onnx.settings import OnnxSettings
from serve_app.backends.onnx.text import as_text
from serve_app.backends.outputs import DeclaredShapes, rows_missing
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.payloads import ModelSignature, Tensors

__all__ = ["OnnxBackend", "OnnxSettings"]

_FATAL = 4  # ONNX Runtime's log severity


class OnnxBackend:
    """Runs an ONNX model.

    BYTES tensors are arrays of objects: ``str`` or UTF-8 ``bytes`` go in, ``str`` comes out (ONNX strings are text). A
    model with a fixed number of rows takes any number: it runs in pieces of that size, the last filled up with copies
    of its last row. Sessions for some numbers of rows (``row_sizes``) work alike.
    """

    def __init__(self, settings: OnnxSettings) -> None:
        self._settings = settings
        self._sessions: dict[int, Any] = {}  # by the rows of their batches; 0 is one that takes any number
        self._loaded: ServedSignature | None = None
        self._device = ""
        self._providers: tuple[str, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._output_names: list[str] = []
        self._declared = DeclaredShapes(settings.model, ModelSignature((), ()))
        self._text_inputs: tuple[str, ...] = ()
        self._input_axes: dict[str, int] = {}
        self._output_axes: dict[str, int] = {}
        self._bfloat16 = False
        # Failures are raised and reported to the client, not logged.
        self._run_options = onnxruntime.RunOptions()
        self._run_options.log_severity_level = _FATAL

    def __repr__(self) -> str:
        state = self._device if self._sessions else "not loaded"
        return f"<OnnxBackend {self._settings.model} {state}>"

    @property
    def signature(self) -> ModelSignature:
        """The model's tensors; with rows, dimension 0 is ``-1``. Valid after `load`."""
        return self._facts().signature

    @property
    def fixed_rows(self) -> int | None:
        """Rows of every run if the model's file fixes them. Valid after `load`."""
        return self._facts().fixed_rows

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """Numbers of rows in use, ascending; empty for any number. Valid after `load`."""
        self._facts()
        return tuple(size for size in self._sessions if size)

    @property
    def device(self) -> str:
        """The device in use: ``cpu`` or ``cuda``. Valid after `load`."""
        self._facts()
        return self._device

    @property
    def providers(self) -> tuple[str, ...]:
        """ONNX Runtime's execution providers, in order of preference. Valid after `load`."""
        self._facts()
        return self._providers

    @property
    def note(self) -> str | None:
        """A note for the operator about the load, e.g. that CUDA was not available."""
        return "; ".join(self._notes) or None

    def load(self) -> str | None:
        """Make the session, or those of the row sizes. Returns `note`."""
        self._use_sessions(make_sessions(self._settings))
        return self.note

    def check(self, inputs: Sequence[Tensors]) -> RuntimeCheck:
        """Compare with the unoptimized graph; see `serve_app.backends.onnx.reference`."""
        settings = self._settings
        if weight_bytes(settings.model_file) > LARGEST_BYTES:
            return not_compared(f"its weights are larger than {LARGEST_BYTES >> 30} GiB")
        rows, first = self.fixed_rows, next(iter(self._sessions))
        given = [self._with_text(each) if self._text_inputs else each for each in inputs]
        if rows is not None:
            given = [{name: array[np.arange(rows) % len(array)] for name, array in each.items()} for each in given]
        found = compare(settings.model_file, self._outputs_of, self._sessions[first], self._reopened(first), given)
        if found.disabled_optimizers:
            self.disable(found.disabled_optimizers)
        return found

    def disable(self, optimizers: Sequence[str]) -> None:
        """Make the sessions again without these optimizers."""
        settings = replace(self._settings, disabled_optimizers=tuple(optimizers))
        self._use_sessions(make_sessions(settings))
        self._settings = settings

    def _reopened(self, size: int) -> Open:
        def reopen(names: Sequence[str]) -> Any:
            return make_sessions(replace(self._settings, disabled_optimizers=tuple(names))).by_rows[size]

        return reopen

    def _use_sessions(self, made: Sessions) -> None:
        self._loaded = made.loaded
        self._device = made.device
        self._providers = made.providers
        self._notes = made.notes
        self._output_names = [spec.name for spec in made.loaded.signature.outputs]
        self._declared = DeclaredShapes(self._settings.model, made.loaded.signature)
        signature = made.loaded.signature
        taken = (*signature.inputs, *signature.optional)
        self._text_inputs = tuple(spec.name for spec in taken if spec.datatype == "BYTES")
        self._input_axes = {spec.name: spec.axis for spec in taken if spec.axis}
        self._output_axes = {spec.name: spec.axis for spec in signature.outputs if spec.axis}
        if self._text_inputs and takes_or_gives_bfloat16(made.loaded.signature):
            raise ConfigError((f"model {self._settings.model!r}: ONNX Runtime runs no model of both text and BF16",))
        self._bfloat16 = takes_or_gives_bfloat16(made.loaded.signature)
        self._sessions = made.by_rows

    def run(self, inputs: Tensors) -> Tensors:
        """Run one batch, blocking.

        Args:
            inputs: By name, of the signature's dtypes and shapes, rows in front, the same number in each; possibly
                read-only or not contiguous. A model without rows takes one request.

        Raises:
            UnexpectedShape: Axis 0 of an output is not the rows, or it has another shape than declared.
            InvalidRequest: A BYTES input holds no text, or an output is not UTF-8.
        """
        if self._loaded is None:
            self._facts()  # raises
        if not self._settings.layout.rows:
            return self.run_whole(inputs)
        if self._text_inputs:
            inputs = self._with_text(inputs)
        session = self._sessions.get(0)
        return self._run_filled(inputs) if session is None else self._run_once(session, inputs)

    def run_whole(self, inputs: Tensors) -> Tensors:
        """Run one request uncut, blocking.

        Args:
            inputs: Each required input and any optional ones, of the signature's dtypes and the request's shapes.

        Raises:
            InvalidRequest: A BYTES input holds no text, or an output is not UTF-8.
        """
        facts = self._facts()
        fixed_rows = facts.fixed_rows
        if fixed_rows is not None and any(len(inputs[spec.name]) != fixed_rows for spec in facts.signature.inputs):
            return self.run(inputs)  # it has to be cut or filled up
        if self._text_inputs:
            inputs = self._with_text(inputs)
        outputs = self._outputs_of(next(iter(self._sessions.values())), inputs)
        return self._declared.tell(outputs) if self._settings.layout.rows else outputs

    def close(self) -> None:
        """Free the sessions and their memory. Idempotent."""
        self._sessions = {}
        self._loaded = None

    def _facts(self) -> ServedSignature:
        if self._loaded is None:
            raise RuntimeError(f"the backend of model {self._settings.model!r} is not loaded")
        return self._loaded

    def _run_once(self, session: Any, inputs: Tensors) -> Tensors:
        rows = len(next(iter(inputs.values())))
        outputs = self._outputs_of(session, inputs)
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != rows:
                raise rows_missing(name, array.shape, rows)
        return self._declared.check(outputs)

    def _outputs_of(self, session: Any, inputs: Tensors) -> Tensors:
        if self._input_axes:
            inputs = {name: rows_to(array, self._input_axes.get(name, 0)) for name, array in inputs.items()}
        try:
            if self._bfloat16:
                arrays = run_bfloat16(session, self._output_names, inputs, self._run_options)
            else:
                arrays = session.run(self._output_names, inputs, self._run_options)
        except UnicodeDecodeError as error:
            if any(array.dtype.kind == "S" for array in inputs.values()):
                # It has run: ONNX Runtime takes bytes that are no text, and gives back text only.
                raise InvalidRequest(
                    "bytes that are not UTF-8 are in the model's output, which ONNX Runtime gives as text only; send"
                    " UTF-8, or base64 where the model does not look into them"
                ) from error
            raise InferenceFailed("the model gave bytes that are not UTF-8") from error
        except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
            raise InferenceFailed(f"the model failed on this input: {describe_failure(error)}") from error
        outputs = dict(zip(self._output_names, arrays, strict=True))
        for name, axis in self._output_axes.items():
            outputs[name] = rows_from(outputs[name], axis)
        return outputs

    def _with_text(self, inputs: Tensors) -> Tensors:
        return {**inputs, **{name: as_text(name, inputs[name]) for name in self._text_inputs if name in inputs}}

    def _run_filled(self, inputs: Tensors) -> Tensors:
        """Run in pieces of the largest size, each filled up to the smallest size that holds it."""
        sizes = tuple(self._sessions)
        return run_filled(
            inputs,
            sizes[-1],
            lambda rows: sizes[bisect_left(sizes, rows)],
            lambda filled, size: self._run_once(self._sessions[size], filled),
        )
