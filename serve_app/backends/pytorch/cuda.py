"""PyTorch on a GPU: whether the installed build can use one, and what is set for a process."""

from __future__ import annotations

import importlib.util
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from serve_app.errors import ConfigError

_WITHOUT: Final = re.compile(r"^cuda\b[^=\n]*=\s*None", re.MULTILINE)

_limits: dict[int, int] = {}
"""Memory limits of the loaded models of this process, bytes: PyTorch has one allocator for all of them."""


def lacks_cuda() -> str:
    """Why the installed PyTorch cannot use CUDA, without importing it; empty if it can, or is not installed."""
    found = importlib.util.find_spec("torch")
    for folder in (found and found.submodule_search_locations) or ():
        version = Path(folder, "version.py")
        if version.is_file() and _WITHOUT.search(version.read_text("utf-8")):
            return "the installed PyTorch is built without CUDA: install one with it, or set resources.device to cpu"
    return ""


def choose_device(torch: Any, wanted: str, *, required: bool, model: str) -> tuple[str, str | None]:
    """The device to run on, and a note if it is not the wanted one.

    Args:
        wanted: From `serve_app.backends.device.resolve_device`.
        required: Whether the CPU will not do.

    Raises:
        ConfigError: CUDA is required, and PyTorch cannot use it.
    """
    if wanted == "cpu" or torch.cuda.is_available():
        return wanted, None
    reason = "is built without CUDA" if torch.version.cuda is None else "sees no CUDA device"
    fault = f"model {model!r}: a GPU was given, but PyTorch {torch.__version__} {reason}"
    if required:
        raise ConfigError((fault,))
    return "cpu", f"{fault}; it runs on the CPU"


def prepare_device(torch: Any, owner: int, limit: int | None, *, tf32: bool) -> None:
    """Limit the memory of this process's allocator to what its models may hold together, and set the precision.

    Args:
        owner: Identifies the loaded model until `release`.
        limit: Of this model, bytes.
    """
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    if limit is not None:
        _limits[owner] = limit
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, sum(_limits.values()) / total), 0)


def release(torch: Any, owner: int) -> None:
    """Give freed memory back to the device, for other processes. The limit falls with the next `prepare_device`."""
    _limits.pop(owner, None)
    with suppress(RuntimeError):  # of a device that is lost
        torch.cuda.empty_cache()


def is_lost(torch: Any) -> bool:
    """Whether CUDA fails for the rest of this process, as after an index beyond a table."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
