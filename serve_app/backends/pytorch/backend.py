"""The backend of PyTorch's models."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

from serve_app.backends.backend import RuntimeCheck, SessionLost
from serve_app.backends.device import resolve_device
from serve_app.backends.failure import one_line
from serve_app.backends.filling import run_filled
from serve_app.backends.joining.experiment import SAME, of_floats
from serve_app.backends.kind import BuildSettings
from serve_app.backends.layout import ServedSignature, rows_from, rows_to, served
from serve_app.backends.outputs import DeclaredShapes, rows_missing
from serve_app.backends.pytorch.cuda import choose_device, is_lost, prepare_device, release
from serve_app.backends.pytorch.failure import describe_failure
from serve_app.backends.pytorch.opened import Opened, RowRange
from serve_app.backends.pytorch.tensors import import_torch, to_numpy, to_torch
from serve_app.errors import ConfigError, InferenceFailed
from serve_app.payloads import DTYPES, ModelSignature, Tensors, TensorSpec

_FAULT: Final = 0.05
"""Differences above this, relative to an output's largest value, are not the rounding of TF32."""


class TorchBackend:
    """Runs a model of PyTorch on the CPU, or on the first visible GPU, in CUDA's default stream.

    PyTorch has one thread pool per process; loading sets its size from the build. Each calling thread keeps the number
    of threads for an operator, so that is set before a run.

    Args:
        open_model: Opens the file on a device. Raises `ConfigError` if it is no model, or cannot be served.

    Raises:
        ConfigError: The build requires a GPU, and the replica has none.
    """

    def __init__(self, build: BuildSettings, open_model: Callable[[str], Opened]) -> None:
        self._wanted = resolve_device(build.device, build.gpu_available, build.model)
        self.device = "cpu"
        self._build = build
        self._open_model = open_model
        self._torch: Any = None
        self._opened: Opened | None = None
        self._served = ServedSignature(ModelSignature((), ()), None)
        self._declared = DeclaredShapes(build.model, self._served.signature)
        self._sizes: tuple[int, ...] = ()
        self._range = RowRange()

    @property
    def signature(self) -> ModelSignature:
        """The model's tensors; with rows, dimension 0 is ``-1``. Valid after `load`."""
        return self._served.signature

    def load(self) -> str | None:
        """Read the file. Returns a note if PyTorch cannot use the replica's GPU."""
        build = self._build
        try:
            self._torch = import_torch()
        except (ImportError, OSError) as error:
            reason = one_line(str(error)) or type(error).__name__
            raise ConfigError((f"model {build.model!r}: PyTorch cannot be imported: {reason}",)) from error
        self._torch.set_num_threads(build.threads)
        self.device, note = choose_device(self._torch, self._wanted, required=build.device == "cuda", model=build.model)
        if self.device == "cuda":
            prepare_device(self._torch, id(self), build.gpu_memory_bytes, tf32=build.tf32)
        opened = self._open_model(self.device)
        self._served = served(opened.declared, build.layout, model=build.model)
        self._declared = DeclaredShapes(build.model, self._served.signature)
        self._range = opened.rows(build.layout.axes) if build.layout.rows else RowRange()
        self._sizes = self._row_sizes()
        self._opened = opened
        return note

    def check(self, inputs: Sequence[Tensors]) -> RuntimeCheck:
        """Compare answers of a GPU with those of the CPU: how far both may be from the right value."""
        if self.device == "cpu":
            return RuntimeCheck(0.0)
        reference = self._open_model("cpu")
        try:
            return self.beside(reference, inputs)
        finally:
            reference.free()

    def beside(self, reference: Opened, inputs: Sequence[Tensors]) -> RuntimeCheck:
        """Compare answers with those of the model opened on the CPU."""
        gaps = [of_floats(self._run_once(each, reference), self._run_once(each)) for each in inputs]
        worst = max(gaps, key=lambda gap: gap.relative, default=SAME)
        if worst.relative <= _FAULT:
            return RuntimeCheck(worst.relative)
        return RuntimeCheck(0.0, note=f"output {worst.output!r} differs on {self.device}{worst.by}")

    def disable(self, optimizers: Sequence[str]) -> None:
        """Do nothing: `check` finds none, since PyTorch runs a model as it is written."""

    def run(self, inputs: Tensors) -> Tensors:
        """Run one batch, blocking.

        Raises:
            UnexpectedShape: Axis 0 of an output is not the rows, or it has another shape than declared.
        """
        if not self._build.layout.rows:
            return self.run_whole(inputs)
        least, most = self._range
        if sizes := self._sizes:
            return run_filled(inputs, sizes[-1], lambda rows: sizes[bisect_left(sizes, rows)], self._run_rows)
        if least > 1 or most is not None:
            rows = len(next(iter(inputs.values())))
            return run_filled(inputs, most or max(rows, 1), lambda piece: max(piece, least), self._run_rows)
        return self._run_rows(inputs, len(next(iter(inputs.values()))))

    def run_whole(self, inputs: Tensors) -> Tensors:
        """Run one request uncut, blocking."""
        if not self._build.layout.rows:
            return self._run_once(inputs)
        if not self._takes(inputs):
            return self.run(inputs)  # it has to be cut or filled up
        return self._declared.tell(self._run_once(inputs))

    def close(self) -> None:
        """Free the model and its memory. Idempotent."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.free()
        del opened
        if self.device == "cuda":
            release(self._torch, id(self))

    def _row_sizes(self) -> tuple[int, ...]:
        """Numbers of rows that batches are filled up to, ascending; empty without filling."""
        build = self._build
        if self._served.fixed_rows is not None:
            return (self._served.fixed_rows,)
        if not build.layout.rows:
            return ()
        least, most = self._range
        return tuple(sorted({min(max(size, least), most or size) for size in build.row_sizes}))

    def _takes(self, inputs: Tensors) -> bool:
        """Whether the model takes this many rows, or has to report itself that inputs differ."""
        counts = {len(array) if array.ndim else None for array in inputs.values()}
        rows = next(iter(counts), None)
        if len(counts) != 1 or rows is None:
            return True
        least, most = self._range
        return self._served.fixed_rows in {None, rows} and least <= rows and (most is None or rows <= most)

    def _run_rows(self, inputs: Tensors, rows: int) -> Tensors:
        outputs = self._run_once(inputs)
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != rows:
                raise rows_missing(name, array.shape, rows)
        return self._declared.check(outputs)

    def _run_once(self, inputs: Tensors, reference: Opened | None = None) -> Tensors:
        """Run a model, or the reference on the CPU."""
        opened, device = reference or self._opened, "cpu" if reference else self.device
        if opened is None:
            raise RuntimeError(f"the backend of model {self._build.model!r} is not loaded")
        torch, axes = self._torch, self._build.layout.axes
        given = {name: rows_to(array, axes.get(name, 0)) for name, array in inputs.items()}
        for spec in opened.declared.inputs:
            _check_input(spec, given)
        if torch.get_num_threads() != self._build.threads:  # it has run another build in this thread
            torch.set_num_threads(self._build.threads)
        try:
            with torch.inference_mode():
                copied = opened.writes and device == "cpu"
                tensors = {name: to_torch(torch, each, copy=copied).to(device) for name, each in given.items()}
                arrays = [to_numpy(torch, tensor) for tensor in opened.run(tensors)]
        except Exception as error:  # a model may raise anything
            lost = device == "cuda" and is_lost(torch)
            kind = SessionLost if lost else InferenceFailed
            raise kind(f"the model failed on this input: {describe_failure(error)}") from error
        outputs = {}
        for spec, array in zip(opened.declared.outputs, arrays, strict=True):
            if array.dtype != DTYPES[spec.datatype]:
                raise InferenceFailed(
                    f"output {spec.name!r} of the model is of type {array.dtype}, and {spec.datatype} is declared"
                )
            outputs[spec.name] = rows_from(array, axes.get(spec.name, 0))
        return outputs


def _check_input(spec: TensorSpec, given: Tensors) -> None:
    """Raise if an input differs from its declaration: most of PyTorch's operators would accept it."""
    if spec.name not in given:
        raise InferenceFailed(f"input {spec.name!r} is missing")
    shape = given[spec.name].shape
    if len(shape) != len(spec.shape) or any(
        size not in {-1, found} for size, found in zip(spec.shape, shape, strict=True)
    ):
        raise InferenceFailed(f"input {spec.name!r} has shape {list(shape)}, and {list(spec.shape)} is declared")
