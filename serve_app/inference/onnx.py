"""The ONNX Runtime backend."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnxruntime

from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.inference.batch import pieces
from serve_app.inference.device import (
    Device,
    device_of,
    divide_memory,
    has_cuda_convolutions,
    lacks_device,
    preload_cuda,
    providers_for,
    resolve_device,
)
from serve_app.inference.failure import describe_failure
from serve_app.inference.signature import SessionSignature, open_session, signature_of
from serve_app.payloads import ModelSignature, Tensors

_ERROR, _FATAL = 3, 4  # ONNX Runtime's log severities


@dataclass(frozen=True, slots=True)
class OnnxSettings:
    """How one model is run.

    Attributes:
        model: Its name, for messages.
        model_file: The ``.onnx`` file; weights kept outside it are looked for beside it.
        device: ``cuda`` insists on a GPU, ``auto`` takes one where the replica has one.
        gpu_available: Whether the cluster gave this replica a GPU, whole or in part.
        gpu_memory_bytes: Limit of the CUDA memory arenas, over all sessions; ``None`` for no limit.
        row_sizes: Numbers of rows that have a session of their own, ascending. Batches are filled up to the next one;
            larger ones are run in pieces of the largest. Empty: one session takes batches of any number of rows.
        only_for_convolutions: Use ``row_sizes`` only for a model with convolutions on CUDA whose memory is not limited.
            There it pays: ONNX Runtime prepares each convolution for the exact shape of its input, and again whenever
            that changes. A limit would have to be divided, and may then be too low for batches that fitted into it.
        intra_op_threads: Threads that share the work of one operator, the calling one included. At least 1: ONNX
            Runtime's own choice would be every core of the host, in every replica.
        inter_op_threads: Threads that run operators side by side. More than 1 switches to parallel execution.
        allow_spinning: Let idle threads burn their core for a little less latency.
    """

    model: str
    model_file: Path
    device: Device = "auto"
    gpu_available: bool = False
    gpu_memory_bytes: int | None = None
    row_sizes: tuple[int, ...] = ()
    only_for_convolutions: bool = False
    intra_op_threads: int = 1
    inter_op_threads: int = 1
    allow_spinning: bool = False

    def __post_init__(self) -> None:
        problems = [
            f"model {self.model!r}: {name} must be at least 1, not {value}"
            for name, value in (
                ("intra_op_threads", self.intra_op_threads),
                ("inter_op_threads", self.inter_op_threads),
                ("gpu_memory_bytes", 1 if self.gpu_memory_bytes is None else self.gpu_memory_bytes),
                *(("row_sizes", size) for size in self.row_sizes),
            )
            if value < 1
        ]
        if problems:
            raise ConfigError(tuple(problems))


class OnnxBackend:
    """Runs an ONNX model. See `serve_app.inference.backend.Backend` for the contract.

    Tensors of datatype BYTES are arrays of objects: ``str`` or UTF-8 ``bytes`` go in, ``str`` comes out (ONNX strings
    are text). A model whose file fixes the number of rows takes any number here: it is run in pieces of that size, the
    last of them filled up with copies of its last row. Sessions for some numbers of rows (``row_sizes``) work alike.
    """

    def __init__(self, settings: OnnxSettings) -> None:
        self._settings = settings
        self._sessions: dict[int, Any] = {}  # by the rows of their batches; 0 is one that takes any number
        self._loaded: SessionSignature | None = None
        self._device = ""
        self._note: str | None = None
        self._output_names: list[str] = []
        self._text_inputs: tuple[str, ...] = ()
        self._run_options: Any = None

    def __repr__(self) -> str:
        state = self._device if self._sessions else "not loaded"
        return f"<OnnxBackend {self._settings.model} {state}>"

    @property
    def signature(self) -> ModelSignature:
        """The tensors the model takes and gives; dimension 0 is always ``-1``. Valid after `load`."""
        return self._facts().signature

    @property
    def fixed_rows(self) -> int | None:
        """Rows of every single run where the model's file fixes them, else ``None``. Valid after `load`."""
        return self._facts().fixed_rows

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """Numbers of rows that are really run, ascending; empty where any number is. Valid after `load`."""
        self._facts()
        return tuple(size for size in self._sessions if size)

    @property
    def device(self) -> str:
        """Where it really runs: ``cpu`` or ``cuda``. Valid after `load`."""
        self._facts()
        return self._device

    @property
    def note(self) -> str | None:
        """What an operator should know about how it was loaded, e.g. that CUDA was not to be had. Or ``None``."""
        return self._note

    def load(self) -> None:
        """Make the session, or those of the row sizes.

        Raises:
            ConfigError: The model or the device is not usable; says which model and why.
        """
        settings = self._settings
        wanted = resolve_device(settings.device, settings.gpu_available, settings.model)
        if wanted == "cuda":
            preload_cuda()
        session = self._open(wanted, settings.gpu_memory_bytes)
        device = device_of(session.get_providers())
        self._note = None
        if device != wanted:
            fault = (
                f"model {settings.model!r}: a GPU was given, but ONNX Runtime could not use CUDA"
                " (are the CUDA and cuDNN libraries of the extra `cuda` installed?)"
            )
            if settings.device == "cuda":
                raise ConfigError((fault,))
            self._note = f"{fault}; it runs on the CPU"
        self._loaded = signature_of(session, model=settings.model)
        self._device = device
        self._output_names = [spec.name for spec in self._loaded.signature.outputs]
        self._text_inputs = tuple(spec.name for spec in self._loaded.signature.inputs if spec.datatype == "BYTES")
        self._run_options = onnxruntime.RunOptions()
        # What fails during a run is raised and told to its client; it is not the server's log that has to hear of it.
        self._run_options.log_severity_level = _FATAL
        sizes = self._sizes(session)
        self._sessions = dict.fromkeys(sizes or (0,), session)
        if len(sizes) > 1:
            self._sessions, session = {}, None  # it may take all of the memory, so it goes before the others come
            self._sessions = self._open_each(sizes, device)

    def run(self, inputs: Tensors) -> Tensors:
        """Run one batch, blocking.

        Args:
            inputs: Every input by name, of the signature's dtype and shape; axis 0 is rows, the same number in all.
                Arrays may be read-only and need not be contiguous.

        Returns:
            Every output by name, with as many rows.

        Raises:
            InferenceFailed: The model failed, or gave an output whose axis 0 is not the rows.
            InvalidRequest: A BYTES input holds something that is not text.
        """
        self._facts()
        if self._text_inputs:
            inputs = {**inputs, **{name: _as_text(name, inputs[name]) for name in self._text_inputs if name in inputs}}
        session = self._sessions.get(0)
        return self._run_filled(inputs) if session is None else self._run_once(session, inputs)

    def close(self) -> None:
        """Free the sessions and their memory. Idempotent."""
        self._sessions = {}
        self._loaded = None

    def _facts(self) -> SessionSignature:
        if self._loaded is None:
            raise RuntimeError(f"the backend of model {self._settings.model!r} is not loaded")
        return self._loaded

    def _sizes(self, session: Any) -> tuple[int, ...]:
        """The numbers of rows to run, ascending; empty where the session takes any."""
        settings = self._settings
        fixed_rows = self._facts().fixed_rows
        if fixed_rows is not None:
            return (fixed_rows,)
        if settings.only_for_convolutions:
            if not settings.row_sizes or not has_cuda_convolutions(session):
                return ()
            if settings.gpu_memory_bytes is not None:
                self._note = (
                    f"model {settings.model!r}: its convolutions are slow on a GPU where batches differ in their rows;"
                    " name resources.row_sizes to divide gpu_memory among sessions, or leave gpu_memory out"
                )
                return ()
        return tuple(sorted(set(settings.row_sizes)))

    def _open_each(self, sizes: tuple[int, ...], device: Literal["cpu", "cuda"]) -> dict[int, Any]:
        """Make a session for each number of rows."""
        total = self._settings.gpu_memory_bytes
        limits = [None] * len(sizes) if total is None else divide_memory(total, self._weight_bytes(), sizes)
        return {size: self._open(device, limit) for size, limit in zip(sizes, limits, strict=True)}

    def _weight_bytes(self) -> int:
        """About what the weights of one session take: the model's file, and those beside it that may hold weights."""
        return sum(file.stat().st_size for file in self._settings.model_file.parent.iterdir() if file.is_file())

    def _open(self, wanted: Literal["cpu", "cuda"], gpu_memory_bytes: int | None) -> Any:
        """Make a session on this device, or on the CPU where CUDA has no device to run on."""
        settings = self._settings
        providers = providers_for(wanted, gpu_memory_bytes)
        try:
            return open_session(settings.model_file, self._session_options(), providers, model=settings.model)
        except ConfigError as error:
            if wanted == "cpu" or not lacks_device(error.__cause__):
                raise
        return self._open("cpu", None)

    def _session_options(self) -> Any:
        settings = self._settings
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings.intra_op_threads
        options.inter_op_num_threads = settings.inter_op_threads
        if settings.inter_op_threads > 1:
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.log_severity_level = _ERROR
        if settings.only_for_convolutions:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        spinning = "1" if settings.allow_spinning else "0"
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
        return options

    def _run_once(self, session: Any, inputs: Tensors) -> Tensors:
        try:
            arrays = session.run(self._output_names, inputs, self._run_options)
        except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
            raise InferenceFailed(f"the model failed on this input: {describe_failure(error)}") from error
        rows = len(next(iter(inputs.values())))
        for name, array in zip(self._output_names, arrays, strict=True):
            if array.ndim == 0 or len(array) != rows:
                raise InferenceFailed(
                    f"output {name!r} of the model has shape {list(array.shape)} for {rows} rows of input:"
                    " its dimension 0 must be the rows"
                )
        return dict(zip(self._output_names, arrays, strict=True))

    def _run_filled(self, inputs: Tensors) -> Tensors:
        """Run in pieces of the largest size, each filled up to the smallest size that holds it."""
        sizes = tuple(self._sessions)
        rows = len(next(iter(inputs.values())))
        parts = []
        for piece in pieces(max(rows, 1), sizes[-1]):
            size = sizes[bisect_left(sizes, piece.stop - piece.start)]
            filled = {name: _filled(array[piece], size) for name, array in inputs.items()}
            parts.append(self._run_once(self._sessions[size], filled))
        if len(parts) == 1:
            return {name: array[:rows] for name, array in parts[0].items()}
        return {name: np.concatenate([part[name] for part in parts])[:rows] for name in self._output_names}


def _filled(piece: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """The piece, extended to ``rows`` rows by repeating its last one (a real row: zeros might not be a valid input)."""
    missing = rows - len(piece)
    if missing == 0:
        return piece
    return np.concatenate([piece, np.repeat(piece[-1:], missing, axis=0)])


def _as_text(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array with ``bytes`` decoded. ONNX Runtime would take ``str(b"a")``, which is ``"b'a'"``, without a word."""
    values = array.ravel().tolist()
    if all(type(value) is str for value in values):
        return array
    text = np.empty(len(values), dtype=np.object_)
    for index, value in enumerate(values):
        if isinstance(value, bytes):
            try:
                text[index] = value.decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest(f"input {name!r}: element {index} is not valid UTF-8") from error
        elif isinstance(value, str):
            text[index] = value
        else:
            raise InvalidRequest(f"input {name!r}: element {index} is neither text nor bytes")
    return text.reshape(array.shape)
