"""Fit the pipeline, and write it beside this file: as `model.py` reads it, and as a graph of ONNX.

Needs the packages of train-requirements.txt.
"""

from pathlib import Path

import joblib
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

folder = Path(__file__).parent
flowers, species = load_iris(return_X_y=True)
pipeline = make_pipeline(StandardScaler(), LogisticRegression())
pipeline.fit(flowers.astype("float32"), species)
joblib.dump(pipeline, folder / "pipeline.joblib")
graph = to_onnx(
    pipeline,
    initial_types=[("x", FloatTensorType([None, 4]))],
    options={"zipmap": False},  # a tensor of probabilities, and not a map for each row
)
(folder / "model.onnx").write_bytes(graph.SerializeToString())
print(f"accuracy {pipeline.score(flowers, species):.3f}")
