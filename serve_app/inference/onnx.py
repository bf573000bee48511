"""The ONNX Runtime backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.inference.device import Device, device_of, preload_cuda, providers_for, resolve_device
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
        gpu_memory_bytes: Limit of the CUDA memory arena; ``None`` for no limit.
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
            )
            if value < 1
        ]
        if problems:
            raise ConfigError(tuple(problems))


class OnnxBackend:
    """Runs an ONNX model. See `serve_app.inference.backend.Backend` for the contract.

    Tensors of datatype BYTES are arrays of objects: ``str`` or UTF-8 ``bytes`` go in, ``str`` comes out (ONNX strings
    are text). A model whose file fixes the number of rows takes any number here: it is run in pieces of that size, the
    last of them filled up with copies of its last row.
    """

    def __init__(self, settings: OnnxSettings) -> None:
        self._settings = settings
        self._session: Any = None
        self._loaded: SessionSignature | None = None
        self._device = ""
        self._note: str | None = None
        self._output_names: list[str] = []
        self._text_inputs: tuple[str, ...] = ()
        self._run_options: Any = None

    def __repr__(self) -> str:
        state = self._device if self._session is not None else "not loaded"
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
    def device(self) -> str:
        """Where it really runs: ``cpu`` or ``cuda``. Valid after `load`."""
        self._facts()
        return self._device

    @property
    def note(self) -> str | None:
        """What an operator should know about how it was loaded, e.g. that CUDA was not to be had. Or ``None``."""
        return self._note

    def load(self) -> None:
        """Make the session.

        Raises:
            ConfigError: The model or the device is not usable; says which model and why.
        """
        settings = self._settings
        wanted = resolve_device(settings.device, settings.gpu_available, settings.model)
        if wanted == "cuda":
            preload_cuda()
        providers = providers_for(wanted, settings.gpu_memory_bytes)
        session = open_session(settings.model_file, self._session_options(), providers, model=settings.model)
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
        self._session = session

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
        fixed_rows = self._facts().fixed_rows
        if self._text_inputs:
            inputs = {**inputs, **{name: _as_text(name, inputs[name]) for name in self._text_inputs if name in inputs}}
        if fixed_rows is None:
            return self._run_once(inputs)
        return self._run_fixed(inputs, fixed_rows)

    def close(self) -> None:
        """Free the session and its memory. Idempotent."""
        self._session = None
        self._loaded = None

    def _facts(self) -> SessionSignature:
        if self._loaded is None:
            raise RuntimeError(f"the backend of model {self._settings.model!r} is not loaded")
        return self._loaded

    def _session_options(self) -> Any:
        settings = self._settings
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings.intra_op_threads
        options.inter_op_num_threads = settings.inter_op_threads
        if settings.inter_op_threads > 1:
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.log_severity_level = _ERROR
        spinning = "1" if settings.allow_spinning else "0"
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
        return options

    def _run_once(self, inputs: Tensors) -> Tensors:
        try:
            arrays = self._session.run(self._output_names, inputs, self._run_options)
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

    def _run_fixed(self, inputs: Tensors, size: int) -> Tensors:
        rows = len(next(iter(inputs.values())))
        if rows == size:
            return self._run_once(inputs)
        parts = [
            self._run_once({name: _filled(array[start : start + size], size) for name, array in inputs.items()})
            for start in range(0, max(rows, 1), size)
        ]
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
