"""A model that takes time and no processor, as one on a GPU would."""

import time
from typing import Any, ClassVar


class Waits:
    """Answers its input, after so many seconds for a batch and so many for each row."""

    inputs: ClassVar = {"x": ("float32", [-1, 64])}
    outputs: ClassVar = {"y": ("float32", [-1, 64])}
    rows_independent = True

    def setup(self, context: Any) -> None:
        """Keep what the configuration says."""
        self._batch_s = context.parameters["batch_s"]
        self._row_s = context.parameters["row_s"]

    def predict(self, batch: Any) -> Any:
        """Wait, and answer."""
        time.sleep(self._batch_s + self._row_s * len(batch["x"]))
        return {"y": batch["x"].copy()}
