"""Exports small estimators and pipelines of scikit-learn by skl2onnx."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn import (
    cluster,
    compose,
    decomposition,
    ensemble,
    feature_extraction,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    mixture,
    naive_bayes,
    neighbors,
    neural_network,
    preprocessing,
    svm,
    tree,
)
from sklearn.base import is_classifier
from sklearn.pipeline import make_pipeline

from benchmarks.architectures.collection import Export, export_all

_RANDOM = np.random.default_rng(0)
_NUMBERS = _RANDOM.normal(size=(90, 6)).astype(np.float32)
_CLASSES = (_NUMBERS[:, 0] + _NUMBERS[:, 1] > 0).astype(np.int64) + (_NUMBERS[:, 2] > 1)
_VALUES = _NUMBERS @ np.arange(6, dtype=np.float32)
_COLORS = _RANDOM.choice(["red", "green", "blue"], size=(90, 2)).astype(object)
_WORDS = np.array(["a", "an", "the", "cat", "dog", "bird", "sees", "hears", "eats", "small", "big", "red"])
_TEXTS = np.array([" ".join(_RANDOM.choice(_WORDS, 6)) for _ in range(90)], dtype=object)

NUMBERS: dict[str, Callable[[], Any]] = {
    "ada-boost": partial(ensemble.AdaBoostClassifier, n_estimators=5),
    "bagging": partial(ensemble.BaggingClassifier, n_estimators=3),
    "decision-tree": partial(tree.DecisionTreeClassifier, max_depth=4),
    "extra-trees": partial(ensemble.ExtraTreesClassifier, n_estimators=5),
    "gaussian-mixture": partial(mixture.GaussianMixture, 3),
    "gaussian-process": gaussian_process.GaussianProcessRegressor,
    "gradient-boosting": partial(ensemble.GradientBoostingClassifier, n_estimators=5),
    "gradient-boosting-histogram": partial(ensemble.HistGradientBoostingClassifier, max_iter=5),
    "isolation-forest": partial(ensemble.IsolationForest, n_estimators=5),
    "k-means": partial(cluster.KMeans, 3, n_init=1),
    "linear-regression": linear_model.LinearRegression,
    "logistic-regression": linear_model.LogisticRegression,
    "naive-bayes": naive_bayes.GaussianNB,
    "nearest-neighbors": neighbors.KNeighborsClassifier,
    "nearest-neighbors-values": neighbors.KNeighborsRegressor,
    "outlier-neighbors": partial(neighbors.LocalOutlierFactor, novelty=True),
    "perceptron": partial(neural_network.MLPClassifier, (8,), max_iter=20),
    "perceptron-values": partial(neural_network.MLPRegressor, hidden_layer_sizes=(8,), max_iter=20),
    "random-forest": partial(ensemble.RandomForestClassifier, n_estimators=5),
    "random-forest-values": partial(ensemble.RandomForestRegressor, n_estimators=5),
    "stacking": lambda: ensemble.StackingClassifier(
        [("tree", tree.DecisionTreeClassifier(max_depth=3)), ("linear", linear_model.LogisticRegression())]
    ),
    "stochastic-gradient": partial(linear_model.SGDClassifier, loss="log_loss"),
    "vector-machine": svm.SVC,
    "vector-machine-one-class": svm.OneClassSVM,
    "vector-machine-probability": partial(svm.SVC, probability=True),
    "vector-machine-values": svm.SVR,
    "voting": lambda: ensemble.VotingClassifier(
        [("tree", tree.DecisionTreeClassifier(max_depth=3)), ("linear", linear_model.LogisticRegression())],
        voting="soft",
        flatten_transform=False,
    ),
    "scaled-logistic-regression": lambda: make_pipeline(
        preprocessing.StandardScaler(), linear_model.LogisticRegression()
    ),
    "components-vector-machine": lambda: make_pipeline(decomposition.PCA(3), svm.SVC()),
    "imputed-polynomial-ridge": lambda: make_pipeline(
        impute.SimpleImputer(), preprocessing.PolynomialFeatures(2), linear_model.Ridge()
    ),
    "normalized-chosen-regression": lambda: make_pipeline(
        preprocessing.Normalizer(), feature_selection.SelectKBest(k=3), linear_model.LogisticRegression()
    ),
    "bins-logistic-regression": lambda: make_pipeline(
        preprocessing.KBinsDiscretizer(3, encode="onehot-dense", quantile_method="averaged_inverted_cdf"),
        linear_model.LogisticRegression(),
    ),
}
"""Estimators that read a matrix of numbers."""

COLUMNS: dict[str, Callable[[], Any]] = {
    "colors-logistic-regression": lambda: make_pipeline(_encoded(), linear_model.LogisticRegression()),
    "colors-random-forest": lambda: make_pipeline(_encoded(), ensemble.RandomForestClassifier(n_estimators=5)),
}
"""Pipelines that read two matrices, one of them of strings."""

TEXTS: dict[str, Callable[[], Any]] = {
    "words-counted": lambda: make_pipeline(feature_extraction.text.CountVectorizer(), naive_bayes.MultinomialNB()),
    "words-weighted": lambda: make_pipeline(
        feature_extraction.text.TfidfVectorizer(), linear_model.LogisticRegression()
    ),
}
"""Pipelines that read a column of texts."""


def _encoded() -> Any:
    colors = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return compose.ColumnTransformer([("numbers", preprocessing.StandardScaler(), [0, 1]), ("colors", colors, [2, 3])])


def _columns() -> Any:
    table = np.empty((90, 4), dtype=object)
    table[:, :2], table[:, 2:] = _NUMBERS[:, :2], _COLORS
    return table


def write(make: Callable[[], Any], read: str, zipmap: bool, folder: Path) -> None:
    """Fit an estimator and export it."""
    estimator = make()
    given = {"numbers": _NUMBERS, "columns": _columns(), "texts": _TEXTS}[read]
    estimator.fit(given, _CLASSES if is_classifier(estimator) else _VALUES)
    types = {
        "numbers": [("input", FloatTensorType([None, 6]))],
        "columns": [("numbers", FloatTensorType([None, 2])), ("colors", StringTensorType([None, 2]))],
        "texts": [("texts", StringTensorType([None, 1]))],
    }[read]
    options: dict[Any, dict[str, Any]] = {id(estimator): {"zipmap": zipmap}} if is_classifier(estimator) else {}
    if read == "texts":
        options[type(estimator[0])] = {"locale": "C"}  # any machine has it
    model = to_onnx(estimator, initial_types=types, options=options, target_opset={"": 17, "ai.onnx.ml": 3})
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def exports() -> Iterator[Export]:
    """Every estimator; classifiers with probabilities as a matrix and as dictionaries."""
    for read, table in (("numbers", NUMBERS), ("columns", COLUMNS), ("texts", TEXTS)):
        for name, make in table.items():
            classifies = is_classifier(make())
            task = "classification" if classifies else "prediction"
            yield Export("scikit-learn", name, task, "skl2onnx", partial(write, make, read, False))
            if classifies:
                yield Export("scikit-learn", name, task, "skl2onnx-zipmap", partial(write, make, read, True))


def main(target: Path) -> None:
    """Export everything; what fails is noted."""
    export_all(target, exports())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
