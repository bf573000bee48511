"""Packages needed by some calls only, installed by extras."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Wrap the import of such a package.

    Raises:
        ImportError: It is not installed; names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} is not installed: pip install 'serve-app-client[{extra}]'") from error
