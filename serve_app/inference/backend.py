"""The seam between a model deployment and what runs its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from serve_app.payloads import ModelSignature, Tensors


class Backend(Protocol):
    """Runs batches of tensors on one device. Not thread-safe: one thread owns it after `load`."""

    @property
    def signature(self) -> ModelSignature:
        """The tensors the model takes and gives. Valid after `load`."""

    @property
    def device(self) -> str:
        """Where it really runs: ``cpu`` or ``cuda``. Valid after `load`."""

    def load(self) -> None:
        """Make the session. Raises `serve_app.errors.ConfigError` when the model or device is not usable."""

    def run(self, inputs: Tensors) -> Tensors:
        """Run one batch, blocking. Axis 0 is rows. Returns every output by name."""

    def run_whole(self, inputs: Tensors) -> Tensors:
        """Run one request as it came, blocking: its tensors need have no rows, and nothing is cut or filled up."""

    def close(self) -> None:
        """Free the session. Idempotent."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch that is ready to run, once, on the backend that prepared it.

    Attributes:
        parts: Tensors whose rows, one after the other, are the batch.
        staged: What the backend has done ahead; its own business.
    """

    parts: Sequence[Tensors]
    staged: object = None


@runtime_checkable
class PreparingBackend(Backend, Protocol):
    """A backend that can get the next batch ready while one runs.

    Every batch from `prepare` must be given to `run_prepared` or to `discard`, once: it may hold the device's memory.
    """

    @property
    def prepares(self) -> bool:
        """Whether `prepare` does what would otherwise delay the run. Valid after `load`."""

    def prepare(self, parts: Sequence[Tensors]) -> Prepared:
        """Join tensors and put them where the device finds them. From any thread, also while another batch runs."""

    def run_prepared(self, prepared: Prepared) -> Tensors:
        """As `run`. By the one thread that runs."""

    def discard(self, prepared: Prepared) -> None:
        """Give up a batch that will not be run."""


def preparing(backend: Backend) -> PreparingBackend | None:
    """The backend, once it is loaded, if it really prepares batches ahead."""
    return backend if isinstance(backend, PreparingBackend) and backend.prepares else None
