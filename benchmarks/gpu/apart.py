"""Cases that must not disturb each other: a process for each, as a replica has one."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def apart(case: Any, *arguments: Any) -> dict[str, Any]:
    """Run a case in a process of its own. What goes wrong is its result: the other cases are measured all the same."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        try:
            found: dict[str, Any] = process.submit(case, *arguments).result()
        except Exception as error:
            return {"fault": f"{type(error).__name__}: {error}"}
    return found
