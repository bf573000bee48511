"""Runs the tensors of one build of a model. `serve_app.testing.backends` checks this contract."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from serve_app.errors import InferenceFailed
from serve_app.payloads import ModelSignature, Tensors


class SessionLost(InferenceFailed):
    """The model's process or session has ended and every further run would fail: replace the replica."""


class Backend(Protocol):
    """Runs batches of tensors on one device, one thread at a time; not necessarily the thread that loaded it.

    If its `BackendKind` is ``concurrent`` and its device the CPU, several threads may run it at once.

    Inputs may be read-only and need not be contiguous; a run does not change them. The caller owns the outputs. A
    failed run leaves the backend as it was.
    """

    @property
    def signature(self) -> ModelSignature:
        """The model's inputs and outputs. Valid after `load`."""

    @property
    def device(self) -> str:
        """The device in use: ``cpu`` or ``cuda``. Valid after `load`."""

    def load(self) -> str | None:
        """Make the session. Returns a note for the operator, e.g. that the GPU could not be used."""

    def run(self, inputs: Tensors) -> Tensors:
        """Run one batch, blocking. Axis 0 is rows, of any number. A model without rows is run as by `run_whole`.

        Returns:
            Every output by name, in the signature's order, with as many rows. As far as the model's file proves it,
            each row is what it would be alone, also beside rows of NaN.

        Raises:
            InvalidRequest: An input holds a value that the runtime cannot take.
        """

    def run_whole(self, inputs: Tensors) -> Tensors:
        """Run one request uncut and unpadded, blocking. Its tensors need no rows. Raises what `run` raises."""

    def close(self) -> None:
        """Free the session and its memory. Idempotent, also before `load`; a closed backend can be loaded again.

        Also frees what a failed `load` left behind. Ends a run in another thread where that is possible.
        """


class RuntimeCheck(NamedTuple):
    """How far a loaded model's answers differ from those of its file run without optimization.

    Attributes:
        rounding: The largest difference, relative to the output's largest value.
        disabled_optimizers: Optimizers of the runtime that made answers wrong.
        note: For the operator; may be empty.
    """

    rounding: float
    disabled_optimizers: tuple[str, ...] = ()
    note: str = ""


def not_compared(why: str) -> RuntimeCheck:
    """The result for a model that could not be compared."""
    return RuntimeCheck(0.0, note=f"not compared with the unoptimized graph: {why}")


@runtime_checkable
class CheckedBackend(Backend, Protocol):
    """A backend whose runtime optimizes a model, possibly wrongly, before running it."""

    def check(self, inputs: Sequence[Tensors]) -> RuntimeCheck:
        """Compare answers with those of the unoptimized model, and disable optimizers that make them wrong.

        Args:
            inputs: Inputs of `run_whole`.

        Raises:
            ConfigError: An optimizer makes answers wrong, and no session can be made without it.
        """

    def disable(self, optimizers: Sequence[str]) -> None:
        """Make the session again without these optimizers. Raises `ConfigError` on failure."""


@runtime_checkable
class StreamingBackend(Backend, Protocol):
    """A backend that answers in parts, one request at a time. `run` and `run_whole` return the first part.

    One thread uses `stream` and its generator; nothing else runs until the generator has ended.
    """

    def stream(self, inputs: Tensors) -> Generator[Tensors, None, None]:
        """Run one request and yield each part as soon as it is there; ``next`` blocks until then.

        Closing the generator ends the work at once. Raises what `run` raises, also after some parts.

        Yields:
            Every output by name, in the signature's order, with any number of rows; owned by the caller.
        """


class Processing(Protocol):
    """A backend whose model itself makes tensors from requests and answers from tensors.

    Up to `BuildSettings.processor_threads` threads call it at once, also while a batch runs.
    """

    def preprocess(self, content: Sequence[bytes], about: Mapping[str, Any]) -> Tensors:
        """Make the inputs of one request, rows in front. Raises `SessionLost` as `Backend.run` does.

        Args:
            content: A file, a JSON value, or UTF-8 texts, as the client sent them.
            about: Its ``kind``, ``content_type`` and ``parameters``.

        Raises:
            InferenceFailed: The model failed, or made other tensors than it declares.
        """

    def postprocess(self, content: Sequence[bytes], about: Mapping[str, Any], outputs: Tensors) -> Any:
        """Make the answer to one request as a JSON value. Raises what `preprocess` raises.

        Args:
            outputs: Of this request's rows, rows in front.
        """
