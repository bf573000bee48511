"""A pipeline of scikit-learn for Fisher's iris flowers: four measurements in centimetres become a species."""

from __future__ import annotations

from typing import Any

import joblib


class Pipeline:
    """The number of the species, and the probability of each."""

    inputs = {"x": ("float32", [-1, 4])}
    outputs = {"label": ("int64", [-1]), "probabilities": ("float32", [-1, 3])}
    rows_independent = True
    files = ["pipeline.joblib"]

    def setup(self, context: Any) -> None:
        """Read what train.py has written."""
        self.pipeline = joblib.load(context.folder / "pipeline.joblib")

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Probabilities, row by row."""
        probabilities = self.pipeline.predict_proba(batch["x"])
        return {"label": probabilities.argmax(axis=1), "probabilities": probabilities.astype("float32")}
