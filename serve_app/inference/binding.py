"""Runs a session on buffers that stay: inputs and outputs are bound to the device's memory.

A batch is first filled in (`BoundSession.fill`: rows are gathered in page-locked memory and copied to the device) and
then run. Each has buffers of its own, a *slot*, so one batch can be filled in while another runs; a slot is used again
when its batch has run.

With CUDA graphs, the first run of a slot records what the device does, and every later one replays it with a single
launch. A graph belongs to the addresses and shapes that it was recorded with, so its slot keeps to one shape. It also
belongs to the thread: ONNX Runtime has a context for each, and each records anew. While one records, no other call to
the device may be made in the process, or it and the recording fail; hence the lock.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime

from serve_app.errors import InferenceFailed
from serve_app.inference.failure import describe_failure
from serve_app.inference.memory import Memory
from serve_app.inference.outputs import UnexpectedShape
from serve_app.payloads import DTYPES, ModelSignature, Tensors, TensorSpec

MOST_GRAPHS = 64
"""Graphs of one session. Each keeps its buffers, so shapes beyond that run without."""

_GRAPH_ID = "gpu_graph_id"
_NO_GRAPH = "-1"
_FATAL = 4  # ONNX Runtime's log severity
_recording = threading.Lock()

_Shapes: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]


def run_options(graph_id: str = _NO_GRAPH) -> Any:
    """Options of a run: what fails is raised and told to its client; it is not the server's log that has to hear of it.

    The graph's id is set even where there are no graphs: looking for one that is not set takes ONNX Runtime's Python
    side 27 microseconds, more than a small model.
    """
    options = onnxruntime.RunOptions()
    options.log_severity_level = _FATAL
    options.add_run_config_entry(_GRAPH_ID, graph_id)
    return options


def can_bind(signature: ModelSignature) -> bool:
    """Whether every tensor is a block of memory that ONNX Runtime binds by its numpy type; text and BF16 are not."""
    return all(spec.datatype not in {"BYTES", "BF16"} for spec in (*signature.inputs, *signature.outputs))


class _Buffer:
    """Memory on the device that grows. Powers of two, so that it seldom has to."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._nbytes = 0
        self._value: Any = None

    def reserve(self, nbytes: int) -> int:
        """Make it that large, and return its address. What it held is lost if it has to grow."""
        if self._value is None or nbytes > self._nbytes:
            self._value = None  # freed before its successor comes
            self._nbytes = 1 << max(nbytes - 1, 63).bit_length()
            device = self._memory.device
            self._value = onnxruntime.OrtValue.ortvalue_from_shape_and_type([self._nbytes], np.uint8, device, 0)
        address: int = self._value.data_ptr()
        return address


@dataclass(slots=True)
class _Slot:
    """The buffers of one batch.

    Attributes:
        binding: ONNX Runtime's, of all buffers.
        options: Of its runs.
        graph: Whether its runs are recorded.
        inputs: Buffers by name.
        outputs: Buffers by name, of outputs whose size is known before the run.
        loose: Names of the others: ONNX Runtime allocates them in each run.
        staging: Page-locked memory by input.
        shapes: What the binding was made for; ``None`` for nothing yet.
        valid: Leading rows that hold real rows, of this batch or of earlier ones of the same shapes.
        recorded_by: Threads that have recorded its graph.
    """

    binding: Any
    options: Any
    graph: bool
    inputs: dict[str, _Buffer] = field(default_factory=dict)
    outputs: dict[str, _Buffer] = field(default_factory=dict)
    loose: list[str] = field(default_factory=list)
    staging: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    shapes: _Shapes | None = None
    valid: int = 0
    recorded_by: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch on the device, ready to run once.

    Attributes:
        slot: Its buffers.
        key: Where the slot goes back to.
        rows: Its rows, without those that fill it up.
        run_rows: Rows that it is run with.
    """

    slot: _Slot
    key: _Shapes | None
    rows: int
    run_rows: int


class BoundSession:
    """A session and the slots of its batches.

    Args:
        session: An `onnxruntime.InferenceSession`.
        signature: Of its model, which `can_bind`.
        memory: Of the device that the session runs on.
        graphs: Whether to record and replay runs; the session was made with ``enable_cuda_graph`` then.
    """

    def __init__(self, session: Any, signature: ModelSignature, memory: Memory, *, graphs: bool = False) -> None:
        self._session = session
        self._signature = signature
        self._memory = memory
        self._graphs = graphs
        self._graph_ids = itertools.count(1)
        self._graphs_left = MOST_GRAPHS if graphs else 0
        self._lock = threading.Lock()
        self._free: dict[_Shapes | None, list[_Slot]] = {}
        self._held = 0

    def __repr__(self) -> str:
        free = sum(map(len, self._free.values()))
        return f"<BoundSession {free} slots free, {self._held} held>"

    @property
    def held(self) -> int:
        """Slots of batches that have been filled in, and neither run nor discarded yet."""
        return self._held

    def fill(self, parts: Sequence[Tensors], run_rows: int) -> Filled:
        """Put a batch on the device. May be called from any thread, also while another batch runs.

        Args:
            parts: Tensors whose rows, one after the other, are the batch.
            run_rows: Rows to run it with, at least its own. What it lacks is filled up with copies of its last row, or
                with rows that a batch before it has left there: real rows all of them.

        Raises:
            InferenceFailed: The parts do not fit together, are not the model's, or the device failed.
        """
        counts = [len(next(iter(tensors.values()))) for tensors in parts]
        shapes: _Shapes = (
            ("", "rows", (run_rows,)),
            *((name, array.dtype.str, array.shape[1:]) for name, array in parts[0].items()),
        )
        slot, key = self._take(shapes)
        try:
            with self._beside_recordings():
                self._place(slot, shapes, run_rows)
                rows = sum(counts)
                for name in parts[0]:
                    self._upload(slot, name, [tensors[name] for tensors in parts], rows, run_rows)
        except Exception as error:  # ONNX Runtime's exceptions share no base but Exception; numpy's and CUDA's come too
            self._drop(slot)
            raise _failed(error) from error
        slot.valid = max(slot.valid, run_rows)
        return Filled(slot, key, rows, run_rows)

    def run(self, filled: Filled) -> Tensors:
        """Run a batch that was filled in, blocking, and free its slot. Only one at a time.

        Raises:
            InferenceFailed: The model failed, or gave an output whose axis 0 is not the rows.
        """
        slot = filled.slot
        try:
            self._run(slot)
            outputs = self._outputs(filled)
        except Exception as error:  # as in `fill`
            self._drop(slot)
            raise error if isinstance(error, InferenceFailed) else _failed(error) from error
        self._free_slot(filled)
        return outputs

    def discard(self, filled: Filled) -> None:
        """Free the slot of a batch that will not be run. The memory of its parts may have been used anew meanwhile."""
        filled.slot.valid = 0
        self._free_slot(filled)

    def _free_slot(self, filled: Filled) -> None:
        with self._lock:
            self._held -= 1
            self._free.setdefault(filled.key, []).append(filled.slot)

    def _take(self, shapes: _Shapes) -> tuple[_Slot, _Shapes | None]:
        """A free slot, or a new one, and its key."""
        with self._lock:
            self._held += 1
            for key in (shapes, None):
                if self._free.get(key):
                    return self._free[key].pop(), key
            if self._graphs_left:
                self._graphs_left -= 1
                return _Slot(self._session.io_binding(), run_options(str(next(self._graph_ids))), graph=True), shapes
            return _Slot(self._session.io_binding(), run_options(), graph=False), None

    def _drop(self, slot: _Slot) -> None:
        """Forget a slot whose batch failed: what it was bound to may be half done."""
        with self._lock:
            self._held -= 1
            self._graphs_left += slot.graph and not slot.recorded_by

    def _beside_recordings(self) -> AbstractContextManager[Any]:
        return _recording if self._graphs else nullcontext()

    def _place(self, slot: _Slot, shapes: _Shapes, run_rows: int) -> None:
        """Bind a slot's buffers for these shapes, unless they are already."""
        if slot.shapes == shapes:
            return
        slot.shapes, slot.valid = None, 0
        device = self._memory.device
        slot.binding.clear_binding_inputs()
        for name, dtype, trailing in shapes[1:]:
            kind = np.dtype(dtype).newbyteorder("=")
            shape = (run_rows, *trailing)
            address = slot.inputs.setdefault(name, _Buffer(self._memory)).reserve(prod(shape) * kind.itemsize)
            slot.binding.bind_input(name, device, 0, kind.type, shape, address)
        slot.binding.clear_binding_outputs()
        slot.loose.clear()
        for spec in self._signature.outputs:
            if -1 in spec.shape[1:] or len(spec.shape) < 2:  # the latter may be an output of unknown rank
                slot.binding.bind_output(spec.name, device, 0)  # keeps the model's order
                slot.loose.append(spec.name)
            else:
                self._bind_output(slot, spec, (run_rows, *spec.shape[1:]))
        slot.shapes = shapes

    def _bind_output(self, slot: _Slot, spec: TensorSpec, shape: Sequence[int]) -> None:
        dtype = DTYPES[spec.datatype]
        address = slot.outputs.setdefault(spec.name, _Buffer(self._memory)).reserve(prod(shape) * dtype.itemsize)
        slot.binding.bind_output(spec.name, self._memory.device, 0, dtype.type, list(shape), address)

    def _upload(self, slot: _Slot, name: str, arrays: Sequence[npt.NDArray[Any]], rows: int, run_rows: int) -> None:
        """Copy the rows of one input to the device, and copies of the last one behind them where nothing is yet."""
        last = arrays[-1][-1:]
        missing = run_rows - rows if slot.valid < run_rows else 0
        kind = arrays[0].dtype.newbyteorder("=")
        if len(arrays) == 1 and missing == 0 and arrays[0].flags.c_contiguous and arrays[0].dtype == kind:
            batch = arrays[0]  # gathering what lies together would only be one copy more
        else:
            total = rows + missing
            batch = self._staging(slot, name, total * last.nbytes).view(kind).reshape(total, *last.shape[1:])
            np.concatenate(arrays, out=batch[:rows], casting="equiv")
            batch[rows:] = last
        self._memory.upload(batch, slot.inputs[name].reserve(batch.nbytes))

    def _staging(self, slot: _Slot, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        if name not in slot.staging or len(slot.staging[name]) < nbytes:
            slot.staging.pop(name, None)
            slot.staging[name] = self._memory.host(1 << max(nbytes - 1, 63).bit_length())
        return slot.staging[name][:nbytes]

    def _run(self, slot: _Slot) -> None:
        thread = threading.get_ident()
        if not slot.graph or thread in slot.recorded_by:
            for name in slot.loose:  # what the last run has put there would be taken for a buffer of the right size
                slot.binding.bind_output(name, self._memory.device, 0)
            self._session.run_with_iobinding(slot.binding, slot.options)
            return
        with _recording:
            if slot.loose:
                # A graph needs outputs at addresses that stay, so one run without it tells how large they are.
                self._session.run_with_iobinding(slot.binding, run_options())
                shapes = [value.shape() for value in slot.binding.get_outputs()]
                for spec, shape in zip(self._signature.outputs, shapes, strict=True):
                    if spec.name in slot.loose:
                        self._bind_output(slot, spec, shape)
                slot.loose.clear()
            self._session.run_with_iobinding(slot.binding, slot.options)
        slot.recorded_by.add(thread)

    def _outputs(self, filled: Filled) -> Tensors:
        """Copy the outputs of a batch's own rows to memory of their own."""
        outputs: Tensors = {}
        for spec, value in zip(self._signature.outputs, filled.slot.binding.get_outputs(), strict=True):
            shape = value.shape()
            if not shape or shape[0] != filled.run_rows:
                raise rows_missing(spec.name, shape, filled.run_rows)
            array = np.empty((filled.rows, *shape[1:]), DTYPES[spec.datatype])
            if array.nbytes:
                self._memory.download(value.data_ptr(), array)
            outputs[spec.name] = array
        return outputs


def rows_missing(name: str, shape: Sequence[int], rows: int) -> UnexpectedShape:
    """The error of an output whose axis 0 is not the rows."""
    return UnexpectedShape(
        f"output {name!r} of the model has shape {list(shape)} for {rows} rows of input:"
        " its dimension 0 must be the rows"
    )


def _failed(error: Exception) -> InferenceFailed:
    return InferenceFailed(f"the model failed on this input: {describe_failure(error)}")
