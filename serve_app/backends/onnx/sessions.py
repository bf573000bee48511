"""Makes the sessions of one model: one in all, or one for each of a few numbers of rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import onnxruntime

from serve_app.backends.device import resolve_device
from serve_app.backends.layout import ServedSignature
from serve_app.backends.onnx.device import (
    device_of,
    divide_memory,
    lacks_device,
    preload_cuda,
    providers_for,
)
from serve_app.backends.onnx.external_data import external_data
from serve_app.backends.onnx.settings import OnnxSettings
from serve_app.backends.onnx.shared_arena import share_arena
from serve_app.backends.onnx.signature import open_session, signature_of
from serve_app.errors import ConfigError

_ERROR = 3  # ONNX Runtime's log severity


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions of one model.

    Attributes:
        by_rows: By rows of a batch, ascending; 0: any number.
        loaded: The model's signature, from the sessions.
        notes: For the operator.
    """

    by_rows: dict[int, Any]
    loaded: ServedSignature
    device: Literal["cpu", "cuda"]
    providers: tuple[str, ...]
    notes: tuple[str, ...]


def make_sessions(settings: OnnxSettings) -> Sessions:
    """Make the sessions on the requested device."""
    return _Maker(settings).make()


class _Maker:
    def __init__(self, settings: OnnxSettings) -> None:
        self._settings = settings
        self._notes: list[str] = []

    def make(self) -> Sessions:
        settings = self._settings
        wanted = resolve_device(settings.device, settings.gpu_available, settings.model)
        if wanted == "cuda":
            preload_cuda()
        session = self._open(wanted, settings.gpu_memory_bytes)
        providers = tuple(session.get_providers())
        device = device_of(providers)
        if device != wanted:
            self._lacks_cuda()
        loaded = signature_of(session, model=settings.model, layout=settings.layout)
        sizes = self._sizes(loaded)
        if len(sizes) > 1:
            del session  # it may take all of the memory, so it goes before the others come
            by_rows = self._open_each(sizes, device)
        else:
            by_rows = dict.fromkeys(sizes or (0,), session)
        return Sessions(by_rows, loaded, device, providers, tuple(self._notes))

    def _lacks_cuda(self) -> None:
        settings = self._settings
        fault = (
            f"model {settings.model!r}: a GPU was given, but ONNX Runtime could not use CUDA"
            " (are the CUDA and cuDNN libraries of the extra `cuda` installed?)"
        )
        if settings.device == "cuda":
            raise ConfigError((fault,))
        self._notes.append(f"{fault}; it runs on the CPU")

    def _sizes(self, loaded: ServedSignature) -> tuple[int, ...]:
        """Numbers of rows that batches are filled up to, ascending; empty if the session takes any."""
        settings = self._settings
        if loaded.fixed_rows is not None:
            return (loaded.fixed_rows,)
        if not settings.layout.rows:
            return ()
        return tuple(sorted(set(settings.row_sizes)))

    def _open_each(self, sizes: tuple[int, ...], device: Literal["cpu", "cuda"]) -> dict[int, Any]:
        total = self._settings.gpu_memory_bytes
        limits = (
            [None] * len(sizes)
            if total is None
            else divide_memory(total, weight_bytes(self._settings.model_file), sizes)
        )
        return {size: self._open(device, limit) for size, limit in zip(sizes, limits, strict=True)}

    def _open(self, wanted: Literal["cpu", "cuda"], gpu_memory_bytes: int | None) -> Any:
        """Make a session on this device, or on the CPU if CUDA has no device."""
        settings = self._settings
        providers = providers_for(wanted, gpu_memory_bytes, tf32=settings.tf32)
        try:
            return open_session(
                settings.model_file,
                self._session_options(),
                providers,
                model=settings.model,
                without=settings.disabled_optimizers,
            )
        except ConfigError as error:
            if wanted == "cpu" or not lacks_device(error.__cause__):
                raise
        return self._open("cpu", None)

    def _session_options(self) -> Any:
        settings = self._settings
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings.intra_op_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERROR
        # Idle threads that spin gain a little latency and take a core from the router and from other replicas.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if settings.among_others:
            share_arena(options)
        return options


def weight_bytes(file: Path) -> int:
    """Estimated weights of one session: the size of the model's file and its files of weights."""
    parts = (file, *(file.parent / name for name in external_data(file)))
    return sum(part.stat().st_size for part in parts if part.is_file())  # what is missing, the session tells
