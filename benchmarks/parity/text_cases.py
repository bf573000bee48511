"""Text classifiers of transformers, and what its pipeline answers: run in the environment of the exporters."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from benchmarks.architectures.export_transformers import _SMALL, TEXT
from benchmarks.architectures.torch_exporters import Chosen, export
from benchmarks.parity.cases import Cases, write_all
from benchmarks.parity.faithful import check_export
from benchmarks.parity.texts import PAIRS, TEXTS
from benchmarks.parity.tokenizers_made import class_of, tokenizer_of

KIND = "text classification"
_NAMES = ("input_ids", "attention_mask", "token_type_ids")
_LONGEST = 100
_STARTS_WITH_PADDING = {"t5", "mt5", "umt5"}
_MOST_WEIGHTS = 2_000_000

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Ended(nn.Module):
    """A classifier that applies softmax by itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, **given: torch.Tensor) -> Any:
        """Scores instead of logits."""
        return {"logits": self.inner(**given, return_dict=True).logits.softmax(-1)}


def configured(kind: str, tokenizer: Any, **own: Any) -> Any:
    """A small configuration of an architecture that fits a tokenizer."""
    cls = transformers.CONFIG_MAPPING[kind]
    known = cls()
    values = {**_SMALL, "vocab_size": len(tokenizer) + 2, "max_position_embeddings": 128}
    for name in ("pad", "bos", "eos", "sep", "cls"):
        token = getattr(tokenizer, f"{name}_token_id", None)
        values[f"{name}_token_id"] = 0 if token is None and name == "pad" else token
    given = {name: value for name, value in values.items() if hasattr(known, name) or name == "num_labels"}
    if kind in _STARTS_WITH_PADDING:
        given["decoder_start_token_id"] = given["pad_token_id"]
    given = {**given, **TEXT.get(kind, {}), **own}
    return cls(**{name: value for name, value in given.items() if value is not None or name.endswith("_token_id")})


def classifier(config: Any) -> Any:
    """A model with random weights that answer differently to different texts."""
    torch.manual_seed(0)
    auto = transformers.AutoModelForSequenceClassification
    if hasattr(config, "use_cache"):
        config.use_cache = False
    with torch.device("meta"):
        size = sum(weight.numel() for weight in auto.from_config(config).parameters())
    if size > _MOST_WEIGHTS:
        raise ValueError(f"no small configuration is known: {size:,} weights")
    model = auto.from_config(config, attn_implementation="eager").eval()
    spread(model)
    return model


def spread(model: nn.Module) -> None:
    """Make random weights larger, so that a fault is seen in the answer."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4.0)


def export_text(model: nn.Module, tokenizer: Any, folder: Path, names: tuple[str, ...] = _NAMES) -> None:
    """Write the model with those inputs that its tokenizer makes."""
    inputs = sample(tokenizer, names)
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    options = {} if isinstance(model, Ended) else {"return_dict": True}
    chosen = Chosen(model, list(inputs), options)
    examples = [sample(tokenizer, names, text) for text in (TEXTS[0], TEXTS[1], TEXTS[7])]
    try:
        export(chosen, inputs, axes, "torchscript", folder)
        check_export(chosen, examples, folder)
    except Exception:
        export(chosen, inputs, axes, "dynamo", folder)
        check_export(chosen, examples, folder)


def sample(tokenizer: Any, names: tuple[str, ...], text: str = "the cat sat on the mat") -> dict[str, torch.Tensor]:
    """Two rows of a text, as an exporter wants them."""
    longest = min(tokenizer.model_max_length, _LONGEST)
    given = tokenizer(text, return_tensors="pt", truncation=True, max_length=longest)
    return {name: given[name].repeat(2, 1) for name in names if name in given}


def ask(cases: Cases, model: Any, tokenizer: Any, *, pairs: bool = True, together: bool = True) -> None:
    """Ask the library's pipeline; texts alone, all together, and pairs."""
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    options = {"top_k": None, "truncation": True, "max_length": min(tokenizer.model_max_length, _LONGEST)}
    alone = []
    for text in TEXTS:
        try:
            answer = pipe(text, **options)
        except Exception:  # the library answers none either, e.g. to an empty text without tokens
            continue
        alone.append((text, answer))
        cases.ask({"inputs": text}, answer)
    if together:
        cases.ask({"inputs": [text for text, _ in alone]}, [answer for _, answer in alone])
    if pairs:
        both = [({"text": first, "text_pair": second}) for first, second in PAIRS]
        answers = [pipe(pair, **options) for pair in both]
        for pair, answer in zip(both, answers, strict=True):
            cases.ask({"inputs": pair}, answer)
        cases.ask({"inputs": both}, answers)


def architecture(kind: str, folder: Path) -> Cases:
    """One architecture with its own tokenizer."""
    tokenizer = tokenizer_of(class_of(kind))
    model = classifier(configured(kind, tokenizer))
    return saved(model, tokenizer, folder)


def saved(model: Any, tokenizer: Any, folder: Path, names: tuple[str, ...] = _NAMES, *, pairs: bool = True) -> Cases:
    """Save and ask a model and its tokenizer."""
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    export_text(model, tokenizer, folder, names)
    cases = Cases("text-classification", "transformers", KIND)
    ask(cases, model, tokenizer, pairs=pairs)
    return cases


def bert(folder: Path, *, keys: dict[str, Any] | None = None, **own: Any) -> Cases:
    """BERT with other keys of its tokenizer or configuration."""
    tokenizer = tokenizer_of(transformers.BertTokenizer, **(keys or {}))
    return saved(classifier(configured("bert", tokenizer, **own)), tokenizer, folder)


def with_softmax(folder: Path) -> Cases:
    """A graph that applies softmax by itself: the library's scores are its output."""
    tokenizer = tokenizer_of(transformers.BertTokenizer)
    model = classifier(configured("bert", tokenizer))

    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    export_text(Ended(model), tokenizer, folder)
    cases = Cases("text-classification", "transformers", KIND)
    ask(cases, model, tokenizer)
    return cases


def cross_encoder(activation: str, labels: int, folder: Path) -> Cases:
    """A cross-encoder of sentence-transformers; it answers scores without labels."""
    tokenizer = tokenizer_of(transformers.BertTokenizer)
    model = classifier(configured("bert", tokenizer, num_labels=labels))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    module, _, name = activation.rpartition(".")
    function = getattr(importlib.import_module(module), name)()
    encoder = sentence_transformers.CrossEncoder(str(folder), activation_fn=function, device="cpu")
    encoder.save_pretrained(str(folder))
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    export_text(model, tokenizer, folder)
    cases = Cases("text-classification", "sentence-transformers", KIND)
    scores = encoder.predict([list(pair) for pair in PAIRS])
    for (first, second), score in zip(PAIRS, scores, strict=True):
        values = [float(score)] if labels == 1 else [float(value) for value in score]
        answer = [{"label": f"LABEL_{number}", "score": value} for number, value in enumerate(values)]
        cases.ask({"inputs": {"text": first, "text_pair": second}}, sorted(answer, key=lambda each: -each["score"]))
    return cases


def without_mask(folder: Path) -> Cases:
    """A graph that takes token ids only, so that padding would be text."""
    tokenizer = tokenizer_of(transformers.BertTokenizer)
    model = classifier(configured("bert", tokenizer))
    return saved(model, tokenizer, folder, ("input_ids",), pairs=False)


def pad_in_config(folder: Path) -> Cases:
    """A decoder that finds the last token by the padding token of config.json, of which the tokenizer does not know."""
    tokenizer = tokenizer_of(transformers.LlamaTokenizer)
    model = classifier(configured("llama", tokenizer, pad_token_id=len(tokenizer) + 1))
    return saved(model, tokenizer, folder)


def with_position_ids(folder: Path) -> Cases:
    """A decoder whose graph takes positions, as optimum exports it."""
    tokenizer = tokenizer_of(transformers.GPT2Tokenizer)
    model = classifier(configured("gpt2", tokenizer, pad_token_id=tokenizer.eos_token_id))
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ids = sample(tokenizer, _NAMES)["input_ids"]
    places = torch.arange(ids.shape[1]).repeat(2, 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": places}
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    export(Chosen(model, list(inputs), {"return_dict": True}), inputs, axes, "torchscript", folder)
    cases = Cases("text-classification", "transformers", KIND)
    ask(cases, model, tokenizer)
    return cases


def zero_shot(folder: Path) -> Cases:
    """A classifier of pairs, asked for labels of the client's."""
    tokenizer = tokenizer_of(transformers.BertTokenizer)
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    config = configured("bert", tokenizer, id2label=labels, label2id={name: place for place, name in labels.items()})
    model = classifier(config)
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    export_text(model, tokenizer, folder)
    cases = Cases("zero-shot-classification", "transformers", "zero-shot classification")
    pipe = transformers.pipeline("zero-shot-classification", model=model, tokenizer=tokenizer, device="cpu")
    for text in [text for text in TEXTS if text and len(text) < 300]:
        for more in ({}, {"multi_label": True}, {"hypothesis_template": "It is {}."}):
            given = {"candidate_labels": ["a walk", "a dog", "servers"], **more}
            found = pipe(text, **given)
            answer = [
                {"label": label, "score": score} for label, score in zip(found["labels"], found["scores"], strict=True)
            ]
            cases.ask({"inputs": text, "parameters": given}, answer)
    return cases


def edited(file: str, keys: dict[str, Any], drop: tuple[str, ...] = ()) -> Callable[[Path], None]:
    """Edit a JSON file of a folder."""

    def change(folder: Path) -> None:
        path = folder / file
        found = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({name: value for name, value in {**found, **keys}.items() if name not in drop}))

    return change


def reloaded(kind: str, cls: Any, change: Callable[[Path], None], folder: Path) -> Cases:
    """A folder that was edited by hand, asked as the library reads it again."""
    tokenizer = tokenizer_of(cls)
    model = classifier(configured(kind, tokenizer))
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    export_text(model, tokenizer, folder)
    change(folder)
    cases = Cases("text-classification", "transformers", KIND)
    ask(cases, model, transformers.AutoTokenizer.from_pretrained(folder))
    return cases


def contradicting(reason: str, cls: Any, folder: Path, *, folder_says: dict[str, Any], kind: str) -> Cases:
    """A folder that is to be refused."""
    tokenizer = tokenizer_of(cls)
    model = classifier(configured(kind, tokenizer))
    cases = saved(model, tokenizer, folder)
    edited("tokenizer_config.json", folder_says)(folder)
    cases.refused = reason
    return cases


def only_vocabulary(folder: Path) -> None:
    """Leave BERT's vocabulary instead of tokenizer.json."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    lines = sorted(vocabulary, key=vocabulary.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").unlink()


def left_over(folder: Path) -> None:
    """Leave a truncation in tokenizer.json, as a tokenizer does that was saved after it was used."""
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text())
    state["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(state))


def variants() -> Iterator[tuple[str, Callable[[Path], Cases]]]:
    """What folders say beside the usual."""
    config = "tokenizer_config.json"
    yield "bert-one-label", partial(bert, num_labels=1)
    yield "bert-regression", partial(bert, num_labels=1, problem_type="regression")
    yield "bert-regression-3", partial(bert, problem_type="regression")
    yield "bert-multi-label", partial(bert, problem_type="multi_label_classification")
    yield "bert-single-label", partial(bert, problem_type="single_label_classification")
    yield "bert-ends-in-softmax", with_softmax
    yield "bert-cased", partial(bert, keys={"do_lower_case": False})
    yield "bert-accents", partial(bert, keys={"strip_accents": False})
    yield "bert-chinese", partial(bert, keys={"tokenize_chinese_chars": False})
    yield "bert-left-truncation", partial(bert, keys={"truncation_side": "left"})
    yield "bert-short-positions", partial(bert, keys={"model_max_length": 24}, max_position_embeddings=24)
    yield "bert-without-mask", without_mask
    edits: dict[str, tuple[str, Any, Callable[[Path], None]]] = {
        "bert-lower-by-hand": ("bert", transformers.BertTokenizer, edited(config, {"do_lower_case": False})),
        "bert-few-keys": ("bert", transformers.BertTokenizer, edited(config, {}, ("do_lower_case", "strip_accents"))),
        "bert-no-class": ("bert", transformers.BertTokenizer, edited(config, {}, ("tokenizer_class",))),
        "bert-vocabulary": ("bert", transformers.BertTokenizer, only_vocabulary),
        "bert-left-over": ("bert", transformers.BertTokenizer, left_over),
        "bert-pad-in-map": ("bert", transformers.BertTokenizer, _pad_in_map),
        "llama-none": ("llama", transformers.LlamaTokenizer, edited(config, {"add_bos_token": False})),
        "roberta-prefix": ("roberta", transformers.RobertaTokenizer, edited(config, {"add_prefix_space": True})),
        "bert-split-special": ("bert", transformers.BertTokenizer, edited(config, {"split_special_tokens": True})),
    }
    for name, (kind, cls, change) in edits.items():
        yield name, partial(reloaded, kind, cls, change)
    for name, kind, cls, keys, reason in (
        ("llama-eos", "llama", transformers.LlamaTokenizer, {"add_eos_token": True}, "add_eos_token: True, but"),
        ("albert-case", "albert", transformers.AlbertTokenizer, {"do_lower_case": False}, "do_lower_case: False, but"),
        ("bert-unknown-key", "bert", transformers.BertTokenizer, {"new_key": 1}, "new_key: not understood"),
    ):
        yield f"{name}-refused", partial(contradicting, reason, cls, kind=kind, folder_says=keys)
    yield "llama-pad-in-config", pad_in_config
    yield "gpt2-positions", with_position_ids
    yield "cross-encoder-identity", partial(cross_encoder, "torch.nn.Identity", 1)
    yield "cross-encoder-sigmoid", partial(cross_encoder, "torch.nn.Sigmoid", 1)
    yield "cross-encoder-three", partial(cross_encoder, "torch.nn.Identity", 3)
    yield "bert-zero-shot", zero_shot


def _pad_in_map(folder: Path) -> None:
    edited("special_tokens_map.json", {"pad_token": "[PAD]"})(folder)
    edited("tokenizer_config.json", {}, ("pad_token",))(folder)


def makers() -> Iterator[tuple[str, Callable[[Path], Cases]]]:
    """Every architecture with this head, and the variants."""
    for name, make in variants():
        yield f"text-{name}", make
    for kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        yield f"text-architecture-{kind}", partial(architecture, kind)


def main(target: Path) -> None:
    """Write everything; what fails is noted."""
    write_all(target, makers())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
