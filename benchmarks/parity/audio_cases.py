"""Audio classifiers of transformers, and what its pipeline answers: run in the environment of the exporters."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.architectures.export_audio import _WAVES, SPECTRA, WAVES
from benchmarks.architectures.torch_exporters import Chosen, export
from benchmarks.parity.cases import Cases, write_all
from benchmarks.parity.sounds import RATE, sounds
from benchmarks.parity.text_cases import edited, spread

KIND = "sounds"

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def model_of(kind: str, own: dict[str, Any]) -> Any:
    """A model with random weights."""
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**own)
    model = transformers.AutoModelForAudioClassification.from_config(config, attn_implementation="eager").eval()
    spread(model)
    return model


def ask(cases: Cases, model: Any, extractor: Any) -> None:
    """Ask the pipeline."""
    pipe = transformers.pipeline("audio-classification", model=model, feature_extractor=extractor, device="cpu")
    for content, samples in sounds():
        answer = pipe({"raw": samples.copy(), "sampling_rate": RATE}, top_k=None)
        cases.ask({"inputs": base64.b64encode(content).decode()}, answer)


def waves(
    name: str,
    masked: bool,
    folder: Path,
    *,
    keys: dict[str, Any] | None = None,
    change: Callable[[Path], None] | None = None,
    **more: Any,
) -> Cases:
    """A model that reads samples."""
    kind, own = WAVES[name]
    model = model_of(kind, {**_WAVES, **own, **more})
    extractor = transformers.Wav2Vec2FeatureExtractor(**{"return_attention_mask": masked, **(keys or {})})
    model.config.save_pretrained(folder)
    extractor.save_pretrained(folder)
    if change is not None:
        change(folder)
        extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    cases = Cases("audio-classification", "transformers", KIND)
    ask(cases, model, extractor)
    inputs = {"input_values": torch.randn(2, 8_000)}
    if masked:
        inputs["attention_mask"] = torch.ones(2, 8_000, dtype=torch.int64)
    axes = {name: {0: "batch", 1: "samples"} for name in inputs}
    chosen = Chosen(model, list(inputs), {"return_dict": True})
    try:
        export(chosen, inputs, axes, "torchscript", folder)
    except Exception:
        export(chosen, inputs, axes, "dynamo", folder)
    return cases


def spectra(kind: str, keys: dict[str, Any], folder: Path, **more: Any) -> Cases:
    """A model that reads spectrograms."""
    own, _ = SPECTRA[kind]
    if kind == "whisper":
        extractor: Any = transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=1, **keys)
        own = {**own, "max_source_positions": 50}
        shape, name = (20, 100), "input_features"
    else:
        extractor = transformers.ASTFeatureExtractor(num_mel_bins=32, max_length=64, **keys)
        shape, name = (64, 32), "input_values"
    model = model_of(kind, {**own, **more})
    model.config.save_pretrained(folder)
    extractor.save_pretrained(folder)
    cases = Cases("audio-classification", "transformers", KIND)
    ask(cases, model, extractor)
    inputs = {name: torch.randn(2, *shape)}
    export(Chosen(model, [name], {"return_dict": True}), inputs, {name: {0: "batch"}}, "torchscript", folder)
    return cases


def makers() -> Iterator[tuple[str, Callable[[Path], Cases]]]:
    """Every architecture, and what folders say."""
    for name in WAVES:
        for masked in (False, True):
            yield f"{name}{'-masked' if masked else ''}", partial(waves, name, masked)
    yield "wav2vec2-not-normalized", partial(waves, "wav2vec2", False, keys={"do_normalize": False})
    drop = edited("preprocessor_config.json", {}, ("do_normalize", "padding_value", "feature_size"))
    yield "wav2vec2-few-keys", partial(waves, "wav2vec2", False, change=drop)
    drop_class = edited("preprocessor_config.json", {}, ("feature_extractor_type",))
    yield "wav2vec2-no-class", partial(waves, "wav2vec2", False, change=drop_class)
    yield "wav2vec2-one-label", partial(waves, "wav2vec2", False, num_labels=1)
    yield "wav2vec2-regression", partial(waves, "wav2vec2", False, num_labels=1, problem_type="regression")
    yield "wav2vec2-multi-label", partial(waves, "wav2vec2", False, problem_type="multi_label_classification")
    for kind in SPECTRA:
        yield kind, partial(spectra, kind, {})
        yield f"{kind}-other-normalization", partial(spectra, kind, {"do_normalize": kind == "whisper"})


def main(target: Path) -> None:
    """Write everything; what fails is noted."""
    write_all(target, ((f"audio-{name}", make) for name, make in list(makers())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
