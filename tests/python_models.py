"""Models that are Python classes, for tests: each in a folder of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

_LINEAR: Final = """
    import numpy as np

    class Linear:
        inputs = {"x": ("float32", [-1, 4])}
        outputs = {"y": ("float32", [-1, 2])}
        rows_independent = True

        def setup(self, context):
            self.weight = np.arange(8, dtype=np.float32).reshape(4, 2) * context.parameters.get("scale", 1)

        def predict(self, batch):
            return {"y": (batch["x"][:, :, None] * self.weight).sum(axis=1)}
"""

MODELS: Final = {
    "linear": _LINEAR,
    "unsaid": _LINEAR.replace("        rows_independent = True\n", ""),
    "one_row": _LINEAR.replace("[-1, ", "[1, "),
    "text": """
        import numpy as np

        class Shout:
            inputs = {"text": ("str", [-1, 1])}
            outputs = {"loud": ("str", [-1, 1]), "length": ("int64", [-1])}
            rows_independent = True

            def predict(self, batch):
                texts = batch["text"]
                loud = np.array([[str.upper(text)] for text, in texts], object).reshape(-1, 1)
                return {"loud": loud, "length": np.array([len(text) for text, in texts], np.int64)}
    """,
    "whole": """
        import numpy as np

        class Histogram:
            inputs = {"values": ("float64", [-1]), "most": ("int32", [])}
            outputs = {"counts": ("int64", [4])}

            def predict(self, batch):
                assert batch["values"].ndim == 1
                return {"counts": np.histogram(batch["values"], 4, (0, 1))[0].astype(np.int64)}
    """,
    "parts": """
        import numpy as np

        class Sums:
            inputs = {"x": ("float32", [3, 4]), "name": ("str", [])}
            outputs = {"sum": ("float32", [4]), "greeting": ("str", [-1])}

            def predict(self, batch):
                total = np.zeros(4, np.float32)
                for number, row in enumerate(batch["x"]):
                    total += row
                    yield {"sum": total, "greeting": np.array([str(batch["name"])] * number, object)}
    """,
    "helper": """
        from .scaling import scaled

        class Scaled:
            inputs = {"x": ("float32", [-1])}
            outputs = {"y": ("float32", [-1])}
            rows_independent = True

            def predict(self, batch):
                return {"y": scaled(batch["x"])}
    """,
}
"""By name."""

_HELPER: Final = """
    def scaled(x):
        return x * 2
"""


def write(folder: Path, code: str, name: str = "model.py") -> Path:
    """Write a model's file, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(textwrap.dedent(code))
    return file


def make(folder: Path, model: str) -> Path:
    """Make one of `MODELS`."""
    if model == "helper":
        write(folder, _HELPER, "scaling.py")
    return write(folder, MODELS[model])
