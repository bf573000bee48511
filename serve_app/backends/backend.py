"""The seam between a model deployment and what runs its tensors."""

from __future__ import annotations

from typing import Protocol

from serve_app.payloads import ModelSignature, Tensors


class Backend(Protocol):
    """Runs batches of tensors on one device. Not thread-safe: one thread owns it after `load`."""

    @property
    def signature(self) -> ModelSignature:
        """The tensors the model takes and gives. Valid after `load`."""

    @property
    def device(self) -> str:
        """Where it really runs: ``cpu`` or ``cuda``. Valid after `load`."""

    def load(self) -> str | None:
        """Make the session. Returns what an operator should know of it, e.g. that the GPU could not be used.

        Raises:
            ConfigError: The model or the device is not usable.
        """

    def run(self, inputs: Tensors) -> Tensors:
        """Run one batch, blocking. Axis 0 is rows. Returns every output by name."""

    def run_whole(self, inputs: Tensors) -> Tensors:
        """Run one request as it came, blocking: its tensors need have no rows, and nothing is cut or filled up."""

    def close(self) -> None:
        """Free the session. Idempotent."""
