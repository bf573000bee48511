"""The kinds of PyTorch's models: TorchScript, and programs of ``torch.export``."""

from __future__ import annotations

from functools import partial

from serve_app.backends.backend import Backend
from serve_app.backends.kind import BackendKind, BackendOptions, BuildSettings
from serve_app.backends.pytorch.backend import TorchBackend
from serve_app.backends.pytorch.cuda import lacks_cuda
from serve_app.backends.pytorch.program import inspect_program, open_program, program_ends
from serve_app.backends.pytorch.script import inspect_script, open_script
from serve_app.backends.pytorch.settings import TorchScriptOptions


class TorchExportOptions(BackendOptions):
    """No options: a program of `torch.export` describes itself."""


def _create_script(build: BuildSettings, options: TorchScriptOptions) -> Backend:
    return TorchBackend(build, partial(open_script, build.model_file, build.model, options))


def _create_program(build: BuildSettings, _: TorchExportOptions) -> Backend:
    return TorchBackend(build, partial(open_program, build.model_file, build.model))


TORCH_SCRIPT = BackendKind(
    name="torchscript",
    file="model.pt",
    suffixes=(".pt", ".ts"),
    inspect=inspect_script,
    create=_create_script,
    options=TorchScriptOptions,
    platform="pytorch_libtorch",
    triton_name="pytorch",
    distributions=("torch",),
    extra="torch",
    lacks_cuda=lacks_cuda,
)
"""The kind ``torchscript``."""

TORCH_EXPORT = BackendKind(
    name="torch_export",
    file="model.pt2",
    suffixes=(".pt2",),
    inspect=inspect_program,
    create=_create_program,
    ends=program_ends,
    options=TorchExportOptions,
    platform="pytorch_libtorch",
    triton_name="pytorch",
    distributions=("torch",),
    extra="torch",
    lacks_cuda=lacks_cuda,
)
"""The kind ``torch_export``."""
