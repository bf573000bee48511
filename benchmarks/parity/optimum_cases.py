"""Folders that Optimum exported, and what transformers' pipelines answer: run in Optimum's environment."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers
from optimum.exporters.onnx import onnx_export_from_model
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

from benchmarks.architectures.export_optimum import DECODERS, ENCODERS, MEDIA
from benchmarks.architectures.export_transformers import _SMALL, TEXT
from benchmarks.parity.cases import Cases, write_all
from benchmarks.parity.sounds import RATE, sounds
from benchmarks.parity.texts import CORPUS, PAIRS, TEXTS

KIND = "Optimum's exports"
_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LONGEST = 100
_REFUSED = {"longformer": "global_attention_mask"}
_WITHOUT_TYPES = {"distilbert", "mpnet", "camembert", "data2vec-text", "ibert", "roberta", "xlm-roberta"}
_PICTURES = ((40, 56), (64, 64), (97, 31))

transformers.logging.set_verbosity_error()


def word_pieces() -> Any:
    """BERT's tokenizer."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=170, special_tokens=list(_BERT), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return transformers.BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=_LONGEST)


def byte_pairs() -> Any:
    """GPT-2's tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return transformers.GPT2TokenizerFast(
        tokenizer_object=tokenizer, model_max_length=_LONGEST, pad_token="<|endoftext|>"
    )


def configured(kind: str, tokenizer: Any) -> Any:
    """A small configuration that fits a tokenizer."""
    cls = transformers.CONFIG_MAPPING[kind]
    known = cls()
    values = {**_SMALL, "vocab_size": len(tokenizer) + 2, "max_position_embeddings": 128}
    values |= {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id or 0, "bos_token_id": 0}
    given = {name: value for name, value in values.items() if hasattr(known, name) or name == "num_labels"}
    return cls(**{name: value for name, value in {**given, **TEXT[kind]}.items() if value is not None})


def made(auto: Any, config: Any) -> Any:
    """A model with random weights that are large enough to be seen."""
    torch.manual_seed(0)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    model = auto.from_config(config, attn_implementation="eager").eval()
    model.config.architectures = [type(model).__name__]
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4.0)
    return model


def exported(model: nn.Module, task: str, folder: Path, *preprocessors: Any) -> None:
    """Write the folder as Optimum does."""
    model.config.save_pretrained(folder)
    for each in preprocessors:
        each.save_pretrained(folder)
    onnx_export_from_model(model, folder, task=task, do_validation=False)
    model.eval()


def classified(kind: str, folder: Path) -> Cases:
    """A text classifier."""
    tokenizer = word_pieces() if kind in ENCODERS else byte_pairs()
    if kind in _WITHOUT_TYPES:
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    model = made(transformers.AutoModelForSequenceClassification, configured(kind, tokenizer))
    exported(model, "text-classification", folder, tokenizer)
    cases = Cases("text-classification", "optimum", KIND, refused=_REFUSED.get(kind, ""))
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    given = {"top_k": None, "truncation": True, "max_length": _LONGEST}
    texts = [text for text in TEXTS if text or kind in ENCODERS]
    answers = [pipe(text, **given) for text in texts]
    for text, answer in zip(texts, answers, strict=True):
        cases.ask({"inputs": text}, answer)
    cases.ask({"inputs": texts}, answers)
    for first, second in PAIRS if kind in ENCODERS else ():
        pair = {"text": first, "text_pair": second}
        cases.ask({"inputs": pair}, pipe(pair, **given))
    return cases


def embedded(kind: str, folder: Path) -> Cases:
    """A model of vectors, whose tokens are pooled by their mean, as sentence-transformers does by default."""
    tokenizer = word_pieces() if kind in ENCODERS else byte_pairs()
    model = made(transformers.AutoModel, configured(kind, tokenizer))
    exported(model, "feature-extraction", folder, tokenizer)
    cases = Cases("feature-extraction", "optimum", KIND, refused=_REFUSED.get(kind, ""))
    taken = {each.name for each in onnx.load(folder / "model.onnx").graph.input}
    vectors = []
    texts = [text for text in TEXTS if text]
    for text in texts:
        given = tokenizer(text, return_tensors="pt", truncation=True, max_length=_LONGEST)
        given = {name: value for name, value in given.items() if name in taken}
        with torch.no_grad():
            found = model(**given).last_hidden_state.mean(dim=1)
        vectors.append(found[0].tolist())
        cases.ask({"inputs": text}, found.tolist())
    cases.ask({"inputs": texts}, vectors)
    return cases


def media(kind: str, folder: Path) -> Cases:
    """A model of pictures or sounds."""
    task, own = MEDIA[kind]
    config = transformers.CONFIG_MAPPING[kind](num_labels=3, **own)
    if task == "image-classification":
        model = made(transformers.AutoModelForImageClassification, config)
        cls = transformers.IMAGE_PROCESSOR_MAPPING[type(config)][0] or transformers.DeiTImageProcessor
        size = own.get("image_size", 32)
        sizes = {"size": {"shortest_edge": size}} if kind in {"convnext", "regnet", "resnet", "mobilenet_v2"} else {
            "size": {"height": size, "width": size}}  # fmt: skip
        extractor = cls(**sizes, **({"crop_size": {"height": size, "width": size}} if kind == "mobilenet_v2" else {}))
        exported(model, task, folder, extractor)
        cases = Cases(task, "optimum", KIND, tolerance=2e-3)
        pipe = transformers.pipeline(task, model=model, image_processor=extractor, device="cpu")
        random = np.random.default_rng(0)
        for width, height in _PICTURES:
            across = np.linspace(0, 255, width)[None, :, None]
            down = np.linspace(0, 255, height)[:, None, None]
            pixels = (across + down) / 2 * np.array([1.0, 0.6, 0.3]) + random.integers(0, 40, (height, width, 3))
            picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            file = io.BytesIO()
            picture.save(file, "PNG")
            cases.ask({"inputs": base64.b64encode(file.getvalue()).decode()}, pipe(picture, top_k=5))
        return cases
    model = made(transformers.AutoModelForAudioClassification, config)
    extractor = transformers.Wav2Vec2FeatureExtractor()
    exported(model, task, folder, extractor)
    cases = Cases(task, "optimum", KIND)
    pipe = transformers.pipeline(task, model=model, feature_extractor=extractor, device="cpu")
    for content, samples in sounds():
        answer = pipe({"raw": samples.copy(), "sampling_rate": RATE}, top_k=3)
        cases.ask({"inputs": base64.b64encode(content).decode()}, answer)
    return cases


def makers() -> Iterator[tuple[str, Callable[[Path], Cases]]]:
    """Every architecture with its tasks."""
    for kind in (*ENCODERS, *DECODERS):
        yield f"{kind}-classification", partial(classified, kind)
        yield f"{kind}-embedding", partial(embedded, kind)
    for kind in MEDIA:
        yield kind, partial(media, kind)


def main(target: Path) -> None:
    """Write everything; what fails is noted."""
    write_all(target, ((f"optimum-{name}", make) for name, make in makers()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
