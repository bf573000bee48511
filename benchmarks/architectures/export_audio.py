"""Exports small audio models of transformers, with and without a mask of the samples that are padding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.architectures.collection import Export, export_all
from benchmarks.architectures.torch_exporters import EXPORTERS, Chosen, export

SAMPLES = 4000
FRAMES = 64

_LAYERS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_labels": 3,
    "classifier_proj_size": 16,
}
_WAVES = {
    **_LAYERS,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 4],
    "conv_kernel": [10, 8, 4],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_LAYER_NORM = {"feat_extract_norm": "layer", "do_stable_layer_norm": True}

WAVES: dict[str, tuple[str, dict[str, Any]]] = {
    "data2vec-audio": ("data2vec-audio", {}),
    "hubert": ("hubert", {}),
    "hubert-layer": ("hubert", _LAYER_NORM),
    "sew": ("sew", {}),
    "sew-d": ("sew-d", {}),
    "unispeech": ("unispeech", {}),
    "unispeech-layer": ("unispeech", _LAYER_NORM),
    "unispeech-sat": ("unispeech-sat", {}),
    "unispeech-sat-layer": ("unispeech-sat", _LAYER_NORM),
    "wav2vec2": ("wav2vec2", {}),
    "wav2vec2-layer": ("wav2vec2", _LAYER_NORM),
    "wav2vec2-conformer": ("wav2vec2-conformer", {}),
    "wav2vec2-conformer-rotary": ("wav2vec2-conformer", {"position_embeddings_type": "rotary"}),
    "wavlm": ("wavlm", {}),
    "wavlm-layer": ("wavlm", _LAYER_NORM),
}
"""Models that read samples. `layer` normalizes after each convolution, the others have one group normalization."""

SPECTRA: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "audio-spectrogram-transformer": ({**_LAYERS, "max_length": FRAMES, "num_mel_bins": 32}, (FRAMES, 32)),
    "whisper": (
        {
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_layers": 1,
            "decoder_attention_heads": 4,
            "num_mel_bins": 20,
            "max_source_positions": FRAMES // 2,
            "num_labels": 3,
        },
        (20, FRAMES),
    ),
}
"""Models that read spectra of one length, and the shape of those."""


EAGER = {"wav2vec2-conformer"}
"""Of which the dynamo exporter does not read the fused attention."""


def _model(kind: str, own: dict[str, Any], exporter: str) -> Any:
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**own)
    attention = {"attn_implementation": "eager"} if exporter == "torchscript" or kind in EAGER else {}
    return transformers.AutoModelForAudioClassification.from_config(config, **attention).eval()


def _waves(name: str, masked: bool, exporter: str, folder: Path) -> None:
    kind, own = WAVES[name]
    inputs = {"input_values": torch.randn(2, SAMPLES)}
    if masked:
        inputs["attention_mask"] = torch.ones(2, SAMPLES, dtype=torch.int64)
        inputs["attention_mask"][1, SAMPLES // 2 :] = 0
    axes = {name: {0: "batch", 1: "samples"} for name in inputs}
    model = Chosen(_model(kind, {**_WAVES, **own}, exporter), list(inputs), {"return_dict": True})
    export(model, inputs, axes, exporter, folder)


def _spectra(kind: str, exporter: str, folder: Path) -> None:
    own, shape = SPECTRA[kind]
    name = "input_features" if kind == "whisper" else "input_values"
    model = Chosen(_model(kind, own, exporter), [name], {"return_dict": True})
    export(model, {name: torch.randn(2, *shape)}, {name: {0: "batch"}}, exporter, folder)


def exports() -> Iterator[Export]:
    """Every model, with both exporters."""
    for exporter in EXPORTERS:
        for name in WAVES:
            for masked in (False, True):
                done = partial(_waves, name, masked, exporter)
                shown = f"{name}-masked" if masked else name
                yield Export("transformers", shown, "audio-classification", exporter, done)
        for kind in SPECTRA:
            yield Export("transformers", kind, "audio-classification", exporter, partial(_spectra, kind, exporter))


def main(target: Path) -> None:
    """Export everything; what fails is noted."""
    export_all(target, exports())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
