"""The interface between the server and runtimes: one `BackendKind` for each kind of backend."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from rowproof.result import RowProof
from serve_app.backends.backend import Backend
from serve_app.backends.device import Device
from serve_app.backends.layout import ROWS_FIRST, Layout
from serve_app.config.values import Section
from serve_app.payloads import GraphEnds, ModelSignature


class BackendOptions(Section):
    """The configuration's ``backend_options:``. A kind with options of its own has a subclass."""

    def files(self) -> tuple[str, ...]:
        """Names of files that the options name, relative to the model's folder; they belong to the model."""
        return ()


OptionsT = TypeVar("OptionsT", bound=BackendOptions)


class ModelFile(NamedTuple):
    """What a model's file declares.

    Attributes:
        signature: Tensors with the declared shapes. Dimension 0 is no exception: a number there is the only size that a
            run takes.
        prove: Proves that rows along these axes, by tensor name (default 0), are independent. The experiment confirms a
            proof on the loaded model before requests share runs.
        cpu_fault: Why the installed runtime cannot run it on the CPU, in one line; empty if it may.
        streams: Whether answers come in parts; ``create`` then makes a `StreamingBackend`, whose requests share no
            runs.
    """

    signature: ModelSignature
    prove: Callable[[Mapping[str, int]], RowProof]
    streams: bool = False
    cpu_fault: str = ""


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How to run one build of a model.

    Attributes:
        device: ``cuda`` requires a GPU, ``auto`` uses one if the replica has one.
        gpu_available: Whether the cluster assigned a GPU, or a share of one, to this replica.
        gpu_memory_bytes: Limit of GPU memory for this build; ``None`` for no limit.
        threads: Threads of one run on the CPU.
        max_rows: Most rows of a batch, if known.
        row_sizes: Numbers of rows that batches are filled up to, ascending; empty: no filling.
        processor_threads: Threads that call `Processing` at once; 0: it is not used.
        among_others: Whether many models share the process, of which one runs at a time.
        tf32: Whether a GPU may compute FP32 products in TF32.
    """

    model: str
    model_file: Path
    device: Device = "auto"
    gpu_available: bool = False
    gpu_memory_bytes: int | None = None
    threads: int = 1
    max_rows: int | None = None
    row_sizes: tuple[int, ...] = ()
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
    """One kind of backend: its name, its files, and how they run.

    If the module of a kind imports a large package, it should do so in ``inspect`` and ``create`` only: every process
    imports all kinds.

    Attributes:
        name: ``backend`` in a configuration.
        file: Name of a model's file in a folder, e.g. ``model.onnx``. It need not end with one of ``suffixes``.
        suffixes: Suffixes of other files that it runs, lower case with the dot. Common suffixes such as ``.json`` are
            not possible: files beside models would be taken for models.
        inspect: Reads a model's file without running it, for a file, a model's name and options. Raises `ConfigError`
            if it cannot be read or served.
        create: Makes the backend of one build, unloaded. Raises `ConfigError` for unsupported settings.
        options: Type of ``backend_options``.
        further_files: Names of files required beside a model's file, relative to its folder. Raises `ConfigError` if
            the file is no model.
        processes: Whether a model's file makes its inputs from media itself, so that its backend is a `Processing`.
            Takes the arguments of ``inspect``, runs nothing, and raises `ConfigError` if that is declared wrongly.
        ends: Reads a model file's first and last operations. Raises `OSError` or `ValueError` if it cannot be read.
        platform: Its name in V2's metadata and for Triton's clients.
        triton_name: Its name in Triton's model configuration; empty if equal to ``name``.
        distributions: Python distributions of which one provides the runtime: ``serve-app doctor`` looks for them, and
            profiles and verdicts record their versions.
        runs_code: Whether its files are programs. They run only if the configuration names the kind, whatever is in a
            model's folder.
        extra: The extra of serve-app that installs one of them; empty if serve-app always needs one.
        concurrent: Whether several threads may run a backend at once on the CPU.
        lacks_cuda: Why the installed runtime cannot use CUDA, and the remedy, in one line; empty if it may.
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
    lacks_cuda: Callable[[], str] = str

    def recognises(self, file_name: str) -> bool:
        """Whether it runs files of this name."""
        return file_name == self.file or file_name.lower().endswith(self.suffixes)

    def versions(self) -> dict[str, str]:
        """The installed versions of its distributions."""
        versions = {name: _version(name) for name in self.distributions}
        return {name: version for name, version in versions.items() if version is not None}

    def lacks(self) -> str:
        """What to install to run it, in one line; empty if nothing is missing."""
        if not self.extra or self.versions():
            return ""
        return f"{self.distributions[0]} is not installed: pip install 'serve-app[{self.extra}]'"


AnyKind = BackendKind[Any]
"""A kind, whatever its options."""


@cache
def _version(distribution: str) -> str | None:
    """The installed version, if any. Cached, since each model of a configuration asks."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
