"""``make goldens``: write the committed answers again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from wire import goldens
from wire.recorder import record


def main() -> None:
    """Ask everything, and write what is answered."""
    with tempfile.TemporaryDirectory() as folder:
        found, _ = record(Path(folder).resolve())
    goldens.write(found)


main()
