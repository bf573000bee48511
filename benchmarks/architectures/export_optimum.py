"""Exports small models of transformers by Optimum, which names the axes and chooses the inputs itself."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from optimum.exporters.onnx import onnx_export_from_model

from benchmarks.architectures.collection import Export, export_all
from benchmarks.architectures.export_transformers import TEXT, configuration

ENCODERS = [
    "albert",
    "bert",
    "camembert",
    "convbert",
    "data2vec-text",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "esm",
    "flaubert",
    "ibert",
    "longformer",
    "megatron-bert",
    "mobilebert",
    "modernbert",
    "mpnet",
    "rembert",
    "roberta",
    "roformer",
    "squeezebert",
    "xlm",
    "xlm-roberta",
]
DECODERS = [
    "bloom",
    "falcon",
    "gemma",
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "llama",
    "mistral",
    "opt",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "stablelm",
]
BOTH = ("bart", "mbart", "t5", "mt5")
"""With an encoder and a decoder. The encoder is kept."""

_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_VIT = {**_LAYERS, "image_size": 32, "patch_size": 8}
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_WAVES = {
    **_LAYERS,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 4],
    "conv_kernel": [10, 8, 4],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16,
}

MEDIA: dict[str, tuple[str, dict[str, Any]]] = {
    "beit": ("image-classification", _VIT),
    "convnext": ("image-classification", _STAGES),
    "deit": ("image-classification", _VIT),
    "mobilenet_v2": ("image-classification", {"image_size": 64, "depth_multiplier": 0.35}),
    "regnet": ("image-classification", {**_STAGES, "embedding_size": 8, "groups_width": 8}),
    "resnet": ("image-classification", {**_STAGES, "embedding_size": 8}),
    "segformer": ("image-classification", {**_STAGES, "num_attention_heads": [1, 2, 2, 4]}),
    "swin": (
        "image-classification",
        {"image_size": 64, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4},
    ),
    "vit": ("image-classification", _VIT),
    "vit_msn": ("image-classification", _VIT),
    "hubert": ("audio-classification", _WAVES),
    "wav2vec2": ("audio-classification", _WAVES),
    "wavlm": ("audio-classification", _WAVES),
}
"""Models that read images or audio."""

_AUTOS = {
    "feature-extraction": transformers.AutoModel,
    "text-classification": transformers.AutoModelForSequenceClassification,
    "token-classification": transformers.AutoModelForTokenClassification,
    "text-generation": transformers.AutoModelForCausalLM,
    "image-classification": transformers.AutoModelForImageClassification,
    "audio-classification": transformers.AutoModelForAudioClassification,
}


def write(kind: str, task: str, folder: Path) -> None:
    """Export one model."""
    torch.manual_seed(0)
    if kind in MEDIA:
        config = transformers.CONFIG_MAPPING[kind](num_labels=3, **MEDIA[kind][1])
        config.architectures = []
    else:
        config = configuration(kind, TEXT[kind])
    model = _AUTOS[task].from_config(config).eval()
    model.config.architectures = [type(model).__name__]
    with tempfile.TemporaryDirectory() as made:
        onnx_export_from_model(model, made, task=task, do_validation=False)
        found = [file for name in ("model.onnx", "encoder_model.onnx") if (file := Path(made, name)).exists()]
        shutil.copyfile(found[0], folder / "model.onnx")


def exports() -> Iterator[Export]:
    """Every architecture with its tasks."""
    tasks = {
        **dict.fromkeys(ENCODERS, ("feature-extraction", "text-classification", "token-classification")),
        **dict.fromkeys(DECODERS, ("feature-extraction", "text-classification", "text-generation")),
        **dict.fromkeys(BOTH, ("feature-extraction",)),
        **{kind: (task,) for kind, (task, _) in MEDIA.items()},
    }
    for kind, own in tasks.items():
        for task in own:
            yield Export("optimum", kind, task, "optimum", partial(write, kind, task))


def main(target: Path) -> None:
    """Export everything; what fails is noted."""
    export_all(target, exports())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
