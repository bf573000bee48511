"""What runs the tensors of one build of a model. `serve_app.testing.backends` checks what stands here."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from serve_app.errors import InferenceFailed
from serve_app.payloads import ModelSignature, Tensors


class SessionLost(InferenceFailed):
    """What ran the model has ended, and every further run would fail: its replica is to be replaced."""


class Backend(Protocol):
    """Runs batches of tensors on one device. One thread at a time, which need not be the one that loaded it.

    Where its `BackendKind` is ``concurrent`` and its device the CPU, several threads may run it at once.

    Inputs may be read-only and need not be contiguous; they are left as they are. What is returned is the caller's: no
    later run changes it. A failed run leaves the backend as it was before.
    """

    @property
    def signature(self) -> ModelSignature:
        """The tensors the model takes and gives, as its file was described. Valid after `load`."""

    @property
    def device(self) -> str:
        """Where it really runs: ``cpu`` or ``cuda``. Valid after `load`."""

    def load(self) -> str | None:
        """Make the session. Returns what an operator should know of it, e.g. that the GPU could not be used.

        Raises:
            ConfigError: The model or the device is not usable; names the model.
        """

    def run(self, inputs: Tensors) -> Tensors:
        """Run one batch, blocking. Axis 0 is rows, of any number. A model without rows is run as by `run_whole`.

        Returns:
            Every output by name, in the order of the signature, with as many rows. Each row is what it would be alone,
            as far as the model's file was said to prove that, also beside rows of NaN.

        Raises:
            InferenceFailed: The model failed on these inputs.
            SessionLost: It cannot run anything any more.
            InvalidRequest: They hold what it cannot be told.
        """

    def run_whole(self, inputs: Tensors) -> Tensors:
        """Run one request as it came, blocking: its tensors need have no rows, and nothing is cut or filled up.

        Raises:
            InferenceFailed, SessionLost, InvalidRequest: As `run`.
        """

    def close(self) -> None:
        """Free the session and its memory. Idempotent, also before `load`; a closed backend can be loaded again.

        It frees what a failed `load` has left, too. A run that is under way in another thread is ended where that can
        be done, and otherwise left alone.
        """


class RuntimeCheck(NamedTuple):
    """How the answers of a loaded model differ from those of its file, run without optimization.

    Attributes:
        rounding: The largest difference, relative to the largest value of its output.
        disabled_optimizers: Names of the runtime's optimizers that made answers wrong.
        note: What an operator should know of it; empty where there is nothing to say.
    """

    rounding: float
    disabled_optimizers: tuple[str, ...] = ()
    note: str = ""


def not_compared(why: str) -> RuntimeCheck:
    """The result for a model that could not be compared."""
    return RuntimeCheck(0.0, note=f"not compared with the unoptimized graph: {why}")


@runtime_checkable
class CheckedBackend(Backend, Protocol):
    """A backend whose runtime optimizes a model before it runs it, and may be wrong in that."""

    def check(self, inputs: Sequence[Tensors]) -> RuntimeCheck:
        """Compare answers with those of the model without optimization, and disable optimizers that make them wrong.

        Args:
            inputs: What the model runs. As of `run_whole`.

        Raises:
            InferenceFailed, InvalidRequest: As `run`.
            ConfigError: An optimizer makes answers wrong, and the session cannot be made without it.
        """

    def disable(self, optimizers: Sequence[str]) -> None:
        """Make the session again without these optimizers. Raises `ConfigError` where that fails."""


@runtime_checkable
class StreamingBackend(Backend, Protocol):
    """A backend whose answers come in parts. One request at a time: its `run` and `run_whole` give the first part.

    Like `run`, `stream` and what it returns are for one thread at a time, and nothing else runs until that has ended.
    """

    def stream(self, inputs: Tensors) -> Generator[Tensors, None, None]:
        """Run one request, and give each part when it is there; the caller waits for the next one inside ``next``.

        Closing what this returns ends the work at once, whatever is left of it.

        Args:
            inputs: As of `run`.

        Yields:
            Every output by name, in the order of the signature, with any number of rows; the caller's own.

        Raises:
            InferenceFailed, SessionLost, InvalidRequest: As `run`, also after some parts.
        """


class Processing(Protocol):
    """A backend whose model makes tensors of requests, and answers of tensors, by itself.

    Several threads ask at once, as many as `BuildSettings.processor_threads`, also while a batch runs.
    """

    def preprocess(self, content: Sequence[bytes], about: Mapping[str, Any]) -> Tensors:
        """Make the inputs of one request, rows in front.

        Args:
            content: What the client sent: a file, a JSON value, or UTF-8 texts.
            about: Its ``kind``, ``content_type`` and ``parameters``.

        Raises:
            InvalidRequest: The model refuses the request.
            InferenceFailed: The model failed on it, or made something else than it declares.
            SessionLost: As `Backend.run`.
        """

    def postprocess(self, content: Sequence[bytes], about: Mapping[str, Any], outputs: Tensors) -> Any:
        """Make the answer to one request, as JSON can hold it.

        Args:
            content: As of `preprocess`.
            about: Likewise.
            outputs: Those for its rows, rows in front.

        Raises:
            InvalidRequest, InferenceFailed, SessionLost: As `preprocess`.
        """
