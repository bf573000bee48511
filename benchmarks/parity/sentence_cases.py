"""Folders of sentence-transformers, and the vectors it makes: run in the environment of the exporters."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling
from torch import nn

from benchmarks.architectures.export_transformers import TEXT
from benchmarks.architectures.torch_exporters import Chosen, export
from benchmarks.parity.cases import Cases, write_all
from benchmarks.parity.faithful import check_export
from benchmarks.parity.text_cases import configured, sample, spread
from benchmarks.parity.texts import TEXTS
from benchmarks.parity.tokenizers_made import class_of, tokenizer_of

KIND = "sentence embeddings"
_NAMES = ("input_ids", "attention_mask", "token_type_ids")
_WIDTH = 32
_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_TEXTS = [text for text in TEXTS if text]

Change = Callable[[Path], None]


def transformer_of(kind: str, folder: Path, keys: dict[str, Any] | None = None, **own: Any) -> Any:
    """Save a transformer with random weights, and read it as a module."""
    tokenizer = tokenizer_of(class_of(kind), **(keys or {}))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(configured(kind, tokenizer, **own), attn_implementation="eager")
    spread(model)
    if kind in {"t5", "mt5"}:
        model.config.architectures = ["T5EncoderModel"]
    model.save_pretrained(folder / "saved")
    tokenizer.save_pretrained(folder / "saved")
    return Transformer(str(folder / "saved"), model_kwargs={"attn_implementation": "eager"})


def linear(made: Any, factor: float = 3.0) -> Any:
    """A module whose weights are large enough to be seen."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn_like(weight) / factor)
    return made


def written(
    folder: Path,
    transformer: Any,
    modules: Sequence[nn.Module],
    change: Change | None = None,
    prompts: Sequence[str] = (),
    more_prompts: dict[str, str] | None = None,
    **more: Any,
) -> Cases:
    """Save the chain with the transformer's graph, and ask it."""
    model = SentenceTransformer(modules=[transformer, *modules], device="cpu", prompts=more_prompts, **more).eval()
    model.save_pretrained(str(folder), create_model_card=False)
    if change is not None:
        change(folder)
        model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"attn_implementation": "eager"}).eval()
    inner = model[0].auto_model
    inputs = sample(model.tokenizer, _NAMES)
    taken = inspect.signature(inner.forward).parameters
    inputs = {name: value for name, value in inputs.items() if name in taken}
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    outputs = {"last_hidden_state": {0: "batch", 1: "sequence"}}
    chosen = Chosen(inner, list(inputs), {"return_dict": True})
    examples = [sample(model.tokenizer, tuple(inputs), text) for text in (TEXTS[0], TEXTS[1], TEXTS[8])]
    try:
        export(chosen, inputs, axes, "torchscript", folder, outputs)
        check_export(chosen, examples, folder)
    except Exception:
        export(chosen, inputs, axes, "dynamo", folder, outputs)
        check_export(chosen, examples, folder)
    cases = Cases("feature-extraction", "sentence-transformers", KIND)
    for text in _TEXTS:
        cases.ask({"inputs": text}, model.encode([text]).tolist())
    cases.ask({"inputs": _TEXTS}, [model.encode([text])[0].tolist() for text in _TEXTS])
    for name in prompts:
        parameters = {"prompt_name": name}
        for text in _TEXTS[:4]:
            cases.ask({"inputs": text, "parameters": parameters}, model.encode([text], prompt_name=name).tolist())
    shutil.rmtree(folder / "saved", ignore_errors=True)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    return cases


def chain(
    make: Callable[[], Sequence[nn.Module]],
    folder: Path,
    *,
    kind: str = "bert",
    change: Change | None = None,
    keys: dict[str, Any] | None = None,
    own: dict[str, Any] | None = None,
    **more: Any,
) -> Cases:
    """A chain of modules."""
    return written(folder, transformer_of(kind, folder, keys, **(own or {})), make(), change, **more)


def pooled(mode: Any, *modules: Callable[[], nn.Module], include_prompt: bool = True) -> Callable[[], list[nn.Module]]:
    """What makes a chain that begins with pooling."""
    return lambda: [Pooling(_WIDTH, mode, include_prompt=include_prompt), *(make() for make in modules)]


def old_pooling(**switches: bool) -> Change:
    """The configuration of pooling as older releases wrote it."""

    def change(folder: Path) -> None:
        config = {"word_embedding_dimension": _WIDTH, "pooling_mode_cls_token": False, **switches}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))

    return change


def old_layout(folder: Path) -> None:
    """The transformer in a folder of its own, and the names of classes, as older releases wrote them."""
    inner = folder / "0_Transformer"
    inner.mkdir()
    for file in [
        *folder.glob("*.safetensors"),
        *folder.glob("token*"),
        folder / "config.json",
        folder / "sentence_bert_config.json",
    ]:
        shutil.move(file, inner / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    for module in modules:
        module["type"] = "sentence_transformers.models." + module["type"].rpartition(".")[2]
    (folder / "modules.json").write_text(json.dumps(modules))
    (inner / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20, "do_lower_case": False}))


def said(keys: dict[str, Any]) -> Change:
    """Say something in sentence_bert_config.json, as older releases did."""

    def change(folder: Path) -> None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(keys))

    return change


def renamed(folder: Path) -> None:
    """Another name for the folder of pooling."""
    (folder / "1_Pooling").rename(folder / "pool")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = "pool"
    (folder / "modules.json").write_text(json.dumps(modules))


def no_length(folder: Path) -> None:
    """A tokenizer without a longest text."""
    path = folder / "tokenizer_config.json"
    found = json.loads(path.read_text())
    found["model_max_length"] = int(1e30)
    path.write_text(json.dumps(found))


def makers() -> Iterator[tuple[str, Callable[[Path], Cases]]]:
    """Every module and setting."""

    def dense(width: int = 12, function: Any = None, **more: Any) -> Callable[[], nn.Module]:
        return lambda: linear(Dense(_WIDTH, width, activation_function=function or nn.Tanh(), **more))

    for mode in _MODES:
        yield mode, partial(chain, pooled(mode))
        yield f"{mode}-normalize", partial(chain, pooled(mode, Normalize))
        yield f"{mode}-roberta", partial(chain, pooled(mode), kind="roberta")
        yield f"{mode}-prompt-left-out", partial(
            chain, pooled(mode, include_prompt=False), prompts=("query", "passage"),
            more_prompts={"query": "the dog: ", "passage": "walk "},
        )  # fmt: skip
    for modes in (("cls", "mean"), ("mean", "max"), _MODES):
        yield "-and-".join(modes), partial(chain, pooled(modes))
    for name, function in {"tanh": nn.Tanh(), "identity": nn.Identity(), "relu": nn.ReLU(), "gelu": nn.GELU(),
                           "sigmoid": nn.Sigmoid(), "silu": nn.SiLU()}.items():  # fmt: skip
        yield f"dense-{name}", partial(chain, pooled("mean", dense(function=function)))
    yield "dense-no-bias", partial(chain, pooled("mean", dense(bias=False)))
    yield "dense-residual", partial(chain, pooled("mean", dense(use_residual=True)))
    yield "dense-residual-square", partial(chain, pooled("mean", dense(_WIDTH, use_residual=True)))
    yield "dense-normalize", partial(chain, pooled("cls", dense(), Normalize))
    yield "dense-twice", partial(chain, pooled("mean", dense(_WIDTH), dense()))
    yield "normalize-dense", partial(chain, pooled("mean", Normalize, dense()))
    yield "layer-norm", partial(chain, pooled("mean", lambda: linear(LayerNorm(_WIDTH))))
    yield "dropout", partial(chain, pooled("mean", lambda: Dropout(0.5)))
    yield "default-prompt", partial(chain, pooled("mean"), prompts=("query", "passage"), default_prompt_name="query",
                                    more_prompts={"query": "the dog ", "passage": ""})  # fmt: skip
    yield "old-mean", partial(chain, pooled("mean"), change=old_pooling(pooling_mode_mean_tokens=True))
    yield "old-cls", partial(chain, pooled("cls"), change=old_pooling(pooling_mode_cls_token=True))
    yield (
        "old-max-mean",
        partial(chain, pooled("mean"), change=old_pooling(pooling_mode_max_tokens=True, pooling_mode_mean_tokens=True)),
    )
    yield "old-layout", partial(chain, pooled("mean", dense()), change=old_layout)
    yield "pooling-renamed", partial(chain, pooled("cls"), change=renamed)
    yield "max-seq-length", partial(chain, pooled("mean"), change=said({"max_seq_length": 12, "do_lower_case": False}))
    yield "lower-case", partial(chain, pooled("mean"), keys={"do_lower_case": False},
                                change=said({"max_seq_length": 64, "do_lower_case": True}))  # fmt: skip
    yield "null-length", partial(chain, pooled("mean"), change=said({"max_seq_length": None, "do_lower_case": False}))
    yield "positions-only", partial(chain, pooled("mean"), change=no_length)
    for kind in TEXT:
        yield f"architecture-{kind}", partial(chain, pooled("mean"), kind=kind)
    for kind in ("qwen3", "llama", "gpt2"):
        yield f"last-{kind}", partial(chain, pooled("lasttoken", Normalize), kind=kind)


def main(target: Path) -> None:
    """Write everything; what fails is noted."""
    write_all(target, ((f"sentence-{name}", make) for name, make in makers()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
