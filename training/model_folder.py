"""The folder of a classifier: the model in its version's folder, labels, and the Hugging Face files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from training.onnx_graph import save
from training.paths import MODELS, ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx


def write_classifier(
    name: str,
    model: onnx.ModelProto,
    labels: Sequence[str],
    *,
    configuration: Mapping[str, Any],
    preprocessor: Mapping[str, Any],
) -> Path:
    """Write ``models/<name>`` and return the path of the ONNX file in it.

    Args:
        name: The model's name.
        model: What to serve as version 1.
        labels: Names of the classes, in the order of the logits.
        configuration: What ``config.json`` says besides the labels.
        preprocessor: All of ``preprocessor_config.json``.
    """
    folder = MODELS / name
    path = folder / "1" / "model.onnx"
    save(model, path)
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    id2label = {str(number): label for number, label in enumerate(labels)}
    label2id = {label: number for number, label in enumerate(labels)}
    write_json(folder / "config.json", {**configuration, "id2label": id2label, "label2id": label2id})
    write_json(folder / "preprocessor_config.json", preprocessor)
    return path


def write_figures(name: str, figures: Mapping[str, Any]) -> None:
    """Write the measured figures of a model to ``docs/models/<name>.json``."""
    write_json(ROOT / "docs" / "models" / f"{name}.json", figures)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON, making the folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
