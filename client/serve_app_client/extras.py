"""Packages that only some calls need, each brought by an extra of this distribution."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Around the import of such a package.

    Raises:
        ImportError: It is not installed; the message says what installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} is not installed: pip install 'serve-app-client[{extra}]'") from error
