"""The seam between the server and whatever runs models: one `BackendKind` for each kind of backend."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from serve_app.backends.backend import Backend
from serve_app.backends.device import Device
from serve_app.backends.layout import ROWS_FIRST, Layout
from serve_app.config.values import Section
from serve_app.payloads import EqualSizes, GraphEnds, ModelSignature


class BackendOptions(Section):
    """What a configuration may say under ``backend_options:``. A kind with options of its own has a subclass."""

    def faults(self, gpus: float) -> Mapping[str, str]:
        """What of it does not fit the rest of the configuration: by key, what is wrong.

        Args:
            gpus: Share of a GPU that each replica has.
        """
        del gpus
        return {}

    def files(self) -> tuple[str, ...]:
        """Names of the files that it names, relative to the model's folder: they belong to the model."""
        return ()


OptionsT = TypeVar("OptionsT", bound=BackendOptions)


class RowProof(NamedTuple):
    """Whether each row of a model's outputs depends on the same row of its inputs alone.

    Attributes:
        independent: Proven: a row depends on nothing but itself.
        reason: One line for an operator of the server: what prevents it, or that nothing does.
        dependent: The model is known to mix rows, or to depend on their number or places; otherwise nobody knows.
        random: The model draws random numbers: the same request has another answer each time.
        advice: What the author of the model can do about it; empty where nothing is known to help.
        equal_sizes: The proof holds for requests in which these sizes are the same: groups of inputs and axes.
    """

    independent: bool
    reason: str
    dependent: bool = False
    random: bool = False
    equal_sizes: EqualSizes = ()
    advice: str = ""


class ModelFile(NamedTuple):
    """What a model's file says of it, before anything runs it.

    Attributes:
        signature: Its tensors with the shapes that the file declares. Dimension 0 is no different from others: a number
            there is the only one that a run takes.
        prove: Whether rows are independent of each other, where they are along these axes, by the name of a tensor; 0
            for those that are not named. A proof is checked on the loaded model before requests share runs.
        streams: Whether an answer comes in parts; what ``create`` makes is a `StreamingBackend` then, and its requests
            share no runs.
    """

    signature: ModelSignature
    prove: Callable[[Mapping[str, int]], RowProof]
    streams: bool = False


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How one build of a model is run.

    Attributes:
        model: The model's name, for messages.
        model_file: The build's file.
        device: ``cuda`` insists on a GPU, ``auto`` takes one where the replica has one.
        gpu_available: Whether the cluster gave this replica a GPU, whole or in part.
        gpu_memory_bytes: Most memory of the GPU that this build may take; ``None`` for no limit.
        threads: Threads that one run computes with on the CPU.
        max_rows: Most rows of a batch, where that is known.
        row_sizes: Numbers of rows that batches are filled up to, ascending. ``any``: they are run as they come;
            ``auto``: the backend chooses.
        layout: Where the rows of its tensors are, or that they have none.
        processor_threads: Threads that call `Processing` at once, if the backend is to have it; 0: it is not asked.
        among_others: Whether it is one of many models in one process, of which one runs at a time.
        tf32: Whether a GPU may compute products of FP32 in TF32.
    """

    model: str
    model_file: Path
    device: Device = "auto"
    gpu_available: bool = False
    gpu_memory_bytes: int | None = None
    threads: int = 1
    max_rows: int | None = None
    row_sizes: tuple[int, ...] | Literal["auto", "any"] = "auto"
    layout: Layout = ROWS_FIRST
    processor_threads: int = 0
    among_others: bool = False
    tf32: bool = True


def _none(_: Path) -> tuple[str, ...]:
    return ()


def _unknown_ends(_: Path) -> GraphEnds:
    return GraphEnds()


def _never(_file: Path, _model: str, _options: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class BackendKind(Generic[OptionsT]):
    """One kind of backend: what it is called, which files it runs, and how.

    The module of a kind whose package is large should import that in ``inspect`` and ``create`` only: every process
    imports all kinds.

    Attributes:
        name: As ``backend`` in a configuration names it.
        file: Name of a model's file in a folder, e.g. ``model.onnx``. It need not end with one of ``suffixes``.
        suffixes: How other files that it runs end, lower case and with the dot. Not one that files beside models have,
            such as ``.json``: they would be taken for models.
        inspect: Reads a model's file without running it. Takes the file, the model's name, for messages, and the
            options, and raises `ConfigError` for a file that cannot be read or served.
        create: Makes the backend of one build, which `Backend.load` loads. Raises `ConfigError` for settings that it
            cannot have.
        options: What a configuration may say under ``backend_options``.
        further_files: Names of the files that a model's file needs beside it, relative to its folder. Raises
            `ConfigError` for a file that is no model.
        processes: Whether a model's file makes its inputs of media by itself, so that its backend is a `Processing`.
            Takes what ``inspect`` takes, runs nothing either, and raises `ConfigError` where that is declared wrongly.
        ends: Reads what a model's file does first and last. Raises `OSError` or `ValueError` where it cannot be read.
        platform: As V2's metadata and Triton's clients name it.
        triton_name: As Triton's model configuration names the backend; empty where it is ``name``.
        distributions: The Python distributions, one of which runs it: ``serve-app doctor`` looks for them, and profiles
            and kept verdicts tell their versions.
        runs_code: Whether its files are programs. They are run only where the configuration names the kind, whatever
            lies in a model's folder.
        extra: The extra of serve-app that brings one of them; empty where serve-app needs one in any case.
        concurrent: Whether several threads may run a backend at once, where its device is the CPU.
    """

    name: str
    file: str
    suffixes: tuple[str, ...]
    inspect: Callable[[Path, str, OptionsT], ModelFile]
    create: Callable[[BuildSettings, OptionsT], Backend]
    options: type[OptionsT]
    further_files: Callable[[Path], tuple[str, ...]] = _none
    processes: Callable[[Path, str, OptionsT], bool] = _never
    ends: Callable[[Path], GraphEnds] = _unknown_ends
    platform: str = ""
    triton_name: str = ""
    distributions: tuple[str, ...] = ()
    runs_code: bool = False
    extra: str = ""
    concurrent: bool = False

    def recognises(self, file_name: str) -> bool:
        """Whether a file of this name is one that it runs."""
        return file_name == self.file or file_name.lower().endswith(self.suffixes)

    def versions(self) -> dict[str, str]:
        """The versions of its distributions that are installed."""
        versions = {name: _version(name) for name in self.distributions}
        return {name: version for name, version in versions.items() if version is not None}

    def lacks(self) -> str:
        """What is to be installed before it runs anything, in one line; empty where nothing is."""
        if not self.extra or self.versions():
            return ""
        return f"{self.distributions[0]} is not installed: pip install 'serve-app[{self.extra}]'"


AnyKind = BackendKind[Any]
"""A kind, whatever its options."""


@cache
def _version(distribution: str) -> str | None:
    """The installed version, ``None`` without one. Looked for once: every model of a configuration asks."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
